//! ControllerRevisions: what a workload once was.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::View;
use crate::meta;
use crate::resources::{Context, Strategy};

/// ControllerRevisions.
pub struct ControllerRevision;

impl Strategy for ControllerRevision {
    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        rules::not_negative(&mut out, new.number("revision"), &Path::new("revision"));
        let path = Path::new("data");
        match new.at("data") {
            Value::Null => out.push(Error::required(&path, "data is mandatory")),
            Value::Object(_) => {}
            _ => out.push(Error::required(&path, "data must be a valid JSON object")),
        }
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = meta::validate(new, true, &meta::dns_subdomain);
        meta::check::kube_finalizers(&mut out, new);
        rules::not_negative(&mut out, new.number("revision"), &Path::new("revision"));
        if new.at("data") != old.at("data") {
            // Upstream shows the raw extension, whose JSON is the data itself.
            let shown = crate::kinds::internal::show("raw", new.at("data"));
            out.push(Error::invalid_shown(&Path::new("data"), shown, meta::check::IMMUTABLE));
        }
        out
    }
}
