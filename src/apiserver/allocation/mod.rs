//! ClusterIPs and node ports: who has which.
//!
//! ```text
//!   Service (new, old) ──spec──► families ──► plan ──┬─► addresses: one IPAddress object each, below a ServiceCIDR
//!                                                    └─► ports: one bitmap for the cluster, as upstream stores it
//! ```
//!
//! An address belongs to whoever creates its IPAddress object first, so that several servers agree without talking.
//! What a failed write has taken is given back; what a server lost between taking and writing is found by [`repair`].

mod addresses;
mod families;
mod ports;
mod repair;
mod spec;

use std::sync::Arc;

use api::Value;
use api::field::{Error, Errors, Path};
use api::resources::Row;
use api::status::{Of, Status};
use async_trait::async_trait;
use ipnet::IpNet;

use crate::registry::engine::Write;
use crate::registry::hooks::{Finish, Hooks, Undo};
use crate::registry::{internal, object};
use crate::{Api, Settings};
use spec::{Family, Spec};

pub use repair::repair;

/// The allocators of Services.
pub struct Services {
    ranges: Vec<IpNet>,
    ports: ports::Ports,
}

impl Services {
    /// Allocators for the ranges of the settings.
    pub fn new(settings: &Settings) -> Self {
        Self { ranges: settings.service_ranges.clone(), ports: ports::Ports::new(settings.node_ports) }
    }

    /// Families that the cluster gives addresses of, the primary one first.
    fn families(&self) -> Vec<Family> {
        self.ranges.iter().map(Family::of_net).collect()
    }

    /// Makes the default ServiceCIDR where it is missing and records what Services hold but nobody noted; run at
    /// start, before the server is ready, and every few minutes.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn repair(api: &Arc<Api>) -> Result<(), Status> {
        repair(api).await
    }
}

/// Hooks of Services.
pub struct ServiceHooks;

#[async_trait]
impl Hooks for ServiceHooks {
    async fn begin_create(&self, w: &Write<'_>, new: &mut Value) -> Result<Undo, Status> {
        let mut spec = Spec::read(new);
        families::normalize(&mut spec, None);
        begin(w, new, spec, None, None).await
    }

    async fn begin_update(&self, w: &Write<'_>, new: &mut Value, live: &Value) -> Result<Undo, Status> {
        if w.subresource == "status" {
            return Ok(Undo::nothing());
        }
        let mut old = Spec::read(live);
        families::complete(&mut old, &w.api.services.families());
        let mut spec = Spec::read(new);
        families::keep_allocated(&mut spec, &old);
        families::normalize(&mut spec, Some(&old));
        begin(w, new, spec, Some(live), Some(&old)).await
    }

    async fn after_delete(&self, api: &Arc<Api>, _row: &Arc<Row>, service: &Value) {
        let (namespace, name) = (object::namespace(service), object::name(service));
        if let Some(endpoints) = api.resources.find("", "endpoints") {
            match internal::delete(api, &endpoints, namespace, name).await {
                Err(status) if status.code != 404 => tracing::error!(%status, "endpoints {namespace}/{name} stay"),
                _ => {}
            }
        }
        let mut spec = Spec::read(service);
        families::complete(&mut spec, &api.services.families());
        let mut ports = spec.node_ports();
        ports.extend(Some(spec.health_port).filter(|port| *port != 0));
        let gone = Taken { addresses: spec.addresses(), ports };
        gone.release(api).await;
    }
}

/// Addresses and ports.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Taken {
    addresses: Vec<String>,
    ports: Vec<u16>,
}

impl Taken {
    async fn release(&self, api: &Arc<Api>) {
        for address in &self.addresses {
            addresses::release(api, address).await;
        }
        if let Err(status) = api.services.ports.release(api, &self.ports).await {
            tracing::error!(%status, ports = ?self.ports, "node ports stay taken until the next repair");
        }
    }
}

/// Ends an allocation: gives back what the update left, or what was taken for nothing.
struct Allocation {
    taken: Taken,
    left: Taken,
}

#[async_trait]
impl Finish for Allocation {
    async fn finish(self: Box<Self>, api: &Arc<Api>, done: bool) {
        if done { self.left.release(api).await } else { self.taken.release(api).await }
    }
}

