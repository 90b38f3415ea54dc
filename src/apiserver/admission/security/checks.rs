//! The Pod Security Standards as a table of checks: what each level forbids, since which version of its definition.

use std::collections::BTreeSet;

use api::Value;

use crate::registry::object;

/// A level; each forbids all that the one before forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Forbids nothing.
    Privileged,
    /// Forbids known ways to gain privileges.
    Baseline,
    /// Asks for hardening.
    Restricted,
}

impl Level {
    /// Its name in labels.
    pub fn name(self) -> &'static str {
        match self {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        }
    }

    /// The level of a name.
    pub fn parse(name: &str) -> Option<Self> {
        [Level::Privileged, Level::Baseline, Level::Restricted].into_iter().find(|level| level.name() == name)
    }
}

/// What a pod breaks.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken {
    /// In two words.
    pub reason: String,
    /// By whom.
    pub detail: String,
}

type Run = fn(&Value, u32) -> Option<Broken>;

struct Check {
    level: Level,
    /// First minor version that has it.
    since: u32,
    /// It takes the place of a baseline check.
    instead_of: &'static str,
    id: &'static str,
    run: Run,
}

const fn baseline(id: &'static str, since: u32, run: Run) -> Check {
    Check { level: Level::Baseline, since, instead_of: "", id, run }
}

const fn restricted(id: &'static str, since: u32, instead_of: &'static str, run: Run) -> Check {
    Check { level: Level::Restricted, since, instead_of, id, run }
}

/// In upstream's order: by name, those of baseline first.
const CHECKS: [Check; 19] = [
    baseline("appArmorProfile", 0, app_armor),
    baseline("capabilities_baseline", 0, capabilities),
    baseline("hostNamespaces", 0, host_namespaces),
    baseline("hostPathVolumes", 0, host_paths),
    baseline("hostPorts", 0, host_ports),
    baseline("hostProbesAndHostLifecycle", 34, host_probes),
    baseline("privileged", 0, privileged),
    baseline("procMount", 0, proc_mount_baseline),
    baseline("seLinuxOptions", 0, se_linux),
    baseline("seccompProfile_baseline", 0, seccomp_baseline),
    baseline("sysctls", 0, sysctls),
    baseline("windowsHostProcess", 0, host_process),
    restricted("allowPrivilegeEscalation", 8, "", escalation),
    restricted("capabilities_restricted", 22, "capabilities_baseline", capabilities_restricted),
    restricted("procMount_restricted", 35, "procMount", proc_mount),
    restricted("restrictedVolumes", 0, "hostPathVolumes", volumes),
    restricted("runAsNonRoot", 0, "", run_as_non_root),
    restricted("runAsUser", 23, "", run_as_user),
    restricted("seccompProfile_restricted", 19, "seccompProfile_baseline", seccomp_restricted),
];

/// What a pod (or a template) breaks of a level, at a minor version of its definition (`None`: the newest).
pub fn evaluate(pod: &Value, level: Level, version: Option<u32>) -> Vec<Broken> {
    if level == Level::Privileged {
        return Vec::new();
    }
    let version = version.unwrap_or(u32::MAX);
    let applies = |check: &&Check| check.level <= level && check.since <= version;
    let overridden = |id: &str| CHECKS.iter().filter(applies).any(|check| check.instead_of == id);
    CHECKS.iter().filter(applies).filter(|check| !overridden(check.id)).filter_map(|c| (c.run)(pod, version)).collect()
}

/// All that is broken, in one line.
pub fn details(broken: &[Broken]) -> String {
    let parts = broken.iter().map(|b| match b.detail.as_str() {
        "" => b.reason.clone(),
        detail => format!("{} ({detail})", b.reason),
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn broken(reason: &str, detail: impl Into<String>) -> Option<Broken> {
    Some(Broken { reason: reason.into(), detail: detail.into() })
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"].iter().flat_map(|field| object::list(pod, &["spec", field]))
}

fn name(container: &Value) -> String {
    object::text(container, &["name"]).to_string()
}

/// Names of the containers for which something holds.
fn which(pod: &Value, bad: impl Fn(&Value) -> bool) -> Vec<String> {
    containers(pod).filter(|c| bad(c)).map(name).collect()
}

fn security<'a>(object: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(object.get("securityContext")?, |at, name| at.get(*name)).filter(|v| !v.is_null())
}

fn pod_security<'a>(pod: &'a Value, path: &[&str]) -> Option<&'a Value> {
    security(pod.get("spec")?, path)
}

