//! What the machine's own network must have: forwarding, and routes and rules that keep cluster traffic inside.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Context, Error, Result, images, oci, succeed};

/// Name of the nftables table that is ours; kube-proxy has its own.
const TABLE: &str = "navarch";

/// Name of the link that services are routed to where the machine has no route for them.
const LINK: &str = "navarch";

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

/// What of the machine was so before the cluster came.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// Kernel settings that were changed.
    pub kernel: Saved,
    /// Tables of rules that there were, as `family name`; none until the first look.
    pub tables: Option<Vec<String>>,
    /// The directory of network namespaces was made a mount of its own by us.
    pub mounted_namespaces: bool,
}

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
///
/// # Errors
/// The first that the kernel refuses; the others are put back all the same.
pub fn restore_kernel(saved: &Saved) -> Result<()> {
    let put = |(name, value): &(String, String)| {
        fs::write(format!("/proc/sys/{name}"), value).context(format!("setting {name} back"))
    };
    saved.iter().map(put).fold(Ok(()), Result::and)
}

/// Where network namespaces have their names.
const NAMESPACES: &str = "/run/netns";

/// Makes the directory of network namespaces a mount of its own, as `ip netns` does: that program would else put one
/// over the namespaces of running pods, and these could never be removed again. True when this did it.
///
/// # Errors
/// When the mount is refused.
pub fn mount_namespaces() -> Result<bool> {
    // Namespaces that are there already would be hidden in just the same way.
    if !super::down::mounts_below(Path::new(NAMESPACES))?.is_empty() {
        return Ok(false);
    }
    let what = format!("mounting {NAMESPACES}");
    fs::create_dir_all(NAMESPACES).context(&what)?;
    let none = None::<&str>;
    mount(Some(NAMESPACES), NAMESPACES, none, MsFlags::MS_BIND | MsFlags::MS_REC, none).context(&what)?;
    mount(none, NAMESPACES, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none).context(&what)?;
    Ok(true)
}

/// Undoes [`mount_namespaces`], unless somebody has namespaces there meanwhile.
fn unmount_namespaces() -> Result<()> {
    let what = format!("unmounting {NAMESPACES}");
    if fs::read_dir(NAMESPACES).context(&what)?.next().is_some() {
        return Ok(());
    }
    umount2(NAMESPACES, MntFlags::empty()).context(what)
}

