//! Puts allocations right: the default ServiceCIDR, addresses and ports that Services hold but nobody noted, and those
//! that are noted but nobody holds.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::Value;
use api::status::Status;
use serde_json::json;

use super::families;
use super::spec::Spec;
use super::{addresses, addresses::Owner};
use crate::Api;
use crate::registry::{internal, object};

/// Seconds for which an IPAddress may be there before its Service is: a create takes the address first.
const PATIENCE: i64 = 60;

/// Makes everything agree with the Services that are stored now.
///
/// # Errors
/// When the store does not answer.
pub async fn repair(api: &Arc<Api>) -> Result<(), Status> {
    default_cidr(api).await?;
    let Some(row) = api.resources.find("", "services") else { return Ok(()) };
    api.cache.refresh().await.map_err(Status::internal)?;
    let services = internal::list(api, &row, "")?;
    let cluster = api.services.families();
    let mut ports = BTreeSet::new();
    let mut held = BTreeSet::new();
    for service in &services {
        let mut spec = Spec::read(service);
        families::complete(&mut spec, &cluster);
        let owner = Owner { namespace: object::namespace(service), name: object::name(service) };
        for address in spec.addresses() {
            if !noted(api, &address) {
                addresses::record(api, &address, &owner).await?;
            }
            held.insert(address);
        }
        ports.extend(spec.node_ports());
        ports.extend(Some(spec.health_port).filter(|port| *port != 0));
    }
    api.services.ports.repair(api, &ports).await?;
    forget(api, &held).await
}

fn noted(api: &Arc<Api>, address: &str) -> bool {
    let row = api.resources.find("networking.k8s.io", "ipaddresses");
    row.is_some_and(|row| internal::exists(api, &row, "", address))
}

/// Releases addresses that were taken for a Service that is not there.
async fn forget(api: &Arc<Api>, held: &BTreeSet<String>) -> Result<(), Status> {
    let Some(row) = api.resources.find("networking.k8s.io", "ipaddresses") else { return Ok(()) };
    let now = object::now();
    for address in internal::list(api, &row, "")? {
        let name = object::name(&address);
        let for_service = object::text(&address, &["spec", "parentRef", "resource"]) == "services";
        let made = object::seconds(object::meta_text(&address, "creationTimestamp")).unwrap_or(now);
        if for_service && !held.contains(name) && now - made > PATIENCE {
            addresses::release(api, name).await;
        }
    }
    Ok(())
}

/// The ServiceCIDR `kubernetes`, which says what the flags say.
async fn default_cidr(api: &Arc<Api>) -> Result<(), Status> {
    let Some(row) = api.resources.find("networking.k8s.io", "servicecidrs") else { return Ok(()) };
    if internal::exists(api, &row, "", "kubernetes") || api.services.ranges.is_empty() {
        return Ok(());
    }
    let cidrs: Vec<String> = api.services.ranges.iter().map(ToString::to_string).collect();
    let object = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": cidrs},
    });
    match internal::create(api, &row, "", object).await {
        Err(status) if status.reason != "AlreadyExists" => return Err(status),
        _ => {}
    }
    let ready = |mut cidr: Value| {
        let condition = json!({
            "type": "Ready",
            "status": "True",
            "lastTransitionTime": object::time(object::now()),
            "reason": "",
            "message": "Kubernetes default Service CIDR is ready",
        });
        object::fields(&mut cidr, &["status"]).insert("conditions".into(), vec![condition].into());
        Ok(cidr)
    };
    internal::update(api, &row, "", "kubernetes", "status", &ready).await.map(|_| ())
}
