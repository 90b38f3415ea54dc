//! What the workers of all pods share.

use crate::allocation::Allocations;
use crate::backoff::Backoff;
use crate::cgroups::Cgroups;
use crate::events::{Events, Level};
use crate::images::Images;
use crate::mirror::Mirrors;
use crate::objects::Objects;
use crate::pods::downward::Surroundings;
use crate::pods::files::{DnsSettings, Resolver, resolver};
use crate::pods::{self};
use crate::probes::ProbeManager;
use crate::runtime::cri::Cri;
use crate::runtime::security;
use crate::runtime::spec::{self, SandboxParts};
use crate::runtime::state::PodState;
use crate::status::containers::Reasons;
use crate::status::generate::{View, generate};
use crate::status::manager::StatusManager;
use crate::units::ResourceList;
use crate::volumes::Volumes;
use k8s_cri::v1;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Secret};
use k8s_openapi::api::node::v1::RuntimeClass;
use parking_lot::{Mutex, RwLock};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Notify;

/// What the runtime says about itself.
#[derive(Clone, Debug, Default)]
pub struct RuntimeHealth {
    /// Why the runtime is not ready.
    pub runtime: Option<String>,
    /// Why the network is not ready.
    pub network: Option<String>,
}

/// The workers' common ground.
pub struct Context {
    /// The node's name.
    pub node: String,
    /// Calls to the runtime.
    pub cri: Cri,
    /// The runtime's name, the scheme of container ids.
    pub runtime_name: String,
    /// Way to the API server, if there is one.
    pub client: Option<kube::Client>,
    /// Events.
    pub events: Events,
    /// Statuses.
    pub statuses: Arc<StatusManager>,
    /// Probes.
    pub probes: ProbeManager,
    /// Volumes.
    pub volumes: Volumes,
    /// Objects that pods refer to.
    pub objects: Arc<Objects>,
    /// Images.
    pub images: Images,
    /// Control groups; none when they are not made per pod.
    pub cgroups: Option<Cgroups>,
    /// How limits are enforced.
    pub rules: crate::runtime::resources::Rules,
    /// Resources granted to pods and put into force.
    pub allocations: Allocations,
    /// Mirror pods.
    pub mirrors: Option<Mirrors>,
    /// Delays of crashing containers.
    pub backoff: Mutex<Backoff>,
    /// Security settings.
    pub security: security::Settings,
    /// Settings of DNS.
    pub dns: DnsSettings,
    /// Directory of pods' logs.
    pub log_root: PathBuf,
    /// The node's addresses.
    pub host_ips: RwLock<Vec<String>>,
    /// What pods may use of the node.
    pub allocatable: RwLock<ResourceList>,
    /// What the runtime says about itself.
    pub health: RwLock<RuntimeHealth>,
    /// How often a pod is looked at without cause.
    pub resync: std::time::Duration,
    /// Asks for a listing of the runtime now.
    pub relist: Arc<Notify>,
}

impl Context {
    /// What the downward API shows beside the spec.
    pub fn surroundings(&self, pod: &Pod, pod_ips: &[String]) -> Surroundings {
        let host_ips = self.host_ips.read().clone();
        let pod_ips = match pod_ips.is_empty() && pods::host_network(pod) {
            true => host_ips.clone(),
            false => pod_ips.to_vec(),
        };
        Surroundings { pod_ips, host_ips, allocatable: self.allocatable.read().clone() }
    }

    /// The status of a pod as the runtime's state makes it.
    pub fn status(
        &self, pod: &Pod, state: &PodState, reasons: &Reasons, terminal: bool, eviction: Option<(&str, &str)>,
    ) -> PodStatus {
        let old = self.statuses.get(pods::uid(pod)).or_else(|| pod.status.clone()).unwrap_or_default();
        let host_ips = self.host_ips.read();
        generate(&View {
            pod,
            state,
            old: &old,
            reasons,
            probes: &self.probes.results(),
            runtime: &self.runtime_name,
            // Without an API server nobody asked for the node's address.
            host_ips: if self.client.is_some() { &host_ips } else { &[] },
            kubelet_started: self.probes.started_at(),
            terminal,
            eviction,
            resize: &self.allocations.conditions(pods::uid(pod)),
        })
    }

    fn resolver(&self, pod: &Pod) -> Resolver {
        let (resolver, fell_back) = resolver(pod, &self.dns);
        if fell_back {
            let text = format!(
                "pod: {:?}. kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.",
                pods::describe(pod)
            );
            self.events.pod(pod, Level::Warning, "MissingClusterDNS", text);
        }
        resolver
    }

    /// The configuration of the pod's sandbox.
    pub fn sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<v1::PodSandboxConfig, String> {
        if pods::spec(pod).host_users == Some(false) {
            return Err("can't set `spec.hostUsers: false`, this kubelet does not support user namespaces".into());
        }
        let host_name = pods::files::kernel_host_name(pod, &self.dns.cluster_domain)?;
        Ok(spec::sandbox(
            pod,
            SandboxParts {
                attempt,
                host_name,
                resolver: self.resolver(pod),
                log_root: &self.log_root,
                cgroup_parent: self.cgroups.as_ref().map(|groups| groups.parent_of(pod)).unwrap_or_default(),
                rules: &self.rules,
            },
        ))
    }

    /// The runtime's handler for the pod's runtime class.
    pub async fn runtime_handler(&self, pod: &Pod) -> Result<String, String> {
        let Some(name) = pods::spec(pod).runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
            return Ok(String::new());
        };
        let client = self.client.clone().ok_or("no kubeClient defined")?;
        let class = kube::Api::<RuntimeClass>::all(client).get_opt(name).await;
        let class = class.map_err(|error| crate::objects::words(&error))?;
        class.map(|class| class.handler).ok_or_else(|| format!("RuntimeClass {name:?} not found"))
    }

    /// The pod's pull secrets; those that can't be had are told about.
    pub async fn pull_secrets(&self, pod: &Pod) -> Vec<Secret> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for reference in pods::spec(pod).image_pull_secrets.as_deref().unwrap_or_default() {
            if reference.name.is_empty() {
                continue;
            }
            match self.objects.secret(pods::namespace(pod), &reference.name).await {
                Ok(Some(secret)) => found.push(secret),
                Ok(None) => missing.push(reference.name.clone()),
                Err(error) => {
                    tracing::warn!(
                        pod = pods::describe(pod),
                        secret = reference.name,
                        error,
                        "can't get a pull secret"
                    );
                    missing.push(reference.name.clone());
                }
            }
        }
        if !missing.is_empty() {
            let text = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.events.pod(pod, Level::Warning, "FailedToRetrieveImagePullSecret", text);
        }
        found
    }
}
