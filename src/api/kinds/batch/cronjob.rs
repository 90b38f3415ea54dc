//! CronJobs.

use super::job;
use super::schedule::Schedule;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::halves;
use crate::kinds::pod::options::Options;
use crate::kinds::pod::prepare_template;
use crate::kinds::rules;
use crate::kinds::view::{View, fill, fill_pointer, set, structure};
use crate::kinds::workload::{self, spec_path};
use crate::resources::{Context, Strategy};

/// CronJobs.
pub struct CronJob;

impl Strategy for CronJob {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        fill(spec, "concurrencyPolicy", "Allow");
        fill_pointer(spec, "suspend", false);
        fill_pointer(spec, "successfulJobsHistoryLimit", 3);
        fill_pointer(spec, "failedJobsHistoryLimit", 1);
        job::default_spec(structure(structure(spec, "jobTemplate"), "spec"), false);
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", crate::Map::new());
        prepare_template(new.pointer_mut("/spec/jobTemplate/spec/template"), None);
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split(cx, new, old);
        if cx.subresource != "status" {
            prepare_template(new.pointer_mut("/spec/jobTemplate/spec/template"), Some(template(old)));
        }
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        spec(&mut out, new, None);
        let name = new.at("metadata").text("name");
        if name.len() > 52 {
            // Eleven characters are added to make the name of a job.
            let detail = "must be no more than 52 characters";
            out.push(Error::invalid(&Path::new("metadata").child("name"), name, detail));
        }
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource != "status" {
            spec(&mut out, new, Some(old));
        }
        out
    }

    fn warnings(&self, cx: &Context<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        if cx.subresource == "status" {
            return out;
        }
        let spec = new.at("spec");
        if old.is_none_or(|old| workload::generation_grew(new, old)) {
            let path = spec_path().child("jobTemplate").child("spec");
            out.extend(job::warnings(new, spec.at("jobTemplate").at("spec"), old.is_none(), &path));
        }
        if old.is_some() && spec.text("schedule").contains("TZ") {
            out.push(
                "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
                    .into(),
            );
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

fn template(object: &Value) -> &Value {
    object.at("spec").at("jobTemplate").at("spec").at("template")
}

fn spec(out: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (new.at("spec"), spec_path());
    let before = old.map(|old| old.at("spec"));
    match spec.text("schedule") {
        "" => out.push(Error::required(&path.child("schedule"), "")),
        text => schedule(out, text, spec, before, &path.child("schedule")),
    }
    rules::not_negative_fields(out, spec, &["startingDeadlineSeconds"], &path);
    if before.is_none_or(|old| old.at("timeZone") != spec.at("timeZone")) {
        time_zone(out, spec.at("timeZone"), &path.child("timeZone"));
    }
    let policies = ["Allow", "Forbid", "Replace"];
    rules::one_of(out, spec.text("concurrencyPolicy"), &policies, &path.child("concurrencyPolicy"));
    let job = spec.at("jobTemplate").at("spec");
    let job_path = path.child("jobTemplate").child("spec");
    self::job::spec(out, job, &Options::template(old.map(template)), &job_path);
    if let Some(selector) = job.some("selector") {
        let shown = workload::show_selector(selector);
        out.push(Error::invalid_shown(&job_path.child("selector"), shown, "`selector` will be auto-generated"));
    }
    if job.flag("manualSelector") {
        out.push(Error::not_supported(&job_path.child("manualSelector"), true, &["nil", "false"]));
    }
    rules::not_negative_fields(out, spec, &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"], &path);
}

fn schedule(out: &mut Errors, text: &str, spec: &Value, old: Option<&Value>, path: &Path) {
    if let Err(why) = Schedule::parse(text) {
        out.push(Error::invalid(path, text, why));
    }
    let had_zone = old.is_some_and(|old| old.text("schedule").contains("TZ"));
    if !text.contains("TZ") {
        return;
    }
    if !had_zone {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        out.push(Error::invalid(path, text, detail));
    } else if spec.has("timeZone") {
        out.push(Error::invalid(path, text, "cannot use both timeZone field and TZ or CRON_TZ in schedule"));
    }
}

fn time_zone(out: &mut Errors, zone: &Value, path: &Path) {
    let Some(name) = zone.as_str() else { return };
    if name.is_empty() {
        return out.push(Error::invalid(path, "", "timeZone must be nil or non-empty string"));
    }
    let part_is_legal = |part: &str| {
        (1..=14).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_+".contains(&b))
            && !part.starts_with('-')
            && part != "."
            && part != ".."
    };
    let unknown = format!("unknown time zone {name}");
    if !name.split('/').all(part_is_legal) {
        return out.push(Error::invalid(path, name, unknown));
    }
    if name.eq_ignore_ascii_case("local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        out.push(Error::invalid(path, name, detail));
    }
    let zone = jiff::tz::TimeZoneDatabase::bundled().get(name).ok();
    let known = zone.is_some_and(|zone| zone.iana_name() == Some(name)) || name == "UTC" || name == "Local";
    if !known {
        out.push(Error::invalid(path, name, unknown));
    }
}
