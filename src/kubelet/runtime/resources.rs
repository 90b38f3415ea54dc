//! Resources as the kernel's control groups know them: shares, quotas, bytes.

use crate::pods::{self, qos};
use crate::units::{milli_of, value_of};
use k8s_cri::v1::{HugepageLimit, LinuxContainerResources};
use k8s_openapi::api::core::v1::{Container, Pod};

/// Least cpu shares that the kernel takes.
pub const MIN_SHARES: i64 = 2;
/// Most cpu shares that the kernel takes.
pub const MAX_SHARES: i64 = 262_144;
/// Least quota in microseconds.
const MIN_QUOTA: i64 = 1000;

/// How limits are put into force on this node.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Are cpu limits enforced?
    pub cpu_quota: bool,
    /// The period of the quota in microseconds.
    pub cpu_period: i64,
    /// The node's memory in bytes.
    pub memory_capacity: i64,
    /// Is the unified hierarchy (version 2) in use?
    pub unified: bool,
    /// On version 2: kill only the process at fault when memory runs out, not all of the container.
    pub single_process_oom_kill: bool,
    /// Sizes of huge pages that the node has, as in `2MB`.
    pub huge_page_sizes: Vec<String>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            cpu_quota: true,
            cpu_period: 100_000,
            memory_capacity: 0,
            unified: false,
            single_process_oom_kill: false,
            huge_page_sizes: Vec::new(),
        }
    }
}

/// Shares for cpu in thousandths.
pub fn milli_to_shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Thousandths of cpu for shares, rounded up as upstream's status does.
pub fn shares_to_milli(shares: i64) -> i64 {
    (shares * 1000 + 1023) / 1024
}

/// Quota in microseconds for cpu in thousandths; 0 is no limit.
pub fn milli_to_quota(milli: i64, period: i64) -> i64 {
    match milli {
        0 => 0,
        milli => (milli * period / 1000).max(MIN_QUOTA),
    }
}

/// Shares, quota and memory for given amounts: cpu in thousandths, memory in bytes.
pub fn linux(rules: &Rules, cpu_request: Option<i64>, cpu_limit: i64, memory_limit: i64) -> LinuxContainerResources {
    // A limit without a request counts as the request.
    let request = cpu_request.unwrap_or(cpu_limit);
    let mut resources = LinuxContainerResources {
        cpu_shares: milli_to_shares(request),
        memory_limit_in_bytes: memory_limit,
        ..Default::default()
    };
    if rules.cpu_quota {
        resources.cpu_period = rules.cpu_period;
        resources.cpu_quota = milli_to_quota(cpu_limit, rules.cpu_period);
    }
    if rules.unified && !rules.single_process_oom_kill {
        resources.unified.insert("memory.oom.group".into(), "1".into());
    }
    resources
}

/// Resources of a container, with pod-level limits where it has none of its own.
pub fn of_container(rules: &Rules, pod: &Pod, container: &Container) -> LinuxContainerResources {
    let own = container.resources.as_ref();
    let (requests, limits) = (own.and_then(|r| r.requests.as_ref()), own.and_then(|r| r.limits.as_ref()));
    let pod_limits = pods::spec(pod).resources.as_ref().and_then(|r| r.limits.as_ref());
    let cpu_limit = milli_of(limits, "cpu").filter(|v| *v != 0).or_else(|| milli_of(pod_limits, "cpu")).unwrap_or(0);
    let memory = value_of(limits, "memory").filter(|v| *v != 0).or_else(|| value_of(pod_limits, "memory")).unwrap_or(0);
    let mut resources = linux(rules, milli_of(requests, "cpu"), cpu_limit, memory);
    resources.oom_score_adj = qos::oom_score(pod, container, rules.memory_capacity);
    resources.hugepage_limits = huge_pages(rules, container);
    resources
}

fn huge_pages(rules: &Rules, container: &Container) -> Vec<HugepageLimit> {
    let limits = container.resources.as_ref().and_then(|r| r.limits.as_ref());
    let wanted = |size: &str| {
        let size = size.trim_end_matches('B');
        value_of(limits, &format!("hugepages-{size}i")).unwrap_or(0)
    };
    rules
        .huge_page_sizes
        .iter()
        .map(|size| HugepageLimit { page_size: size.clone(), limit: wanted(size).max(0) as u64 })
        .collect()
}

/// Resources of the whole pod without its overhead, for the sandbox.
pub fn of_pod(rules: &Rules, pod: &Pod) -> LinuxContainerResources {
    let requests = qos::totals(pod, qos::Side::Requests, false);
    let limits = qos::totals(pod, qos::Side::Limits, false);
    let limit = |name: &str| limits.get(name).copied().unwrap_or(0);
    linux(rules, requests.get("cpu").copied(), limit("cpu"), limit("memory") / 1000)
}

/// The pod's overhead, requests and limits in one.
pub fn overhead(rules: &Rules, pod: &Pod) -> LinuxContainerResources {
    let Some(extra) = &pods::spec(pod).overhead else { return LinuxContainerResources::default() };
    let cpu = milli_of(Some(extra), "cpu").unwrap_or(0);
    linux(rules, Some(cpu), cpu, value_of(Some(extra), "memory").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cpu_and_memory_become_shares_quota_and_bytes() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "a", "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}},
            {"name": "b"},
            {"name": "c", "resources": {"requests": {"cpu": "250m"}, "limits": {"cpu": "1m"}}}
        ]}}))
        .unwrap();
        let rules = Rules { memory_capacity: 1 << 30, ..Default::default() };
        let of = |index: usize| {
            let r = of_container(&rules, &pod, &pods::apps(&pod)[index]);
            (r.cpu_shares, r.cpu_quota, r.cpu_period, r.memory_limit_in_bytes)
        };
        assert_eq!(of(0), (512, 50_000, 100_000, 64 << 20));
        assert_eq!(of(1), (2, 0, 100_000, 0));
        assert_eq!(of(2), (256, 1000, 100_000, 0));
        assert_eq!(shares_to_milli(512), 500);
    }
}
