//! What is odd about a pod or pod template without being wrong (`pkg/api/pod/warnings.go`).

use std::collections::{BTreeMap, BTreeSet};

use super::prepare::app_armor_of;
use super::security::{SECCOMP, SECCOMP_CONTAINER};
use super::spec::{APP_ARMOR, each_container};
use crate::Value;
use crate::field::{Path, quote};
use crate::kinds::view::View;
use crate::kinds::{ip, rules};
use crate::meta::names;

/// Labels of nodes that have other names now, and what to say of them.
const OLD_LABELS: &[(&str, &str)] = &[
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];

/// What to say of a node label that has another name now.
pub fn old_label(key: &str) -> Option<&'static str> {
    OLD_LABELS.iter().find(|(label, _)| *label == key).map(|(_, text)| *text)
}

const OLD_ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];

/// Volume sources that are going or gone; the name in the text may differ from the field's.
const OLD_VOLUMES: &[(&str, &str, &str)] = &[
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Of a new pod.
pub fn pod(pod: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let wrong = names::label(pod.at("metadata").text("name"));
    if !wrong.is_empty() {
        out.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
             recommended: [{}]",
            wrong.join(" ")
        ));
    }
    out.extend(all(pod, &Path::default(), false));
    out
}

/// Of a pod template under its path.
pub fn template(template: &Value, path: &Path) -> Vec<String> {
    all(template, path, true)
}

/// Of a status.
pub fn status(pod: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for list in ["podIPs", "hostIPs"] {
        for (i, address) in pod.at("status").items(list).iter().enumerate() {
            let path = Path::new("status").child(list).index(i).child("ip");
            ip::warnings(&mut out, address.text("ip"), &path);
        }
    }
    out
}

