//! The command line: upstream's flags, read once into [`Options`]. Flags of features that are not there are refused as
//! unknown rather than ignored, except where ignoring them changes nothing but speed, and that is said at start.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use base::flags::{self, Flags};
use clap::{Arg, Command};
use ipnet::IpNet;

use crate::Settings;

/// The component's name.
pub const NAME: &str = "kube-apiserver";

/// What the command line says.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Address that others reach us at.
    pub advertise: IpAddr,
    /// Host name for URLs that others use.
    pub external_hostname: String,
    /// Certificate and key; none makes a self-signed one.
    pub serving: Option<base::tls::Files>,
    /// Where a self-signed certificate is kept.
    pub cert_dir: PathBuf,
    /// `--tls-*`.
    pub tls: base::tls::Policy,
    /// Share the port with others.
    pub share_port: bool,
    /// Requests at a time on an HTTP/2 connection; 0 for the default.
    pub streams: u32,
    /// etcd.
    pub etcd: Etcd,
    /// How requests say who asks.
    pub authentication: Authentication,
    /// Modes of authorization, in order.
    pub authorization: Vec<String>,
    /// Service-account tokens.
    pub service_accounts: ServiceAccounts,
    /// How kubelets are reached.
    pub kubelet: Kubelet,
    /// Certificate and key by which we speak to aggregated servers.
    pub proxy_client: Option<base::tls::Files>,
    /// Requests at a time: reads, writes; 0 for no bound.
    pub in_flight: (usize, usize),
    /// Longest time for a request that is not long-running.
    pub request_timeout: Duration,
    /// Between the end of readiness and the end of listening.
    pub shutdown_delay: Duration,
    /// How long watches may run on after that.
    pub watch_grace: Duration,
    /// How long liveness is taken for granted.
    pub livez_grace: Duration,
    /// Chance that an HTTP/2 client is told to connect anew, so that load spreads.
    pub goaway_chance: f64,
    /// `none`, `lease`, `master-count`.
    pub endpoint_reconciler: String,
    /// Node port of the `kubernetes` Service; 0 for a ClusterIP alone.
    pub kubernetes_node_port: u16,
    /// `--runtime-config`: group/version (or `api/all`) to on or off.
    pub runtime_config: std::collections::BTreeMap<String, String>,
    /// `/debug/pprof` and the like.
    pub profiling: bool,
    /// Header values of Strict-Transport-Security.
    pub hsts: Vec<String>,
    /// Patterns of origins that browsers may come from.
    pub cors: Vec<String>,
    /// For the registry and admission.
    pub settings: Settings,
    /// Every flag and its value.
    pub shown: Vec<(String, String)>,
}

/// `--etcd-*`.
#[derive(Debug, Clone)]
pub struct Etcd {
    /// Endpoints.
    pub servers: Vec<String>,
    /// Authority of etcd's certificate.
    pub ca: Option<PathBuf>,
    /// Our certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Between compactions.
    pub compaction: Duration,
    /// How long a health check may take.
    pub health_timeout: Duration,
    /// How long a readiness check may take.
    pub ready_timeout: Duration,
    /// How long to wait for etcd at start.
    pub start_timeout: Duration,
}

/// How requests say who asks.
#[derive(Debug, Clone, Default)]
pub struct Authentication {
    /// Authorities of client certificates.
    pub client_ca: Option<PathBuf>,
    /// File with tokens.
    pub token_file: Option<PathBuf>,
    /// Bootstrap tokens are good.
    pub bootstrap_tokens: bool,
    /// Strangers may ask.
    pub anonymous: bool,
    /// Audiences of this server; empty for the issuers.
    pub audiences: Vec<String>,
    /// Authorities of front proxies.
    pub front_proxy_ca: Option<PathBuf>,
    /// Their names.
    pub front_proxy_names: Vec<String>,
    /// Their headers: name, UID, groups, prefixes of extra values.
    pub front_proxy_headers: [Vec<String>; 4],
}

