//! PersistentVolumes: what stores data beyond the life of pods. The rules for sources are a table, as for the volumes of
//! pods.

use serde_json::json;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::claim::{VOLUME_MODES, access_modes};
use crate::kinds::pod::volumes::{self, Rule};
use crate::kinds::pod::{defaults, scheduling, warnings};
use crate::kinds::view::{View, copy, fill, fill_pointer, set, some_mut, structure, unset};
use crate::kinds::{compute, diff, halves, internal, rules};
use crate::meta::check::push_all;
use crate::meta::{self, check, names};
use crate::resources::{Context, Strategy};

/// PersistentVolumes.
pub struct PersistentVolume;

/// Options of the mount, in the time before there was a field.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
/// The class, in the time before there was a field.
pub const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// A kind of source: field, what it is called when there are several, what it is called in paths, its rules.
type Source = (&'static str, &'static str, &'static str, &'static [Rule]);

/// In upstream's order.
static SOURCES: &[Source] = &[
    ("hostPath", "hostPath", "hostPath", &[Rule::Other(volumes::host_path)]),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk", &[Rule::Text("pdName"), Rule::Partition]),
    (
        "awsElasticBlockStore",
        "awsElasticBlockStore",
        "awsElasticBlockStore",
        &[Rule::Text("volumeID"), Rule::Partition],
    ),
    ("glusterfs", "glusterfs", "glusterfs", &[Rule::Text("endpoints"), Rule::Text("path"), Rule::Other(glusterfs)]),
    ("flocker", "flocker", "flocker", &[Rule::Other(volumes::flocker)]),
    ("nfs", "nfs", "nfs", &[Rule::Other(volumes::nfs)]),
    ("rbd", "rbd", "rbd", &[Rule::Some("monitors"), Rule::Text("image")]),
    ("quobyte", "quobyte", "quobyte", &[Rule::Other(volumes::quobyte)]),
    ("cephfs", "cephFS", "cephfs", &[Rule::Some("monitors")]),
    ("iscsi", "iscsi", "iscsi", &[Rule::Text("targetPortal")]),
    ("cinder", "cinder", "cinder", &[Rule::Text("volumeID"), Rule::Secret(true)]),
    ("fc", "fc", "fc", &[Rule::Other(volumes::fibre_channel)]),
    ("flexVolume", "", "flexVolume", &[Rule::Other(volumes::flex)]),
    (
        "azureFile",
        "azureFile",
        "azureFile",
        &[Rule::Text("secretName"), Rule::Text("shareName"), Rule::Other(azure_file)],
    ),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume", &[Rule::Text("volumePath")]),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk", &[Rule::Text("pdID")]),
    ("portworxVolume", "portworxVolume", "portworxVolume", &[Rule::Text("volumeID")]),
    ("azureDisk", "azureDisk", "azureDisk", &[Rule::Other(volumes::azure_disk)]),
    ("scaleIO", "scaleIO", "scaleIO", &[Rule::Text("gateway"), Rule::Text("system"), Rule::Text("volumeName")]),
    ("local", "local", "local", &[Rule::Other(local)]),
    ("storageos", "storageos", "storageos", &[Rule::Other(volumes::storage_os), Rule::Secret(true)]),
    ("csi", "csi", "csi", &[Rule::Other(csi)]),
];

/// Sources that know mount options.
const MOUNTABLE: &[&str] = &[
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "cinder",
    "cephfs",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
];

