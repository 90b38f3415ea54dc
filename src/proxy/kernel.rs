//! The kernel's side: nft runs transactions, conntrack forgets flows that lead to endpoints which are gone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::model::{Family, Place, Port};

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

/// A flow that conntrack may hold: where it was sent, and where it went instead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Address that the client used.
    pub to: Option<IpAddr>,
    /// Port that the client used.
    pub port: u16,
    /// Endpoint it was led to; none for flows that were led nowhere.
    pub endpoint: Option<IpAddr>,
}

/// UDP flows that may be wrong after a change: conntrack keeps each on the endpoint that it first had, or on none. TCP
/// flows end by themselves.
pub fn stale_flows(old: &[Port], new: &[Port], place: &Place) -> BTreeSet<Flow> {
    let udp = |ports: &[Port]| -> Vec<(Port, BTreeSet<IpAddr>)> {
        let ports = ports.iter().filter(|p| p.protocol == "udp");
        ports.map(|p| (p.clone(), p.choose(place).cluster.iter().map(|e| e.ip).collect())).collect()
    };
    let (old, new) = (udp(old), udp(new));
    let mut flows = BTreeSet::new();
    for (port, before) in &old {
        let same = |(p, _): &&(Port, BTreeSet<IpAddr>)| p.full_name() == port.full_name();
        let now = new.iter().find(same).map(|(_, e)| e.clone()).unwrap_or_default();
        for gone in before.difference(&now) {
            flows.extend(entries(port).map(|(to, number)| Flow { to, port: number, endpoint: Some(*gone) }));
        }
        if before.is_empty() && !now.is_empty() {
            flows.extend(entries(port).map(|(to, number)| Flow { to, port: number, endpoint: None }));
        }
    }
    let known = |p: &Port| old.iter().any(|(o, _)| o.full_name() == p.full_name());
    for (port, _) in new.iter().filter(|(p, now)| !known(p) && !now.is_empty()) {
        flows.extend(entries(port).map(|(to, number)| Flow { to, port: number, endpoint: None }));
    }
    flows
}

/// Addresses and ports that lead to a service.
fn entries(port: &Port) -> impl Iterator<Item = (Option<IpAddr>, u16)> + '_ {
    let ips = port.cluster_ips.iter().chain(&port.external_ips).chain(&port.balancer_ips);
    let node = (port.node_port != 0).then_some((None, port.node_port));
    ips.map(|ip| (Some(*ip), port.port)).chain(node)
}

/// Makes conntrack forget a flow. It is no error that there is none.
pub async fn forget(flow: &Flow, family: Family) {
    let mut command = Command::new("conntrack");
    command.args(["-D", "-p", "udp", "-f", if family == Family::V4 { "ipv4" } else { "ipv6" }]);
    if let Some(to) = flow.to {
        command.args(["--orig-dst", &to.to_string()]);
    }
    command.args(["--orig-port-dst", &flow.port.to_string()]);
    if let Some(endpoint) = flow.endpoint {
        command.args(["--dst-nat", &endpoint.to_string()]);
    }
    let output = command.stdin(Stdio::null()).output().await;
    match output {
        Ok(output) if output.status.success() => tracing::debug!(?flow, "forgot a flow"),
        // It exits with 1 when nothing matched.
        Ok(_) => {}
        Err(error) => {
            tracing::warn!(%error, "conntrack can't be run, so UDP flows may stay with endpoints that are gone")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Endpoint;

    fn port(protocol: &'static str, ips: &[&str]) -> Port {
        let endpoint = |ip: &&str| Endpoint {
            ip: ip.parse().unwrap(),
            port: 53,
            ready: true,
            serving: true,
            terminating: false,
            local: false,
            for_zones: vec![],
            for_nodes: vec![],
        };
        Port {
            namespace: "n".into(),
            service: "dns".into(),
            name: "dns".into(),
            protocol,
            cluster_ips: vec!["10.96.0.10".parse().unwrap()],
            port: 53,
            node_port: 0,
            external_ips: vec![],
            balancer_ips: vec![],
            source_ranges: vec![],
            affinity: 0,
            internal_local: false,
            external_local: false,
            health_port: 0,
            endpoints: ips.iter().map(endpoint).collect(),
        }
    }

    #[test]
    fn udp_flows_move_when_their_endpoint_goes_and_when_the_first_one_comes() {
        let place = Place::default();
        let flows = |old: &[Port], new: &[Port]| stale_flows(old, new, &place).into_iter().collect::<Vec<_>>();
        let gone = flows(&[port("udp", &["10.0.0.1", "10.0.0.2"])], &[port("udp", &["10.0.0.2"])]);
        assert_eq!(gone.len(), 1);
        assert_eq!(gone[0].endpoint, "10.0.0.1".parse().ok());
        let came = flows(&[port("udp", &[])], &[port("udp", &["10.0.0.2"])]);
        assert_eq!((came.len(), came[0].endpoint), (1, None));
        assert!(flows(&[port("tcp", &["10.0.0.1"])], &[port("tcp", &[])]).is_empty());
        assert!(flows(&[port("udp", &["10.0.0.1"])], &[port("udp", &["10.0.0.1", "10.0.0.2"])]).is_empty());
    }
}