fn quoted<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> String {
    items.into_iter().map(|s| format!("\"{}\"", s.as_ref())).collect::<Vec<_>>().join(", ")
}

fn plural(one: &str, count: usize) -> String {
    if count == 1 { one.to_string() } else { format!("{one}s") }
}

/// `container "a"` or `containers "a", "b"`.
fn named(containers: &[String]) -> String {
    format!("{} {}", plural("container", containers.len()), quoted(containers))
}

/// Who sets something: the pod, containers, or both.
fn setters(pod: bool, containers: &[String]) -> String {
    let mut parts = Vec::new();
    if pod {
        parts.push("pod".to_string());
    }
    if !containers.is_empty() {
        parts.push(named(containers));
    }
    parts.join(" and ")
}

fn windows(pod: &Value) -> bool {
    object::text(pod, &["spec", "os", "name"]) == "windows"
}

/// A pod in a user namespace may be root in it.
fn own_users(pod: &Value) -> bool {
    object::at(pod, &["spec", "hostUsers"]) == Some(&Value::Bool(false))
}

fn app_armor(pod: &Value, _version: u32) -> Option<Broken> {
    let bad = |profile: Option<&Value>| {
        let kind = object::text(profile?, &["type"]);
        (!matches!(kind, "RuntimeDefault" | "Localhost")).then(|| kind.to_string())
    };
    let of_pod = bad(pod_security(pod, &["appArmorProfile"]));
    let in_containers = |c: &Value| bad(security(c, &["appArmorProfile"]));
    let bad_containers = which(pod, |c| in_containers(c).is_some());
    let values: BTreeSet<String> =
        of_pod.clone().into_iter().chain(containers(pod).filter_map(in_containers)).collect();
    let mut values: Vec<String> = values.into_iter().collect();
    let annotations = object::meta(pod, "annotations").and_then(Value::as_object).into_iter().flatten();
    let forbidden: Vec<String> = annotations
        .filter(|(key, _)| key.starts_with("container.apparmor.security.beta.kubernetes.io/"))
        .filter_map(|(key, value)| Some((key, value.as_str()?)))
        .filter(|(_, v)| !(v.is_empty() || *v == "runtime/default" || v.starts_with("localhost/")))
        .map(|(key, value)| format!("{key}={}", api::field::quote(value)))
        .collect();
    let mut who = setters(of_pod.is_some(), &bad_containers);
    if !forbidden.is_empty() {
        let separator = if who.is_empty() { "" } else { " and " };
        who = format!("{who}{separator}{}", plural("annotation", forbidden.len()));
        values.extend(forbidden);
    }
    if who.is_empty() {
        return None;
    }
    let reason = plural("forbidden AppArmor profile", values.len());
    broken(&reason, format!("{who} must not set AppArmor profile type to {}", quoted(values)))
}

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Capabilities that a container adds beside the allowed ones.
fn added<'a>(container: &'a Value, allowed: &[&str]) -> Vec<&'a str> {
    let list = security(container, &["capabilities", "add"]).and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).filter(|c| !allowed.contains(c)).collect()
}

fn forbidden_capabilities(pod: &Value, allowed: &[&str]) -> Option<String> {
    let bad = which(pod, |c| !added(c, allowed).is_empty());
    let all: BTreeSet<&str> = containers(pod).flat_map(|c| added(c, allowed)).collect();
    let who = named(&bad);
    (!bad.is_empty()).then(|| format!("{who} must not include {} in securityContext.capabilities.add", quoted(all)))
}

fn capabilities(pod: &Value, _version: u32) -> Option<Broken> {
    broken("non-default capabilities", forbidden_capabilities(pod, &CAPABILITIES)?)
}

fn capabilities_restricted(pod: &Value, version: u32) -> Option<Broken> {
    if version >= 25 && windows(pod) {
        return None;
    }
    let drops_all = |c: &Value| {
        let list = security(c, &["capabilities", "drop"]).and_then(Value::as_array).into_iter().flatten();
        list.into_iter().any(|c| c == "ALL")
    };
    let missing = which(pod, |c| !drops_all(c));
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", named(&missing)));
    }
    parts.extend(forbidden_capabilities(pod, &["NET_BIND_SERVICE"]));
    if parts.is_empty() { None } else { broken("unrestricted capabilities", parts.join("; ")) }
}

fn host_namespaces(pod: &Value, _version: u32) -> Option<Broken> {
    let fields = ["hostNetwork", "hostPID", "hostIPC"].iter();
    let set = fields.filter(|f| object::at(pod, &["spec", f]) == Some(&Value::Bool(true))).map(|f| format!("{f}=true"));
    let set: Vec<String> = set.collect();
    if set.is_empty() { None } else { broken("host namespaces", set.join(", ")) }
}

