//! The small files of a pod's network identity, as text: host name, /etc/hosts, resolver.

use super::{host_network, name, spec};
use k8s_openapi::api::core::v1::{HostAlias, Pod};

/// A host name that the kernel takes: at most 63 characters, not ending in `-` or `.`.
fn cut(host_name: &str) -> String {
    match host_name.char_indices().nth(63) {
        Some((at, _)) => host_name[..at].trim_end_matches(['-', '.']).to_owned(),
        None => host_name.to_owned(),
    }
}

/// Host name and domain of the pod (both without dots at the ends); the domain is empty without a subdomain.
pub fn host_name(pod: &Pod, cluster_domain: &str) -> Result<(String, String), String> {
    let spec = spec(pod);
    if let Some(name) = spec.hostname_override.as_deref().filter(|name| !name.is_empty()) {
        return Ok((cut(name), String::new()));
    }
    let base = spec.hostname.as_deref().filter(|name| !name.is_empty()).unwrap_or(name(pod));
    let host = cut(base);
    if host.is_empty() {
        return Err(format!("hostname for pod {:?} was invalid: {base:?}", name(pod)));
    }
    let domain = match spec.subdomain.as_deref().filter(|name| !name.is_empty()) {
        Some(subdomain) => format!("{subdomain}.{}.svc.{cluster_domain}", super::namespace(pod)),
        None => String::new(),
    };
    Ok((host, domain))
}

/// The name that the sandbox's kernel shows: the full one when the pod asks for it.
pub fn kernel_host_name(pod: &Pod, cluster_domain: &str) -> Result<String, String> {
    let (host, domain) = host_name(pod, cluster_domain)?;
    if spec(pod).set_hostname_as_fqdn != Some(true) || domain.is_empty() {
        return Ok(host);
    }
    let full = format!("{host}.{domain}");
    match full.len() {
        0..=64 => Ok(full),
        length => Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long (64 characters is the max, {length} characters requested)"
        )),
    }
}

/// /etc/hosts of a pod with its own network.
pub fn managed_hosts(pod_ips: &[String], host: &str, domain: &str, aliases: &[HostAlias]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    for ip in pod_ips {
        match domain {
            "" => text.push_str(&format!("{ip}\t{host}\n")),
            domain => text.push_str(&format!("{ip}\t{host}.{domain}\t{host}\n")),
        }
    }
    text + &alias_lines(aliases)
}

/// /etc/hosts of a pod on the node's network: the node's file under another heading.
pub fn node_hosts(node_file: &str, aliases: &[HostAlias]) -> String {
    format!("# Kubernetes-managed hosts file (host network).\n{node_file}{}", alias_lines(aliases))
}

fn alias_lines(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        text.push_str(&format!("{}\t{}\n", alias.ip, alias.hostnames.as_deref().unwrap_or_default().join("\t")));
    }
    text
}

/// Name servers, search list and options of a resolver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolver {
    /// Addresses of the name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options, `name` or `name:value`.
    pub options: Vec<String>,
}

