//! StatefulSets.

use serde_json::json;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::pod::options::Options;
use crate::kinds::pod::{self, defaults};
use crate::kinds::view::{View, copy, fill, fill_pointer, items_mut, set, some_mut, structure, unset};
use crate::kinds::workload::{self, amount, spec_path};
use crate::kinds::{claim, halves, internal, rules};
use crate::meta::check;
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// StatefulSets.
pub struct StatefulSet;

impl Strategy for StatefulSet {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        fill(spec, "podManagementPolicy", "OrderedReady");
        let strategy = structure(spec, "updateStrategy");
        if strategy.text("type").is_empty() {
            set(strategy, "type", "RollingUpdate");
            structure(strategy, "rollingUpdate");
        }
        if strategy.text("type") == "RollingUpdate"
            && let Some(rolling) = some_mut(strategy, "rollingUpdate")
        {
            fill_pointer(rolling, "partition", 0);
        }
        let policy = structure(spec, "persistentVolumeClaimRetentionPolicy");
        fill(policy, "whenDeleted", "Retain");
        fill(policy, "whenScaled", "Retain");
        fill_pointer(spec, "replicas", 1);
        fill_pointer(spec, "revisionHistoryLimit", 10);
        defaults::template(structure(spec, "template"));
        for claim in items_mut(spec, "volumeClaimTemplates") {
            defaults::claim_spec(structure(claim, "spec"));
            fill(structure(claim, "status"), "phase", "Pending");
            // Templates are written with their own kind.
            set(claim, "apiVersion", "v1");
            set(claim, "kind", "PersistentVolumeClaim");
        }
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        workload::create(new);
        drop_disabled(new, None);
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        workload::update(cx, new, old);
        drop_disabled(new, Some(old));
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        names::dns_label(name, prefix)
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new.at("spec"), &workload::options(None), Tolerate::default());
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            status(&mut out, new.at("status"), old.at("status"));
        } else {
            update(&mut out, new.at("spec"), old.at("spec"), &workload::options(Some(old)));
        }
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        if cx.subresource == "status" {
            return out;
        }
        let (spec, path) = (new.at("spec"), spec_path());
        if old.is_none_or(|old| workload::generation_grew(new, old)) {
            out.extend(pod::warnings::template(spec.at("template"), &path.child("template")));
        }
        for (i, template) in spec.items("volumeClaimTemplates").iter().enumerate() {
            let path = path.child("volumeClaimTemplates").index(i);
            let path = if old.is_some() { path.child("Spec") } else { path };
            pod::warnings::claim_spec(&mut out, template.at("spec"), &path);
        }
        if spec.number("revisionHistoryLimit") < 0 {
            let text = "a negative value retains all historical revisions; a value >= 0 is recommended";
            out.push(format!("{}: {text}", path.child("revisionHistoryLimit")));
        }
        out
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset(subresource)
    }
}

/// More than one pod at a time may be missing only once that feature is on.
fn drop_disabled(new: &mut Value, old: Option<&Value>) {
    let rolling = |object: &'_ Value| object.at("spec").at("updateStrategy").at("rollingUpdate").has("maxUnavailable");
    if old.is_some_and(rolling) {
        return;
    }
    let rolling = new.pointer_mut("/spec/updateStrategy/rollingUpdate");
    if let Some(rolling) = rolling {
        unset(rolling, "maxUnavailable");
    }
}

/// What was stored so and may stay.
#[derive(Clone, Copy, Default)]
struct Tolerate {
    service_name: bool,
    claims: bool,
    template: bool,
}

fn spec(out: &mut Errors, spec: &Value, options: &Options, tolerate: Tolerate) {
    let path = spec_path();
    match spec.text("podManagementPolicy") {
        "" => out.push(Error::required(&path.child("podManagementPolicy"), "")),
        "OrderedReady" | "Parallel" => {}
        other => {
            let detail = "must be 'OrderedReady' or 'Parallel'";
            out.push(Error::invalid(&path.child("podManagementPolicy"), other, detail));
        }
    }
    strategy(out, spec.at("updateStrategy"), &path.child("updateStrategy"));
    if let Some(policy) = spec.some("persistentVolumeClaimRetentionPolicy") {
        let path = path.child("persistentVolumeClaimRetentionPolicy");
        for field in ["whenDeleted", "whenScaled"] {
            rules::supported(out, policy.text(field), &["Retain", "Delete"], &path.child(field));
        }
    }
    if !tolerate.claims {
        for (i, template) in spec.items("volumeClaimTemplates").iter().enumerate() {
            let path = path.child("volumeClaimTemplates").index(i).child("spec");
            claim::spec(out, template.at("spec"), claim::Options::default(), &path);
        }
    }
    rules::not_negative_fields(out, spec, &["replicas", "minReadySeconds"], &path);
    rules::not_negative(out, spec.at("ordinals").number("start"), &path.child("ordinals.start"));
    let service = spec.text("serviceName");
    if !tolerate.service_name && !service.is_empty() {
        rules::dns_label(out, service, &path.child("serviceName"));
    }
    let selector_path = path.child("selector");
    workload::selector(out, spec, false, "statefulset", &selector_path);
    let template_path = path.child("template");
    match workload::template_is_selected(out, spec, &template_path) {
        Some(()) => template(out, spec, options, tolerate, &template_path),
        None => {
            let shown = workload::show_selector(spec.at("selector"));
            out.push(Error::invalid_shown(&selector_path, shown, ""));
        }
    }
    workload::runs_for_ever(out, spec.at("template"), "StatefulSet", &template_path);
}

