//! Events: of the core group, and of `events.k8s.io`, whose objects are stored as the former.

use serde_json::Map;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::View;
use crate::kinds::{internal, rules};
use crate::meta::check::{IMMUTABLE, push_all};
use crate::meta::names;
use crate::resources::{Context, Propagation, Strategy, api_version};
use crate::status::Status;

/// Events of the core group.
pub struct Event;

/// Events of `events.k8s.io`.
pub struct NewEvent;

/// Fields that selectors of `events.k8s.io` name, and what they are called in stored events.
const SELECTABLE: [(&str, &str); 8] = [
    ("regarding.kind", "involvedObject.kind"),
    ("regarding.namespace", "involvedObject.namespace"),
    ("regarding.name", "involvedObject.name"),
    ("regarding.uid", "involvedObject.uid"),
    ("regarding.apiVersion", "involvedObject.apiVersion"),
    ("regarding.resourceVersion", "involvedObject.resourceVersion"),
    ("regarding.fieldPath", "involvedObject.fieldPath"),
    ("reportingController", "reportingComponent"),
];

/// What a field of stored events is called in `events.k8s.io`.
const FIELDS: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("source", "deprecatedSource"),
    ("message", "note"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

impl Strategy for Event {
    fn checks_meta(&self, _update: bool) -> bool {
        false
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        legacy(&mut out, new, "reportingComponent");
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        self.validate_create(cx, new)
    }

    fn selectable(&self, object: &Value, field: &str) -> String {
        selectable(object, field)
    }

    fn default_propagation(&self) -> Propagation {
        Propagation::Unsupported
    }
}

impl Strategy for NewEvent {
    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        legacy(&mut out, new, "reportingController");
        series(&mut out, new);
        if !new.has("eventTime") {
            out.push(Error::required(&Path::new("eventTime"), ""));
        }
        let kind = new.text("type");
        if kind != "Normal" && kind != "Warning" {
            out.push(Error::invalid(&Path::new("type"), "", format!("has invalid value: {kind}")));
        }
        let source = new.at("source");
        let set = [
            ("firstTimestamp", new.has("firstTimestamp")),
            ("lastTimestamp", new.has("lastTimestamp")),
            ("count", new.number("count") != 0),
            ("source", !source.text("component").is_empty() || !source.text("host").is_empty()),
        ];
        for (field, _) in set.iter().filter(|(_, set)| *set) {
            out.push(Error::invalid(&Path::new(field), "", "needs to be unset"));
        }
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        legacy(&mut out, new, "reportingController");
        if new.at("series") != old.at("series") {
            series(&mut out, new);
        }
        // In upstream's order, in which one stands twice: the field as stored, as named in errors, its shape.
        let fixed = [
            ("involvedObject", "involvedObject", "ObjectReference"),
            ("reason", "reason", "string"),
            ("message", "message", "string"),
            ("source", "source", "EventSource"),
            ("firstTimestamp", "firstTimestamp", "time"),
            ("lastTimestamp", "lastTimestamp", "time"),
            ("count", "count", "int"),
            ("reason", "reason", "string"),
            ("type", "type", "string"),
            ("eventTime", "eventTime", "time"),
            ("action", "action", "string"),
            ("related", "related", "*ObjectReference"),
            ("reportingComponent", "reportingController", "string"),
            ("reportingInstance", "reportingInstance", "string"),
        ];
        for (field, name, shape) in fixed {
            if new.at(field) != old.at(field) {
                let shown = internal::show(shape, new.at(field));
                out.push(Error::invalid_shown(&Path::new(name), shown, IMMUTABLE));
            }
        }
        out
    }

    fn field_alias<'a>(&self, field: &'a str) -> &'a str {
        SELECTABLE.iter().find(|(new, _)| *new == field).map_or(field, |(_, stored)| stored)
    }

    fn selectable(&self, object: &Value, field: &str) -> String {
        let stored = FIELDS.iter().find_map(|(stored, new)| Some(format!("{stored}{}", field.strip_prefix(new)?)));
        selectable(object, stored.as_deref().unwrap_or(field))
    }

    fn default_propagation(&self) -> Propagation {
        Propagation::Unsupported
    }

    fn convert(&self, object: &mut Value, group: &str, to: &str) -> Result<(), Status> {
        let new = group == "events.k8s.io";
        let mut out = Map::new();
        for (field, value) in object.as_object_mut().into_iter().flat_map(std::mem::take) {
            let name = FIELDS.iter().find_map(|(core, events)| match new {
                true => (*core == field).then_some(*events),
                false => (*events == field).then_some(*core),
            });
            out.insert(name.map_or(field, str::to_string), value);
        }
        out.insert("apiVersion".into(), api_version(group, to).into());
        *object = out.into();
        Ok(())
    }
}