/// `--service-account-*`.
#[derive(Debug, Clone, Default)]
pub struct ServiceAccounts {
    /// Accepted issuers; the first signs.
    pub issuers: Vec<String>,
    /// Files with keys that verify.
    pub keys: Vec<PathBuf>,
    /// File with the key that signs.
    pub signing_key: Option<PathBuf>,
    /// Check that the objects of a token are there.
    pub lookup: bool,
    /// Where others find the keys; empty for our own path.
    pub jwks_uri: String,
    /// Longest life in seconds; 0 for no bound.
    pub max_expiration: i64,
    /// Tokens of pods live a year.
    pub extend: bool,
}

/// `--kubelet-*`.
#[derive(Debug, Clone, Default)]
pub struct Kubelet {
    /// Our certificate and key.
    pub identity: Option<base::tls::Files>,
    /// Authority of kubelets' certificates; none takes any.
    pub ca: Option<PathBuf>,
    /// Kinds of a node's addresses, best first.
    pub address_types: Vec<String>,
    /// How long to wait for an answer.
    pub timeout: Duration,
}

/// The command line as clap sees it.
pub fn command() -> Command {
    let about = "The Kubernetes API server: validates and keeps the cluster's objects, and serves them to everybody.";
    let own = [server_flags(), etcd_flags(), authentication_flags(), api_flags(), ignored_flags()];
    let flags = own.into_iter().chain([flags::metrics(), flags::emulation()]);
    flags::command(NAME, about, flags.into_iter().flatten())
}

fn server_flags() -> Vec<Arg> {
    let mut list = flags::serving(6443);
    list.extend([
        flags::ip("advertise-address", "", "address that members of the cluster reach this server at"),
        flags::text("external-hostname", "", "host name in URLs that others use"),
        flags::int("max-requests-inflight", 400, "reads at a time; 0 for no bound"),
        flags::int("max-mutating-requests-inflight", 200, "writes at a time; 0 for no bound"),
        flags::duration("request-timeout", "1m0s", "longest time for a request that is no watch or stream"),
        flags::int("min-request-timeout", 1800, "seconds that a watch lasts at least, unless it says otherwise"),
        flags::duration("shutdown-delay-duration", "0s", "time between the end of readiness and of listening"),
        flags::duration("shutdown-watch-termination-grace-period", "0s", "how long watches may run on at the end"),
        flags::duration("livez-grace-period", "0s", "how long /livez holds whatever the start-up still does"),
        flags::float("goaway-chance", 0.0, "chance that an HTTP/2 client is told to connect anew"),
        flags::list("cors-allowed-origins", "", "patterns of origins that browsers may come from"),
        flags::array("strict-transport-security-directives", "values of the Strict-Transport-Security header"),
        flags::switch("profiling", true, "serve /debug/pprof/"),
    ]);
    list
}

fn etcd_flags() -> Vec<Arg> {
    vec![
        flags::list("etcd-servers", "", "etcd's endpoints (scheme://ip:port), by commas"),
        flags::text("etcd-prefix", "/registry", "prefix of all keys in etcd"),
        flags::text("etcd-cafile", "", "authority of etcd's certificate"),
        flags::text("etcd-certfile", "", "certificate for etcd"),
        flags::text("etcd-keyfile", "", "key of --etcd-certfile"),
        flags::duration("etcd-compaction-interval", "5m0s", "time between compactions; 0 for none by us"),
        flags::duration("etcd-healthcheck-timeout", "2s", "how long a health check of etcd may take"),
        flags::duration("etcd-readycheck-timeout", "2s", "how long a readiness check of etcd may take"),
        flags::duration("storage-initialization-timeout", "1m0s", "how long to wait for etcd at start"),
        flags::choice("storage-backend", "", &["", "etcd3"], "kind of the store"),
        flags::choice(
            "storage-media-type",
            "",
            &["", "application/json", "application/vnd.kubernetes.protobuf"],
            "form of stored objects; JSON it is, and upstream's protobuf is read",
        ),
    ]
}

