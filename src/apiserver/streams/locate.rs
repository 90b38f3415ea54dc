//! Where a stream goes: pod → node → kubelet. The choosing is pure; only looking up objects is not.

use std::fmt;

use api::Value;
use api::status::Status;

use super::Call;
use super::options::{Log, Remote};
use crate::registry::{internal, object};

/// Port of a kubelet that does not tell its own.
const KUBELET_PORT: u16 = 10250;

/// Where a request goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Location {
    /// Encrypted.
    pub https: bool,
    /// Name or address, without brackets.
    pub host: String,
    /// Port as it was given; empty for the scheme's.
    pub port: String,
    /// Path, decoded; may be empty.
    pub path: String,
    /// Query, encoded; may be empty.
    pub query: String,
}

impl Location {
    /// The port as a number; `None` when it is none.
    pub fn port_number(&self) -> Option<u16> {
        match (self.port.as_str(), self.https) {
            ("", true) => Some(443),
            ("", false) => Some(80),
            (text, _) => text.parse().ok(),
        }
    }

    /// `host:port` as a Host header has it.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port.is_empty() { host } else { format!("{host}:{}", self.port) }
    }

    /// Path and query, encoded.
    pub fn target(&self) -> String {
        let mut target = escape(&self.path, b"$&+,/:;=@-_.~");
        if !target.starts_with('/') {
            target.insert(0, '/');
        }
        if !self.query.is_empty() {
            target.push('?');
            target.push_str(&self.query);
        }
        target
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        let target = if self.path.is_empty() && self.query.is_empty() { String::new() } else { self.target() };
        write!(f, "{scheme}://{}{target}", self.authority())
    }
}

/// Percent-encodes all but letters, digits and `kept`.
pub fn escape(text: &str, kept: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || kept.contains(&byte) => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A query of these parameters, sorted by name.
pub fn encode(mut params: Vec<(&'static str, String)>) -> String {
    params.sort_by_key(|(name, _)| *name);
    let pair = |(name, value): &(&str, String)| format!("{name}={}", escape(value, b"-_.~ ").replace(' ', "+"));
    params.iter().map(pair).collect::<Vec<_>>().join("&")
}

/// Who is at the other end, which decides what both ends show each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// A kubelet: we show our certificate and look at its own where an authority is given.
    Kubelet,
    /// A kubelet whose certificate the client does not care about.
    KubeletUnverified,
    /// Anybody: no certificate of ours, none is looked at.
    Stranger,
}

/// A place and how to speak to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backend {
    /// Where.
    pub location: Location,
    /// Who.
    pub trust: Trust,
}

/// A node's kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubelet {
    /// Address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// It speaks the newer websocket protocols itself.
    pub websockets: bool,
}

impl Kubelet {
    /// A path of this kubelet.
    pub fn at(&self, path: String, params: Vec<(&'static str, String)>) -> Backend {
        let (host, port) = (self.host.clone(), self.port.to_string());
        let location = Location { https: true, host, port, path, query: encode(params) };
        Backend { location, trust: Trust::Kubelet }
    }
}

/// The kubelet of a node.
///
/// # Errors
/// The text of a 500 when the node has no address of a preferred type.
pub fn kubelet_of(node: &Value, preferred: &[String]) -> Result<Kubelet, String> {
    let addresses = object::list(node, &["status", "addresses"]);
    let text = |address: &Value, field: &str| object::text(address, &[field]).to_string();
    let of_type = |wanted: &String| addresses.iter().find(|address| object::text(address, &["type"]) == wanted);
    let Some(found) = preferred.iter().find_map(of_type) else {
        let known: Vec<String> =
            addresses.iter().map(|a| format!("{{{} {}}}", text(a, "type"), text(a, "address"))).collect();
        return Err(format!("no preferred addresses found; known addresses: [{}]", known.join(" ")));
    };
    let port = object::at(node, &["status", "daemonEndpoints", "kubeletEndpoint", "Port"]).and_then(Value::as_u64);
    let port = port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0).unwrap_or(KUBELET_PORT);
    let features = object::list(node, &["status", "declaredFeatures"]);
    let websockets = features.iter().any(|feature| feature == "ExtendWebSocketsToKubelet");
    Ok(Kubelet { host: text(found, "address"), port, websockets })
}

/// Names of a pod's containers: init, ordinary, ephemeral.
fn containers(pod: &Value) -> Vec<&str> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let all = lists.iter().flat_map(|list| object::list(pod, &["spec", list]));
    all.map(|container| object::text(container, &["name"])).collect()
}

/// The container that is meant: the one that is named, or the only one.
///
/// # Errors
/// 400 when that is none.
pub fn container(pod: &Value, wanted: &str) -> Result<String, Status> {
    let (name, all) = (object::name(pod), containers(pod));
    if !wanted.is_empty() {
        return match all.contains(&wanted) {
            true => Ok(wanted.to_string()),
            false => Err(Status::bad_request(format!("container {wanted} is not valid for pod {name}"))),
        };
    }
    match object::list(pod, &["spec", "containers"]) {
        [only] => Ok(object::text(only, &["name"]).to_string()),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {name}"))),
        _ => {
            let list = all.join(" ");
            let text = format!("a container name must be specified for pod {name}, choose one of: [{list}]");
            Err(Status::bad_request(text))
        }
    }
}