/// Reads a resolv.conf.
pub fn parse_resolver(text: &str) -> Resolver {
    let mut resolver = Resolver::default();
    for line in text.lines() {
        let mut words = line.trim().split_ascii_whitespace();
        match words.next() {
            Some("nameserver") => resolver.servers.extend(words.next().map(str::to_owned)),
            // The last search line counts; a lone dot means the root.
            Some("search") => {
                resolver.searches = words
                    .map(|word| if word == "." { word } else { word.trim_end_matches('.') })
                    .map(str::to_owned)
                    .collect();
            }
            Some("options") => resolver.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    resolver
}

/// What the kubelet's configuration says about DNS.
#[derive(Clone, Debug, Default)]
pub struct DnsSettings {
    /// Addresses of the cluster's DNS service.
    pub cluster_dns: Vec<String>,
    /// The cluster's domain; empty when there is none.
    pub cluster_domain: String,
    /// The node's own resolver.
    pub node: Resolver,
}

/// Where a pod's resolver starts from.
#[derive(PartialEq)]
enum Policy {
    Cluster,
    Host,
    None,
}

/// The pod's resolver, and whether it fell back to the node's because no cluster DNS is known.
pub fn resolver(pod: &Pod, settings: &DnsSettings) -> (Resolver, bool) {
    let policy = match spec(pod).dns_policy.as_deref() {
        Some("None") => Policy::None,
        Some("Default") => Policy::Host,
        Some("ClusterFirstWithHostNet") => Policy::Cluster,
        _ if host_network(pod) => Policy::Host,
        _ => Policy::Cluster,
    };
    let mut fell_back = false;
    let mut resolver = match policy {
        Policy::None => Resolver::default(),
        Policy::Cluster if !settings.cluster_dns.is_empty() => Resolver {
            servers: settings.cluster_dns.clone(),
            searches: cluster_searches(pod, settings),
            options: vec!["ndots:5".into()],
        },
        Policy::Cluster | Policy::Host => {
            fell_back = policy == Policy::Cluster;
            settings.node.clone()
        }
    };
    if let Some(config) = &spec(pod).dns_config {
        extend_unique(&mut resolver.servers, config.nameservers.as_deref().unwrap_or_default());
        extend_unique(&mut resolver.searches, config.searches.as_deref().unwrap_or_default());
        for option in config.options.as_deref().unwrap_or_default() {
            let name = option.name.as_deref().unwrap_or_default();
            let text = match option.value.as_deref().filter(|value| !value.is_empty()) {
                Some(value) => format!("{name}:{value}"),
                None => name.to_owned(),
            };
            resolver.options.retain(|old| old.split(':').next() != Some(name));
            resolver.options.push(text);
        }
    }
    // The C library reads three servers; Linux takes 32 search domains of 2048 characters together.
    resolver.servers.truncate(3);
    resolver.searches.truncate(32);
    while resolver.searches.join(" ").len() > 2048 {
        resolver.searches.pop();
    }
    (resolver, fell_back)
}

fn cluster_searches(pod: &Pod, settings: &DnsSettings) -> Vec<String> {
    let domain = settings.cluster_domain.as_str();
    let mut searches = Vec::new();
    if !domain.is_empty() {
        searches.push(format!("{}.svc.{domain}", super::namespace(pod)));
        searches.push(format!("svc.{domain}"));
        searches.push(domain.to_owned());
    }
    extend_unique(&mut searches, &settings.node.searches);
    searches
}

fn extend_unique(list: &mut Vec<String>, more: &[String]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": {"name": "p".repeat(70), "namespace": "n"}, "spec": spec})).unwrap()
    }

    fn settings() -> DnsSettings {
        DnsSettings {
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            node: parse_resolver("# x\nnameserver 1.1.1.1\nsearch corp.example.\noptions rotate\n"),
        }
    }

    #[test]
    fn host_names_are_cut_to_63_characters() {
        let (host, domain) = host_name(&pod(json!({})), "cluster.local").unwrap();
        assert_eq!((host.len(), domain.as_str()), (63, ""));
        let named = pod(json!({"hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true}));
        assert_eq!(kernel_host_name(&named, "cluster.local").unwrap(), "h.s.n.svc.cluster.local");
        let ends = pod(json!({"hostname": format!("{}-x", "a".repeat(62))}));
        assert_eq!(host_name(&ends, "").unwrap().0, "a".repeat(62));
    }

    #[test]
    fn hosts_files_have_upstreams_heading_and_lines() {
        let aliases: Vec<HostAlias> =
            serde_json::from_value(json!([{"ip": "1.2.3.4", "hostnames": ["a", "b"]}])).unwrap();
        let text = managed_hosts(&["10.0.0.2".into()], "h", "s.n.svc.c", &aliases);
        assert_eq!(
            text,
            "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n\
             10.0.0.2\th.s.n.svc.c\th\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"
        );
        assert_eq!(node_hosts("127.0.0.1 x\n", &[]), "# Kubernetes-managed hosts file (host network).\n127.0.0.1 x\n");
    }

    #[test]
    fn the_resolver_follows_the_policy() {
        let cluster = resolver(&pod(json!({})), &settings()).0;
        assert_eq!(cluster.servers, ["10.96.0.10"]);
        assert_eq!(cluster.searches, ["n.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"]);
        assert_eq!(cluster.options, ["ndots:5"]);
        assert_eq!(resolver(&pod(json!({"hostNetwork": true})), &settings()).0, settings().node);
        let with_host = json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"});
        assert_eq!(resolver(&pod(with_host), &settings()).0, cluster);
        let none = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["9.9.9.9"], "options": [{"name": "ndots", "value": "2"}]}});
        let none = resolver(&pod(none), &settings()).0;
        assert_eq!(
            (none.servers, none.searches, none.options),
            (vec!["9.9.9.9".into()], vec![], vec!["ndots:2".into()])
        );
        let own = json!({"dnsConfig": {"options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}});
        assert_eq!(resolver(&pod(own), &settings()).0.options, ["ndots:2", "edns0"]);
        assert!(resolver(&pod(json!({})), &DnsSettings { cluster_dns: vec![], ..settings() }).1);
    }
}
