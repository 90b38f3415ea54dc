//! Pods and pod templates. The rules for a pod's spec serve all workloads.
//!
//! - [`defaults`]: what is filled in
//! - [`prepare`]: what is reset before admission
//! - [`spec`]: what is wrong with a spec; it calls `containers`, `env`, `fields`, `mounts`, `probes`, `resources`,
//!   `scheduling`, `security`, `volumes`
//! - [`options`]: what may stay because it was so before
//! - [`update`], [`status`]: how a pod may change
//! - [`warnings`]: what is odd

pub mod containers;
pub mod defaults;
mod env;
mod fields;
mod mounts;
pub mod options;
pub mod prepare;
mod probes;
pub mod qos;
pub mod resources;
pub mod scheduling;
mod security;
pub mod spec;
mod status;
mod update;
pub mod volumes;
pub mod warnings;

use options::Options;

use super::view::{View, copy};
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::resources::{Context, Strategy};

/// Pods.
pub struct Pod;

impl Strategy for Pod {
    fn default(&self, object: &mut Value) {
        defaults::pod(object);
    }

    fn prepare_create(&self, cx: &Context<'_>, new: &mut Value) {
        prepare::create(new, cx.now);
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        match cx.subresource {
            "status" => prepare::status(new, old),
            "ephemeralcontainers" => prepare::ephemeral_containers(new, old),
            "resize" => prepare::resize(new, old),
            _ => {
                copy(new, old, "status");
                if let Some(spec) = new.get_mut("spec") {
                    prepare::drop_disabled(spec, Some(old.at("spec")));
                }
            }
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let (meta, spec) = (new.at("metadata"), new.at("spec"));
        let path = Path::new("spec");
        spec::pod(&mut out, new, &Options::new_pod());
        if !spec.items("ephemeralContainers").is_empty() {
            out.push(Error::forbidden(&path.child("ephemeralContainers"), "cannot be set on create"));
        }
        if !spec.text("nodeName").is_empty() && !spec.items("schedulingGates").is_empty() {
            let detail = "cannot be set until all schedulingGates have been cleared";
            out.push(Error::forbidden(&path.child("nodeName"), detail));
        }
        security::seccomp_annotations_match(&mut out, meta, spec, &path);
        security::app_armor_annotations_match(&mut out, meta, spec, &path);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        match cx.subresource {
            "status" => status::update(&mut out, new, old),
            "ephemeralcontainers" => update::ephemeral_containers(&mut out, new, old),
            "resize" => update::resize(&mut out, new, old),
            _ => update::pod(&mut out, new, old),
        }
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        match (old, cx.subresource) {
            (None, _) => warnings::pod(new),
            (Some(_), "status") => warnings::status(new),
            (Some(_), _) => Vec::new(),
        }
    }

    fn selectable(&self, object: &Value, field: &str) -> String {
        let (spec, status) = (object.at("spec"), object.at("status"));
        match field {
            "spec.hostNetwork" => spec.flag("hostNetwork").to_string(),
            "status.podIP" => status.items("podIPs").first().map(|ip| ip.text("ip").into()).unwrap_or_default(),
            // Upstream lets selectors name it, and never has a value for it.
            "status.podIPs" => String::new(),
            _ => match field.split_once('.') {
                Some((part, field)) => object.at(part).text(field).into(),
                None => String::new(),
            },
        }
    }

    fn field_alias<'a>(&self, field: &'a str) -> &'a str {
        if field == "spec.host" { "spec.nodeName" } else { field }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "" => &[&["status"]],
            "status" => &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
            _ => &[],
        }
    }

    fn grace_period(&self, object: &Value, asked: Option<i64>) -> Option<i64> {
        let (spec, status) = (object.at("spec"), object.at("status"));
        let own = spec.number("terminationGracePeriodSeconds");
        let done = ["Failed", "Succeeded"].contains(&status.text("phase"));
        let seconds = if spec.text("nodeName").is_empty() || done { 0 } else { asked.unwrap_or(own) };
        Some(if seconds < 0 { 1 } else { seconds })
    }
}

/// Pod templates that stand alone.
pub struct PodTemplate;

impl Strategy for PodTemplate {
    fn default(&self, object: &mut Value) {
        defaults::template(super::view::structure(object, "template"));
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        prepare_template(new.get_mut("template"), None);
    }

    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        prepare_template(new.get_mut("template"), Some(old.at("template")));
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec::template(&mut out, new.at("template"), &Options::template(None), &Path::new("template"));
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        let options = Options::template(Some(old.at("template")));
        spec::template(&mut out, new.at("template"), &options, &Path::new("template"));
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        warnings::template(new.at("template"), &Path::new("template"))
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn changes_generation(&self, new: &Value, old: &Value) -> bool {
        new.at("template").at("spec") != old.at("template").at("spec")
    }
}

/// Drops from a template what belongs to features that are off.
pub fn prepare_template(template: Option<&mut Value>, old: Option<&Value>) {
    if let Some(spec) = template.and_then(|template| template.get_mut("spec")) {
        prepare::drop_disabled(spec, old.map(|old| old.at("spec")));
    }
}