fn authentication_flags() -> Vec<Arg> {
    vec![
        flags::text("client-ca-file", "", "authorities of client certificates"),
        flags::text("token-auth-file", "", "file with tokens: token,user,uid,\"groups\" a line"),
        flags::switch("enable-bootstrap-token-auth", false, "bootstrap tokens of kube-system are good"),
        flags::switch("anonymous-auth", true, "strangers may ask, as system:anonymous"),
        flags::list("api-audiences", "", "audiences of this server; the issuers when none are given"),
        flags::text("requestheader-client-ca-file", "", "authorities of front proxies"),
        flags::list("requestheader-allowed-names", "", "common names of front proxies; all when none are given"),
        flags::list("requestheader-username-headers", "", "front proxies' headers with the name"),
        flags::list("requestheader-uid-headers", "", "front proxies' headers with the UID"),
        flags::list("requestheader-group-headers", "", "front proxies' headers with groups"),
        flags::list("requestheader-extra-headers-prefix", "", "prefixes of front proxies' headers with extra values"),
        flags::list("authorization-mode", "", "modes in order: AlwaysAllow, AlwaysDeny, Node, RBAC"),
        flags::array("service-account-issuer", "issuer of service-account tokens; more are accepted"),
        flags::array("service-account-key-file", "keys that verify service-account tokens"),
        flags::text("service-account-signing-key-file", "", "key that signs service-account tokens"),
        flags::text("service-account-jwks-uri", "", "where others find the keys"),
        flags::switch("service-account-lookup", true, "a token is good only while its objects are there"),
        flags::duration("service-account-max-token-expiration", "0s", "longest life of a token; 0 for no bound"),
        flags::switch("service-account-extend-token-expiration", true, "let tokens of pods live a year"),
        flags::text("proxy-client-cert-file", "", "certificate for aggregated servers"),
        flags::text("proxy-client-key-file", "", "key of --proxy-client-cert-file"),
        flags::text("kubelet-client-certificate", "", "certificate for kubelets"),
        flags::text("kubelet-client-key", "", "key of --kubelet-client-certificate"),
        flags::text("kubelet-certificate-authority", "", "authority of kubelets' certificates"),
        flags::list(
            "kubelet-preferred-address-types",
            "Hostname,InternalDNS,InternalIP,ExternalDNS,ExternalIP",
            "kinds of a node's addresses, best first",
        ),
        flags::duration("kubelet-timeout", "5s", "how long to wait for a kubelet"),
    ]
}

fn api_flags() -> Vec<Arg> {
    vec![
        flags::text("service-cluster-ip-range", "", "range of ClusterIPs; two by commas for both families"),
        flags::text("service-node-port-range", "30000-32767", "range of node ports"),
        flags::choice(
            "endpoint-reconciler-type",
            "lease",
            &["lease", "master-count", "none"],
            "how this server is kept in the endpoints of `kubernetes`",
        ),
        flags::int("kubernetes-service-node-port", 0, "node port of the `kubernetes` Service; 0 for none"),
        flags::list("enable-admission-plugins", "", "admission plugins that are on beside the default ones"),
        flags::list("disable-admission-plugins", "", "default admission plugins that are off"),
        flags::switch("allow-privileged", false, "privileged containers are allowed"),
        flags::duration("event-ttl", "1h0m0s", "how long events are kept"),
        flags::map("runtime-config", "APIs that are on or off: apps/v1beta1=true, api/beta=true …"),
        flags::map("feature-gates", "features that are on or off; checked by name, and none of ours is optional"),
    ]
}

/// Flags that tune machinery we don't have: taken, so that upstream's manifests work, and of no effect.
fn ignored_flags() -> Vec<Arg> {
    let no_effect = "accepted for upstream's manifests; of no effect here";
    vec![
        flags::switch("contention-profiling", false, no_effect),
        flags::switch("enable-priority-and-fairness", true, no_effect),
        flags::switch("watch-cache", true, no_effect),
        flags::list("watch-cache-sizes", "", no_effect),
        flags::int("default-watch-cache-size", 100, no_effect),
        flags::int("delete-collection-workers", 1, no_effect),
        flags::switch("enable-garbage-collector", true, "objects go with their owners; false is not supported"),
        flags::int("apiserver-count", 1, no_effect),
        flags::duration("etcd-count-metric-poll-period", "1m0s", no_effect),
        flags::duration("etcd-db-metric-poll-interval", "30s", no_effect),
        flags::int("lease-reuse-duration-seconds", 60, no_effect),
        flags::int("max-connection-bytes-per-sec", 0, "bytes per second of a stream; only 0, no bound, is supported"),
        flags::switch("enable-aggregator-routing", false, no_effect),
        flags::switch("aggregator-reject-forwarding-redirect", true, no_effect),
        flags::switch("enable-logs-handler", false, "serve /logs/; true is not supported"),
    ]
}

