//! Kinds of `storage.k8s.io`: classes of volumes, drivers, and what is attached where.

use std::collections::{BTreeMap, BTreeSet};

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::core::volume;
use crate::kinds::pod::warnings;
use crate::kinds::view::{View, fill_pointer, is_zero, set, structure, unset};
use crate::kinds::{halves, internal, rules};
use crate::meta;
use crate::meta::check::{self, SelectorOptions, push_all};
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Most parameters of a class, and most bytes that they may have together.
const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETERS_SIZE: usize = 256 * 1024;
/// Most bytes that the metadata of an attachment may have.
const MAX_ATTACHMENT_SIZE: usize = 256 * 1024;
const MAX_MESSAGE: usize = 1024;
const MAX_NODE_ID: usize = 256;

/// Classes of volumes.
pub struct StorageClass;

impl Strategy for StorageClass {
    fn default(&self, object: &mut Value) {
        fill_pointer(object, "reclaimPolicy", "Delete");
        fill_pointer(object, "volumeBindingMode", "Immediate");
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        storage_class(&mut out, new);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::whole_metadata(&mut out, new, false, &names::dns_subdomain);
        storage_class(&mut out, new);
        for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            rules::immutable(&mut out, new, old, field, &Path::default());
        }
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        for (i, term) in new.items("allowedTopologies").iter().enumerate() {
            for (j, expression) in term.items("matchLabelExpressions").iter().enumerate() {
                if let Some(text) = warnings::old_label(expression.text("key")) {
                    out.push(format!("allowedTopologies[{i}].matchLabelExpressions[{j}].key: {text}"));
                }
            }
        }
        out
    }
}

fn storage_class(out: &mut Errors, class: &Value) {
    provisioner(out, class.text("provisioner"), &Path::new("provisioner"));
    parameters(out, class, true);
    let policy = class.text("reclaimPolicy");
    if !policy.is_empty() {
        rules::supported(out, policy, &["Delete", "Retain"], &Path::new("reclaimPolicy"));
    }
    let mode = Path::new("volumeBindingMode");
    match class.at("volumeBindingMode").as_str() {
        None => out.push(Error::required(&mode, "")),
        Some(text) => rules::supported(out, text, &["Immediate", "WaitForFirstConsumer"], &mode),
    }
    topologies(out, class.items("allowedTopologies"), &Path::new("allowedTopologies"));
}

fn provisioner(out: &mut Errors, name: &str, path: &Path) {
    if name.is_empty() {
        out.push(Error::required(path, ""));
    } else {
        rules::qualified_name(out, &name.to_lowercase(), path);
    }
}

fn parameters(out: &mut Errors, class: &Value, may_be_empty: bool) {
    let path = Path::new("parameters");
    let count = class.pairs("parameters").count();
    if count > MAX_PARAMETERS {
        return out.push(Error::too_long(&path, MAX_PARAMETERS));
    }
    for (key, _) in class.pairs("parameters").filter(|(key, _)| key.is_empty()) {
        out.push(Error::invalid(&path, key, "field can not be empty."));
    }
    if class.pairs("parameters").map(|(k, v)| k.len() + v.len()).sum::<usize>() > MAX_PARAMETERS_SIZE {
        out.push(Error::too_long(&path, MAX_PARAMETERS_SIZE));
    }
    if !may_be_empty && count == 0 {
        out.push(Error::required(&path, "must contain at least one key/value pair"));
    }
}

/// Where volumes of a class may be: terms of keys and values, no two of which mean the same.
fn topologies(out: &mut Errors, terms: &[Value], path: &Path) {
    let mut seen: Vec<BTreeMap<&str, BTreeSet<&str>>> = Vec::new();
    for (i, term) in terms.iter().enumerate() {
        let path = path.index(i).child("matchLabelExpressions");
        let mut values = BTreeMap::new();
        for (j, requirement) in term.items("matchLabelExpressions").iter().enumerate() {
            topology(out, requirement, &path.index(j));
            let key = requirement.text("key");
            if values.insert(key, requirement.texts("values").collect()).is_some() {
                out.push(Error::duplicate(&path.index(j).child("key"), key));
            }
        }
        let same = seen.iter().filter(|term| **term == values).count();
        // Upstream also compares with as many empty terms as there are terms.
        let same = if values.is_empty() { same + terms.len() } else { same };
        (0..same).for_each(|_| out.push(Error::duplicate(&path, "")));
        seen.push(values);
    }
}

