//! PriorityClasses.

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::{View, fill_pointer};
use crate::meta::check;
use crate::resources::{Context, Strategy};

/// PriorityClasses.
pub struct PriorityClass;

/// Priorities above this are the system's own.
pub const HIGHEST_OF_USERS: i64 = 1_000_000_000;
/// The classes of the system, with their values.
pub const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

impl Strategy for PriorityClass {
    fn default(&self, object: &mut Value) {
        fill_pointer(object, "preemptionPolicy", "PreemptLowerPriority");
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let (name, value) = (new.at("metadata").text("name"), new.number("value"));
        if name.starts_with("system-") {
            if let Some(why) = system_fault(name, value, new.flag("globalDefault")) {
                let detail = format!(
                    "priority class names with 'system-' prefix are reserved for system use only. error: {why}"
                );
                out.push(Error::forbidden(&Path::new("metadata").child("name"), detail));
            }
        } else if value > HIGHEST_OF_USERS {
            let detail = format!("maximum allowed value of a user defined priority is {HIGHEST_OF_USERS}");
            out.push(Error::forbidden(&Path::new("value"), detail));
        }
        if let Some(policy) = new.at("preemptionPolicy").as_str() {
            rules::one_of(&mut out, policy, &["PreemptLowerPriority", "Never"], &Path::new("preemptionPolicy"));
        }
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        if new.number("value") != old.number("value") {
            out.push(Error::forbidden(&Path::new("value"), "may not be changed in an update."));
        }
        let field = "preemptionPolicy";
        check::immutable(&mut out, new.at(field), old.at(field), &Path::new(field));
        out
    }

    fn has_generation(&self) -> bool {
        true
    }

    /// Nothing that counts can change.
    fn changes_generation(&self, _new: &Value, _old: &Value) -> bool {
        false
    }
}

fn system_fault(name: &str, value: i64, global: bool) -> Option<String> {
    match SYSTEM_CLASSES.iter().find(|(known, _)| *known == name) {
        None => Some(format!("{name} is not a known system priority class")),
        Some((_, known)) if *known != value => Some(format!("value of {name} PriorityClass must be {known}")),
        Some(_) if global => Some(format!("globalDefault of {name} PriorityClass must be false")),
        Some(_) => None,
    }
}
