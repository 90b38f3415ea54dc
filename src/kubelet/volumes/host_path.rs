//! The types of a hostPath volume: what must be there, and what is made when it is not.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Checks the path against its type, and makes it where the type says so.
pub fn check(path: &Path, kind: &str) -> Result<(), String> {
    let meta = fs::metadata(path);
    match (kind, &meta) {
        ("", _) => return Ok(()),
        ("DirectoryOrCreate", Err(_)) => {
            let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
            return made.map_err(|error| format!("can't make {}: {error}", path.display()));
        }
        ("FileOrCreate", Err(_)) => {
            let made = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o644).open(path);
            let done = made.and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o644)));
            return done.map_err(|error| format!("can't make {}: {error}", path.display()));
        }
        _ => {}
    }
    let (is, what): (fn(&fs::FileType) -> bool, &str) = match kind {
        "Directory" | "DirectoryOrCreate" => (fs::FileType::is_dir, "directory"),
        "File" | "FileOrCreate" => (fs::FileType::is_file, "file"),
        "Socket" => (|t| t.is_socket(), "socket file"),
        "CharDevice" => (|t| t.is_char_device(), "character device"),
        "BlockDevice" => (|t| t.is_block_device(), "block device"),
        other => return Err(format!("{other} is an invalid volume type")),
    };
    match meta {
        Ok(meta) if is(&meta.file_type()) => Ok(()),
        _ => Err(format!("hostPath type check failed: {} is not a {what}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked_and_made() {
        let dir = std::env::temp_dir().join(format!("kubelet-hostpath-{}", std::process::id()));
        check(&dir.join("a/b"), "DirectoryOrCreate").unwrap();
        check(&dir.join("a/b"), "Directory").unwrap();
        check(&dir.join("f"), "FileOrCreate").unwrap();
        check(&dir.join("f"), "File").unwrap();
        let error = check(&dir.join("f"), "Directory").unwrap_err();
        assert_eq!(error, format!("hostPath type check failed: {} is not a directory", dir.join("f").display()));
        assert!(check(&dir.join("f"), "Socket").is_err());
        check(Path::new("/dev/null"), "CharDevice").unwrap();
        fs::remove_dir_all(dir).unwrap();
    }
}