fn topology(out: &mut Errors, requirement: &Value, path: &Path) {
    let values = path.child("values");
    if requirement.items("values").is_empty() {
        out.push(Error::required(&values, ""));
    }
    let mut seen = BTreeSet::new();
    for (i, value) in requirement.texts("values").enumerate() {
        if !seen.insert(value) {
            out.push(Error::duplicate(&values.index(i), value));
        }
    }
    check::label_key(out, requirement.text("key"), &path.child("key"));
}

/// Classes of attributes that a volume can change between.
pub struct VolumeAttributesClass;

impl Strategy for VolumeAttributesClass {
    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        provisioner(&mut out, new.text("driverName"), &Path::new("driverName"));
        parameters(&mut out, new, false);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        for field in ["driverName", "parameters"] {
            if new.at(field) != old.at(field) {
                out.push(Error::forbidden(&Path::new(field), format!("updates to {field} are forbidden.")));
            }
        }
        rules::as_new(&mut out, self, cx, new);
        out
    }
}

/// CSI drivers.
pub struct CsiDriver;

impl Strategy for CsiDriver {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        for (field, value) in [
            ("attachRequired", true),
            ("podInfoOnMount", false),
            ("storageCapacity", false),
            ("requiresRepublish", false),
        ] {
            fill_pointer(spec, field, value);
        }
        fill_pointer(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if is_zero(spec.at("volumeLifecycleModes")) {
            set(spec, "volumeLifecycleModes", vec!["Persistent"]);
        }
        fill_pointer(spec, "seLinuxMount", false);
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        unset(structure(new, "spec"), "preventPodSchedulingIfMissing");
    }

    /// The generation is counted, but from nothing.
    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        if !old.at("spec").has("preventPodSchedulingIfMissing") {
            unset(structure(new, "spec"), "preventPodSchedulingIfMissing");
        }
        if new.at("spec") != old.at("spec") {
            meta::next_generation(new, old);
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        driver(&mut out, new.at("spec"), &Path::new("spec"));
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = self.validate_create(cx, new);
        let (new, old, path) = (new.at("spec"), old.at("spec"), Path::new("spec"));
        // Upstream calls the first by a name of its own.
        let immutable = [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")];
        for (field, shown) in immutable {
            check::immutable(&mut out, new.at(field), old.at(field), &path.child(shown));
        }
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let (spec, field) = (new.at("spec"), "tokenRequests");
        let changed = old.is_none_or(|old| old.at("spec").items(field) != spec.items(field));
        if !changed || spec.items(field).is_empty() || spec.has("serviceAccountTokenInSecrets") {
            return Vec::new();
        }
        vec![
            "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible \
             logging of tokens in volume attributes"
                .into(),
        ]
    }
}

fn driver(out: &mut Errors, spec: &Value, path: &Path) {
    for (field, shown) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ] {
        if !spec.has(field) {
            out.push(Error::required(&path.child(shown), ""));
        }
    }
    rules::supported_if_set(out, spec, "fsGroupPolicy", &["File", "None", "ReadWriteOnceWithFSType"], path);
    token_requests(out, spec.items("tokenRequests"), &path.child("tokenRequests"));
    for mode in spec.texts("volumeLifecycleModes") {
        rules::supported(out, mode, &["Persistent", "Ephemeral"], &path.child("volumeLifecycleModes"));
    }
    if !spec.has("seLinuxMount") {
        out.push(Error::required(&path.child("seLinuxMount"), ""));
    }
    let period = "nodeAllocatableUpdatePeriodSeconds";
    if let Some(seconds) = spec.int(period).filter(|seconds| *seconds < 10) {
        out.push(Error::invalid(&path.child(period), seconds, "must be greater than or equal to 10 seconds"));
    }
    let secrets = "serviceAccountTokenInSecrets";
    if let Some(value) = spec.some(secrets).filter(|_| spec.items("tokenRequests").is_empty()) {
        let detail = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        out.push(Error::invalid(&path.child(secrets), value.clone(), detail));
    }
}

