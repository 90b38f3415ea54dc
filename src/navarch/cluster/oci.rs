//! Container images made from files: one layer, one config, an OCI layout in a tar that containerd imports.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Context, Result};

/// What an image holds.
#[derive(Debug, Default)]
pub struct Image {
    /// Full name with tag, for example `localhost/pause:3.10`.
    pub name: String,
    /// Files: path inside, content, mode.
    pub files: Vec<(String, Vec<u8>, u32)>,
    /// Symbolic links: path inside, target.
    pub links: Vec<(String, String)>,
    /// Directories: path inside, mode.
    pub directories: Vec<(String, u32)>,
    /// What runs when the container says nothing.
    pub entrypoint: Vec<String>,
    /// `PATH` and other variables.
    pub env: Vec<String>,
    /// User to run as, empty for root.
    pub user: String,
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

fn header(path: &str, size: u64, mode: u32, kind: tar::EntryType) -> Result<tar::Header> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    // The same content must give the same digest, whenever it is made.
    header.set_mtime(0);
    header.set_path(path).context(format!("naming {path} in an image"))?;
    Ok(header)
}

impl Image {
    fn layer(&self) -> Result<Vec<u8>> {
        let what = "packing an image's layer";
        let mut out = tar::Builder::new(Vec::new());
        for (path, mode) in &self.directories {
            let mut header = header(&format!("{}/", path.trim_end_matches('/')), 0, *mode, tar::EntryType::Directory)?;
            header.set_cksum();
            out.append(&header, std::io::empty()).context(what)?;
        }
        for (path, content, mode) in &self.files {
            let mut header = header(path, content.len() as u64, *mode, tar::EntryType::Regular)?;
            header.set_cksum();
            out.append(&header, content.as_slice()).context(what)?;
        }
        for (path, target) in &self.links {
            let mut header = header(path, 0, 0o777, tar::EntryType::Symlink)?;
            header.set_link_name(target).context(what)?;
            header.set_cksum();
            out.append(&header, std::io::empty()).context(what)?;
        }
        out.into_inner().context(what)
    }

    fn config(&self, layer: &str) -> Value {
        json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": self.env,
                "User": self.user,
                // Images with equal content still need configs of their own, else they share one ID.
                "Labels": {"org.opencontainers.image.ref.name": self.name},
            },
            "rootfs": {"type": "layers", "diff_ids": [layer]},
        })
    }

    /// The image as an OCI layout in a tar, and the digest of its manifest.
    ///
    /// # Errors
    /// When a path does not fit into a tar.
    pub fn archive(&self) -> Result<(Vec<u8>, String)> {
        let what = "packing an image";
        let layer = self.layer()?;
        let layer_digest = digest(&layer);
        let config = self.config(&layer_digest).to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&config), "size": config.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer_digest, "size": layer.len()}],
        })
        .to_string()
        .into_bytes();
        let manifest_digest = digest(&manifest);
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": manifest_digest,
                "size": manifest.len(),
                "annotations": {
                    "io.containerd.image.name": self.name,
                    "org.opencontainers.image.ref.name": self.name.rsplit(':').next().unwrap_or("latest"),
                },
            }],
        })
        .to_string()
        .into_bytes();
        let mut out = tar::Builder::new(Vec::new());
        let mut add = |path: &str, content: &[u8]| -> Result<()> {
            let mut header = header(path, content.len() as u64, 0o644, tar::EntryType::Regular)?;
            header.set_cksum();
            out.append(&header, content).context(what)
        };
        add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add("index.json", &index)?;
        for blob in [&layer, &config, &manifest] {
            add(&format!("blobs/sha256/{}", &digest(blob)["sha256:".len()..]), blob)?;
        }
        Ok((out.into_inner().context(what)?, manifest_digest))
    }

    /// Adds a file of this machine under a path inside the image.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn add(&mut self, from: &Path, to: &str, mode: u32) -> Result<()> {
        let content = std::fs::read(from).context(format!("reading {}", from.display()))?;
        self.files.push((to.trim_start_matches('/').to_string(), content, mode));
        Ok(())
    }
}

/// Writes bytes to a program's standard input.
///
/// # Errors
/// When the program can't be run or fails; its last words are the reason.
pub fn pipe(command: &mut std::process::Command, input: &[u8]) -> Result<()> {
    use std::process::Stdio;
    let what = format!("running {}", command.get_program().to_string_lossy());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context(&what)?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // A program that ends early says why on its standard error, which matters more than our broken pipe.
    let sent = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().context(&what)?;
    if output.status.success() {
        return sent.context(&what);
    }
    Err(super::Error::new(what, String::from_utf8_lossy(&output.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_content_gives_equal_digests_and_another_name_another_id() {
        let image = |name: &str| Image {
            name: name.into(),
            files: vec![("bin/x".into(), b"x".to_vec(), 0o755)],
            ..Image::default()
        };
        let (one, again, other) = (image("a:1").archive(), image("a:1").archive(), image("b:1").archive());
        assert_eq!(one.as_ref().unwrap().1, again.unwrap().1);
        assert_ne!(one.unwrap().1, other.unwrap().1);
    }
}
