//! What the machine's own network must have: forwarding, and routes and rules that keep cluster traffic inside.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;

use super::{Context, Error, Result, images, oci};

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
    let what = format!("ip {}", args.join(" "));
    let output = Command::new(images::need("ip")?).args(args).output().context(&what)?;
    if output.status.success() { Ok(()) } else { Err(Error::new(what, String::from_utf8_lossy(&output.stderr).trim())) }
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

/// Takes the routes and rules away, kube-proxy's as well.
pub fn remove(pod_cidr: &str, service_cidr: &str) {
    // What is not there need not be taken away.
    let _ = ip(&["route", "del", "unreachable", pod_cidr]);
    let _ = ip(&["route", "del", service_cidr, "dev", "lo"]);
    for table in [format!("ip {TABLE}"), "ip kube-proxy".into(), "ip6 kube-proxy".into()] {
        let _ = nft(&format!("delete table {table}\n"));
    }
}