impl Call<'_> {
    /// An object of a core resource. What is missing is reported, as upstream does, as if it were of the request's
    /// resource.
    ///
    /// # Errors
    /// 404.
    pub async fn get(&self, plural: &str, namespace: &str, name: &str) -> Result<Value, Status> {
        let row = self.api.resources.find("", plural);
        let row = row.ok_or_else(|| Status::internal(format!("no resource {plural}")))?;
        let found = internal::get(self.api, &row, namespace, name).await;
        found.map_err(|status| match status.code {
            404 => Status::not_found(self.row.group_resource(), name),
            _ => status,
        })
    }

    /// The pod that the request names.
    ///
    /// # Errors
    /// 404.
    pub async fn pod(&self) -> Result<Value, Status> {
        self.get("pods", &self.req.info.namespace, &self.req.info.name).await
    }

    /// The kubelet of a node.
    ///
    /// # Errors
    /// 404, and 500 when the node has no address.
    pub async fn kubelet(&self, node: &str) -> Result<Kubelet, Status> {
        let node = self.get("nodes", "", node).await?;
        kubelet_of(&node, &self.streams.wire.address_types).map_err(|why| Status::new(500, "", why))
    }

    /// Where the log is; nothing for a pod without a node.
    ///
    /// # Errors
    /// 400 and 404.
    pub async fn log(&self, options: &Log) -> Result<Option<Backend>, Status> {
        let pod = self.pod().await?;
        let container = container(&pod, &options.container)?;
        let node = object::text(&pod, &["spec", "nodeName"]);
        if node.is_empty() {
            return Ok(None);
        }
        let (namespace, name) = (object::namespace(&pod), object::name(&pod));
        let path = format!("/containerLogs/{namespace}/{name}/{container}");
        let backend = self.kubelet(node).await?.at(path, options.params());
        let trust = if options.insecure { Trust::KubeletUnverified } else { Trust::Kubelet };
        Ok(Some(Backend { trust, ..backend }))
    }

    /// Where `exec` or `attach` goes, and whether the kubelet speaks the newer websocket protocols.
    ///
    /// # Errors
    /// 400 and 404.
    pub async fn remote(&self, verb: &str, options: &Remote) -> Result<(Backend, bool), Status> {
        let pod = self.pod().await?;
        let container = container(&pod, &options.container)?;
        let kubelet = self.kubelet(self.host_of(&pod)?).await?;
        let path = format!("/{verb}/{}/{}/{container}", object::namespace(&pod), object::name(&pod));
        Ok((kubelet.at(path, options.params()), kubelet.websockets))
    }

    /// Where a port-forward goes, and whether the kubelet speaks the newer websocket protocols.
    ///
    /// # Errors
    /// 400 and 404.
    pub async fn port_forward(&self, ports: &[u16]) -> Result<(Backend, bool), Status> {
        let pod = self.pod().await?;
        let kubelet = self.kubelet(self.host_of(&pod)?).await?;
        let path = format!("/portForward/{}/{}", object::namespace(&pod), object::name(&pod));
        let list: Vec<String> = ports.iter().map(u16::to_string).collect();
        let params = if list.is_empty() { Vec::new() } else { vec![("port", list.join(","))] };
        Ok((kubelet.at(path, params), kubelet.websockets))
    }

    fn host_of<'p>(&self, pod: &'p Value) -> Result<&'p str, Status> {
        match object::text(pod, &["spec", "nodeName"]) {
            "" => Err(Status::bad_request(format!("pod {} does not have a host assigned", self.req.info.name))),
            node => Ok(node),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_container_is_chosen_or_asked_for_as_upstream_does() {
        let pod = |containers: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
            json!({"metadata": {"name": "p"}, "spec": {"containers": list(containers),
                "initContainers": list(&["i"]), "ephemeralContainers": list(&["e"])}})
        };
        let chosen = |pod: &Value, name: &str| container(pod, name).map_err(|s| (s.code, s.message));
        assert_eq!(chosen(&pod(&["c"]), ""), Ok("c".into()));
        assert_eq!(chosen(&pod(&["c", "d"]), "i"), Ok("i".into()));
        assert_eq!(chosen(&pod(&["c", "d"]), "e"), Ok("e".into()));
        let text = "a container name must be specified for pod p, choose one of: [i c d e]";
        assert_eq!(chosen(&pod(&["c", "d"]), ""), Err((400, text.into())));
        assert_eq!(chosen(&pod(&["c"]), "x"), Err((400, "container x is not valid for pod p".into())));
        assert_eq!(chosen(&pod(&[]), ""), Err((400, "a container name must be specified for pod p".into())));
    }

    #[test]
    fn a_kubelet_is_reached_at_the_preferred_address() {
        let node = json!({"status": {
            "addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "fd00::1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 1234}}}});
        let types = |list: &[&str]| list.iter().map(|t| t.to_string()).collect::<Vec<_>>();
        let found = kubelet_of(&node, &types(&["InternalIP", "Hostname"])).expect("an address");
        let backend = found.at("/exec/ns/p/c".into(), vec![("command", "a b&c".into()), ("command", "-x".into())]);
        assert_eq!(backend.location.to_string(), "https://[fd00::1]:1234/exec/ns/p/c?command=a+b%26c&command=-x");
        assert_eq!(
            kubelet_of(&node, &types(&["ExternalIP"])).expect_err("none"),
            "no preferred addresses found; known addresses: [{Hostname n} {InternalIP fd00::1}]"
        );
        let bare = json!({"status": {"addresses": [{"type": "Hostname", "address": "n"}]}});
        assert_eq!(kubelet_of(&bare, &types(&["Hostname"])).expect("an address").port, 10250);
    }

    #[test]
    fn the_kubelets_query_is_sorted_as_upstreams() {
        let options = Remote { stdout: true, stderr: true, command: vec!["ls".into()], ..Remote::default() };
        assert_eq!(encode(options.params()), "command=ls&error=1&output=1");
        let command: Vec<String> = ["tar", "cf", "-", "/a"].map(String::from).into();
        let options = Remote { stdout: true, command, ..Remote::default() };
        assert_eq!(encode(options.params()), "command=tar&command=cf&command=-&command=%2Fa&output=1");
    }
}
