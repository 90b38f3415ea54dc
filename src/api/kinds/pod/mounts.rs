//! Volumes in containers: as directories and as devices.

use std::collections::BTreeSet;

use super::volumes::ByName;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::View;

/// Volumes mounted as directories.
pub fn mounts(out: &mut Errors, container: &Value, volumes: &ByName<'_>, path: &Path) {
    let devices = container.items("volumeDevices");
    let mut seen = BTreeSet::new();
    for (i, mount) in container.items("volumeMounts").iter().enumerate() {
        let at = path.index(i);
        let (name, target) = (mount.text("name"), mount.text("mountPath"));
        rules::required(out, mount, "name", &at);
        if !volumes.contains_key(name) {
            out.push(Error::not_found(&at.child("name"), name));
        }
        rules::required(out, mount, "mountPath", &at);
        let mut invalid = |field: &str, value: &str, detail: &str| {
            out.push(Error::invalid(&at.child(field), value, detail));
        };
        if !seen.insert(target) {
            invalid("mountPath", target, "must be unique");
        }
        if devices.iter().any(|d| d.text("name") == name) {
            invalid("name", name, "must not already exist in volumeDevices");
        }
        if devices.iter().any(|d| d.text("devicePath") == target) {
            invalid("mountPath", target, "must not already exist as a path in volumeDevices");
        }
        sub_paths(out, mount, path, &at);
        propagation(out, mount, container, &path.child("mountPropagation"));
        recursive_read_only(out, mount, &path.child("recursiveReadOnly"));
    }
}

fn sub_paths(out: &mut Errors, mount: &Value, path: &Path, at: &Path) {
    let (plain, expression) = (mount.text("subPath"), mount.text("subPathExpr"));
    if !plain.is_empty() {
        rules::descending_path(out, plain, &path.child("subPath"));
    }
    if !expression.is_empty() {
        if !plain.is_empty() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            out.push(Error::invalid(&at.child("subPathExpr"), expression, detail));
        }
        rules::descending_path(out, expression, &path.child("subPathExpr"));
    }
}

fn propagation(out: &mut Errors, mount: &Value, container: &Value, path: &Path) {
    let Some(mode) = mount.at("mountPropagation").as_str() else { return };
    rules::supported(out, mode, &["Bidirectional", "HostToContainer", "None"], path);
    if mode == "Bidirectional" && !container.at("securityContext").flag("privileged") {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        out.push(Error::forbidden(path, detail));
    }
}

fn recursive_read_only(out: &mut Errors, mount: &Value, path: &Path) {
    let Some(mode) = mount.at("recursiveReadOnly").as_str() else { return };
    match mode {
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.flag("readOnly") {
                out.push(Error::forbidden(path, "may only be specified when readOnly is true"));
            }
            if !["", "None"].contains(&mount.text("mountPropagation")) {
                let detail = "may only be specified when mountPropagation is None or not specified";
                out.push(Error::forbidden(path, detail));
            }
        }
        other => rules::supported(out, other, &["Disabled", "Enabled", "IfPossible"], path),
    }
}

/// Volumes given as devices.
pub fn devices(out: &mut Errors, container: &Value, volumes: &ByName<'_>, path: &Path) {
    let mounts = container.items("volumeMounts");
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in container.items("volumeDevices").iter().enumerate() {
        let at = path.index(i);
        let (name, target) = (device.text("name"), device.text("devicePath"));
        rules::required(out, device, "name", &at);
        let invalid = |out: &mut Errors, field: &str, value: &str, detail: &str| {
            out.push(Error::invalid(&at.child(field), value, detail));
        };
        if names.contains(name) {
            invalid(out, "name", name, "must be unique");
        }
        match volumes.get(name) {
            None => out.push(Error::not_found(&at.child("name"), name)),
            Some(volume) if !volume.has("persistentVolumeClaim") && !volume.has("ephemeral") => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                invalid(out, "name", name, detail);
            }
            Some(_) => {}
        }
        rules::required(out, device, "devicePath", &at);
        if paths.contains(target) {
            invalid(out, "devicePath", target, "must be unique");
        }
        if target.split('/').any(|part| part == "..") {
            invalid(out, "devicePath", target, "can not contain backsteps ('..')");
        } else {
            paths.insert(target);
        }
        if mounts.iter().any(|m| m.text("name") == name) {
            invalid(out, "name", name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|m| m.text("mountPath") == target) {
            invalid(out, "devicePath", target, "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}