fn host_paths(pod: &Value, _version: u32) -> Option<Broken> {
    let volumes = object::list(pod, &["spec", "volumes"]).iter();
    let bad: Vec<String> = volumes.filter(|v| object::at(v, &["hostPath"]).is_some()).map(name).collect();
    if bad.is_empty() {
        return None;
    }
    broken("hostPath volumes", format!("{} {}", plural("volume", bad.len()), quoted(&bad)))
}

fn uses(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

fn host_ports(pod: &Value, _version: u32) -> Option<Broken> {
    let ports = |c: &Value| {
        let ports = object::list(c, &["ports"]).iter();
        ports.filter_map(|p| p.get("hostPort")?.as_i64()).filter(|p| *p != 0).map(|p| p.to_string()).collect::<Vec<_>>()
    };
    let bad = which(pod, |c| !ports(c).is_empty());
    if bad.is_empty() {
        return None;
    }
    let all: BTreeSet<String> = containers(pod).flat_map(ports).collect();
    let list: Vec<String> = all.into_iter().collect();
    let what = plural("hostPort", list.len());
    broken("hostPort", format!("{} {} {what} {}", named(&bad), uses(bad.len()), list.join(", ")))
}

fn host_probes(pod: &Value, _version: u32) -> Option<Broken> {
    const HANDLERS: [&[&str]; 5] = [
        &["livenessProbe"],
        &["readinessProbe"],
        &["startupProbe"],
        &["lifecycle", "postStart"],
        &["lifecycle", "preStop"],
    ];
    let hosts = |c: &Value| {
        let handlers = HANDLERS.iter().filter_map(|path| object::at(c, path));
        let hosts =
            handlers.flat_map(|h| ["httpGet", "tcpSocket"].map(|kind| object::text(h, &[kind, "host"]).to_string()));
        hosts.filter(|host| !host.is_empty()).collect::<Vec<_>>()
    };
    let bad: BTreeSet<String> = which(pod, |c| !hosts(c).is_empty()).into_iter().collect();
    if bad.is_empty() {
        return None;
    }
    let bad: Vec<String> = bad.into_iter().collect();
    let all: BTreeSet<String> = containers(pod).flat_map(hosts).collect();
    let what = plural("probe or lifecycle host", all.len());
    broken("probe or lifecycle host", format!("{} {} {what} {}", named(&bad), uses(bad.len()), quoted(all)))
}

fn privileged(pod: &Value, _version: u32) -> Option<Broken> {
    let bad = which(pod, |c| security(c, &["privileged"]) == Some(&Value::Bool(true)));
    if bad.is_empty() {
        return None;
    }
    broken("privileged", format!("{} must not set securityContext.privileged=true", named(&bad)))
}

fn proc_mount(pod: &Value, _version: u32) -> Option<Broken> {
    let kind = |c: &Value| {
        let kind = security(c, &["procMount"])?.as_str()?;
        (kind != "Default").then(|| kind.to_string())
    };
    let bad = which(pod, |c| kind(c).is_some());
    if bad.is_empty() {
        return None;
    }
    let kinds: BTreeSet<String> = containers(pod).filter_map(kind).collect();
    broken("procMount", format!("{} must not set securityContext.procMount to {}", named(&bad), quoted(kinds)))
}

fn proc_mount_baseline(pod: &Value, version: u32) -> Option<Broken> {
    if version >= 35 && own_users(pod) { None } else { proc_mount(pod, version) }
}

fn se_linux(pod: &Value, version: u32) -> Option<Broken> {
    let allowed = |kind: &str| {
        matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || (version >= 31 && kind == "container_engine_t")
    };
    let text = |options: &Value, field: &str| object::text(options, &[field]).to_string();
    let bad = |options: &Value| {
        !allowed(&text(options, "type")) || !text(options, "user").is_empty() || !text(options, "role").is_empty()
    };
    let of_pod = pod_security(pod, &["seLinuxOptions"]).filter(|o| bad(o));
    let in_containers = |c: &Value| security(c, &["seLinuxOptions"]).is_some_and(bad);
    let bad_containers = which(pod, in_containers);
    let who = setters(of_pod.is_some(), &bad_containers);
    if who.is_empty() {
        return None;
    }
    let all: Vec<&Value> =
        of_pod.into_iter().chain(containers(pod).filter_map(|c| security(c, &["seLinuxOptions"]))).collect();
    let types: BTreeSet<String> = all.iter().map(|o| text(o, "type")).filter(|t| !allowed(t)).collect();
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", plural("type", types.len()), quoted(&types)));
    }
    for field in ["user", "role"] {
        if all.iter().any(|o| !text(o, field).is_empty()) {
            data.push(format!("{field} may not be set"));
        }
    }
    broken("seLinuxOptions", format!("{who} set forbidden securityContext.seLinuxOptions: {}", data.join("; ")))
}