fn token_requests(out: &mut Errors, requests: &[Value], path: &Path) {
    let mut audiences = BTreeSet::new();
    for (i, request) in requests.iter().enumerate() {
        let (path, audience) = (path.index(i), request.text("audience"));
        if !audiences.insert(audience) {
            out.push(Error::duplicate(&path.child("audience"), audience));
            continue;
        }
        let path = path.child("expirationSeconds");
        match request.int("expirationSeconds") {
            Some(seconds) if seconds < 600 => {
                out.push(Error::invalid(&path, seconds, "may not specify a duration less than 10 minutes"));
            }
            Some(seconds) if seconds > 1 << 32 => {
                out.push(Error::invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds"));
            }
            _ => {}
        }
    }
}

/// The CSI drivers of a node.
pub struct CsiNode;

impl Strategy for CsiNode {
    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let path = Path::new("spec").child("drivers");
        let mut names = BTreeSet::new();
        for (i, driver) in new.at("spec").items("drivers").iter().enumerate() {
            let path = path.index(i);
            node_driver(&mut out, driver, &path);
            if !names.insert(driver.text("name")) {
                out.push(Error::duplicate(&path.child("name"), driver.text("name")));
            }
            topology_keys(&mut out, driver, &path);
        }
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::as_new(&mut out, self, cx, new);
        for before in old.at("spec").items("drivers") {
            let same = new.at("spec").items("drivers").iter().filter(|now| now.text("name") == before.text("name"));
            for now in same.filter(|now| ["nodeID", "topologyKeys"].iter().any(|f| now.at(f) != before.at(f))) {
                let mut now = now.clone();
                unset(&mut now, "allocatable");
                let shown = internal::show("CSINodeDriver", &now);
                out.push(Error::invalid_shown(&Path::new("spec").child("drivers"), shown, check::IMMUTABLE));
            }
        }
        out
    }

    fn checks_meta(&self, update: bool) -> bool {
        !update
    }
}

fn node_driver(out: &mut Errors, driver: &Value, path: &Path) {
    rules::csi_driver(out, driver.text("name"), &path.child("name"));
    let (id, id_path) = (driver.text("nodeID"), path.child("nodeID"));
    if id.is_empty() {
        out.push(Error::required(&id_path, ""));
    }
    if id.len() > MAX_NODE_ID {
        out.push(Error::invalid(&id_path, id, format!("must be {MAX_NODE_ID} characters or less")));
    }
    rules::not_negative_fields(out, driver.at("allocatable"), &["count"], &path.child("allocatable"));
}

fn topology_keys(out: &mut Errors, driver: &Value, path: &Path) {
    let mut keys = BTreeSet::new();
    for key in driver.texts("topologyKeys") {
        if key.is_empty() {
            out.push(Error::required(path, ""));
        }
        if !keys.insert(key) {
            out.push(Error::duplicate(path, key));
        }
        rules::qualified_name(out, key, path);
    }
}

/// How much a driver has to give in a part of the cluster.
pub struct CsiStorageCapacity;

