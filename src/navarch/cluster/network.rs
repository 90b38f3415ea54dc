//! What the machine's own network must have: forwarding, and routes and rules that keep cluster traffic inside.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;

use serde_json::Value;

use super::{Context, Result, images, oci, succeed};

/// Name of the nftables table that is ours; kube-proxy has its own.
const TABLE: &str = "navarch";

/// Kernel settings, by name, and the values that nodes need.
const SYSCTLS: [(&str, &str); 3] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv4/conf/all/route_localnet", "1"),
    ("fs/inotify/max_user_instances", "8192"),
];

/// The address that this machine uses towards the world; without a route, the loopback address.
pub fn own_address() -> IpAddr {
    // Connecting a datagram socket sends nothing: it only asks the routing table. The target is a documentation address.
    let ask = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect("198.51.100.1:9")?;
        Ok(socket.local_addr()?.ip())
    };
    ask().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

fn ip(args: &[&str]) -> Result<()> {
    succeed(&format!("ip {}", args.join(" ")), Command::new(images::need("ip")?).args(args)).map(drop)
}

fn nft(script: &str) -> Result<()> {
    let mut command = Command::new(images::need("nft")?);
    command.args(["-f", "-"]);
    oci::pipe(&mut command, script.as_bytes())
}

/// Values of kernel settings before we changed them, to be put back.
pub type Saved = Vec<(String, String)>;

/// Sets what nodes need and returns what was there before, for settings that are not in `known` yet.
///
/// # Errors
/// When forwarding can't be switched on.
pub fn set_kernel(known: &Saved) -> Result<Saved> {
    let mut saved = known.clone();
    for (name, wanted) in SYSCTLS {
        let path = format!("/proc/sys/{name}");
        let before = fs::read_to_string(&path).unwrap_or_default().trim().to_string();
        let enough = before.parse::<i64>().unwrap_or(0) >= wanted.parse().unwrap_or(i64::MAX);
        if enough {
            continue;
        }
        fs::write(&path, wanted).context(format!("setting {name}"))?;
        if !saved.iter().any(|(n, _)| n == name) {
            saved.push((name.to_string(), before));
        }
    }
    Ok(saved)
}

/// Puts kernel settings back.
pub fn restore_kernel(saved: &Saved) {
    for (name, value) in saved {
        if let Err(error) = fs::write(format!("/proc/sys/{name}"), value) {
            eprintln!("setting {name} back: {error}");
        }
    }
}

/// Routes and rules: pods reach the world under this machine's address; service and pod addresses that nobody has never
/// leave the machine.
///
/// # Errors
/// When a route or rule is refused.
pub fn ensure(pod_cidr: &str, service_cidr: &str, own: IpAddr) -> Result<()> {
    ip(&["route", "replace", "unreachable", pod_cidr])?;
    // The route is looked up before the rules of kube-proxy redirect the packet, so there must be one that lets it
    // through to them, with a source address that answers can come back to.
    ip(&["route", "replace", service_cidr, "dev", "lo", "src", &own.to_string()])?;
    nft(&format!(
        "table ip {TABLE} {{}}\n\
         delete table ip {TABLE}\n\
         table ip {TABLE} {{\n\
           chain postrouting {{\n\
             type nat hook postrouting priority srcnat; policy accept;\n\
             ip saddr {pod_cidr} ip daddr != {pod_cidr} ip daddr != {service_cidr} fib daddr type != local masquerade\n\
           }}\n\
         }}\n"
    ))
}

/// Lets pods' traffic through the chains of others that drop what they do not know: Docker sets up such a one, and a
/// packet must pass all of them. Done anew by each `up`, since a firewall may have come meanwhile.
///
/// # Errors
/// When a rule is refused.
pub fn pass_firewalls(pod_cidr: &str) -> Result<()> {
    let rules = ruleset()?;
    let mut script = withdrawals(&rules);
    for chain in dropping(&rules) {
        for side in ["saddr", "daddr"] {
            script += &format!("insert rule ip {chain} ip {side} {pod_cidr} accept comment \"{TABLE}\"\n");
        }
    }
    nft(&script)
}

