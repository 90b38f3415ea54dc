//! Processes that outlive the command that started them, each with a log and a file that says which it is.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Context, Error, Layout, Result};

/// A process on record: its number and when it started, so that a stranger with the same number is never taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Process number.
    pub pid: i32,
    /// Clock ticks between boot and its start.
    pub started: u64,
}

/// Reads when a process started; `None` when there is no such process, or only its remains.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &stat[stat.rfind(')')? + 2..];
    let fields: Vec<&str> = rest.split(' ').collect();
    (fields[0] != "Z").then(|| fields[19].parse().ok())?
}

impl Record {
    /// Is it still the same process?
    pub fn alive(self) -> bool {
        start_time(self.pid) == Some(self.started)
    }
}

fn record_path(layout: &Layout, name: &str) -> PathBuf {
    layout.path(&format!("run/{name}.pid"))
}

/// The process of that name, when it runs.
pub fn running(layout: &Layout, name: &str) -> Option<Record> {
    let text = fs::read_to_string(record_path(layout, name)).ok()?;
    let (pid, started) = text.trim().split_once(' ')?;
    let record = Record { pid: pid.parse().ok()?, started: started.parse().ok()? };
    record.alive().then_some(record)
}

/// Names of all processes on record, alive or not.
pub fn recorded(layout: &Layout) -> Vec<String> {
    let Ok(entries) = fs::read_dir(layout.path("run")) else { return Vec::new() };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    names.filter_map(|n| n.strip_suffix(".pid").map(str::to_string)).collect()
}

/// Where a process's output goes.
pub fn log_path(layout: &Layout, name: &str) -> PathBuf {
    layout.logs().join(format!("{name}.log"))
}

/// Starts a process in a group of its own, its output appended to its log. One that runs already is left alone.
///
/// # Errors
/// When it can't be started or put on record.
pub fn start(layout: &Layout, name: &str, command: &mut Command) -> Result<Record> {
    if let Some(record) = running(layout, name) {
        return Ok(record);
    }
    for dir in [layout.logs(), layout.path("run")] {
        fs::create_dir_all(&dir).context(format!("making {}", dir.display()))?;
    }
    let path = log_path(layout, name);
    let log =
        OpenOptions::new().create(true).append(true).open(&path).context(format!("opening {}", path.display()))?;
    let errors = log.try_clone().context(format!("opening {}", path.display()))?;
    command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
    let child = command.spawn().context(format!("starting {name}"))?;
    let pid = child.id() as i32;
    let started = start_time(pid).ok_or_else(|| Error::new(format!("starting {name}"), last_line(&path)))?;
    fs::write(record_path(layout, name), format!("{pid} {started}\n")).context(format!("recording {name}"))?;
    Ok(Record { pid, started })
}

/// The last line of a log, for messages.
pub fn last_line(log: &Path) -> String {
    let text = fs::read(log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    text.trim_end().lines().last().unwrap_or("it said nothing").to_string()
}

/// Asks a process to stop, waits, and kills it when it does not within `patience`. Forgets it.
pub fn stop(layout: &Layout, name: &str, patience: Duration) {
    if let Some(record) = running(layout, name) {
        let pid = Pid::from_raw(record.pid);
        // A process that is gone by now is what we want.
        let _ = kill(pid, Signal::SIGTERM);
        let gone = wait_until(patience, || !record.alive());
        if !gone {
            let _ = kill(pid, Signal::SIGKILL);
            wait_until(Duration::from_secs(5), || !record.alive());
        }
    }
    let _ = fs::remove_file(record_path(layout, name));
}

/// Polls until something holds; false when it does not in time.
pub fn wait_until(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + patience;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(name: &str) -> Layout {
        let dir = std::env::temp_dir().join(format!("navarch-{name}-{}", std::process::id()));
        Layout::new(&dir).unwrap()
    }

    #[test]
    fn a_process_is_started_once_and_stopped() {
        let layout = layout("process");
        let first = start(&layout, "sleeper", Command::new("sleep").arg("60")).unwrap();
        let again = start(&layout, "sleeper", Command::new("sleep").arg("60")).unwrap();
        assert_eq!(first, again);
        assert_eq!(recorded(&layout), ["sleeper"]);
        stop(&layout, "sleeper", Duration::from_secs(5));
        assert!(!first.alive());
        assert!(running(&layout, "sleeper").is_none());
        fs::remove_dir_all(layout.root()).unwrap();
    }

    #[test]
    fn a_stranger_with_the_same_number_is_not_taken_for_ours() {
        let layout = layout("stranger");
        fs::create_dir_all(layout.path("run")).unwrap();
        fs::write(record_path(&layout, "other"), format!("{} 1\n", std::process::id())).unwrap();
        assert!(running(&layout, "other").is_none());
        fs::remove_dir_all(layout.root()).unwrap();
    }
}