impl Options {
    /// Reads and checks the flags.
    ///
    /// # Errors
    /// What is wrong, all of it, in upstream's words where it has some.
    pub fn read(flags: &Flags) -> Result<Self, String> {
        let mut wrong = Vec::new();
        let mut check = |bad: bool, text: &str| {
            if bad {
                wrong.push(text.to_string());
            }
        };
        let port = flags.int("secure-port");
        check(!(0..=65535).contains(&port), &format!("--secure-port {port} must be between 1 and 65535, inclusive"));
        check(flags.list("etcd-servers").is_empty(), "--etcd-servers must be specified");
        check(!flags.switch("enable-garbage-collector"), "--enable-garbage-collector=false is not supported");
        check(flags.int("max-connection-bytes-per-sec") != 0, "--max-connection-bytes-per-sec is not supported");
        check(flags.switch("enable-logs-handler"), "--enable-logs-handler is not supported");
        let accounts = service_accounts(flags);
        check(accounts.issuers.is_empty(), "service-account-issuer is a required flag");
        check(accounts.signing_key.is_none(), "service-account-signing-key-file is a required flag");
        check(accounts.keys.is_empty(), "service-account-key-file is a required flag");
        let ranges = ranges(flags.text("service-cluster-ip-range")).unwrap_or_else(|e| {
            check(true, &e);
            Vec::new()
        });
        let node_ports = port_range(flags.text("service-node-port-range")).unwrap_or_else(|e| {
            check(true, &e);
            (0, 0)
        });
        let admission = plugins(flags).unwrap_or_else(|e| {
            check(true, &e);
            Vec::new()
        });
        if !wrong.is_empty() {
            return Err(if wrong.len() == 1 { wrong.remove(0) } else { format!("[{}]", wrong.join(", ")) });
        }
        let bind = flags.ip("bind-address").unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Ok(Self {
            listen: SocketAddr::new(bind, port as u16),
            advertise: flags.ip("advertise-address").or_else(|| own_address(bind)).unwrap_or(bind),
            external_hostname: flags.text("external-hostname").to_string(),
            serving: files(flags, "tls-cert-file", "tls-private-key-file"),
            cert_dir: flags.path("cert-dir").unwrap_or_else(|| PathBuf::from("/var/run/kubernetes")),
            tls: flags.tls_policy(),
            share_port: flags.switch("permit-port-sharing"),
            streams: flags.int("http2-max-streams-per-connection").max(0) as u32,
            etcd: etcd(flags),
            authentication: authentication(flags, &accounts),
            authorization: Some(flags.list("authorization-mode"))
                .filter(|m| !m.is_empty())
                .unwrap_or_else(|| vec!["AlwaysAllow".into()]),
            service_accounts: accounts,
            kubelet: Kubelet {
                identity: files(flags, "kubelet-client-certificate", "kubelet-client-key"),
                ca: flags.path("kubelet-certificate-authority"),
                address_types: flags.list("kubelet-preferred-address-types"),
                timeout: flags.duration("kubelet-timeout"),
            },
            proxy_client: files(flags, "proxy-client-cert-file", "proxy-client-key-file"),
            in_flight: (
                flags.int("max-requests-inflight").max(0) as usize,
                flags.int("max-mutating-requests-inflight").max(0) as usize,
            ),
            request_timeout: flags.duration("request-timeout"),
            shutdown_delay: flags.duration("shutdown-delay-duration"),
            watch_grace: flags.duration("shutdown-watch-termination-grace-period"),
            livez_grace: flags.duration("livez-grace-period"),
            goaway_chance: flags.float("goaway-chance"),
            endpoint_reconciler: flags.text("endpoint-reconciler-type").to_string(),
            kubernetes_node_port: flags.int("kubernetes-service-node-port").clamp(0, 65535) as u16,
            runtime_config: flags.map("runtime-config"),
            profiling: flags.switch("profiling"),
            hsts: flags.array("strict-transport-security-directives"),
            cors: flags.list("cors-allowed-origins"),
            settings: Settings {
                etcd_prefix: format!("/{}", flags.text("etcd-prefix").trim_matches('/')),
                event_ttl: flags.duration("event-ttl").as_secs() as i64,
                min_request_timeout: Duration::from_secs(flags.int("min-request-timeout").max(0) as u64),
                service_ranges: ranges,
                node_ports,
                admission,
                allow_privileged: flags.switch("allow-privileged"),
            },
            shown: flags.all(),
        })
    }
}

