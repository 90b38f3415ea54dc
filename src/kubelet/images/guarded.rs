//! Which images were pulled with a secret, and who has shown such a one (KEP-2535: a pod may not use a private image only
//! because somebody else's pull left it on the node). Kept in a file, for a kubelet that starts anew.

use super::keyring;
use crate::allocation::write_whole;
use k8s_cri::v1::AuthConfig;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Fingerprints of credentials, by reference of the image.
type Known = HashMap<String, HashSet<String>>;

/// The record.
pub struct Guarded {
    path: PathBuf,
    known: Mutex<Known>,
}

impl Guarded {
    /// The record below the kubelet's directory.
    ///
    /// # Errors
    /// When there is one that can't be read: without it private images would be everybody's.
    pub fn load(root: &Path) -> Result<Self, String> {
        let dir = root.join("image_manager");
        let path = dir.join("pulled.json");
        let fault = |error: &dyn std::fmt::Display| format!("can't read the record of pulled images {path:?}: {error}");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|error| fault(&error))?;
        let known = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| fault(&error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Known::new(),
            Err(error) => return Err(fault(&error)),
        };
        Ok(Self { path, known: Mutex::new(known) })
    }

    /// An image was pulled, with these credentials at hand. Without any, it is free for all from now on.
    pub fn pulled(&self, reference: &str, credentials: &[AuthConfig]) {
        let mut known = self.known.lock();
        let changed = match credentials {
            [] => known.remove(reference).is_some(),
            some => {
                let shown = known.entry(reference.to_owned()).or_default();
                let before = shown.len();
                shown.extend(some.iter().map(keyring::fingerprint));
                shown.len() != before
            }
        };
        if changed && let Err(error) = write_whole(&self.path, &*known) {
            tracing::warn!(path = %self.path.display(), %error, "can't keep the record of pulled images");
        }
    }

    /// May somebody with these credentials have an image that is on the node? Images that were here before the kubelet,
    /// or that anyone could pull, are free.
    pub fn may_use(&self, reference: &str, credentials: &[AuthConfig]) -> bool {
        let known = self.known.lock();
        let Some(shown) = known.get(reference) else { return true };
        credentials.iter().any(|auth| shown.contains(&keyring::fingerprint(auth)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(password: &str) -> AuthConfig {
        AuthConfig { username: "me".into(), password: password.into(), ..Default::default() }
    }

    #[test]
    fn a_private_image_stays_private_over_a_restart() {
        let root = std::env::temp_dir().join(format!("kubelet-pulled-{}", std::process::id()));
        let first = Guarded::load(&root).unwrap();
        first.pulled("sha256:a", &[secret("right")]);
        assert!(first.may_use("sha256:a", &[secret("right")]) && !first.may_use("sha256:a", &[]));
        let next = Guarded::load(&root).unwrap();
        assert!(!next.may_use("sha256:a", &[secret("wrong")]));
        assert!(next.may_use("sha256:a", &[secret("right")]) && next.may_use("sha256:b", &[]));
        next.pulled("sha256:a", &[]);
        assert!(Guarded::load(&root).unwrap().may_use("sha256:a", &[]));
        std::fs::write(root.join("image_manager/pulled.json"), "half").unwrap();
        assert!(Guarded::load(&root).is_err());
        std::fs::remove_dir_all(root).unwrap();
    }
}
