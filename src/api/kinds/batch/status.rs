//! How a job's status may change.

use std::collections::BTreeSet;

use super::indexes;
use super::policy::without_value;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::View;
use crate::kinds::{internal, rules};
use crate::meta::check::IMMUTABLE;

fn has_condition(status: &Value, kind: &str, is: &str) -> bool {
    status.items("conditions").iter().any(|c| c.text("type") == kind && c.text("status") == is)
}

/// The condition is there and true.
pub(super) fn is_true(status: &Value, kind: &str) -> bool {
    has_condition(status, kind, "True")
}

fn is_finished(status: &Value) -> bool {
    is_true(status, "Complete") || is_true(status, "Failed")
}

/// An update of the status. What was wrong before and did not change is let pass.
pub(super) fn update(out: &mut Errors, new_job: &Value, old_job: &Value) {
    let path = Path::new("status");
    let (new, old) = (new_job.at("status"), old_job.at("status"));
    let change = Change { new, old, spec: new_job.at("spec") };
    rules::not_negative_fields(out, new, &["active", "succeeded", "failed", "ready", "terminating"], &path);
    uncounted(out, new.at("uncountedTerminatedPods"), &path.child("uncountedTerminatedPods"));
    change.outcome(out, &path);
    change.finished(out, &path);
    change.indexes(out, &path);
    change.counts(out, &path);
    change.success_criteria(out, &path);
    change.history(out, &path);
}

fn uncounted(out: &mut Errors, pods: &Value, path: &Path) {
    let mut seen = BTreeSet::new();
    for list in ["succeeded", "failed"] {
        for (i, uid) in pods.texts(list).enumerate() {
            let path = path.child(list).index(i);
            if uid.is_empty() {
                out.push(Error::invalid(&path, "", "must not be empty"));
            } else if !seen.insert(uid) {
                out.push(Error::duplicate(&path, uid));
            }
        }
    }
}

struct Change<'a> {
    new: &'a Value,
    old: &'a Value,
    spec: &'a Value,
}

