//! The kernel's side: nft runs transactions.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Why the kernel did not take rules.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// nft could not be run.
    #[error("running nft: {0}")]
    Run(#[from] std::io::Error),
    /// nft refused.
    #[error("nft: {0}")]
    Refused(String),
}

/// Runs one transaction: all of it happens, or nothing.
///
/// # Errors
/// When nft is missing or refuses.
pub async fn run(script: &str) -> Result<(), Error> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or_else(|| std::io::Error::other("no standard input"))?;
    let sent = stdin.write_all(script.as_bytes()).await;
    drop(stdin);
    let output = child.wait_with_output().await?;
    if output.status.success() {
        return sent.map_err(Error::Run);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(Error::Refused(text.lines().next().unwrap_or("it said nothing").to_string()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::{Family, Port};
    use crate::rules::{self, Local, Options};
    use crate::ruleset;
    use nix::sched::{CloneFlags, unshare};
    use std::collections::BTreeMap;

    /// Runs the steps in a network namespace of their own, whose loopback is up.
    pub(crate) fn alone(steps: impl FnOnce() + Send + 'static) {
        let run = move || match unshare(CloneFlags::CLONE_NEWNET) {
            Ok(()) => {
                assert!(std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
                steps();
            }
            Err(error) => println!("skipped: no network namespace of its own: {error}"),
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn the_kernel_takes_the_rules_of_every_setting() {
        alone(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let port = |ip: &str, endpoint: &str| {
                let mut endpoints = Port::test("tcp").endpoints;
                endpoints[0].ip = endpoint.parse().unwrap();
                let cluster_ips = vec![ip.parse().unwrap()];
                Port {
                    cluster_ips,
                    node_port: 30_080,
                    affinity: 60,
                    external_local: true,
                    endpoints,
                    ..Port::test("tcp")
                }
            };
            for local in [
                Local::Networks(vec!["10.244.0.0/16".parse().unwrap(), "fd00:1::/64".parse().unwrap()]),
                Local::Networks(vec![]),
                Local::Interface("cni0".into()),
                Local::Interface("veth*".into()),
            ] {
                for here in [None, Some(vec!["192.0.2.2".parse().unwrap()])] {
                    let options = Options {
                        place: Default::default(),
                        local: local.clone(),
                        masquerade_all: false,
                        masquerade_bit: 31,
                        node_ips: vec![],
                        node_port_ips: here.map(|ips| (Family::V4, ips)).into_iter().collect::<BTreeMap<_, _>>(),
                        service_cidrs: vec!["10.96.0.0/16".parse().unwrap(), "fd00:2::/112".parse().unwrap()],
                    };
                    for (family, ip) in [(Family::V4, "10.96.0.7"), (Family::V6, "fd00:2::7")] {
                        let endpoint = if family == Family::V4 { "10.244.0.5" } else { "fd00:1::5" };
                        let rules = rules::compute(family, &[port(ip, endpoint)], &options);
                        let script = ruleset::transaction(rules::table(family), None, &rules).unwrap();
                        runtime.block_on(run(&script)).unwrap();
                    }
                }
            }
            assert!(matches!(runtime.block_on(run("nonsense\n")), Err(Error::Refused(_))));
        });
    }
}
