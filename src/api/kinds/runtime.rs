//! RuntimeClasses.

use std::collections::BTreeSet;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::pod::options::Options;
use crate::kinds::pod::{resources, scheduling, warnings};
use crate::kinds::view::View;
use crate::kinds::{internal, rules};
use crate::meta::check;
use crate::resources::{Context, Strategy};

/// RuntimeClasses.
pub struct RuntimeClass;

impl Strategy for RuntimeClass {
    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        match new.text("handler") {
            "" => out.push(Error::required(&Path::new("handler"), "")),
            handler => rules::dns_label(&mut out, handler, &Path::new("handler")),
        }
        if let Some(overhead) = new.some("overhead") {
            let options = Options::default();
            resources::overhead(&mut out, overhead.at("podFixed"), &options, &Path::new("overhead"));
        }
        if let Some(scheduling) = new.some("scheduling") {
            self::scheduling(&mut out, scheduling, &Path::new("scheduling"));
        }
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::as_new(&mut out, self, cx, new);
        rules::immutable(&mut out, new, old, "handler", &Path::default());
        out
    }

    fn warnings(&self, _cx: &Context<'_>, new: &Value, _old: Option<&Value>) -> Vec<String> {
        let labels = new.at("scheduling").pairs("nodeSelector");
        labels
            .filter_map(|(key, _)| warnings::old_label(key))
            .map(|text| format!("scheduling.nodeSelector: {text}"))
            .collect()
    }
}

fn scheduling(out: &mut Errors, scheduling: &Value, path: &Path) {
    check::labels(out, scheduling.pairs("nodeSelector"), &path.child("nodeSelector"));
    let (tolerations, path) = (scheduling.items("tolerations"), path.child("tolerations"));
    scheduling::tolerations(out, tolerations, &Options::default(), &path);
    let mut seen = BTreeSet::new();
    for (i, toleration) in tolerations.iter().enumerate() {
        let key = ["key", "operator", "value", "effect"].map(|field| toleration.text(field));
        if !seen.insert(key) {
            let error = Error::duplicate(&path.index(i), "");
            out.push(Error { value: Some(internal::show("Toleration", toleration)), ..error });
        }
    }
}
