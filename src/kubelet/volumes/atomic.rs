//! Writes a volume's files so that a reader sees all of the old or all of the new ones.
//!
//! The files lie in a directory named by time; `..data` points to it and is swapped by one rename; each file that a
//! user sees is a link through `..data`. Source: the documented layout of ConfigMap volumes.

use super::payload::{File, Payload};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// A path of plain names, none of which begins with `..`.
fn check(path: &str) -> io::Result<()> {
    let plain =
        |part: Component<'_>| matches!(part, Component::Normal(name) if !name.to_string_lossy().starts_with(".."));
    match !path.is_empty() && Path::new(path).components().all(plain) {
        true => Ok(()),
        false => Err(invalid(format!("invalid path: {path:?}"))),
    }
}

/// Brings the directory to the payload; true when something was written. `finish` sees the new files before any
/// reader does.
pub fn write(dir: &Path, payload: &Payload, finish: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<bool> {
    payload.keys().try_for_each(|path| check(path))?;
    let old = fs::read_link(dir.join(DATA)).ok();
    if let Some(old) = &old
        && holds(&dir.join(old), payload)?
    {
        link_all(dir, payload)?;
        return Ok(false);
    }
    let name = format!("..{}", jiff::Zoned::now().strftime("%Y_%m_%d_%H_%M_%S.%N"));
    let new = dir.join(&name);
    fs::DirBuilder::new().mode(0o755).create(&new)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
    let written = payload.iter().try_for_each(|(path, file)| write_file(&new, path, file)).and_then(|()| finish(&new));
    if let Err(error) = written {
        fs::remove_dir_all(&new)?;
        return Err(error);
    }
    let link = dir.join(NEW_DATA);
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(&name, &link)?;
    fs::rename(&link, dir.join(DATA))?;
    link_all(dir, payload)?;
    remove_stale(dir, payload)?;
    if let Some(old) = old.filter(|old| old.as_os_str() != name.as_str()) {
        match fs::remove_dir_all(dir.join(old)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(true)
}

fn write_file(root: &Path, path: &str, file: &File) -> io::Result<()> {
    let target = root.join(path);
    if let Some(parent) = target.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    let mut out = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target)?;
    io::Write::write_all(&mut out, &file.data)?;
    // The umask must not cut the mode.
    fs::set_permissions(&target, fs::Permissions::from_mode(file.mode))?;
    match file.user {
        Some(user) => chown(&target, Some(user), None),
        None => Ok(()),
    }
}

/// Does the directory hold the payload and nothing else? Modes are compared without what a group was given.
fn holds(dir: &Path, payload: &Payload) -> io::Result<bool> {
    let mut found = BTreeSet::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(below) = todo.pop() {
        for entry in fs::read_dir(dir.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                true => todo.push(path),
                false => drop(found.insert(path.to_string_lossy().into_owned())),
            }
        }
    }
    if found.len() != payload.len() || !payload.keys().all(|path| found.contains(path)) {
        return Ok(false);
    }
    for (path, file) in payload {
        let meta = fs::metadata(dir.join(path))?;
        let kept_mode = meta.mode() & file.mode & 0o777 == file.mode & 0o777;
        if !kept_mode || meta.len() != file.data.len() as u64 || fs::read(dir.join(path))? != file.data {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first parts of all paths: what a user sees in the directory.
fn visible(payload: &Payload) -> BTreeSet<String> {
    payload.keys().filter_map(|path| path.split('/').next()).map(str::to_owned).collect()
}

fn link_all(dir: &Path, payload: &Payload) -> io::Result<()> {
    for name in visible(payload) {
        let link = dir.join(&name);
        let target = Path::new(DATA).join(&name);
        if fs::read_link(&link).is_ok_and(|current| current == target) {
            continue;
        }
        symlink(target, link)?;
    }
    Ok(())
}

fn remove_stale(dir: &Path, payload: &Payload) -> io::Result<()> {
    let keep = visible(payload);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(DATA));
        if ours && !keep.contains(&name) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("kubelet-atomic-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn payload(files: &[(&str, &str)]) -> Payload {
        let file = |data: &str| File { data: data.into(), mode: 0o644, user: None };
        files.iter().map(|(path, data)| ((*path).to_owned(), file(data))).collect()
    }

    #[test]
    fn files_change_at_once_and_removed_ones_go() {
        let dir = dir("change");
        let first = payload(&[("a", "1"), ("d/b", "2")]);
        assert!(write(&dir, &first, |_| Ok(())).unwrap());
        assert_eq!(fs::read_to_string(dir.join("d/b")).unwrap(), "2");
        let before = fs::read_link(dir.join(DATA)).unwrap();
        assert!(!write(&dir, &first, |_| Ok(())).unwrap(), "an unchanged volume keeps its files");
        assert_eq!(fs::read_link(dir.join(DATA)).unwrap(), before);
        assert!(write(&dir, &payload(&[("a", "3")]), |_| Ok(())).unwrap());
        assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "3");
        assert!(!dir.join("d").exists() && fs::symlink_metadata(dir.join("d")).is_err());
        assert!(!dir.join(before).exists());
        // A removed optional secret takes its files along.
        assert!(write(&dir, &payload(&[]), |_| Ok(())).unwrap());
        assert!(fs::symlink_metadata(dir.join("a")).is_err());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn paths_that_leave_the_volume_are_refused() {
        let dir = dir("escape");
        for path in ["../x", "/x", "..x", "a/../../x", ""] {
            assert!(write(&dir, &payload(&[(path, "1")]), |_| Ok(())).is_err(), "{path}");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