/// Allocates what a new state of a Service needs, writes it into the Service, and says how that ends.
async fn begin(
    w: &Write<'_>, service: &mut Value, mut spec: Spec, live: Option<&Value>, old: Option<&Spec>,
) -> Result<Undo, Status> {
    let name = object::name(service).to_string();
    let refuse = |errors: Errors| Status::invalid(Of { group: "", name: "Service" }, &name, errors);
    let related = |spec: &Spec| related_fields(service, live, spec);
    families::init(&mut spec, old, &w.api.services.families(), related).map_err(refuse)?;
    let mut taken = Taken::default();
    let result = allocate(w, &name, &mut spec, old, &mut taken).await;
    if let Err(status) = result {
        if !w.options.dry_run {
            taken.release(w.api).await;
        }
        return Err(status);
    }
    spec.write(service);
    let left = old.map(|old| left_behind(&spec, old)).unwrap_or_default();
    let undo = Undo::with(Allocation { taken, left });
    Ok(if w.options.dry_run { Undo::nothing() } else { undo })
}

/// What validation says of addresses and families as they are before the allocation.
fn related_fields(service: &Value, live: Option<&Value>, spec: &Spec) -> Errors {
    let mut shown = service["spec"].clone();
    let addresses =
        [("clusterIP", Value::from(spec.cluster_ip.as_str())), ("clusterIPs", spec.cluster_ips.clone().into())];
    for (field, value) in addresses {
        shown[field] = value;
    }
    shown["ipFamilyPolicy"] = spec.policy.as_str().into();
    let mut out = Errors::new();
    let old = live.map_or(Value::Null, |live| live["spec"].clone());
    api::kinds::core::cluster_ips(&mut out, &shown, &old, &Path::new("spec"));
    out
}

async fn allocate(
    w: &Write<'_>, name: &str, spec: &mut Spec, old: Option<&Spec>, taken: &mut Taken,
) -> Result<(), Status> {
    let wanted = match old {
        Some(old) => families::more_addresses(spec, old),
        None => families::all_addresses(spec),
    };
    for index in wanted {
        take_address(w, name, spec, index, taken).await?;
    }
    if spec.has_node_ports() {
        take_ports(w, name, spec, old, taken).await?;
    }
    if spec.needs_health_port() && !old.is_some_and(Spec::needs_health_port) {
        take_health_port(w, spec, taken).await?;
    }
    Ok(())
}

async fn take_address(
    w: &Write<'_>, name: &str, spec: &mut Spec, index: usize, taken: &mut Taken,
) -> Result<(), Status> {
    if spec.cluster_ips.len() <= index {
        spec.cluster_ips.push(String::new());
    }
    let (family, wanted) = (spec.families[index], spec.cluster_ips[index].clone());
    let owner = addresses::Owner { namespace: w.namespace, name };
    let result = addresses::take(w.api, family, &wanted, &owner, w.options.dry_run).await;
    let shown: Value = spec.cluster_ips.clone().into();
    let refuse = |why: String| {
        let errors = Errors(vec![Error::invalid(&Path::new("spec").child("clusterIPs"), shown, why)]);
        Status::invalid(Of { group: "", name: "Service" }, name, errors)
    };
    let address = match result {
        Ok(address) => address,
        Err(addresses::Refusal::Full) => {
            return Err(Status::internal(format!(
                "failed to allocate a serviceIP for Service \"{name}\": range is full"
            )));
        }
        Err(addresses::Refusal::Unparsed) => {
            return Err(Status::internal(format!("failed to parse service IP \"{wanted}\"")));
        }
        Err(addresses::Refusal::Why(why)) if wanted.is_empty() => {
            return Err(refuse(format!("failed to allocate IP: {why}")));
        }
        Err(addresses::Refusal::Why(why)) => return Err(refuse(format!("failed to allocate IP {wanted}: {why}"))),
    };
    taken.addresses.push(address.clone());
    spec.cluster_ips[index] = address;
    if index == 0 {
        spec.cluster_ip = spec.cluster_ips[0].clone();
    }
    Ok(())
}

