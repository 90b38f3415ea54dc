//! Parts of volumes, mounted without ever leaving the volume.
//!
//! The path is opened by the kernel with "beneath" resolution, so that a link swapped in at any moment can't lead to the
//! host (CVE-2021-25741, CVE-2017-1002101); the open file, not its name, is what gets bound to a place of the kubelet's.

use super::mounts;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, mkdirat};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

fn open(from: &OwnedFd, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    // The kernel asks for another try when names moved under its feet.
    for _ in 0..64 {
        match openat2(from, path, how) {
            Err(nix::errno::Errno::EAGAIN) => continue,
            other => return other.map_err(io::Error::from),
        }
    }
    Err(io::Error::from(nix::errno::Errno::EAGAIN))
}

fn volume_root(volume: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    nix::fcntl::open(volume, flags, Mode::empty()).map_err(io::Error::from)
}

fn plain(path: &Path) -> io::Result<()> {
    match path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "must not contain '..' or be absolute")),
    }
}

/// The file or directory at `path` inside the volume, opened for nothing but its identity.
pub fn open_inside(volume: &Path, path: &Path) -> io::Result<OwnedFd> {
    plain(path)?;
    open(&volume_root(volume)?, path, OFlag::O_PATH)
}

/// The text of a file inside the volume.
pub fn read_inside(volume: &Path, path: &Path) -> io::Result<String> {
    plain(path)?;
    let fd = open(&volume_root(volume)?, path, OFlag::O_RDONLY)?;
    io::read_to_string(fs::File::from(fd))
}

/// Makes the directories of `path` that are missing inside the volume, with the volume's mode.
fn make_inside(volume: &Path, path: &Path) -> io::Result<()> {
    let mode = fs::metadata(volume)?.permissions().mode() & 0o7777;
    let mut at = volume_root(volume)?;
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let name = Path::new(name);
        at = match open(&at, name, OFlag::O_PATH) {
            Ok(next) => next,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                mkdirat(&at, name, Mode::from_bits_truncate(mode)).map_err(io::Error::from)?;
                let next = open(&at, name, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
                // The umask must not cut the mode: a group given by fsGroup has to get in.
                fs::set_permissions(proc_path(&next), fs::Permissions::from_mode(mode))?;
                next
            }
            Err(error) => return Err(error),
        };
    }
    Ok(())
}

fn proc_path(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Where a part of a volume is bound for a container.
pub struct Place<'a> {
    /// The pod's directory.
    pub pod_dir: &'a Path,
    /// The volume's name.
    pub volume: &'a str,
    /// The container's name.
    pub container: &'a str,
    /// Which of the container's mounts it is.
    pub index: usize,
}

impl Place<'_> {
    fn path(&self) -> PathBuf {
        self.pod_dir.join("volume-subpaths").join(self.volume).join(self.container).join(self.index.to_string())
    }
}

/// Binds `path` of the volume (made when it is missing) to a place of the kubelet's, and returns that place.
pub fn prepare(volume: &Path, path: &Path, place: &Place<'_>) -> io::Result<PathBuf> {
    let source = match open_inside(volume, path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_inside(volume, path)?;
            open_inside(volume, path)?
        }
        other => other?,
    };
    let target = place.path();
    // A bind of an earlier run of the container shows what the path meant then.
    mounts::unmount_below(&target)?;
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    let directory = fs::metadata(proc_path(&source))?.is_dir();
    match (directory, target.is_dir(), target.exists()) {
        (true, true, _) | (false, false, true) => {}
        (true, _, exists) => {
            if exists {
                fs::remove_file(&target)?;
            }
            fs::create_dir(&target)?;
        }
        (false, true, _) => {
            fs::remove_dir(&target)?;
            fs::File::create(&target)?;
        }
        (false, false, false) => drop(fs::File::create(&target)?),
    }
    mounts::bind(&proc_path(&source), &target)?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("kubelet-subpath-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("volume")).unwrap();
        dir
    }

    #[test]
    fn a_link_never_leads_out_of_the_volume() {
        let dir = dir("link");
        let volume = dir.join("volume");
        fs::write(dir.join("secret"), "host").unwrap();
        symlink("/etc", volume.join("absolute")).unwrap();
        symlink("../secret", volume.join("relative")).unwrap();
        fs::write(volume.join("file"), "mine").unwrap();
        symlink("file", volume.join("inside")).unwrap();
        for path in ["absolute/passwd", "absolute", "relative", "../secret"] {
            assert!(open_inside(&volume, Path::new(path)).is_err(), "{path}");
        }
        assert_eq!(read_inside(&volume, Path::new("inside")).unwrap(), "mine");
        assert!(make_inside(&volume, Path::new("absolute/new")).is_err());
        make_inside(&volume, Path::new("a/b")).unwrap();
        assert!(volume.join("a/b").is_dir());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_directory_swapped_for_a_link_while_it_is_opened_shows_no_host_file() {
        let dir = dir("swap");
        let volume = dir.join("volume");
        fs::create_dir_all(dir.join("host")).unwrap();
        fs::write(dir.join("host/name"), "host").unwrap();
        fs::create_dir_all(volume.join("real")).unwrap();
        fs::write(volume.join("real/name"), "mine").unwrap();
        symlink(dir.join("host"), volume.join("evil")).unwrap();
        let swapping = {
            let volume = volume.clone();
            std::thread::spawn(move || {
                for _ in 0..500 {
                    let _ = fs::rename(volume.join("real"), volume.join("path"));
                    let _ = fs::rename(volume.join("path"), volume.join("real"));
                    let _ = fs::rename(volume.join("evil"), volume.join("path"));
                    let _ = fs::rename(volume.join("path"), volume.join("evil"));
                }
            })
        };
        while !swapping.is_finished() {
            if let Ok(text) = read_inside(&volume, Path::new("path/name")) {
                assert_eq!(text, "mine");
            }
        }
        swapping.join().unwrap();
        fs::remove_dir_all(dir).unwrap();
    }
}
