//! Leases and candidates for them.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::{View, unset};
use crate::meta::check::{self, push_all};
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Leases.
pub struct Lease;

impl Strategy for Lease {
    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        drop_disabled(new, &Value::Null);
    }

    fn prepare_update(&self, _cx: &Context<'_>, new: &mut Value, old: &Value) {
        drop_disabled(new, old);
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let (spec, path) = (new.at("spec"), Path::new("spec"));
        if let Some(seconds) = spec.int("leaseDurationSeconds").filter(|s| *s <= 0) {
            out.push(Error::invalid(&path.child("leaseDurationSeconds"), seconds, "must be greater than 0"));
        }
        rules::not_negative_fields(&mut out, spec, &["leaseTransitions"], &path);
        if let Some(name) = spec.at("strategy").as_str() {
            strategy(&mut out, name, &path.child("strategy"));
        }
        if !spec.text("preferredHolder").is_empty() && spec.text("strategy").is_empty() {
            let detail = "may only be specified if `strategy` is defined";
            out.push(Error::forbidden(&path.child("preferredHolder"), detail));
        }
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        self.validate_create(cx, new)
    }

    fn checks_finalizers(&self) -> bool {
        false
    }
}

/// Coordinated leader election is off: its fields stay only where they were.
fn drop_disabled(new: &mut Value, old: &Value) {
    let Some(spec) = new.get_mut("spec") else { return };
    for field in ["strategy", "preferredHolder"] {
        if !old.at("spec").has(field) {
            unset(spec, field);
        }
    }
}

fn strategy(out: &mut Errors, strategy: &str, path: &Path) {
    let path = path.child("strategy");
    if strategy.contains('/') {
        push_all(out, &path, strategy, names::label_key(strategy));
    } else {
        rules::supported(out, strategy, &["OldestEmulationVersion"], &path);
    }
}

/// Candidates for a lease.
pub struct LeaseCandidate;

impl Strategy for LeaseCandidate {
    fn validate_name(&self, name: &str, _prefix: bool) -> Vec<String> {
        names::config_key(name)
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        candidate(&mut out, new.at("spec"), &Path::new("spec"));
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        let (spec, path) = (new.at("spec"), Path::new("spec"));
        candidate(&mut out, spec, &path);
        check::immutable(&mut out, spec.at("leaseName"), old.at("spec").at("leaseName"), &path.child("leaseName"));
        out
    }

    fn checks_finalizers(&self) -> bool {
        false
    }
}

fn candidate(out: &mut Errors, spec: &Value, path: &Path) {
    rules::required(out, spec, "leaseName", path);
    let (emulation, binary) = (spec.text("emulationVersion"), spec.text("binaryVersion"));
    let (ev, bv) = (semantic(emulation), semantic(binary));
    let malformed = "must be a valid semantic version";
    if !emulation.is_empty() && ev.is_none() {
        out.push(Error::invalid(&path.child("emulationVersion"), emulation, malformed));
    }
    let binary_path = path.child("binaryVersion");
    if binary.is_empty() {
        out.push(Error::required(&binary_path, ""));
    } else if bv.is_none() {
        out.push(Error::invalid(&binary_path, binary, malformed));
    }
    if !binary.is_empty() && !emulation.is_empty() && bv.unwrap_or_default() < ev.unwrap_or_default() {
        let detail = "must be greater than or equal to `emulationVersion`";
        out.push(Error::invalid(&binary_path, binary, detail));
    }
    match spec.text("strategy") {
        "" => out.push(Error::required(&path.child("strategy"), "")),
        name => {
            if name == "OldestEmulationVersion" && ev.unwrap_or_default() == (0, 0, 0) {
                let detail = "must be specified when `strategy` is 'OldestEmulationVersion'";
                out.push(Error::required(&path.child("emulationVersion"), detail));
            }
            strategy(out, name, &path.child("strategy"));
        }
    }
}

/// The three numbers of a semantic version.
fn semantic(text: &str) -> Option<(u64, u64, u64)> {
    let core = text.split(['-', '+']).next()?;
    let mut parts = core.split('.').map(|part| {
        let plain =
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
        plain.then(|| part.parse::<u64>().ok())?
    });
    let version = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(version)
}
