//! What a claim on storage asks for, in a PersistentVolumeClaim or in a template for one.

use serde_json::json;

use super::compute;
use super::rules;
use super::view::{View, is_zero};
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::meta::check;

/// Access modes, as upstream lists them.
pub const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
/// Volume modes.
pub const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];

/// What was stored once and may stay.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Selectors with values that are no label values.
    pub any_selector_value: bool,
    /// Data sources of API groups with odd names.
    pub any_group: bool,
}

/// A template for a claim: labels and annotations, and a spec.
pub fn template(out: &mut Errors, template: &Value, path: &Path) {
    let (meta, meta_path) = (template.at("metadata"), path.child("metadata"));
    check::annotations(out, meta.pairs("annotations"), &meta_path.child("annotations"));
    check::labels(out, meta.pairs("labels"), &meta_path.child("labels"));
    for (field, value) in meta.as_object().into_iter().flatten() {
        if !["annotations", "labels"].contains(&field.as_str()) && !is_zero(value) {
            out.push(Error::forbidden(&meta_path.child(field), "cannot be set"));
        }
    }
    spec(out, template.at("spec"), Options::default(), &path.child("spec"));
}

/// A claim's spec.
pub fn spec(out: &mut Errors, spec: &Value, options: Options, path: &Path) {
    let modes_path = path.child("accessModes");
    if spec.items("accessModes").is_empty() {
        out.push(Error::required(&modes_path, "at least 1 access mode is required"));
    }
    let any_value = options.any_selector_value;
    check::selector(out, spec.at("selector"), check::SelectorOptions { any_value }, &path.child("selector"));
    access_modes(out, spec, &modes_path);
    let storage_path = path.child("resources").key("storage");
    match spec.at("resources").at("requests").some("storage") {
        None => out.push(Error::required(&storage_path, "")),
        Some(value) => {
            if compute::positive_quantity(out, value, &storage_path) {
                compute::resource_quantity(out, "storage", value, &storage_path);
            }
        }
    }
    class_name(out, spec, "storageClassName", path);
    rules::supported_if_set(out, spec, "volumeMode", VOLUME_MODES, path);
    data_sources(out, spec, options, path);
    class_name(out, spec, "volumeAttributesClassName", path);
}

/// Known modes, of which one goes with no other.
pub fn access_modes(out: &mut Errors, spec: &Value, path: &Path) {
    let (mut alone, mut others) = (false, false);
    for mode in spec.texts("accessModes") {
        rules::supported(out, mode, ACCESS_MODES, path);
        alone |= mode == "ReadWriteOncePod";
        others |= mode != "ReadWriteOncePod" && ACCESS_MODES.contains(&mode);
    }
    if alone && others {
        out.push(Error::forbidden(path, "may not use ReadWriteOncePod with other access modes"));
    }
}

fn class_name(out: &mut Errors, spec: &Value, field: &str, path: &Path) {
    let name = spec.text(field);
    if !name.is_empty() {
        rules::dns_subdomain(out, name, &path.child(field));
    }
}

fn data_sources(out: &mut Errors, spec: &Value, options: Options, path: &Path) {
    for field in ["dataSource", "dataSourceRef"] {
        if let Some(source) = spec.some(field) {
            data_source(out, source, options, &path.child(field));
        }
    }
    let (Some(source), Some(reference)) = (spec.some("dataSource"), spec.some("dataSourceRef")) else { return };
    let same = ["apiGroup", "kind", "name"].iter().all(|field| source.at(field) == reference.at(field));
    // Upstream shows the path here, which prints as an empty structure.
    if !reference.text("namespace").is_empty() {
        out.push(Error::invalid(path, json!({}), "may not be specified when dataSourceRef.namespace is specified"));
    } else if !same {
        out.push(Error::invalid(path, json!({}), "must match dataSourceRef"));
    }
}

fn data_source(out: &mut Errors, source: &Value, options: Options, path: &Path) {
    rules::required(out, source, "name", path);
    rules::required(out, source, "kind", path);
    let (group, kind) = (source.text("apiGroup"), source.text("kind"));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        out.push(Error::invalid(path, kind, detail));
    }
    if !group.is_empty() && !options.any_group {
        rules::dns_subdomain(out, group, &path.child("apiGroup"));
    }
    let namespace = source.text("namespace");
    if !namespace.is_empty() {
        rules::dns_label(out, namespace, &path.child("namespace"));
    }
}
