//! API services: the groups and versions that the server serves itself or hands to another.

use serde_json::json;

use crate::Value;
use crate::field::{Error, Errors, Path, quote};
use crate::kinds::halves;
use crate::kinds::rules;
use crate::kinds::view::{View, copy, fill_pointer, set, some_mut, structure};
use crate::meta::check::push_all;
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// API services; their names hold a dot and may end in one (`v1.`).
pub struct ApiService;

impl Strategy for ApiService {
    fn default(&self, object: &mut Value) {
        if let Some(service) = object.get_mut("spec").and_then(|spec| some_mut(spec, "service")) {
            fill_pointer(service, "port", 443);
        }
    }

    /// What the server serves itself is there at once.
    fn prepare_create(&self, cx: &Context<'_>, new: &mut Value) {
        set(new, "status", json!({}));
        if !new.at("spec").has("service") {
            let condition = json!({
                "type": "Available", "status": "True", "reason": "Local",
                "message": "Local APIServices are always available",
                "lastTransitionTime": crate::meta::timestamp(cx.now),
            });
            set(new, "status", json!({ "conditions": [condition] }));
        }
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        if cx.subresource != "status" {
            return copy(new, old, "status");
        }
        copy(new, old, "spec");
        let (metadata, before) = (structure(new, "metadata"), old.at("metadata"));
        for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
            copy(metadata, before, field);
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::path_segment(name, prefix)
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        name(&mut out, new);
        spec(&mut out, new.at("spec"), &Path::new("spec"));
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        if cx.subresource != "status" {
            return self.validate_create(cx, new);
        }
        let mut out = Errors::new();
        let path = Path::new("status").child("conditions");
        for (i, condition) in new.at("status").items("conditions").iter().enumerate() {
            let allowed = ["True", "False", "Unknown"];
            rules::supported(&mut out, condition.text("status"), &allowed, &path.index(i).child("status"));
        }
        out
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset_with_metadata(subresource)
    }
}

fn name(out: &mut Errors, new: &Value) {
    let (name, spec) = (new.at("metadata").text("name"), new.at("spec"));
    let required = format!("{}.{}", spec.text("version"), spec.text("group"));
    if names::path_segment(name, false).is_empty() && name != required {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {}", quote(&required));
        out.push(Error::invalid(&Path::new("metadata").child("name"), name, detail));
    }
}

fn spec(out: &mut Errors, spec: &Value, path: &Path) {
    let (group, version) = (spec.text("group"), spec.text("version"));
    if group.is_empty() {
        if version != "v1" {
            let detail = "only v1 may have an empty group and it better be legacy kube";
            out.push(Error::required(&path.child("group"), detail));
        }
    } else {
        push_all(out, &path.child("group"), group, names::subdomain(group));
    }
    push_all(out, &path.child("version"), version, names::label_1035(version));
    for (field, most) in [("groupPriorityMinimum", 20000), ("versionPriority", 1000)] {
        let value = spec.number(field);
        if !(1..=most).contains(&value) {
            let detail = format!("must be positive and less than {most}");
            out.push(Error::invalid(&path.child(field), value, detail));
        }
    }
    let (bundle, insecure) = (rules::decoded_len(spec.text("caBundle")), spec.flag("insecureSkipTLSVerify"));
    let insecure_path = path.child("insecureSkipTLSVerify");
    let Some(service) = spec.some("service") else {
        if bundle > 0 {
            let shown = format!("{bundle} bytes");
            out.push(Error::invalid(&path.child("caBundle"), shown, "local APIServices may not have a caBundle"));
        }
        if insecure {
            out.push(Error::invalid(&insecure_path, true, "local APIServices may not have insecureSkipTLSVerify"));
        }
        return;
    };
    let path = path.child("service");
    rules::required(out, service, "namespace", &path);
    rules::required(out, service, "name", &path);
    let port = service.number("port");
    let wrong = names::port(port);
    if !wrong.is_empty() {
        out.push(Error::invalid(&path.child("port"), port, format!("port is not valid: {}", wrong.join(", "))));
    }
    if insecure && bundle > 0 {
        out.push(Error::invalid(&insecure_path, true, "may not be true if caBundle is present"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_say_version_and_group() {
        let new = json!({"metadata": {"name": "v1.a"}, "spec": {"group": "b", "version": "v1", "groupPriorityMinimum": 1,
            "versionPriority": 1001}});
        let mut out = Errors::new();
        name(&mut out, &new);
        spec(&mut out, new.at("spec"), &Path::new("spec"));
        assert_eq!(
            out.aggregate().unwrap(),
            "[metadata.name: Invalid value: \"v1.a\": must be `spec.version+\".\"+spec.group`: \"v1.b\", \
             spec.versionPriority: Invalid value: 1001: must be positive and less than 1000]"
        );
    }
}
