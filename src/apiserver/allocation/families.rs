//! Which addresses a Service gets: its families and the fields that must agree with them. All pure.

use api::field::{Error, Errors, Path};

use super::spec::{Family, Spec};

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";

fn field(name: &str) -> Path {
    Path::new("spec").child(name)
}

/// Brings `clusterIP` and `clusterIPs` into agreement where a client knows one of them only.
pub fn normalize(new: &mut Spec, old: Option<&Spec>) {
    let Some(old) = old else {
        if !new.cluster_ip.is_empty() && new.cluster_ips.is_empty() {
            new.cluster_ips = vec![new.cluster_ip.clone()];
        }
        return;
    };
    if !old.cluster_ips.is_empty() && new.cluster_ips.is_empty() && old.cluster_ip == new.cluster_ip {
        new.cluster_ips = old.cluster_ips.clone();
    }
    if old.cluster_ip == new.cluster_ip || new.cluster_ips != old.cluster_ips {
        return;
    }
    new.cluster_ips = if new.cluster_ip.is_empty() { Vec::new() } else { vec![new.cluster_ip.clone()] };
}

/// Keeps what was allocated where an update does not name it.
pub fn keep_allocated(new: &mut Spec, old: &Spec) {
    if old.has_addresses() && new.has_addresses() {
        if new.cluster_ip.is_empty() {
            new.cluster_ip = old.cluster_ip.clone();
        }
        if new.cluster_ips.is_empty() {
            new.cluster_ips = old.cluster_ips.clone();
        }
    }
    if old.has_node_ports() && new.has_node_ports() {
        keep_ports(new, old);
    }
    if old.needs_health_port() && new.needs_health_port() && new.health_port == 0 {
        new.health_port = old.health_port;
    }
}

/// A port keeps the node port that the port of its name had, unless another one names that now.
fn keep_ports(new: &mut Spec, old: &Spec) {
    let (held, named) = (old.node_ports(), new.node_ports());
    let used: Vec<u16> = held.into_iter().filter(|port| named.contains(port)).collect();
    for port in new.ports.iter_mut().filter(|p| p.node_port == 0) {
        let before = old.ports.iter().rev().find(|p| p.name == port.name).map_or(0, |p| p.node_port);
        if !used.contains(&before) {
            port.node_port = before;
        }
    }
}

/// Completes a stored Service that was written before these fields existed.
pub fn complete(spec: &mut Spec, families: &[Family]) {
    normalize(spec, None);
    if !spec.has_addresses() || !spec.families.is_empty() {
        return;
    }
    let primary = families.first().copied().unwrap_or(Family::V4);
    let (policy, found) = match (spec.headless(), spec.selects) {
        (true, false) => (REQUIRE, vec![primary, primary.other()]),
        (true, true) => (SINGLE, vec![primary]),
        (false, _) => {
            let found: Vec<Family> = spec.cluster_ips.iter().map(|ip| Family::of(ip)).collect();
            (if found.len() == 2 { REQUIRE } else { SINGLE }, found)
        }
    };
    spec.policy = policy.into();
    spec.families = found;
}

/// An update of a Service that prefers two families and keeps what it has keeps it.
fn keeps_preference(new: &Spec, old: &Spec) -> bool {
    new.policy == PREFER
        && old.kind == new.kind
        && new.has_addresses()
        && (old.policy.is_empty() || old.policy == PREFER)
        && old.cluster_ips == new.cluster_ips
        && old.families == new.families
}

