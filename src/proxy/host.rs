//! What the proxy sets on its machine before it directs traffic: the kernel's tracking of connections, and its own
//! out-of-memory score.

use std::path::{Path, PathBuf};

use crate::config::Conntrack;

/// More connections than this are not asked for by their number for each processor, however many there are.
const MOST: u64 = 1 << 20;

/// A setting of the kernel could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("could not set conntrack parameters from kube-proxy configuration: {0}: {1}")]
pub struct Error(PathBuf, std::io::Error);

/// The settings below `net.netfilter` that the configuration asks for.
fn wanted(conntrack: &Conntrack, processors: u64) -> Vec<(&'static str, u64)> {
    let Conntrack {
        max_per_core,
        min,
        tcp_established_timeout,
        tcp_close_wait_timeout,
        tcp_be_liberal,
        udp_timeout,
        udp_stream_timeout,
    } = conntrack;
    let number = |value: i32| u64::try_from(value).unwrap_or(0);
    let max = match number(*max_per_core) * processors {
        0 => 0,
        scaled if scaled > MOST => MOST,
        scaled => scaled.max(number(*min)),
    };
    let timeouts = [
        ("nf_conntrack_tcp_timeout_established", tcp_established_timeout),
        ("nf_conntrack_tcp_timeout_close_wait", tcp_close_wait_timeout),
        ("nf_conntrack_udp_timeout", udp_timeout),
        ("nf_conntrack_udp_timeout_stream", udp_stream_timeout),
    ];
    let timeouts =
        timeouts.into_iter().filter(|(_, span)| !span.0.is_zero()).map(|(name, span)| (name, span.0.as_secs()));
    let max = (max > 0).then_some(("nf_conntrack_max", max));
    max.into_iter().chain(timeouts).chain(tcp_be_liberal.then_some(("nf_conntrack_tcp_be_liberal", 1))).collect()
}

/// Sets the kernel's tracking of connections. What is as it should be is not written, so that a /proc that can't be
/// written does not matter then. `root` is `/`.
///
/// # Errors
/// When a setting can't be read or written, which ends the proxy as it ends upstream's.
pub fn track_connections(conntrack: &Conntrack, root: &Path) -> Result<(), Error> {
    for (name, value) in wanted(conntrack, processors(root)) {
        let path = root.join("proc/sys/net/netfilter").join(name);
        if read(&path).ok() != Some(value) {
            tracing::info!(name, value, "set sysctl");
            write(path, value)?;
        }
        if name == "nf_conntrack_max" {
            // Upstream's proportion of connections to buckets.
            let path = root.join("sys/module/nf_conntrack/parameters/hashsize");
            let buckets = read(&path).map_err(|error| Error(path.clone(), error))?;
            if buckets < value / 4 {
                tracing::info!(buckets = value / 4, "set conntrack's hashsize");
                write(path, value / 4)?;
            }
        }
    }
    Ok(())
}

fn read(path: &Path) -> std::io::Result<u64> {
    std::fs::read_to_string(path)?.trim().parse().map_err(std::io::Error::other)
}

fn write(path: PathBuf, value: u64) -> Result<(), Error> {
    std::fs::write(&path, value.to_string()).map_err(|error| Error(path, error))
}

/// Processors of the machine, however few of them this process may use.
fn processors(root: &Path) -> u64 {
    let is_one =
        |name: &str| name.strip_prefix("cpu").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let entries = std::fs::read_dir(root.join("sys/devices/system/cpu")).into_iter().flatten().flatten();
    let count = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_one)).count();
    match count {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        count => count as u64,
    }
}

/// Sets this process's out-of-memory score.
pub fn adjust_oom_score(score: i32) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
        tracing::debug!(%error, score, "the out-of-memory score stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::fields::Span;

    #[test]
    fn limits_grow_with_processors_between_the_least_and_the_most() {
        let max = |conntrack: &Conntrack, processors| {
            let wanted = wanted(conntrack, processors);
            wanted.into_iter().find(|(name, _)| *name == "nf_conntrack_max").map(|(_, value)| value)
        };
        let usual = Conntrack::default();
        assert_eq!((max(&usual, 1), max(&usual, 8), max(&usual, 64)), (Some(131_072), Some(262_144), Some(1 << 20)));
        assert_eq!(max(&Conntrack { max_per_core: 0, ..usual }, 8), None);
    }

    #[test]
    fn zero_leaves_everything_as_it_is() {
        let zero = Conntrack {
            max_per_core: 0,
            tcp_established_timeout: Span::secs(0),
            tcp_close_wait_timeout: Span::secs(0),
            ..Conntrack::default()
        };
        assert_eq!(wanted(&zero, 4), []);
        let liberal = Conntrack { tcp_be_liberal: true, udp_timeout: Span::secs(5), ..zero };
        assert_eq!(wanted(&liberal, 4), [("nf_conntrack_udp_timeout", 5), ("nf_conntrack_tcp_be_liberal", 1)]);
    }

    #[test]
    fn what_is_as_it_should_be_is_not_written_and_the_buckets_follow() {
        let root = std::env::temp_dir().join(format!("proxy-host-{}", std::process::id()));
        let (settings, module) = (root.join("proc/sys/net/netfilter"), root.join("sys/module/nf_conntrack/parameters"));
        std::fs::create_dir_all(&settings).unwrap();
        std::fs::create_dir_all(&module).unwrap();
        std::fs::create_dir_all(root.join("sys/devices/system/cpu/cpu0")).unwrap();
        std::fs::create_dir_all(root.join("sys/devices/system/cpu/cpuidle")).unwrap();
        std::fs::write(settings.join("nf_conntrack_max"), "4096\n").unwrap();
        std::fs::write(settings.join("nf_conntrack_udp_timeout"), "7\n").unwrap();
        std::fs::write(module.join("hashsize"), "16\n").unwrap();
        let conntrack = Conntrack {
            max_per_core: 4096,
            min: 1,
            tcp_established_timeout: Span::secs(0),
            tcp_close_wait_timeout: Span::secs(0),
            udp_timeout: Span::secs(8),
            ..Conntrack::default()
        };
        track_connections(&conntrack, &root).unwrap();
        let text = |path: PathBuf| std::fs::read_to_string(path).unwrap();
        assert_eq!(text(settings.join("nf_conntrack_max")), "4096\n", "not written again");
        assert_eq!(
            (text(settings.join("nf_conntrack_udp_timeout")), text(module.join("hashsize"))),
            ("8".into(), "1024".into())
        );
        std::fs::remove_dir_all(&root).unwrap();
        let error = track_connections(&conntrack, &root).unwrap_err().to_string();
        assert!(error.contains("could not set conntrack parameters"), "{error}");
    }
}