/// Sources that no longer work, and what is said of them.
const GONE: &[(&str, &str, &str)] = &[
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

impl Strategy for PersistentVolume {
    fn default(&self, object: &mut Value) {
        fill(structure(object, "status"), "phase", "Pending");
        let spec = structure(object, "spec");
        fill(spec, "persistentVolumeReclaimPolicy", "Retain");
        fill_pointer(spec, "volumeMode", "Filesystem");
        if let Some(capacity) = spec.get_mut("capacity") {
            defaults::resource_list(capacity);
        }
        defaults::volume_source(spec);
    }

    fn prepare_create(&self, cx: &Context<'_>, new: &mut Value) {
        set(new, "status", json!({"phase": "Pending", "lastPhaseTransitionTime": meta::timestamp(cx.now)}));
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        if cx.subresource != "status" {
            return copy(new, old, "status");
        }
        copy(new, old, "spec");
        let (before, field) = (old.at("status"), "lastPhaseTransitionTime");
        let status = structure(new, "status");
        let same_phase = status.text("phase") == before.text("phase");
        if same_phase && !status.has(field) {
            copy(status, before, field);
        } else if !same_phase && (!status.has(field) || status.at(field) == before.at(field)) {
            set(status, field, meta::timestamp(cx.now));
        }
    }

    /// Upstream looks at an updated object only by the rules for new ones.
    fn checks_meta(&self, update: bool) -> bool {
        !update
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let name = new.at("metadata").text("name");
        spec(&mut out, new.at("spec"), Use::Volume(name), false, &Path::new("spec"));
        mount_options(&mut out, new);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            out.extend(meta::validate_update(new, old));
            return out;
        }
        let (path, now, before) = (Path::new("spec"), new.at("spec"), old.at("spec"));
        let any_value = scheduling::has_bad_value(before.at("nodeAffinity").at("required"));
        let whole = |out: &mut Errors| {
            out.extend(meta::validate(new, false, &names::dns_subdomain));
            check::kube_finalizers(out, new);
            spec(out, now, Use::Volume(new.at("metadata").text("name")), any_value, &path);
        };
        whole(&mut out);
        mount_options(&mut out, new);
        whole(&mut out);
        same_source(&mut out, now, before, &path);
        check::immutable(&mut out, now.at("volumeMode"), before.at("volumeMode"), &Path::new("volumeMode"));
        if before.has("nodeAffinity") {
            same_nodes(&mut out, now.at("nodeAffinity"), before.at("nodeAffinity"));
        }
        if before.has("volumeAttributesClassName") && !now.has("volumeAttributesClassName") {
            let detail = "update from non-nil value to nil is forbidden";
            out.push(Error::forbidden(&path.child("volumeAttributesClassName"), detail));
        }
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        if cx.subresource == "status" {
            return out;
        }
        let (annotations, spec, path) = (new.at("metadata").at("annotations"), new.at("spec"), Path::new("spec"));
        for (key, text) in [
            (CLASS, r#"deprecated since v1.8; use "storageClassName" attribute instead"#),
            (MOUNT_OPTIONS, r#"deprecated since v1.31; use "mountOptions" attribute instead"#),
        ] {
            if annotations.has(key) {
                out.push(format!("metadata.annotations[{key}]: {text}"));
            }
        }
        if spec.text("persistentVolumeReclaimPolicy") == "Recycle" {
            out.push(format!(
                "{}: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic \
                 provisioning.",
                path.child("persistentVolumeReclaimPolicy")
            ));
        }
        let terms = path.child("nodeAffinity").child("required").child("nodeSelectorTerms");
        for (i, term) in spec.at("nodeAffinity").at("required").items("nodeSelectorTerms").iter().enumerate() {
            warnings::node_term(&mut out, term, false, &terms.index(i));
        }
        for (field, shown, text) in GONE {
            if spec.has(field) {
                out.push(format!("{}: {text}", path.child(shown)));
            }
        }
        out
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }
}

/// Where a spec stands.
#[derive(Clone, Copy)]
pub enum Use<'a> {
    /// In a PersistentVolume of that name.
    Volume(&'a str),
    /// In an attachment, for a volume of a pod that was migrated to CSI.
    Inline,
}

/// The spec of a volume; `any_value` lets values of node selectors be no label values.
pub fn spec(out: &mut Errors, spec: &Value, of: Use<'_>, any_value: bool, path: &Path) {
    let inline = matches!(of, Use::Inline);
    if inline {
        inline_first(out, spec, path);
    }
    let modes = path.child("accessModes");
    if spec.items("accessModes").is_empty() {
        out.push(Error::required(&modes, ""));
    }
    access_modes(out, spec, &modes);
    if !inline {
        capacity(out, spec, &path.child("capacity"));
    }
    let (policy, policy_path) =
        (spec.text("persistentVolumeReclaimPolicy"), path.child("persistentVolumeReclaimPolicy"));
    if inline && !["", "Retain"].contains(&policy) {
        out.push(Error::forbidden(&policy_path, "may only be Retain in the context of inline volumes"));
    } else if !inline && !policy.is_empty() {
        rules::supported(out, policy, &["Delete", "Recycle", "Retain"], &policy_path);
    }
    if let Some(affinity) = spec.some("nodeAffinity") {
        nodes(out, affinity, inline, any_value, &path.child("nodeAffinity"));
    }
    sources(out, spec, of, path);
    let is_root = spec.some("hostPath").is_some_and(|source| is_root(source.text("path")));
    if is_root && policy == "Recycle" {
        out.push(Error::forbidden(&policy_path, "may not be 'recycle' for a hostPath mount of '/'"));
    }
    classes_and_mode(out, spec, inline, path);
}

fn inline_first(out: &mut Errors, spec: &Value, path: &Path) {
    let detail = "may not be specified in the context of inline volumes";
    if spec.has("claimRef") {
        out.push(Error::forbidden(&path.child("claimRef"), detail));
    }
    if spec.entries("capacity").next().is_some() {
        out.push(Error::forbidden(&path.child("capacity"), detail));
    }
    if !spec.has("csi") {
        out.push(Error::required(&path.child("csi"), "has to be specified in the context of inline volumes"));
    }
}

fn capacity(out: &mut Errors, spec: &Value, path: &Path) {
    let count = spec.entries("capacity").count();
    if count == 0 {
        out.push(Error::required(path, ""));
    }
    if count > 1 || !spec.at("capacity").has("storage") {
        out.push(Error::not_supported(path, spec.at("capacity").clone(), &["storage"]));
    }
    for (name, value) in spec.entries("capacity") {
        let path = path.key(name);
        compute::basic_quantity(out, value, &path);
        compute::positive_quantity(out, value, &path);
    }
}

fn nodes(out: &mut Errors, affinity: &Value, inline: bool, any_value: bool, path: &Path) {
    if inline {
        return out.push(Error::forbidden(path, "may not be specified in the context of inline volumes"));
    }
    match affinity.some("required") {
        Some(required) => scheduling::node_selector(out, required, any_value, &path.child("required")),
        None => out.push(Error::required(&path.child("required"), "must specify required node constraints")),
    }
}

fn sources(out: &mut Errors, spec: &Value, of: Use<'_>, path: &Path) {
    let mut found = false;
    for (field, several, shown, checks) in SOURCES {
        let Some(source) = spec.some(field) else { continue };
        if found && !several.is_empty() {
            out.push(Error::forbidden(&path.child(several), "may not specify more than 1 volume type"));
            continue;
        }
        found = true;
        let source_path = path.child(shown);
        for rule in *checks {
            rule.check(out, source, &source_path);
        }
        match *field {
            "iscsi" => iscsi(out, source, of, &source_path),
            "local" if !spec.has("nodeAffinity") || matches!(of, Use::Inline) => {
                out.push(Error::required(&path.child("nodeAffinity"), "Local volume requires node affinity"));
            }
            _ => {}
        }
    }
    if !found {
        out.push(Error::required(path, "must specify a volume type"));
    }
}

fn classes_and_mode(out: &mut Errors, spec: &Value, inline: bool, path: &Path) {
    let class = spec.text("storageClassName");
    if !class.is_empty() {
        let path = path.child("storageClassName");
        if inline {
            out.push(Error::forbidden(&path, "may not be specified in the context of inline volumes"));
        } else {
            rules::dns_subdomain(out, class, &path);
        }
    }
    if !inline {
        rules::supported_if_set(out, spec, "volumeMode", VOLUME_MODES, path);
    } else if spec.some("volumeMode").is_some_and(|mode| mode != "Filesystem") {
        let detail = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        out.push(Error::forbidden(&path.child("volumeMode"), detail));
    }
    let Some(class) = spec.at("volumeAttributesClassName").as_str() else { return };
    match class {
        "" => out.push(Error::required(&path.child("volumeAttributesClassName"), "an empty string is disallowed")),
        class => rules::dns_subdomain(out, class, &path.child("volumeAttributesClassName")),
    }
    if !spec.has("csi") {
        let detail = "has to be specified when using volumeAttributesClassName";
        out.push(Error::required(&path.child("csi"), detail));
    }
}

/// True for `/` and other ways to say it.
fn is_root(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|part| ["", ".", ".."].contains(&part))
}

fn glusterfs(out: &mut Errors, source: &Value, path: &Path) {
    let path = path.child("endpointsNamespace");
    match source.at("endpointsNamespace").as_str() {
        None => {}
        Some("") => {
            let detail = "if the endpointnamespace is set, it must be a valid namespace name";
            out.push(Error::invalid(&path, "", detail));
        }
        Some(name) => push_all(out, &path, name, names::dns_label(name, false)),
    }
}

fn iscsi(out: &mut Errors, source: &Value, of: Use<'_>, path: &Path) {
    let (portal, volume) = (source.text("targetPortal"), if let Use::Volume(name) = of { name } else { "" });
    if source.has("initiatorName") && volume.len() + 1 + portal.len() > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                      iscsi.initiatorName is specified.";
        out.push(Error::invalid(&path.child("targetportal"), portal, detail));
    }
    volumes::iscsi_names(out, source, "must be valid format", true, path);
}