/// Chooses policy and families of a Service. `related` says what is wrong with these and the addresses, once the policy
/// is chosen.
///
/// # Errors
/// What upstream finds wrong with the fields before it allocates.
pub fn init(
    new: &mut Spec, old: Option<&Spec>, cluster: &[Family], related: impl FnOnce(&Spec) -> Errors,
) -> Result<(), Errors> {
    if new.kind == "ExternalName" || old.is_some_and(|old| keeps_preference(new, old)) {
        return Ok(());
    }
    if new.policy.is_empty() {
        new.policy = match old {
            Some(old) if !old.policy.is_empty() => old.policy.clone(),
            _ if new.headless() && !new.selects => REQUIRE.into(),
            _ => SINGLE.into(),
        };
    }
    let wrong = related(new);
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut errors = Errors::new();
    if let Some(old) = old {
        reduce(new, old, &mut errors);
    }
    check_counts(new, &mut errors);
    families_of_addresses(new, cluster, &mut errors);
    refuse(errors)?;
    if new.headless() && !new.selects {
        headless_families(new, cluster);
        return Ok(());
    }
    check_configured(new, cluster)?;
    if new.families.is_empty() {
        new.families.extend(cluster.first());
    }
    if new.policy != SINGLE && new.families.len() == 1 && cluster.len() == 2 {
        new.families.push(new.families[0].other());
    }
    Ok(())
}