impl Change<'_> {
    fn changed(&self, field: &str) -> bool {
        self.new.at(field) != self.old.at(field)
    }

    /// A condition became true or ceased to be so.
    fn turned(&self, kind: &str) -> bool {
        is_true(self.new, kind) != is_true(self.old, kind)
    }

    fn ended(&self) -> bool {
        is_finished(self.new) != is_finished(self.old)
    }

    fn outcome(&self, out: &mut Errors, path: &Path) {
        let is = |kind: &str| is_true(self.new, kind);
        let conditions = path.child("conditions");
        let mut refuse = |wrong: bool, detail: &str| {
            if wrong {
                out.push(without_value(&conditions, detail));
            }
        };
        refuse(
            (self.turned("Complete") || self.turned("Failed")) && is("Complete") && is("Failed"),
            "cannot set Complete=True and Failed=true conditions",
        );
        refuse(
            (self.turned("Complete") || self.turned("FailureTarget")) && is("Complete") && is("FailureTarget"),
            "cannot set Complete=True and FailureTarget=true conditions",
        );
        self.times(out, path);
        let mut refuse = |wrong: bool, detail: &str| {
            if wrong {
                out.push(without_value(&conditions, detail));
            }
        };
        refuse(
            (self.turned("Failed") || self.changed("failedIndexes")) && is("Failed") && !is("FailureTarget"),
            "cannot set Failed=True condition without the FailureTarget=true condition",
        );
        refuse(
            (self.turned("Complete") || self.turned("SuccessCriteriaMet"))
                && is("Complete")
                && !is("SuccessCriteriaMet"),
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        );
    }

    fn times(&self, out: &mut Errors, path: &Path) {
        let (start, end) = (self.new.text("startTime"), self.new.text("completionTime"));
        let path = path.child("completionTime");
        let complete = is_true(self.new, "Complete");
        if self.turned("Complete") || self.changed("completionTime") {
            if !end.is_empty() && !complete {
                let detail = "cannot set completionTime when there is no Complete=True condition";
                out.push(Error::invalid(&path, end, detail));
            }
            if end.is_empty() && complete {
                out.push(Error::required(&path, "completionTime is required for Complete jobs"));
            }
        }
        // Times are canonical, so that their texts are in their order.
        let order_matters = self.changed("startTime") || self.changed("completionTime");
        if order_matters && !start.is_empty() && !end.is_empty() && end < start {
            out.push(Error::invalid(&path, end, "must be equal to or after `startTime`"));
        }
    }

    fn finished(&self, out: &mut Errors, path: &Path) {
        if !is_finished(self.new) {
            return;
        }
        let active = self.new.number("active");
        if (self.ended() || self.changed("active")) && active > 0 {
            out.push(Error::invalid(&path.child("active"), active, "active>0 is invalid for finished job"));
        }
        let empty_and_suspended = self.spec.flag("suspend") && self.spec.int("completions") == Some(0);
        if (self.ended() || self.changed("startTime")) && !empty_and_suspended && !self.new.has("startTime") {
            out.push(Error::required(&path.child("startTime"), "startTime is required for finished job"));
        }
        let pods = self.new.at("uncountedTerminatedPods");
        let uncounted = !pods.items("failed").is_empty() || !pods.items("succeeded").is_empty();
        if (self.ended() || self.changed("uncountedTerminatedPods")) && uncounted {
            let shown = internal::show("*UncountedTerminatedPods", pods);
            let detail = "must be empty for finished job";
            out.push(Error::invalid_shown(&path.child("uncountedTerminatedPods"), shown, detail));
        }
    }

    fn indexes(&self, out: &mut Errors, path: &Path) {
        let completions = self.spec.int("completions");
        let (completed, failed) = (self.new.text("completedIndexes"), self.new.at("failedIndexes").as_str());
        let per_index = self.spec.has("backoffLimitPerIndex");
        let (completed_path, failed_path) = (path.child("completedIndexes"), path.child("failedIndexes"));
        let mut invalid = |path: &Path, value: &str, detail: String| out.push(Error::invalid(path, value, detail));
        if let Some(count) = completions {
            if self.changed("completedIndexes")
                && let Err(why) = indexes::count(completed, count)
            {
                invalid(&completed_path, completed, format!("error parsing completedIndexes: {why}"));
            }
            if let Some(failed) = failed.filter(|_| self.changed("failedIndexes") && per_index)
                && let Err(why) = indexes::count(failed, count)
            {
                invalid(&failed_path, failed, format!("error parsing failedIndexes: {why}"));
            }
        }
        if self.changed("completedIndexes") && !completed.is_empty() && self.spec.text("completionMode") != "Indexed" {
            let detail = "cannot set non-empty completedIndexes when non-indexed completion mode";
            invalid(&completed_path, completed, detail.into());
        }
        let Some(failed) = failed else { return };
        if self.changed("failedIndexes") && !per_index {
            let detail = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            invalid(&failed_path, failed, detail.into());
        }
        if let Some(count) = completions.filter(|_| self.changed("failedIndexes") || self.changed("completedIndexes"))
            && let Some(both) = indexes::overlap(completed, failed, count)
        {
            invalid(&failed_path, failed, format!("failedIndexes and completedIndexes overlap at index: {both}"));
        }
    }

    fn counts(&self, out: &mut Errors, path: &Path) {
        let terminating = self.new.number("terminating");
        if (self.ended() || self.changed("terminating")) && terminating > 0 && is_finished(self.new) {
            let detail = "terminating>0 is invalid for finished job";
            out.push(Error::invalid(&path.child("terminating"), terminating, detail));
        }
        let ready = self.new.number("ready");
        let asked = self.new.has("ready") && (self.changed("ready") || self.changed("active"));
        if asked && ready > self.new.number("active") {
            out.push(Error::invalid(&path.child("ready"), ready, "cannot set more ready pods than active"));
        }
    }

    fn success_criteria(&self, out: &mut Errors, path: &Path) {
        let is = |kind: &str| is_true(self.new, kind);
        let met = is("SuccessCriteriaMet");
        let mut refuse = |wrong: bool, detail: &str| {
            if wrong {
                out.push(without_value(&path.child("conditions"), detail));
            }
        };
        refuse(met && is("Failed"), "cannot set SuccessCriteriaMet=True and Failed=true conditions");
        refuse(met && is("FailureTarget"), "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions");
        refuse(
            self.spec.has("successPolicy") && !met && is("Complete"),
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        );
    }

    fn history(&self, out: &mut Errors, path: &Path) {
        let conditions = path.child("conditions");
        let disabled = |kind: &str| is_true(self.old, kind) && !is_true(self.new, kind);
        for kind in ["Failed", "Complete", "FailureTarget"] {
            if disabled(kind) {
                out.push(without_value(&conditions, &format!("cannot disable the terminal {kind}=True condition")));
            }
        }
        let resizable =
            self.spec.text("completionMode") == "Indexed" && self.spec.at("completions") == self.spec.at("parallelism");
        for field in if resizable { &["failed"][..] } else { &["failed", "succeeded"] } {
            let count = self.new.number(field);
            if count < self.old.number(field) {
                let detail = format!("cannot decrease the {field} counter");
                out.push(Error::invalid(&path.child(field), count, detail));
            }
        }
        let both = |field: &str| self.new.has(field) && self.old.has(field);
        if both("completionTime") && self.changed("completionTime") {
            let path = path.child("completionTime");
            out.push(Error::invalid(&path, self.new.text("completionTime"), IMMUTABLE));
        }
        let resuming = is_true(self.old, "Suspended") && has_condition(self.new, "Suspended", "False");
        if self.old.has("startTime") && self.changed("startTime") && !resuming && !self.spec.flag("suspend") {
            let detail = "field is immutable for unsuspended job once set";
            out.push(Error::invalid(&path.child("startTime"), self.new.at("startTime").clone(), detail));
        }
        if disabled("SuccessCriteriaMet") {
            out.push(without_value(&conditions, "cannot disable the SuccessCriteriaMet=True condition"));
        }
        let late = is_true(self.old, "Complete")
            && !is_true(self.old, "SuccessCriteriaMet")
            && is_true(self.new, "SuccessCriteriaMet");
        if late {
            let detail = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
            out.push(without_value(&conditions, detail));
        }
    }
}
