//! Namespaces.

use serde_json::json;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::{View, copy, fill, set, structure};
use crate::meta::check::push_all;
use crate::meta::{self, names};
use crate::resources::{Context, Strategy};

/// Namespaces.
pub struct Namespace;

const NAME: &str = "kubernetes.io/metadata.name";

fn label(namespace: &mut Value) {
    let name = meta::text(namespace, "name").to_string();
    if !name.is_empty() {
        set(structure(structure(namespace, "metadata"), "labels"), NAME, name);
    }
}

impl Strategy for Namespace {
    /// Every namespace is labelled with its name.
    fn default(&self, object: &mut Value) {
        label(object);
        fill(structure(object, "status"), "phase", "Active");
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        // The name may have been generated since.
        label(new);
        set(new, "status", json!({"phase": "Active"}));
        let spec = structure(new, "spec");
        let mut finalizers = spec.items("finalizers").to_vec();
        if !finalizers.iter().any(|f| f == "kubernetes") {
            finalizers.push("kubernetes".into());
        }
        set(spec, "finalizers", finalizers);
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        match cx.subresource {
            "status" => copy(new, old, "spec"),
            "finalize" => copy(new, old, "status"),
            _ => {
                copy(structure(new, "spec"), old.at("spec"), "finalizers");
                copy(new, old, "status");
            }
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::dns_label(name, prefix)
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let path = Path::new("spec").child("finalizers");
        for name in new.at("spec").texts("finalizers") {
            finalizer(&mut out, name, &path);
        }
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        let mut out = Errors::new();
        match cx.subresource {
            "status" => phase(&mut out, new),
            "finalize" => {
                let path = Path::new("spec").child("finalizers");
                for (i, name) in new.at("spec").texts("finalizers").enumerate() {
                    finalizer(&mut out, name, &path.index(i));
                }
            }
            _ => {
                out.extend(meta::validate(new, false, &names::dns_label));
                meta::check::kube_finalizers(&mut out, new);
                out.extend(self.validate_create(cx, new));
            }
        }
        out
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "" | "finalize" => &[&["status"]],
            "status" => &[&["spec"]],
            _ => &[],
        }
    }
}

fn finalizer(out: &mut Errors, name: &str, path: &Path) {
    push_all(out, path, name, names::label_key(name));
    if !name.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&name) {
        let detail = "name is neither a standard finalizer name nor is it fully qualified";
        out.push(Error::invalid(path, name, detail));
    }
}

fn phase(out: &mut Errors, new: &Value) {
    let (phase, path) = (new.at("status").text("phase"), Path::new("status").child("Phase"));
    let deleted = new.at("metadata").has("deletionTimestamp");
    if !deleted && phase != "Active" {
        out.push(Error::invalid(&path, phase, "may only be 'Active' if `deletionTimestamp` is empty"));
    }
    if deleted && phase != "Terminating" {
        out.push(Error::invalid(&path, phase, "may only be 'Terminating' if `deletionTimestamp` is not empty"));
    }
}