/// Rules and chains as nft lists them.
fn ruleset() -> Result<Value> {
    let what = "nft list ruleset";
    let output = succeed(what, Command::new(images::need("nft")?).args(["-j", "-a", "list", "ruleset", "ip"]))?;
    serde_json::from_slice(&output.stdout).context(what)
}

fn each<'a>(rules: &'a Value, what: &'a str) -> impl Iterator<Item = &'a Value> {
    rules["nftables"].as_array().into_iter().flatten().filter_map(move |one| one.get(what))
}

/// Chains, as `table chain`, that decide on packets to or through this machine and drop those that no rule accepts.
fn dropping(rules: &Value) -> Vec<String> {
    let drops = |chain: &&Value| chain["policy"] == "drop" && (chain["hook"] == "forward" || chain["hook"] == "input");
    each(rules, "chain")
        .filter(drops)
        .map(|chain| format!("{} {}", text(&chain["table"]), text(&chain["name"])))
        .collect()
}

/// What takes our rules out of the chains of others.
fn withdrawals(rules: &Value) -> String {
    let ours = each(rules, "rule").filter(|rule| rule["comment"] == TABLE && rule["table"] != TABLE);
    ours.map(|rule| {
        format!("delete rule ip {} {} handle {}\n", text(&rule["table"]), text(&rule["chain"]), rule["handle"])
    })
    .collect()
}

fn text(name: &Value) -> &str {
    name.as_str().unwrap_or_default()
}

/// Takes the routes and rules away, kube-proxy's as well.
pub fn remove(pod_cidr: &str, service_cidr: &str) {
    if let Err(error) = ruleset().and_then(|rules| nft(&withdrawals(&rules))) {
        eprintln!("taking rules out of the chains of others: {error}");
    }
    // What is not there need not be taken away.
    let _ = ip(&["route", "del", "unreachable", pod_cidr]);
    let _ = ip(&["route", "del", service_cidr, "dev", "lo"]);
    for table in [format!("ip {TABLE}"), "ip kube-proxy".into(), "ip6 kube-proxy".into()] {
        let _ = nft(&format!("delete table {table}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};

    /// Runs the steps in a network namespace of their own.
    fn alone(steps: impl FnOnce() + Send + 'static) {
        let run = move || match unshare(CloneFlags::CLONE_NEWNET) {
            Ok(()) => steps(),
            Err(error) => println!("skipped: no network namespace of its own: {error}"),
        };
        std::thread::spawn(run).join().unwrap();
    }

    fn accepts() -> usize {
        let rules = ruleset().unwrap();
        each(&rules, "rule").filter(|rule| rule["comment"] == TABLE).count()
    }

    #[test]
    fn pods_pass_a_firewall_that_drops_and_nothing_of_it_is_left() {
        alone(|| {
            let chain = |table: &str, name: &str, hook: &str, policy: &str| {
                let base = format!("type filter hook {hook} priority 0; policy {policy};");
                nft(&format!("add table ip {table}\nadd chain ip {table} {name} {{ {base} }}\n")).unwrap();
            };
            chain("filter", "FORWARD", "forward", "drop");
            chain("filter", "OUTPUT", "output", "drop");
            chain("host-rules", "in", "input", "drop");
            chain("open", "f", "forward", "accept");
            for _ in 0..2 {
                pass_firewalls("10.244.0.0/16").unwrap();
                assert_eq!(accepts(), 4, "two rules in each of two chains, also when done twice");
            }
            remove("10.244.0.0/16", "10.96.0.0/16");
            assert_eq!(accepts(), 0);
            let left = ruleset().unwrap();
            assert_eq!(dropping(&left).len(), 2, "the firewall itself stays as it was");
        });
    }
}
