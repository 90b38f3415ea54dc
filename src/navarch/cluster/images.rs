//! The images a cluster needs, made from this machine's files: no registry is asked.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::oci::{self, Image};
use super::{Context, Error, Layout, Result};

/// Version of the project, as tags have it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The one binary's image.
pub fn navarch() -> String {
    format!("localhost/navarch:{VERSION}")
}

/// etcd's image.
pub const ETCD: &str = "localhost/etcd:debian";
/// The sandbox's image.
pub const PAUSE: &str = "localhost/pause:3.10";
/// A shell with the usual programs, for tests and for a look around.
pub const BUSYBOX: &str = "localhost/busybox:debian";

/// Looks a program up on the PATH and where Debian keeps those of root.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(extra).map(|dir| dir.join(program)).find(|p| p.is_file())
}

/// The same, for programs that must be there.
///
/// # Errors
/// When it is nowhere.
pub fn need(program: &str) -> Result<PathBuf> {
    find(program).ok_or_else(|| Error::new(format!("looking for {program}"), "it is not installed"))
}

/// Shared libraries that a program loads, the loader included.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("running ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = text.lines().filter_map(|line| {
        let path = line.split("=>").last()?.split_whitespace().next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    });
    Ok(paths.collect())
}

impl Image {
    fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            directories: vec![("tmp".into(), 0o1777), ("etc".into(), 0o755)],
            env: vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()],
            ..Self::default()
        }
    }

    /// Adds a program and all it loads.
    fn program(&mut self, from: &Path, to: &str) -> Result<()> {
        self.add(from, to, 0o755)?;
        for library in libraries(from)? {
            let inside = library.to_string_lossy().trim_start_matches('/').to_string();
            if !self.files.iter().any(|(path, ..)| *path == inside) {
                self.add(&library, &inside, 0o755)?;
            }
        }
        Ok(())
    }
}

fn navarch_image() -> Result<Image> {
    let mut image = Image::named(&navarch());
    let me = std::env::current_exe().context("finding this program")?;
    image.program(&me, "usr/local/bin/navarch")?;
    if let Some(path) = find("nft") {
        image.program(&path, "usr/sbin/nft")?;
    }
    for (name, _) in crate::COMPONENTS {
        image.links.push((format!("usr/local/bin/{name}"), "navarch".into()));
    }
    image.entrypoint = vec!["navarch".into()];
    Ok(image)
}

fn etcd_image() -> Result<Image> {
    let mut image = Image::named(ETCD);
    image.program(&need("etcd")?, "usr/local/bin/etcd")?;
    image.program(&need("etcdctl")?, "usr/local/bin/etcdctl")?;
    image.entrypoint = vec!["etcd".into()];
    Ok(image)
}

fn pause_image() -> Result<Image> {
    let me = std::env::current_exe().context("finding this program")?;
    let mut image = Image::named(PAUSE);
    image.program(&me.with_file_name("pause"), "pause")?;
    image.entrypoint = vec!["/pause".into()];
    image.user = "65535:65535".into();
    Ok(image)
}

fn busybox_image() -> Result<Image> {
    let busybox = need("busybox")?;
    let mut image = Image::named(BUSYBOX);
    image.program(&busybox, "bin/busybox")?;
    let list = Command::new(&busybox).arg("--list").output().context("asking busybox for its programs")?;
    for program in String::from_utf8_lossy(&list.stdout).lines().filter(|p| *p != "busybox") {
        image.links.push((format!("bin/{program}"), "busybox".into()));
    }
    image.files.push((
        "etc/passwd".into(),
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n".to_vec(),
        0o644,
    ));
    image.files.push(("etc/group".into(), b"root:x:0:\nnogroup:x:65534:\n".to_vec(), 0o644));
    image.directories.extend([("root".into(), 0o700), ("www".into(), 0o755), ("var".into(), 0o755)]);
    image.entrypoint = vec![];
    Ok(image)
}

/// containerd's own client, pointed at our containerd.
pub fn ctr(layout: &Layout) -> Result<Command> {
    let mut command = Command::new(need("ctr")?);
    command.arg("--address").arg(layout.containerd_socket()).args(["--namespace", "k8s.io"]);
    Ok(command)
}

/// Names and digests of what containerd has.
fn present(layout: &Layout) -> Result<String> {
    let output = ctr(layout)?.args(["images", "list"]).output().context("listing images")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// An image as containerd has it now.
#[derive(Debug, Clone)]
pub struct Imported {
    /// Name with tag.
    pub name: String,
    /// Digest of its manifest.
    pub digest: String,
    /// It was not there before.
    pub new: bool,
}

/// Makes all images and imports those that containerd lacks or has in another version.
///
/// # Errors
/// When a file is missing or containerd refuses.
pub fn ensure(layout: &Layout) -> Result<Vec<Imported>> {
    let present = present(layout)?;
    let makers = [navarch_image, etcd_image, pause_image, busybox_image];
    makers.into_iter().map(|make| import(layout, &make()?, &present)).collect()
}

fn import(layout: &Layout, image: &Image, present: &str) -> Result<Imported> {
    let (archive, digest) = image.archive()?;
    let has = |line: &str| line.starts_with(&format!("{} ", image.name)) && line.contains(&digest);
    let new = !present.lines().any(has);
    if new {
        let mut import = ctr(layout)?;
        import.args(["images", "import", "-"]);
        oci::pipe(&mut import, &archive).context(format!("importing {}", image.name))?;
    }
    Ok(Imported { name: image.name.clone(), digest, new })
}