fn all(pod: &Value, path: &Path, is_template: bool) -> Vec<String> {
    let mut out = Vec::new();
    let (meta, spec) = (pod.at("metadata"), pod.at("spec"));
    let (meta_path, spec_path) = (path.child("metadata").child("annotations"), path.child("spec"));
    node_labels(&mut out, spec, &spec_path);
    spread(&mut out, spec, &spec_path);
    for (key, text) in OLD_ANNOTATIONS {
        if meta.at("annotations").has(key) {
            out.push(format!("{}: {text}", meta_path.key(key)));
        }
    }
    volumes(&mut out, spec, &spec_path);
    paths(&mut out, spec);
    duplicates(&mut out, spec, &spec_path);
    whole_bytes(&mut out, spec.at("overhead"), &spec_path.child("overhead"));
    let annotations = meta.at("annotations");
    if !spec.at("securityContext").has("seccompProfile") && annotations.has(SECCOMP) {
        out.push(seccomp(&meta_path.key(SECCOMP)));
    }
    each_container(spec, &spec_path, |container, path| {
        profiles(&mut out, container, spec, annotations, is_template, &meta_path);
        container_resources(&mut out, container, path);
        variables(&mut out, container, path);
    });
    ports(&mut out, spec, &spec_path);
    port_names(&mut out, spec, &spec_path);
    if spec.number("terminationGracePeriodSeconds") < 0 {
        let path = spec_path.child("terminationGracePeriodSeconds");
        out.push(format!("{path}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    affinity(&mut out, spec, &spec_path.child("affinity"));
    for (i, server) in spec.at("dnsConfig").texts("nameservers").enumerate() {
        ip::warnings(&mut out, server, &spec_path.child("dnsConfig").child("nameservers").index(i));
    }
    for (i, alias) in spec.items("hostAliases").iter().enumerate() {
        ip::warnings(&mut out, alias.text("ip"), &spec_path.child("hostAliases").index(i).child("ip"));
    }
    out
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn node_labels(out: &mut Vec<String>, spec: &Value, path: &Path) {
    for (key, _) in spec.entries("nodeSelector") {
        if let Some(text) = old_label(key) {
            out.push(format!("{}: {text}", path.child("nodeSelector").key(key)));
        }
    }
    let path = path.child("affinity").child("nodeAffinity");
    let node = spec.at("affinity").at("nodeAffinity");
    for (i, term) in node.at(REQUIRED).items("nodeSelectorTerms").iter().enumerate() {
        node_term(out, term, false, &path.child(REQUIRED).child("nodeSelectorTerms").index(i));
    }
    for (i, term) in node.items(PREFERRED).iter().enumerate() {
        node_term(out, term.at("preference"), true, &path.child(PREFERRED).index(i).child("preference"));
    }
}

/// Of a term of a node selector; values are looked at where no other rule does.
pub fn node_term(out: &mut Vec<String>, term: &Value, values: bool, path: &Path) {
    for (i, expression) in term.items("matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(i);
        let key = expression.text("key");
        if let Some(text) = old_label(key) {
            out.push(format!("{}: {key} is {text}", path.child("key")));
        }
        for (j, value) in expression.texts("values").enumerate().filter(|_| values) {
            for wrong in names::label_value(value) {
                out.push(format!("{}: {value} is invalid, {wrong}", path.child("values").index(j)));
            }
        }
    }
}

fn spread(out: &mut Vec<String>, spec: &Value, path: &Path) {
    for (i, constraint) in spec.items("topologySpreadConstraints").iter().enumerate() {
        let path = path.child("topologySpreadConstraints").index(i);
        let key = constraint.text("topologyKey");
        if let Some(text) = old_label(key) {
            out.push(format!("{}: {key} is {text}", path.child("topologyKey")));
        }
        if !constraint.has("labelSelector") {
            out.push(no_selector(&path.child("labelSelector")));
        }
    }
}

fn no_selector(path: &Path) -> String {
    format!("{path}: a null labelSelector results in matching no pod")
}

fn affinity(out: &mut Vec<String>, spec: &Value, path: &Path) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        let (affinity, path) = (spec.at("affinity").at(kind), path.child(kind));
        for (i, term) in affinity.items(REQUIRED).iter().enumerate() {
            if !term.has("labelSelector") {
                out.push(no_selector(&path.child(REQUIRED).index(i).child("labelSelector")));
            }
        }
        for (i, term) in affinity.items(PREFERRED).iter().enumerate() {
            if !term.at("podAffinityTerm").has("labelSelector") {
                let path = path.child(PREFERRED).index(i).child("podAffinityTerm");
                out.push(no_selector(&path.child("labelSelector")));
            }
        }
    }
}

fn volumes(out: &mut Vec<String>, spec: &Value, path: &Path) {
    for (i, volume) in spec.items("volumes").iter().enumerate() {
        let path = path.child("volumes").index(i);
        for (field, name, text) in OLD_VOLUMES.iter().filter(|(field, ..)| volume.has(field)) {
            debug_assert!(!field.is_empty());
            out.push(format!("{}: {text}", path.child(name)));
        }
        if let Some(template) = volume.at("ephemeral").some("volumeClaimTemplate") {
            let path = path.child("ephemeral").child("volumeClaimTemplate").child("spec");
            claim_spec(out, template.at("spec"), &path);
        }
    }
}

/// Of a claim's spec.
pub fn claim_spec(out: &mut Vec<String>, spec: &Value, path: &Path) {
    for list in ["requests", "limits"] {
        if let Some(value) = spec.at("resources").at(list).some("storage") {
            fraction(out, value, &path.child("resources").child(list).key("storage"));
        }
    }
}

fn fraction(out: &mut Vec<String>, value: &Value, path: &Path) {
    let quantity = rules::quantity(value);
    if quantity.milli_value() % 1000 != 0 {
        let text = quote(&quantity.to_string());
        out.push(format!("{path}: fractional byte value {text} is invalid, must be an integer"));
    }
}

fn whole_bytes(out: &mut Vec<String>, list: &Value, path: &Path) {
    for name in ["memory", "ephemeral-storage"] {
        if let Some(value) = list.some(name) {
            fraction(out, value, &path.key(name));
        }
    }
}

fn container_resources(out: &mut Vec<String>, container: &Value, path: &Path) {
    for name in ["memory", "ephemeral-storage"] {
        for list in ["limits", "requests"] {
            if let Some(value) = container.at("resources").at(list).some(name) {
                fraction(out, value, &path.child("resources").child(list).key(name));
            }
        }
    }
}

fn duplicates(out: &mut Vec<String>, spec: &Value, path: &Path) {
    for (list, field) in [("hostAliases", "ip"), ("imagePullSecrets", "name")] {
        let mut seen = BTreeSet::new();
        for (i, item) in spec.items(list).iter().enumerate() {
            let text = item.text(field);
            if !seen.insert(text) {
                let path = path.child(list).index(i).child(field);
                out.push(format!("{path}: duplicate {field} {}", quote(text)));
            }
        }
    }
    for (i, secret) in spec.items("imagePullSecrets").iter().enumerate() {
        if secret.text("name").is_empty() {
            out.push(format!("{}: invalid empty name \"\"", path.child("imagePullSecrets").index(i).child("name")));
        }
    }
}

fn seccomp(path: &Path) -> String {
    format!("{path}: non-functional in v1.27+; use the \"seccompProfile\" field instead")
}

fn app_armor(path: &Path) -> String {
    format!("{path}: deprecated since v1.30; use the \"appArmorProfile\" field instead")
}

fn profiles(
    out: &mut Vec<String>, container: &Value, spec: &Value, annotations: &Value, is_template: bool, path: &Path,
) {
    let context = container.at("securityContext");
    let key = format!("{SECCOMP_CONTAINER}{}", container.text("name"));
    if !context.has("seccompProfile") && annotations.has(&key) {
        out.push(seccomp(&path.key(&key)));
    }
    let key = format!("{APP_ARMOR}{}", container.text("name"));
    let Some(annotation) = annotations.at(&key).as_str() else { return };
    let of_pod = spec.at("securityContext").some("appArmorProfile");
    let stands_for = app_armor_of(annotation);
    // In a pod the annotation has become a field by now; it is spoken of where it could not, or changed something.
    let odd = if is_template {
        !context.has("appArmorProfile") && of_pod.is_none_or(|own| Some(own) != stands_for.as_ref())
    } else {
        match (&stands_for, context.some("appArmorProfile")) {
            (None, own) => own.is_none(),
            (Some(profile), Some(own)) => own == profile && of_pod != Some(profile),
            (Some(_), None) => false,
        }
    };
    if odd {
        out.push(app_armor(&path.key(&key)));
    }
}

fn variables(out: &mut Vec<String>, container: &Value, path: &Path) {
    let mut seen = BTreeSet::new();
    for (i, variable) in container.items("env").iter().enumerate() {
        let name = variable.text("name");
        if seen.insert(name) {
            continue;
        }
        let reference = format!("$({name})");
        let value = variable.text("value");
        if variable.has("valueFrom") || value == reference || !value.contains(&reference) {
            let text = "which may be dropped when using apply";
            out.push(format!("{}: hides previous definition of {}, {text}", path.child("env").index(i), quote(name)));
        }
    }
}

fn ports(out: &mut Vec<String>, spec: &Value, path: &Path) {
    let mut all: BTreeMap<(i64, &str), Vec<(Path, &Value)>> = BTreeMap::new();
    each_container(spec, path, |container, path| {
        for (i, port) in container.items("ports").iter().enumerate() {
            let at = path.child("ports").index(i);
            if !port.text("hostIP").is_empty() && port.number("hostPort") == 0 {
                out.push(format!("{at}: hostIP set without hostPort: {}", go_port(port)));
            }
            let others = all.entry((port.number("containerPort"), port.text("protocol"))).or_default();
            for (other_path, other) in others.iter() {
                if let Some(what) = clash(port, other) {
                    out.push(format!("{at}: {what} port definition with {other_path}"));
                }
            }
            others.push((at, port));
        }
    });
}

/// A port as Go prints the structure.
fn go_port(port: &Value) -> String {
    format!(
        "{{Name:{} HostPort:{} ContainerPort:{} Protocol:{} HostIP:{}}}",
        port.text("name"),
        port.number("hostPort"),
        port.number("containerPort"),
        port.text("protocol"),
        port.text("hostIP")
    )
}

fn clash(a: &Value, b: &Value) -> Option<&'static str> {
    let ((ip_a, port_a), (ip_b, port_b)) =
        ((a.text("hostIP"), a.number("hostPort")), (b.text("hostIP"), b.number("hostPort")));
    if ip_a == ip_b && port_a == port_b {
        Some("duplicate")
    } else if port_a == 0 || port_b == 0 {
        Some("overlapping")
    } else if port_a == port_b && ip_a.is_empty() != ip_b.is_empty() {
        Some("dangerously ambiguous")
    } else {
        None
    }
}

fn port_names(out: &mut Vec<String>, spec: &Value, path: &Path) {
    let mut seen: BTreeMap<&str, Path> = BTreeMap::new();
    each_container(spec, path, |container, path| {
        for (i, port) in container.items("ports").iter().enumerate() {
            let (name, at) = (port.text("name"), path.child("ports").index(i));
            if name.is_empty() {
                continue;
            }
            match seen.get(name) {
                Some(other) => out.push(format!(
                    "{at}: duplicate port name {} with {other}, services and probes that select ports by name will use \
                     {other}",
                    quote(name)
                )),
                None => drop(seen.insert(name, at)),
            }
        }
    });
}

/// A file of a volume and where it comes from.
#[derive(Clone, PartialEq)]
struct File {
    path: String,
    source: String,
}

impl File {
    fn of(path: &str, source: impl Into<String>) -> Self {
        Self { path: path.trim_end_matches('/').into(), source: source.into() }
    }

    fn show(&self) -> String {
        match self.source.as_str() {
            "" => quote(&self.path),
            source => format!("{} ({source})", quote(&self.path)),
        }
    }

    /// One is below the other, or both are the same.
    fn overlaps(&self, other: &Self) -> bool {
        let below = |a: &str, b: &str| format!("{a}/").starts_with(&format!("{b}/"));
        !self.path.is_empty()
            && !other.path.is_empty()
            && (below(&self.path, &other.path) || below(&other.path, &self.path))
    }
}

fn files(list: &Value, source: &str) -> Vec<File> {
    list.items("items").iter().map(|item| File::of(item.text("path"), source)).collect()
}

/// Files that hide each other.
fn paths(out: &mut Vec<String>, spec: &Value) {
    for volume in spec.items("volumes") {
        let name = volume.text("name");
        let (config, secret) = (volume.at("configMap"), volume.at("secret"));
        overlaps(out, name, &format!("ConfigMap {}", quote(config.text("name"))), files(config, ""));
        overlaps(out, name, &format!("Secret {}", quote(secret.text("secretName"))), files(secret, ""));
        overlaps(out, name, "DownwardAPI", files(volume.at("downwardAPI"), ""));
        let mut all = Vec::new();
        for source in volume.at("projected").items("sources") {
            match source.as_object().is_some_and(|map| map.values().any(|v| !v.is_null())) {
                true => all.extend(projected(source)),
                false => out.push(format!("volume {} (Projected) has no sources provided", quote(name))),
            }
        }
        overlaps(out, name, "Projected", all);
    }
}

fn overlaps(out: &mut Vec<String>, volume: &str, what: &str, files: Vec<File>) {
    for (i, file) in files.iter().enumerate() {
        for other in files[..i].iter().filter(|other| file.overlaps(other)) {
            let body = format!("{} with {}", file.show(), other.show());
            out.push(format!("volume {} ({what}): overlapping paths: {body}", quote(volume)));
        }
    }
}

fn projected(source: &Value) -> Vec<File> {
    for (field, kind) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        let part = source.at(field);
        if part.has("items") {
            return files(part, &format!("{kind} {}", quote(part.text("name"))));
        }
    }
    if source.at("downwardAPI").has("items") {
        return files(source.at("downwardAPI"), "DownwardAPI");
    }
    if let Some(token) = source.some("serviceAccountToken") {
        return vec![File::of(token.text("path"), "ServiceAccountToken")];
    }
    if let Some(bundle) = source.some("clusterTrustBundle") {
        let name = if bundle.has("name") { bundle.text("name") } else { bundle.text("signerName") };
        return vec![File::of(bundle.text("path"), format!("ClusterTrustBundle {}", quote(name)))];
    }
    let certificate = source.at("podCertificate");
    let parts = [
        ("certificateChainPath", "PodCertificate chain"),
        ("keyPath", "PodCertificate key"),
        ("credentialBundlePath", "PodCertificate credential bundle"),
    ];
    let given = parts.iter().filter(|(field, _)| !certificate.text(field).is_empty());
    given.map(|(field, what)| File::of(certificate.text(field), *what)).collect()
}