fn files(flags: &Flags, cert: &str, key: &str) -> Option<base::tls::Files> {
    Some(base::tls::Files { cert: flags.path(cert)?, key: flags.path(key)? })
}

fn etcd(flags: &Flags) -> Etcd {
    Etcd {
        servers: flags.list("etcd-servers"),
        ca: flags.path("etcd-cafile"),
        identity: flags.path("etcd-certfile").zip(flags.path("etcd-keyfile")),
        compaction: flags.duration("etcd-compaction-interval"),
        health_timeout: flags.duration("etcd-healthcheck-timeout"),
        ready_timeout: flags.duration("etcd-readycheck-timeout"),
        start_timeout: flags.duration("storage-initialization-timeout"),
    }
}

fn authentication(flags: &Flags, accounts: &ServiceAccounts) -> Authentication {
    let audiences = Some(flags.list("api-audiences")).filter(|a| !a.is_empty());
    Authentication {
        client_ca: flags.path("client-ca-file"),
        token_file: flags.path("token-auth-file"),
        bootstrap_tokens: flags.switch("enable-bootstrap-token-auth"),
        anonymous: flags.switch("anonymous-auth"),
        audiences: audiences.unwrap_or_else(|| accounts.issuers.clone()),
        front_proxy_ca: flags.path("requestheader-client-ca-file"),
        front_proxy_names: flags.list("requestheader-allowed-names"),
        front_proxy_headers: [
            flags.list("requestheader-username-headers"),
            flags.list("requestheader-uid-headers"),
            flags.list("requestheader-group-headers"),
            flags.list("requestheader-extra-headers-prefix"),
        ],
    }
}

fn service_accounts(flags: &Flags) -> ServiceAccounts {
    let signing_key = flags.path("service-account-signing-key-file");
    let keys: Vec<PathBuf> = flags.array("service-account-key-file").into_iter().map(PathBuf::from).collect();
    ServiceAccounts {
        issuers: flags.array("service-account-issuer").into_iter().filter(|i| !i.is_empty()).collect(),
        // As upstream: the serving key, for want of better.
        keys: if keys.is_empty() { flags.path("tls-private-key-file").into_iter().collect() } else { keys },
        signing_key,
        lookup: flags.switch("service-account-lookup"),
        jwks_uri: flags.text("service-account-jwks-uri").to_string(),
        max_expiration: flags.duration("service-account-max-token-expiration").as_secs() as i64,
        extend: flags.switch("service-account-extend-token-expiration"),
    }
}

/// One range, or two of different families; 10.0.0.0/24 when nothing is said.
fn ranges(text: &str) -> Result<Vec<IpNet>, String> {
    let text = if text.is_empty() { "10.0.0.0/24" } else { text };
    let ranges: Vec<IpNet> = text
        .split(',')
        .map(|r| r.trim().parse::<IpNet>().map(|n| n.trunc()).map_err(|_| format!("invalid CIDR address: {r}")))
        .collect::<Result<_, _>>()
        .map_err(|e| format!("service-cluster-ip-range: {e}"))?;
    match ranges.as_slice() {
        [_] => Ok(ranges),
        [a, b] if a.addr().is_ipv4() != b.addr().is_ipv4() => Ok(ranges),
        [_, _] => {
            Err("--service-cluster-ip-range and --secondary-service-cluster-ip-range must be of different IP family"
                .into())
        }
        _ => Err("--service-cluster-ip-range must not contain more than two entries".into()),
    }
}