fn refuse(errors: Errors) -> Result<(), Errors> {
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// An update to one family drops the second address; an update that keeps two may not lose one.
fn reduce(new: &mut Spec, old: &Spec, errors: &mut Errors) {
    let path = field("ipFamilyPolicy");
    if new.policy == SINGLE {
        if old.cluster_ips == new.cluster_ips {
            new.cluster_ips.truncate(1);
        }
        if old.families == new.families {
            new.families.truncate(1);
        }
        return;
    }
    let fewer = |new: usize, old: usize| new != 0 && new < old;
    if fewer(new.cluster_ips.len(), old.cluster_ips.len()) {
        let why = "must be 'SingleStack' to release the secondary cluster IP";
        errors.push(Error::invalid(&path, new.policy.as_str(), why));
    }
    if fewer(new.families.len(), old.families.len()) {
        let why = "must be 'SingleStack' to release the secondary IP family";
        errors.push(Error::invalid(&path, new.policy.as_str(), why));
    }
}

fn check_counts(new: &Spec, errors: &mut Errors) {
    if new.policy != SINGLE {
        return;
    }
    let path = field("ipFamilyPolicy");
    for (count, what) in [(new.cluster_ips.len(), "cluster IPs"), (new.families.len(), "IP families")] {
        if count == 2 {
            let why = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            errors.push(Error::invalid(&path, new.policy.as_str(), why));
        }
    }
}

/// Addresses that are named say their families.
fn families_of_addresses(new: &mut Spec, cluster: &[Family], errors: &mut Errors) {
    for (i, ip) in new.cluster_ips.clone().iter().enumerate() {
        if ip == "None" {
            break;
        }
        let family = Family::of(ip);
        if i < new.families.len() {
            continue;
        }
        if cluster.contains(&family) {
            new.families.push(family);
        } else {
            let why = format!("{} is not configured on this cluster", family.name());
            errors.push(Error::invalid(&field("clusterIPs").index(i), new.cluster_ips.clone(), why));
        }
    }
}

fn headless_families(new: &mut Spec, cluster: &[Family]) {
    if new.families.is_empty() {
        new.families.extend(cluster.first());
    }
    if new.families.len() == 1 && new.policy != SINGLE {
        new.families.push(new.families[0].other());
    }
}

fn check_configured(new: &Spec, cluster: &[Family]) -> Result<(), Errors> {
    let mut errors = Errors::new();
    if new.policy == REQUIRE && cluster.len() < 2 {
        let why = "this cluster is not configured for dual-stack services";
        errors.push(Error::invalid(&field("ipFamilyPolicy"), new.policy.as_str(), why));
    }
    for (i, family) in new.families.iter().enumerate().filter(|(_, family)| !cluster.contains(family)) {
        errors.push(Error::invalid(&field("ipFamilies").index(i), family.name(), "not configured on this cluster"));
    }
    refuse(errors)
}

/// Positions of the addresses that a new Service takes.
pub fn all_addresses(new: &Spec) -> Vec<usize> {
    if new.kind == "ExternalName" || new.headless() { Vec::new() } else { (0..new.families.len()).collect() }
}

/// Positions of the addresses that an update takes.
pub fn more_addresses(new: &Spec, old: &Spec) -> Vec<usize> {
    if keeps_preference(new, old) {
        return Vec::new();
    }
    if old.kind == "ExternalName" {
        return if new.kind == "ExternalName" { Vec::new() } else { all_addresses(new) };
    }
    if old.headless() || new.kind == "ExternalName" {
        return Vec::new();
    }
    if old.families.len() == 1 && new.families.len() == 2 { vec![1] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Value;
    use serde_json::json;

    fn spec(value: Value) -> Spec {
        Spec::read(&json!({"spec": value}))
    }

    fn ready(mut new: Spec, cluster: &[Family]) -> Spec {
        normalize(&mut new, None);
        init(&mut new, None, cluster, |_| Errors::new()).unwrap();
        new
    }

    #[test]
    fn a_plain_service_gets_one_address_of_the_primary_family() {
        let new = ready(spec(json!({"type": "ClusterIP"})), &[Family::V4]);
        assert_eq!((new.policy.as_str(), new.families.clone()), (SINGLE, vec![Family::V4]));
        assert_eq!(all_addresses(&new), [0]);
    }

    #[test]
    fn a_headless_service_without_selector_has_both_families_on_every_cluster() {
        let new = ready(spec(json!({"type": "ClusterIP", "clusterIP": "None"})), &[Family::V4]);
        assert_eq!((new.policy.as_str(), new.families.clone()), (REQUIRE, vec![Family::V4, Family::V6]));
        assert!(all_addresses(&new).is_empty());
    }

    #[test]
    fn preferring_two_families_takes_what_the_cluster_has() {
        let wanted = json!({"type": "ClusterIP", "ipFamilyPolicy": PREFER});
        assert_eq!(ready(spec(wanted.clone()), &[Family::V4]).families, [Family::V4]);
        assert_eq!(ready(spec(wanted), &[Family::V6, Family::V4]).families, [Family::V6, Family::V4]);
    }

    #[test]
    fn put_without_cluster_ip_and_node_port_keeps_both() {
        let old = spec(json!({
            "type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"name": "a", "port": 80, "nodePort": 30001}]
        }));
        let mut new = spec(json!({"type": "NodePort", "ports": [{"name": "a", "port": 81}]}));
        keep_allocated(&mut new, &old);
        assert_eq!(new.cluster_ip, "10.0.0.1");
        assert_eq!(new.node_ports(), [30001]);
    }

    #[test]
    fn a_node_port_that_another_port_names_is_not_kept() {
        let port = |name: &str, node: u16| json!({"name": name, "port": 80, "nodePort": node});
        let old = spec(json!({"type": "NodePort", "ports": [port("a", 30001), port("b", 30002)]}));
        let mut new = spec(json!({"type": "NodePort", "ports": [{"name": "a", "port": 80}, port("b", 30001)]}));
        keep_allocated(&mut new, &old);
        assert_eq!(new.ports[0].node_port, 0);
    }

    #[test]
    fn requiring_two_families_fails_where_there_is_one() {
        let mut new = spec(json!({"type": "ClusterIP", "ipFamilyPolicy": REQUIRE}));
        let errors = init(&mut new, None, &[Family::V4], |_| Errors::new()).unwrap_err();
        assert!(errors.aggregate().unwrap().ends_with("this cluster is not configured for dual-stack services"));
    }

    #[test]
    fn an_update_from_one_family_to_two_takes_the_second_address() {
        let both = [Family::V4, Family::V6];
        let old = spec(
            json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": SINGLE}),
        );
        let mut new = Spec { policy: PREFER.into(), ..old.clone() };
        init(&mut new, Some(&old), &both, |_| Errors::new()).unwrap();
        assert_eq!(more_addresses(&new, &old), [1]);
    }
}
