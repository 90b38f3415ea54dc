//! Rotates container logs that have grown too large: the file is moved aside, the runtime opens a new one, and what was
//! moved aside earlier is compressed or removed.

use crate::runtime::cri::Cri;
use crate::runtime::state::State;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io;
use std::path::{Path, PathBuf};

/// When to rotate, and how much to keep.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes.
    pub size: u64,
    /// Files, the current one included.
    pub files: usize,
}

/// The files that were moved aside, the oldest first.
pub async fn rotated(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Ok(Vec::new()) };
    let prefix = format!("{}.", name.to_string_lossy());
    let mut found = Vec::new();
    let mut entries = tokio::fs::read_dir(dir).await?;
    while let Some(entry) = entries.next_entry().await? {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Looks at the log of every running container once.
pub async fn rotate_all(cri: &Cri, limits: Limits) {
    let containers = match cri.containers(None).await {
        Ok(containers) => containers,
        Err(error) => return tracing::warn!(%error, "can't list containers to rotate their logs"),
    };
    for container in containers.into_iter().filter(|c| State::from_cri(c.state) == State::Running) {
        let Ok(Some(status)) = cri.container_status(&container.id).await else { continue };
        if status.log_path.is_empty() {
            continue;
        }
        if let Err(error) = rotate(cri, &container.id, Path::new(&status.log_path), limits).await {
            tracing::warn!(container = container.id, %error, "can't rotate a container's log");
        }
    }
}

async fn rotate(cri: &Cri, id: &str, path: &Path, limits: Limits) -> io::Result<()> {
    match tokio::fs::metadata(path).await {
        Ok(meta) if meta.len() < limits.size => return Ok(()),
        Ok(_) => {}
        // Lost somehow: the runtime makes it anew.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return cri.reopen_log(id).await.map_err(io::Error::other);
        }
        Err(error) => return Err(error),
    }
    move_aside(path, limits, || async { cri.reopen_log(id).await.map_err(io::Error::other) }).await
}

/// Moves the log aside; when the runtime can't open a new one, back again.
async fn move_aside<F: Future<Output = io::Result<()>>>(
    path: &Path, limits: Limits, reopen: impl FnOnce() -> F,
) -> io::Result<()> {
    let mut old = Vec::new();
    for file in rotated(path).await? {
        // Left from a compression that was cut short.
        match file.extension().is_some_and(|end| end == "tmp") {
            true => tokio::fs::remove_file(&file).await?,
            false => old.push(file),
        }
    }
    // The current file and the one about to be made are not among them.
    let keep = limits.files.saturating_sub(2);
    let excess = old.len().saturating_sub(keep);
    for file in old.drain(..excess) {
        tokio::fs::remove_file(&file).await?;
    }
    for file in old.into_iter().filter(|file| file.extension().is_none_or(|end| end != "gz")) {
        tokio::task::spawn_blocking(move || compress(&file)).await.map_err(io::Error::other)??;
    }
    let stamp = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    let aside = PathBuf::from(format!("{}.{stamp}", path.display()));
    tokio::fs::rename(path, &aside).await?;
    if let Err(error) = reopen().await {
        tokio::fs::rename(&aside, path).await?;
        return Err(error);
    }
    Ok(())
}

fn compress(path: &Path) -> io::Result<()> {
    let temporary = PathBuf::from(format!("{}.tmp", path.display()));
    let mut input = std::fs::File::open(path)?;
    let mut output = GzEncoder::new(std::fs::File::create(&temporary)?, Compression::default());
    io::copy(&mut input, &mut output)?;
    output.finish()?;
    std::fs::rename(&temporary, format!("{}.gz", path.display()))?;
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn old_files_are_compressed_and_the_oldest_removed() {
        let dir = std::env::temp_dir().join(format!("kubelet-rotate-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("0.log");
        std::fs::write(&path, "now").unwrap();
        for name in ["20230101-000000.gz", "20230102-000000.gz", "20230103-000000", "20230104-000000.tmp"] {
            std::fs::write(dir.join(format!("0.log.{name}")), name).unwrap();
        }
        let limits = Limits { size: 1, files: 4 };
        move_aside(&path, limits, || async { Ok(()) }).await.unwrap();
        let names: Vec<String> = rotated(&path).await.unwrap().iter().map(|p| p.display().to_string()).collect();
        assert_eq!(names.len(), 3);
        assert!(names[0].ends_with("0.log.20230102-000000.gz") && names[1].ends_with("0.log.20230103-000000.gz"));
        assert_eq!(std::fs::read_to_string(&names[2]).unwrap(), "now");
        // A runtime that can't open a new log keeps the old one.
        std::fs::write(&path, "again").unwrap();
        let failed = move_aside(&path, limits, || async { Err(io::Error::other("no")) }).await;
        assert!(failed.is_err() && std::fs::read_to_string(&path).unwrap() == "again");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