fn azure_file(out: &mut Errors, source: &Value, path: &Path) {
    if source.at("secretNamespace").as_str() == Some("") {
        out.push(Error::required(&path.child("secretNamespace"), ""));
    }
}

fn local(out: &mut Errors, source: &Value, path: &Path) {
    rules::required(out, source, "path", path);
    rules::no_backsteps(out, source.text("path"), &path.child("path"));
}

fn csi(out: &mut Errors, source: &Value, path: &Path) {
    rules::csi_driver(out, source.text("driver"), &path.child("driver"));
    rules::required(out, source, "volumeHandle", path);
    for field in
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"]
    {
        let (Some(secret), path) = (source.some(field), path.child(field)) else { continue };
        match secret.text("name") {
            "" => out.push(Error::required(&path.child("name"), "")),
            name => rules::dns_subdomain(out, name, &path.child("name")),
        }
        match secret.text("namespace") {
            "" => out.push(Error::required(&path.child("namespace"), "")),
            name => rules::dns_label(out, name, &path.child("namespace")),
        }
    }
}

fn mount_options(out: &mut Errors, new: &Value) {
    let mountable = MOUNTABLE.iter().any(|field| new.at("spec").has(field));
    if !mountable && new.at("metadata").at("annotations").has(MOUNT_OPTIONS) {
        let path = Path::new("metadata").child("annotations").child(MOUNT_OPTIONS);
        out.push(Error::forbidden(&path, "may not specify mount options for this volume type"));
    }
}