fn bad_seccomp(profile: Option<&Value>) -> Option<String> {
    let kind = object::text(profile?, &["type"]);
    (!matches!(kind, "Localhost" | "RuntimeDefault")).then(|| kind.to_string())
}

fn seccomp_set(pod: &Value) -> Option<Broken> {
    let of_pod = bad_seccomp(pod_security(pod, &["seccompProfile"]));
    let in_containers = |c: &Value| bad_seccomp(security(c, &["seccompProfile"]));
    let bad = which(pod, |c| in_containers(c).is_some());
    let who = setters(of_pod.is_some(), &bad);
    if who.is_empty() {
        return None;
    }
    let values: BTreeSet<String> = of_pod.into_iter().chain(containers(pod).filter_map(in_containers)).collect();
    broken("seccompProfile", format!("{who} must not set securityContext.seccompProfile.type to {}", quoted(values)))
}

/// Before profiles were fields they were annotations.
fn seccomp_annotations(pod: &Value) -> Option<Broken> {
    let good = |v: &str| matches!(v, "runtime/default" | "docker/default") || v.starts_with("localhost/");
    let of_containers = containers(pod).map(|c| format!("container.seccomp.security.alpha.kubernetes.io/{}", name(c)));
    let keys = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_string()).chain(of_containers);
    let bad: BTreeSet<String> = keys
        .filter_map(|key| {
            let value = object::annotation(pod, &key).filter(|v| !good(v))?;
            Some(format!("{key}={}", api::field::quote(value)))
        })
        .collect();
    if bad.is_empty() {
        return None;
    }
    let list: Vec<String> = bad.into_iter().collect();
    broken("seccompProfile", format!("forbidden {} {}", plural("annotation", list.len()), list.join(", ")))
}

fn seccomp_baseline(pod: &Value, version: u32) -> Option<Broken> {
    if version < 19 { seccomp_annotations(pod) } else { seccomp_set(pod) }
}