/// The template as pods will have it: with host names and claims of their own.
fn template(out: &mut Errors, spec: &Value, options: &Options, tolerate: Tolerate, path: &Path) {
    let mut template = spec.at("template").clone();
    if let Some(pod) = some_mut(&mut template, "spec") {
        unset(pod, "subdomain");
        unset(pod, "hostname");
        let claims = spec.items("volumeClaimTemplates");
        if !claims.is_empty() {
            let name = |claim: &Value| claim.at("metadata").text("name").to_string();
            let mut volumes: Vec<Value> = claims
                .iter()
                .map(|claim| json!({"name": name(claim), "persistentVolumeClaim": {"claimName": name(claim)}}))
                .collect();
            let other = |volume: &&Value| !claims.iter().any(|claim| name(claim) == volume.text("name"));
            volumes.extend(pod.items("volumes").iter().filter(other).cloned());
            set(pod, "volumes", volumes);
        }
    }
    if !tolerate.template {
        pod::spec::template(out, &template, options, path);
    }
    let meta = template.at("metadata");
    check::labels(out, meta.pairs("labels"), &path.child("labels"));
    check::annotations(out, meta.pairs("annotations"), &path.child("annotations"));
    pod::spec::annotations(out, meta, template.at("spec"), options, &path.child("annotations"));
}

fn strategy(out: &mut Errors, strategy: &Value, path: &Path) {
    let (rolling, rolling_path) = (strategy.at("rollingUpdate"), path.child("rollingUpdate"));
    match strategy.text("type") {
        "" => out.push(Error::required(path, "")),
        "OnDelete" if !rolling.is_null() => {
            let shown = internal::show("RollingUpdateStatefulSetStrategy", rolling);
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            out.push(Error::invalid_shown(&rolling_path, shown, detail));
        }
        "OnDelete" => {}
        "RollingUpdate" if rolling.is_null() => {}
        "RollingUpdate" => rolling_update(out, rolling, &rolling_path),
        _ => {
            let shown = internal::show("StatefulSetUpdateStrategy", strategy);
            out.push(Error::invalid_shown(path, shown, "must be 'RollingUpdate' or 'OnDelete'"));
        }
    }
}

fn rolling_update(out: &mut Errors, rolling: &Value, path: &Path) {
    rules::not_negative_fields(out, rolling, &["partition"], path);
    let Some(unavailable) = rolling.some("maxUnavailable") else { return };
    let path = path.child("maxUnavailable");
    workload::number_or_percent(out, unavailable, &path);
    if amount(unavailable) == 0 {
        out.push(Error::invalid(&path, unavailable.clone(), "cannot be 0"));
    }
    workload::at_most_100_percent(out, unavailable, &path);
}

fn update(out: &mut Errors, new: &Value, old: &Value, options: &Options) {
    let mut tolerate = Tolerate { service_name: true, claims: true, template: false };
    let mut before = Errors::new();
    spec(&mut before, old, options, tolerate);
    tolerate.template = !before.is_empty();
    spec(out, new, options, tolerate);
    let mut munged = new.clone();
    for field in [
        "replicas",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "ordinals",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
    ] {
        copy(&mut munged, old, field);
    }
    if munged != *old {
        let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                      'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                      'minReadySeconds' are forbidden";
        out.push(Error::forbidden(&spec_path(), detail));
    }
}

fn status(out: &mut Errors, new: &Value, old: &Value) {
    const FIELDS: &[&str] = &[
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ];
    const BOUNDS: &[(&str, &str, &str)] = &[
        ("readyReplicas", "replicas", "status.replicas"),
        ("currentReplicas", "replicas", "status.replicas"),
        ("updatedReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "replicas", "status.replicas"),
        ("availableReplicas", "readyReplicas", "status.readyReplicas"),
    ];
    workload::counts(out, new, FIELDS, BOUNDS);
    workload::grows(out, new, old, "collisionCount");
}