/// The source may not change, but a Secret for growing a CSI volume may be added.
fn same_source(out: &mut Errors, new: &Value, old: &Value, path: &Path) {
    let only = |spec: &Value| {
        let mut only = json!({});
        for (field, ..) in SOURCES {
            copy(&mut only, spec, field);
        }
        only
    };
    let (mut new, old) = (only(new), only(old));
    let secret = "controllerExpandSecretRef";
    if old.has("csi")
        && !old.at("csi").has(secret)
        && let Some(csi) = some_mut(&mut new, "csi")
    {
        unset(csi, secret);
    }
    if new != old {
        let lines = |source: &Value| internal::show_lines("PersistentVolumeSource", source);
        let diff = diff::unified(&lines(&old), &lines(&new));
        let detail = format!("spec.persistentvolumesource is immutable after creation\n{diff}");
        out.push(Error::forbidden(&path.child("persistentvolumesource"), detail));
    }
}

/// Labels of nodes that have got another name.
const RENAMED: &[(&str, &str)] = &[
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// Nodes may not change, but a label may be called by its new name.
fn same_nodes(out: &mut Errors, new: &Value, old: &Value) {
    let same = |a: &Value, b: &Value| {
        let (mut a, b) = (a.clone(), b);
        if RENAMED.contains(&(b.text("key"), a.text("key"))) {
            copy(&mut a, b, "key");
        }
        a == *b
    };
    let lists_match = |a: &[Value], b: &[Value]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b));
    let terms = |affinity: &'_ Value| affinity.at("required").items("nodeSelectorTerms").to_vec();
    let (now, before) = (terms(new), terms(old));
    let equal = new.has("required") == old.has("required")
        && now.len() == before.len()
        && now.iter().zip(&before).all(|(a, b)| {
            ["matchExpressions", "matchFields"].iter().all(|field| lists_match(a.items(field), b.items(field)))
        });
    if new.is_null() || !equal {
        let shown = if new.is_null() { "null".into() } else { internal::show("VolumeNodeAffinity", new) };
        let detail = "field is immutable, except for updating from beta label to GA";
        out.push(Error::invalid_shown(&Path::new("nodeAffinity"), shown, detail));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CX: Context<'static> = Context {
        namespace: "",
        subresource: "",
        now: 0,
        user: crate::resources::Requester { name: "", uid: "", groups: &[], extra: None },
    };

    #[test]
    fn a_label_may_get_its_new_name() {
        let volume = |key: &str| {
            let terms = json!([{"matchExpressions": [{"key": key, "operator": "In", "values": ["a"]}]}]);
            json!({"metadata": {"name": "a"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/a"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}})
        };
        let old = volume("failure-domain.beta.kubernetes.io/zone");
        assert!(PersistentVolume.validate_update(&CX, &volume("topology.kubernetes.io/zone"), &old).is_empty());
        assert!(!PersistentVolume.validate_update(&CX, &volume("kubernetes.io/os"), &old).is_empty());
    }

    #[test]
    fn the_root_of_a_host_is_not_recycled() {
        assert!(["/", "//", "/.", "/../."].iter().all(|path| is_root(path)));
        assert!(!is_root("/a"));
    }
}