/// Routes and rules: pods reach the world under this machine's address; service and pod addresses that nobody has never
/// leave the machine.
///
/// # Errors
/// When a route or rule is refused.
pub fn ensure(pod_cidr: &str, service_cidr: &str, own: IpAddr) -> Result<()> {
    ip(&["route", "replace", "unreachable", pod_cidr])?;
    service_route(service_cidr, own)?;
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

/// The route is looked up before the rules of kube-proxy redirect the packet, so there must be one that lets it through
/// to them, with a source address that answers can come back to. Mostly the way to the world is one; a machine without
/// gets a bridge that leads nowhere. (Loopback would do for what is redirected, but packets to it are never refused.)
fn service_route(service_cidr: &str, own: IpAddr) -> Result<()> {
    let address = service_cidr.split('/').next().unwrap_or(service_cidr);
    let covered = ip(&["route", "get", address]).is_ok();
    if covered {
        return Ok(());
    }
    if ip(&["link", "show", LINK]).is_err() {
        ip(&["link", "add", LINK, "type", "bridge"])?;
    }
    ip(&["link", "set", LINK, "up"])?;
    ip(&["route", "replace", service_cidr, "dev", LINK, "src", &own.to_string()])
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

fn list(what: &[&str]) -> Result<Value> {
    let name = format!("nft {}", what.join(" "));
    let output = succeed(&name, Command::new(images::need("nft")?).args(["-j", "-a"]).args(what))?;
    serde_json::from_slice(&output.stdout).context(name)
}

/// Rules and chains as nft lists them.
fn ruleset() -> Result<Value> {
    list(&["list", "ruleset", "ip"])
}

/// The tables that there are, as `family name`.
///
/// # Errors
/// When they can't be listed.
pub fn tables() -> Result<Vec<String>> {
    let listed = list(&["list", "tables"])?;
    Ok(each(&listed, "table").map(|table| format!("{} {}", text(&table["family"]), text(&table["name"]))).collect())
}

/// Tables that a cluster has of its own, and takes away with it.
fn own_tables() -> [String; 3] {
    [format!("ip {TABLE}"), "ip kube-proxy".into(), "ip6 kube-proxy".into()]
}

/// The tables that others have on this machine.
///
/// # Errors
/// When one of them has the name of one of ours: somebody's kube-proxy would lose its rules.
pub fn foreign_tables() -> Result<Vec<String>> {
    let tables = tables()?;
    match own_tables().into_iter().find(|own| tables.contains(own)) {
        None => Ok(tables),
        Some(taken) => {
            let why = format!(
                "this machine has it already: a kube-proxy by nftables runs here, or a cluster was not taken down \
                 (`nft delete table {taken}` removes what is left of one)"
            );
            Err(Error::new(format!("making the table {taken}"), why))
        }
    }
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

/// Takes the routes and rules away, kube-proxy's and those of the pods' network plugins as well.
///
/// # Errors
/// All that could not be taken away.
pub fn remove(pod_cidr: &str, before: &Before) -> Vec<Error> {
    // What is not there need not be taken away.
    let _ = ip(&["route", "del", "unreachable", pod_cidr]);
    let _ = ip(&["link", "del", LINK]);
    let mut steps = vec![ruleset().and_then(|rules| nft(&withdrawals(&rules)))];
    for table in own_tables() {
        steps.push(nft(&format!("table {table} {{}}\ndelete table {table}\n")));
    }
    steps.extend(["ip", "ip6"].map(|family| remove_port_mappings(family, before)));
    if before.mounted_namespaces {
        steps.push(unmount_namespaces());
    }
    steps.into_iter().filter_map(Result::err).collect()
}

/// The chains that the portmap plugin makes once for all pods and never removes. Those of a pod's own stand in the way:
/// then somebody else's pods use them.
const PORT_MAPPINGS: &str = "CNI-HOSTPORT-";

fn remove_port_mappings(family: &str, before: &Before) -> Result<()> {
    let name = format!("{family} nat");
    let tables = before.tables.as_deref().unwrap_or_default();
    if !self::tables()?.contains(&name) {
        return Ok(());
    }
    let rules = list(&["list", "table", family, "nat"])?;
    nft(&port_mappings(&rules, family, !tables.contains(&name)))
}

/// What takes the chains of port mappings out of a table, and the table as well when it was not there `before` and has
/// nothing else.
fn port_mappings(rules: &Value, family: &str, new: bool) -> String {
    let name = |chain: &Value| text(&chain["name"]).to_owned();
    let all: Vec<String> = each(rules, "chain").map(name).collect();
    if all.iter().any(|chain| chain.starts_with("CNI-DN-")) {
        return String::new();
    }
    let ours: Vec<&String> = all.iter().filter(|chain| chain.starts_with(PORT_MAPPINGS)).collect();
    let leads_there = |rule: &&Value| {
        let target = rule["expr"].as_array().into_iter().flatten().find_map(|e| e["jump"]["target"].as_str());
        target.is_some_and(|target| target.starts_with(PORT_MAPPINGS))
    };
    let in_ours = |rule: &Value| text(&rule["chain"]).starts_with(PORT_MAPPINGS);
    let others = each(rules, "rule").filter(|rule| !in_ours(rule) && !leads_there(rule)).count();
    let foreign_chains = each(rules, "chain").any(|c| c["hook"].is_null() && !name(c).starts_with(PORT_MAPPINGS));
    if new && others == 0 && !foreign_chains {
        return format!("delete table {family} nat\n");
    }
    let mut script = String::new();
    for rule in each(rules, "rule").filter(leads_there).filter(|rule| !in_ours(rule)) {
        script += &format!("delete rule {family} nat {} handle {}\n", text(&rule["chain"]), rule["handle"]);
    }
    for chain in &ours {
        script += &format!("flush chain {family} nat {chain}\n");
    }
    for chain in &ours {
        script += &format!("delete chain {family} nat {chain}\n");
    }
    script
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
            assert!(remove("10.244.0.0/16", &Before::default()).is_empty());
            assert_eq!(accepts(), 0);
            let left = ruleset().unwrap();
            assert_eq!(dropping(&left).len(), 2, "the firewall itself stays as it was");
        });
    }

    fn port_mapping_rules() {
        nft("table ip nat {\n\
               chain CNI-HOSTPORT-SETMARK { meta mark set meta mark or 0x2000\n }\n\
               chain CNI-HOSTPORT-DNAT { }\n\
               chain PREROUTING { type nat hook prerouting priority -100; policy accept;\n\
                 fib daddr type local jump CNI-HOSTPORT-DNAT\n }\n }\n")
        .unwrap();
    }

    #[test]
    fn port_mappings_go_with_their_table_or_leave_what_was_there_before() {
        alone(|| {
            port_mapping_rules();
            assert!(remove("10.244.0.0/16", &Before::default()).is_empty());
            assert!(tables().unwrap().is_empty(), "the table was not there before");
            port_mapping_rules();
            let before = Before { tables: Some(vec!["ip nat".into()]), ..Default::default() };
            nft("add rule ip nat PREROUTING tcp dport 1 counter\n").unwrap();
            assert!(remove("10.244.0.0/16", &before).is_empty());
            let left = list(&["list", "table", "ip", "nat"]).unwrap();
            let (chains, rules) = (each(&left, "chain").count(), each(&left, "rule").count());
            assert_eq!((chains, rules), (1, 1));
            port_mapping_rules();
            nft("add chain ip nat CNI-DN-1234\n").unwrap();
            assert!(remove("10.244.0.0/16", &Before::default()).is_empty());
            let left = list(&["list", "table", "ip", "nat"]).unwrap();
            assert_eq!(each(&left, "chain").count(), 4, "somebody's pod still uses them");
        });
    }

    #[test]
    fn a_table_of_the_same_name_is_not_taken() {
        alone(|| {
            nft("table ip host { }\n").unwrap();
            assert_eq!(foreign_tables().unwrap(), ["ip host"]);
            nft("table ip kube-proxy { }\n").unwrap();
            assert!(foreign_tables().unwrap_err().to_string().contains("ip kube-proxy"));
        });
    }

    #[test]
    fn services_are_routed_where_nothing_else_leads_and_the_way_goes_again() {
        alone(|| {
            ip(&["link", "set", "lo", "up"]).unwrap();
            let own = IpAddr::V4(Ipv4Addr::LOCALHOST);
            for _ in 0..2 {
                service_route("10.96.0.0/16", own).unwrap();
            }
            ip(&["route", "get", "10.96.0.1"]).unwrap();
            assert!(remove("10.244.0.0/16", &Before::default()).is_empty());
            assert!(ip(&["route", "get", "10.96.0.1"]).is_err());
        });
    }
}