/// Gives every port of a NodePort or LoadBalancer Service its node port. Ports of one number (TCP and UDP 53) share
/// one where they name no others.
async fn take_ports(
    w: &Write<'_>, name: &str, spec: &mut Spec, old: Option<&Spec>, taken: &mut Taken,
) -> Result<(), Status> {
    let held = old.map(Spec::node_ports).unwrap_or_default();
    let mut shared: Vec<(i64, u16)> = Vec::new();
    for i in 0..spec.ports.len() {
        let port = spec.ports[i].port;
        let wanted = spec.ports[i].node_port;
        if wanted == 0 && !spec.allocates_node_ports() {
            continue;
        }
        let same = if old.is_none() { shared.iter().find(|(p, _)| *p == port).map(|(_, node)| *node) } else { None };
        let asked = match (wanted, same) {
            (0, Some(node)) => {
                spec.ports[i].node_port = node;
                continue;
            }
            (0, None) if old.is_none() => spec.requested_node_port(port),
            (wanted, _) => wanted,
        };
        // A new Service shares a node port between ports of one number alone.
        let shares =
            if old.is_some() { held.contains(&asked) || taken.ports.contains(&asked) } else { same == Some(asked) };
        if asked != 0 && shares {
            spec.ports[i].node_port = if wanted == 0 { asked } else { wanted };
            continue;
        }
        let node = take_port(w, name, i, asked, taken).await?;
        spec.ports[i].node_port = node;
        if same.is_none() {
            shared.push((port, node));
        }
    }
    Ok(())
}

/// What a dry run shows: the port that is asked for, even one out of range, or one that no range has. So does upstream.
fn imagined_port(asked: u16, taken: &Taken) -> u16 {
    if asked != 0 { asked } else { taken.ports.iter().max().map_or(32769, |port| port.saturating_add(1)) }
}

async fn take_port(w: &Write<'_>, name: &str, i: usize, asked: u16, taken: &mut Taken) -> Result<u16, Status> {
    let ports = &w.api.services.ports;
    if w.options.dry_run && (asked == 0 || !ports.holds(asked)) {
        let port = imagined_port(asked, taken);
        taken.ports.push(port);
        return Ok(port);
    }
    match ports.take(w.api, asked, w.options.dry_run).await? {
        Ok(port) => {
            taken.ports.push(port);
            Ok(port)
        }
        Err(why) if asked == 0 => Err(Status::internal(format!("failed to allocate a nodePort: {why}"))),
        Err(why) => {
            let path = Path::new("spec").child("ports").index(i).child("nodePort");
            let errors = Errors(vec![Error::invalid(&path, asked, why)]);
            Err(Status::invalid(Of { group: "", name: "Service" }, name, errors))
        }
    }
}

async fn take_health_port(w: &Write<'_>, spec: &mut Spec, taken: &mut Taken) -> Result<(), Status> {
    let asked = spec.health_port;
    if w.options.dry_run && (asked == 0 || !w.api.services.ports.holds(asked)) {
        spec.health_port = imagined_port(asked, taken);
        taken.ports.push(spec.health_port);
        return Ok(());
    }
    match w.api.services.ports.take(w.api, asked, w.options.dry_run).await? {
        Ok(port) => {
            taken.ports.push(port);
            spec.health_port = port;
            Ok(())
        }
        Err(why) if asked == 0 => {
            Err(Status::internal(format!("failed to allocate a HealthCheck NodePort {asked}: {why}")))
        }
        Err(why) => Err(Status::internal(format!("failed to allocate requested HealthCheck NodePort {asked}: {why}"))),
    }
}

/// What an old state of a Service holds and the new one does not.
fn left_behind(new: &Spec, old: &Spec) -> Taken {
    let kept = new.addresses();
    let mut ports = Vec::new();
    // Upstream gives ports back only where the type says that none are needed, or where they were replaced.
    let still = new.node_ports();
    if old.has_node_ports() {
        ports.extend(old.node_ports().into_iter().filter(|port| !new.has_node_ports() || !still.contains(port)));
    }
    if old.needs_health_port() && !new.needs_health_port() && old.health_port != 0 {
        ports.push(old.health_port);
    }
    Taken { addresses: old.addresses().into_iter().filter(|ip| !kept.contains(ip)).collect(), ports }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(text: &str) -> Spec {
        Spec::read(&json!({"spec": serde_json::from_str::<Value>(text).unwrap()}))
    }

    #[test]
    fn a_service_that_becomes_external_leaves_address_and_ports() {
        let old = spec(
            r#"{"type": "NodePort", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": [{"port": 80, "nodePort": 30001}]}"#,
        );
        let new = spec(r#"{"type": "ExternalName", "externalName": "a.b", "ports": [{"port": 80}]}"#);
        let want = Taken { addresses: vec!["10.96.0.9".into()], ports: vec![30001] };
        assert_eq!(left_behind(&new, &old), want);
        assert_eq!(left_behind(&old, &old), Taken::default());
    }
}