impl Strategy for CsiStorageCapacity {
    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        storage_capacity(&mut out, new, false);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::whole_metadata(&mut out, new, true, &names::dns_subdomain);
        storage_capacity(&mut out, new, check::selector_has_bad_value(old.at("nodeTopology")));
        if new.at("nodeTopology") != old.at("nodeTopology") {
            let shown = crate::kinds::workload::show_selector(new.at("nodeTopology"));
            out.push(Error::invalid_shown(&Path::new("nodeTopology"), shown, check::IMMUTABLE));
        }
        rules::immutable(&mut out, new, old, "storageClassName", &Path::default());
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let (topology, mut out) = (new.at("nodeTopology"), Vec::new());
        warnings::node_term(&mut out, topology, false, &Path::new("nodeTopology"));
        for (label, _) in topology.pairs("matchLabels") {
            if let Some(text) = warnings::old_label(label) {
                out.push(format!("nodeTopology.matchLabels.{label}: {text}"));
            }
        }
        out
    }
}

fn storage_capacity(out: &mut Errors, capacity: &Value, any_value: bool) {
    check::selector(out, capacity.at("nodeTopology"), SelectorOptions { any_value }, &Path::new("nodeTopology"));
    rules::dns_subdomain(out, capacity.text("storageClassName"), &Path::new("storageClassName"));
    if let Some(amount) = capacity.some("capacity") {
        rules::not_negative_quantity(out, amount, &Path::new("capacity"));
    }
}

/// The wish that a volume be attached to a node.
pub struct VolumeAttachment;

impl Strategy for VolumeAttachment {
    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", serde_json::json!({"attached": false}));
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split_with_metadata(cx, new, old);
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        attachment(&mut out, new);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::whole_metadata(&mut out, new, false, &names::dns_subdomain);
        attachment(&mut out, new);
        if new.at("spec") != old.at("spec") {
            let shown = internal::show("VolumeAttachmentSpec", new.at("spec"));
            out.push(Error::invalid_shown(&Path::new("spec"), shown, check::IMMUTABLE));
        }
        out
    }

    fn checks_meta(&self, update: bool) -> bool {
        !update
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset_with_metadata(subresource)
    }
}

fn attachment(out: &mut Errors, attachment: &Value) {
    let (spec, path) = (attachment.at("spec"), Path::new("spec"));
    rules::csi_driver(out, spec.text("attacher"), &path.child("attacher"));
    let (source, source_path) = (spec.at("source"), path.child("source"));
    let volume = source.at("persistentVolumeName").as_str();
    match (volume, source.some("inlineVolumeSpec")) {
        (None, None) => {
            let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            out.push(Error::required(&source_path, detail));
        }
        (Some(_), Some(_)) => {
            let detail = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
            out.push(Error::forbidden(&source_path, detail));
        }
        (Some(""), None) => {
            let detail = "must specify non empty persistentVolumeName";
            out.push(Error::required(&source_path.child("persistentVolumeName"), detail));
        }
        (Some(_), None) => {}
        (None, Some(inline)) => {
            volume::spec(out, inline, volume::Use::Inline, false, &source_path.child("inlineVolumeSpec"));
        }
    }
    rules::dns_subdomain(out, spec.text("nodeName"), &path.child("nodeName"));
    attachment_status(out, attachment.at("status"), &Path::new("status"));
    if let Some(name) = volume {
        push_all(out, &source_path.child("persistentVolumeName"), name, names::subdomain(name));
    }
}

fn attachment_status(out: &mut Errors, status: &Value, path: &Path) {
    let size: usize = status.pairs("attachmentMetadata").map(|(k, v)| k.len() + v.len()).sum();
    if size > MAX_ATTACHMENT_SIZE {
        out.push(Error::too_long(&path.child("attachmentMetadata"), MAX_ATTACHMENT_SIZE));
    }
    for field in ["attachError", "detachError"] {
        let (error, path) = (status.at(field), path.child(field));
        if error.text("message").len() > MAX_MESSAGE {
            // Upstream names the other limit here.
            out.push(Error::too_long(&path.child("message"), MAX_ATTACHMENT_SIZE));
        }
        if let Some(code) = error.int("errorCode").filter(|code| *code < 0) {
            out.push(Error::invalid(&path.child("errorCode"), code, names::range_text(0, i64::from(i32::MAX))));
        }
    }
}