fn seccomp_restricted(pod: &Value, version: u32) -> Option<Broken> {
    if version >= 25 && windows(pod) {
        return None;
    }
    if let Some(found) = seccomp_set(pod) {
        return Some(found);
    }
    let pod_set = pod_security(pod, &["seccompProfile"]).is_some();
    let missing = which(pod, |c| !pod_set && security(c, &["seccompProfile"]).is_none());
    if missing.is_empty() {
        return None;
    }
    let who = named(&missing);
    let detail =
        format!("pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"");
    broken("seccompProfile", detail)
}

fn sysctls(pod: &Value, version: u32) -> Option<Broken> {
    const ALLOWED: [(&str, u32); 12] = [
        ("kernel.shm_rmid_forced", 0),
        ("net.ipv4.ip_local_port_range", 0),
        ("net.ipv4.tcp_syncookies", 0),
        ("net.ipv4.ping_group_range", 0),
        ("net.ipv4.ip_unprivileged_port_start", 0),
        ("net.ipv4.ip_local_reserved_ports", 27),
        ("net.ipv4.tcp_keepalive_time", 29),
        ("net.ipv4.tcp_fin_timeout", 29),
        ("net.ipv4.tcp_keepalive_intvl", 29),
        ("net.ipv4.tcp_keepalive_probes", 29),
        ("net.ipv4.tcp_rmem", 32),
        ("net.ipv4.tcp_wmem", 32),
    ];
    let allowed = |name: &str| ALLOWED.iter().any(|(n, since)| *n == name && *since <= version);
    let set = pod_security(pod, &["sysctls"]).and_then(Value::as_array).into_iter().flatten();
    let bad: Vec<&str> = set.map(|s| object::text(s, &["name"])).filter(|name| !allowed(name)).collect();
    if bad.is_empty() { None } else { broken("forbidden sysctls", bad.join(", ")) }
}

fn host_process(pod: &Value, _version: u32) -> Option<Broken> {
    const PATH: [&str; 2] = ["windowsOptions", "hostProcess"];
    let yes = |v: Option<&Value>| v == Some(&Value::Bool(true));
    let bad = which(pod, |c| yes(security(c, &PATH)));
    let who = setters(yes(pod_security(pod, &PATH)), &bad);
    if who.is_empty() {
        return None;
    }
    broken("hostProcess", format!("{who} must not set securityContext.windowsOptions.hostProcess=true"))
}

fn escalation(pod: &Value, version: u32) -> Option<Broken> {
    if version >= 25 && windows(pod) {
        return None;
    }
    let bad = which(pod, |c| security(c, &["allowPrivilegeEscalation"]) != Some(&Value::Bool(false)));
    if bad.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", named(&bad));
    broken("allowPrivilegeEscalation != false", detail)
}

fn volumes(pod: &Value, _version: u32) -> Option<Broken> {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let list = object::list(pod, &["spec", "volumes"]).iter();
    let bad: Vec<&Value> = list.filter(|v| !ALLOWED.iter().any(|kind| object::at(v, &[kind]).is_some())).collect();
    if bad.is_empty() {
        return None;
    }
    let kind = |volume: &Value| {
        let fields = volume.as_object().into_iter().flatten();
        let kind = fields.filter(|(field, value)| *field != "name" && !value.is_null()).map(|(field, _)| field.clone());
        kind.into_iter().next().unwrap_or_else(|| "unknown".to_string())
    };
    let kinds: BTreeSet<String> = bad.iter().map(|v| kind(v)).collect();
    let names: Vec<String> = bad.iter().map(|v| name(v)).collect();
    let what = plural("restricted volume type", kinds.len());
    let (word, verb) = (plural("volume", names.len()), uses(names.len()));
    broken("restricted volume types", format!("{word} {} {verb} {what} {}", quoted(&names), quoted(kinds)))
}

fn run_as_non_root(pod: &Value, version: u32) -> Option<Broken> {
    const REASON: &str = "runAsNonRoot != true";
    if version >= 35 && own_users(pod) {
        return None;
    }
    let of_pod = pod_security(pod, &["runAsNonRoot"]).and_then(Value::as_bool);
    let of = |c: &Value| security(c, &["runAsNonRoot"]).and_then(Value::as_bool);
    let explicit = which(pod, |c| of(c) == Some(false));
    let who = setters(of_pod == Some(false), &explicit);
    if !who.is_empty() {
        return broken(REASON, format!("{who} must not set securityContext.runAsNonRoot=false"));
    }
    let implicit = which(pod, |c| of(c).is_none() && of_pod != Some(true));
    if implicit.is_empty() {
        return None;
    }
    broken(REASON, format!("pod or {} must set securityContext.runAsNonRoot=true", named(&implicit)))
}

fn run_as_user(pod: &Value, version: u32) -> Option<Broken> {
    if version >= 35 && own_users(pod) {
        return None;
    }
    let root = |v: Option<&Value>| v.and_then(Value::as_i64) == Some(0);
    let bad = which(pod, |c| root(security(c, &["runAsUser"])));
    let who = setters(root(pod_security(pod, &["runAsUser"])), &bad);
    if who.is_empty() { None } else { broken("runAsUser=0", format!("{who} must not set runAsUser=0")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(pod: &Value, level: Level) -> String {
        details(&evaluate(pod, level, None))
    }

    #[test]
    fn a_plain_pod_passes_baseline_and_breaks_restricted() {
        let pod = json!({"spec": {"containers": [{"name": "c"}]}});
        assert_eq!(shown(&pod, Level::Baseline), "");
        let want = "allowPrivilegeEscalation != false (container \"c\" must set \
                    securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must \
                    set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" \
                    must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set \
                    securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";
        assert_eq!(shown(&pod, Level::Restricted), want);
    }

    #[test]
    fn host_access_breaks_baseline() {
        let pod = json!({"spec": {
            "hostNetwork": true, "hostPID": true,
            "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
            "containers": [{"name": "c", "ports": [{"hostPort": 80}], "securityContext": {"privileged": true}}],
        }});
        let want = "host namespaces (hostNetwork=true, hostPID=true), hostPath volumes (volume \"v\"), hostPort \
                    (container \"c\" uses hostPort 80), privileged (container \"c\" must not set \
                    securityContext.privileged=true)";
        assert_eq!(shown(&pod, Level::Baseline), want);
    }

    #[test]
    fn older_definitions_know_fewer_checks() {
        let pod = json!({"spec": {"containers": [{"name": "c", "livenessProbe": {"httpGet": {"host": "h"}}}]}});
        assert_eq!(evaluate(&pod, Level::Baseline, Some(33)).len(), 0);
        assert_eq!(evaluate(&pod, Level::Baseline, None).len(), 1);
    }
}
