//! The group of a pod's volumes (`fsGroup`): the group may read and write, and new files belong to it.

use crate::pods;
use k8s_openapi::api::core::v1::Pod;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const DIRECTORY: u32 = 0o2110;

fn group(pod: &Pod) -> Option<u32> {
    pods::spec(pod).security_context.as_ref()?.fs_group.map(|group| group as u32)
}

/// Gives a volume and all in it to the pod's group, unless its policy is satisfied with the root's group.
pub fn apply(pod: &Pod, dir: &Path, read_only: bool) -> io::Result<()> {
    let Some(group) = group(pod) else { return Ok(()) };
    let context = pods::spec(pod).security_context.as_ref();
    let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
    let mask = if read_only { READ_ONLY } else { READ_WRITE };
    let meta = fs::metadata(dir)?;
    let wanted = mask | DIRECTORY;
    if policy == Some("OnRootMismatch") && meta.gid() == group && meta.mode() & wanted == wanted {
        return Ok(());
    }
    give(dir, group, mask)
}

/// Gives freshly written files to the pod's group, for reading.
pub fn apply_to_files(pod: &Pod, dir: &Path) -> io::Result<()> {
    group(pod).map_or(Ok(()), |group| give(dir, group, READ_ONLY))
}

/// Gives the directory of such files, but not what is in it, to the pod's group.
pub fn apply_root(pod: &Pod, dir: &Path) -> io::Result<()> {
    group(pod).map_or(Ok(()), |group| give_one(dir, group, READ_ONLY).map(drop))
}

fn give(path: &Path, group: u32, mask: u32) -> io::Result<()> {
    if give_one(path, group, mask)? {
        for entry in fs::read_dir(path)? {
            give(&entry?.path(), group, mask)?;
        }
    }
    Ok(())
}

/// True when the path is a directory. Links are given, not followed.
fn give_one(path: &Path, group: u32, mask: u32) -> io::Result<bool> {
    let meta = fs::symlink_metadata(path)?;
    lchown(path, None, Some(group))?;
    if meta.file_type().is_symlink() {
        return Ok(false);
    }
    let extra = if meta.is_dir() { mask | DIRECTORY } else { mask };
    fs::set_permissions(path, fs::Permissions::from_mode(meta.mode() | extra))?;
    Ok(meta.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_group_may_read_write_and_enter() {
        let dir = std::env::temp_dir().join(format!("kubelet-fsgroup-{}", std::process::id()));
        fs::create_dir_all(dir.join("d")).unwrap();
        fs::write(dir.join("f"), "x").unwrap();
        fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(0o600)).unwrap();
        let own = fs::metadata(&dir).unwrap().gid();
        let pod = serde_json::from_value(json!({"spec": {"securityContext": {"fsGroup": own}, "containers": []}}));
        apply(&pod.unwrap(), &dir, false).unwrap();
        let mode = |name: &str| fs::metadata(dir.join(name)).unwrap().mode() & 0o7777;
        assert_eq!(mode("f"), 0o660);
        assert_eq!(mode("d") & 0o2770, 0o2770);
        fs::remove_dir_all(dir).unwrap();
    }
}