/// `30000-32767`, `30000+100`, `30000`.
fn port_range(text: &str) -> Result<(u16, u16), String> {
    let bad = || format!("unable to parse port range: {text}");
    let port = |t: &str| t.trim().parse::<u16>().map_err(|_| bad());
    let (first, last) = match (text.split_once('-'), text.split_once('+')) {
        (Some((a, b)), _) => (port(a)?, port(b)?),
        (_, Some((a, n))) => (port(a)?, port(a)?.checked_add(port(n)?).ok_or_else(bad)?),
        _ => (port(text)?, port(text)?),
    };
    if first > last { Err(format!("end port cannot be less than start port: {text}")) } else { Ok((first, last)) }
}

/// Names of the admission plugins that are on, in upstream's order.
fn plugins(flags: &Flags) -> Result<Vec<&'static str>, String> {
    let known = crate::admission::known();
    let (on, off) = (flags.list("enable-admission-plugins"), flags.list("disable-admission-plugins"));
    for (flag, name) in on.iter().map(|n| ("enable", n)).chain(off.iter().map(|n| ("disable", n))) {
        if !known.iter().any(|(k, _)| k == name) {
            return Err(format!("{flag}-admission-plugins plugin {name:?} is unknown"));
        }
        if on.contains(name) && off.contains(name) {
            return Err(format!("{name} in enable-admission-plugins and disable-admission-plugins overlapped"));
        }
    }
    let is_on =
        |(name, default): &(&str, bool)| on.iter().any(|n| n == name) || *default && !off.iter().any(|n| n == name);
    Ok(known.iter().filter(|k| is_on(k)).map(|(name, _)| *name).collect())
}

/// The address of the interface with the default route, when we listen on all.
fn own_address(bind: IpAddr) -> Option<IpAddr> {
    if !bind.is_unspecified() && !bind.is_loopback() {
        return Some(bind);
    }
    // Connecting a UDP socket sends nothing; it only picks the route.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket.local_addr().ok().map(|a| a.ip()).filter(|a| !a.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Options, String> {
        let required = [
            "--etcd-servers=http://e",
            "--service-account-issuer=i",
            "--service-account-key-file=k",
            "--service-account-signing-key-file=s",
        ];
        let args = required.iter().chain(args).map(std::ffi::OsString::from);
        match flags::parse(command(), args) {
            Ok(flags) => Options::read(&flags),
            Err(exit) => Err(format!("{exit:?}")),
        }
    }

    #[test]
    fn what_kubeadm_writes_is_taken() {
        let options = read(&[
            "--advertise-address=10.0.0.1",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--client-ca-file=/ca",
            "--enable-bootstrap-token-auth=true",
            "--etcd-cafile=/a",
            "--etcd-certfile=/b",
            "--etcd-keyfile=/c",
            "--kubelet-client-certificate=/d",
            "--kubelet-client-key=/e",
            "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
            "--proxy-client-cert-file=/f",
            "--proxy-client-key-file=/g",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-client-ca-file=/h",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            "--secure-port=6443",
            "--service-cluster-ip-range=10.96.0.0/12",
            "--tls-cert-file=/i",
            "--tls-private-key-file=/j",
        ])
        .expect("read");
        assert_eq!(options.authorization, ["Node", "RBAC"]);
        assert_eq!(options.authentication.audiences, ["i"]);
        assert_eq!(options.settings.service_ranges[0].to_string(), "10.96.0.0/12");
        assert!(options.settings.allow_privileged);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert!(read(&["--service-cluster-ip-range=10.0.0.0/16,10.1.0.0/16"]).is_err());
        assert!(read(&["--service-node-port-range=5-4"]).is_err());
        assert!(read(&["--enable-admission-plugins=Nothing"]).expect_err("refused").contains("is unknown"));
        assert!(read(&["--nothing"]).expect_err("refused").contains("unknown flag: --nothing"));
    }

    #[test]
    fn port_ranges_have_three_forms() {
        assert_eq!(port_range("30000-32767"), Ok((30000, 32767)));
        assert_eq!(port_range("100+10"), Ok((100, 110)));
        assert_eq!(port_range("80"), Ok((80, 80)));
    }
}