fn selectable(event: &Value, field: &str) -> String {
    let value = match field {
        "source" => match event.at("source").text("component") {
            "" => event.text("reportingComponent"),
            component => component,
        },
        _ => match field.split_once('.') {
            Some((part, field)) => event.at(part).text(field),
            None => event.text(field),
        },
    };
    value.into()
}

fn series(out: &mut Errors, event: &Value) {
    let Some(series) = event.some("series") else { return };
    if series.number("count") < 2 {
        out.push(Error::invalid(&Path::new("series.count"), "", "should be at least 2"));
    }
    if !series.has("lastObservedTime") {
        out.push(Error::required(&Path::new("series.lastObservedTime"), ""));
    }
}

/// Rules that hold in both groups; `controller` is what the one who reports is called in the request's group.
fn legacy(out: &mut Errors, event: &Value, controller: &str) {
    let namespace = event.at("metadata").text("namespace");
    let about = event.at("involvedObject").text("namespace");
    let modern = event.has("eventTime");
    let matches = match (about, modern) {
        ("", false) => ["", "default"].contains(&namespace),
        ("", true) => ["default", "kube-system"].contains(&namespace),
        (about, modern) => modern || about == namespace,
    };
    if !matches {
        let path = Path::new("involvedObject").child("namespace");
        out.push(Error::invalid(&path, about, "does not match event.namespace"));
    }
    if modern {
        reported(out, event, controller);
    }
    push_all(out, &Path::new("namespace"), namespace, names::subdomain(namespace));
}

fn reported(out: &mut Errors, event: &Value, controller: &str) {
    let (reporter, path) = (event.text("reportingComponent"), Path::new(controller));
    if reporter.is_empty() {
        out.push(Error::required(&path, ""));
    }
    rules::qualified_name(out, reporter, &path);
    for (field, needed, most) in
        [("reportingInstance", true, 128), ("action", true, 128), ("reason", true, 128), ("message", false, 1024)]
    {
        let (text, path) = (event.text(field), Path::new(field));
        if needed && text.is_empty() {
            out.push(Error::required(&path, ""));
        }
        if text.len() > most {
            out.push(Error::invalid(&path, "", format!("can have at most {most} characters")));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_convert_both_ways() {
        let stored = json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "p"}, "message": "m",
                            "count": 2, "reportingComponent": "c"});
        let mut object = stored.clone();
        NewEvent.convert(&mut object, "events.k8s.io", "v1").unwrap();
        assert_eq!(
            object,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "p"}, "note": "m",
                   "deprecatedCount": 2, "reportingController": "c"})
        );
        assert_eq!(NewEvent.selectable(&stored, "regarding.name"), "p");
        let row = crate::resources::find("events.k8s.io", "events").unwrap();
        assert_eq!(row.field_label("v1", "regarding.kind"), Ok("involvedObject.kind"));
        NewEvent.convert(&mut object, "", "v1").unwrap();
        assert_eq!(object, stored);
    }
}
