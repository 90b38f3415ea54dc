//! Mounts on the node: what is mounted, mounting in memory, unmounting.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const TABLE: &str = "/proc/self/mountinfo";

/// Undoes the octal escapes of the mount table.
fn unescape(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let code = field.get(at + 1..at + 4).and_then(|octal| u8::from_str_radix(octal, 8).ok());
        match code.filter(|_| bytes[at] == b'\\') {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    std::ffi::OsString::from_vec(out).into()
}

/// Mount points at or below a directory, in the order in which they were mounted.
pub fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string(TABLE)?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    Ok(points.filter(|point| point.starts_with(dir)).collect())
}

/// Is something mounted right at the directory?
pub fn is_mount_point(dir: &Path) -> bool {
    // A bind mount within one file system shows only in the table; the device differs for all others.
    let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
    let parent = dir.parent().and_then(device);
    parent != device(dir) || below(dir).is_ok_and(|points| points.iter().any(|point| point == dir))
}

/// Mounts memory at a directory, at most `size` bytes of it.
pub fn tmpfs(dir: &Path, size: Option<i64>) -> io::Result<()> {
    let options = size.filter(|size| *size > 0).map(|size| format!("size={size}"));
    mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), options.as_deref()).map_err(io::Error::from)
}

/// Mounts huge pages of a size such as `2Mi`; empty means the node's default.
pub fn huge_pages(dir: &Path, size: &str) -> io::Result<()> {
    let options = (!size.is_empty()).then(|| format!("pagesize={}", size.trim_end_matches('i')));
    mount(Some("nodev"), dir, Some("hugetlbfs"), MsFlags::empty(), options.as_deref()).map_err(io::Error::from)
}

/// Makes `source` appear at `target` as well.
pub fn bind(source: &Path, target: &Path) -> io::Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(io::Error::from)
}

/// Unmounts all at and below a directory, the last mounted first.
pub fn unmount_below(dir: &Path) -> io::Result<()> {
    // What is mounted over itself shows several times; each turn takes one layer of all.
    for _ in 0..16 {
        let points = below(dir)?;
        if points.is_empty() {
            return Ok(());
        }
        for point in points.iter().rev() {
            match umount2(point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
                Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Err(io::Error::other(format!("mounts below {} do not go away", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_escapes_are_undone() {
        assert_eq!(unescape("/a\\040b\\134c"), PathBuf::from("/a b\\c"));
        assert_eq!(unescape("/a\\04"), PathBuf::from("/a\\04"));
    }

    #[test]
    fn the_root_is_a_mount_point() {
        assert!(below(Path::new("/")).unwrap().contains(&PathBuf::from("/")));
        assert!(is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(Path::new("/proc/self")) || cfg!(not(target_os = "linux")));
    }
}
