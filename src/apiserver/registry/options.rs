//! Options of writes: `CreateOptions`, `UpdateOptions`, `PatchOptions` and `DeleteOptions`, from queries and bodies.

use api::field::{Error, Errors, Path};
use api::status::{Of, Status};
use api::{Map, Value};

use crate::request::Request;

/// What happens with unknown and duplicate fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Validation {
    /// They are dropped silently.
    Ignore,
    /// They are dropped with a warning.
    #[default]
    Warn,
    /// They fail the request.
    Strict,
}

/// Options of a create, update or patch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Nothing is stored.
    pub dry_run: bool,
    /// `fieldManager`; empty when the client names none.
    pub field_manager: String,
    /// `fieldValidation`.
    pub validation: Validation,
    /// `force`; of apply alone.
    pub force: Option<bool>,
    /// The options as an object, for admission reviews.
    pub object: Value,
}

/// Which options a query holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of POST.
    Create,
    /// Of PUT.
    Update,
    /// Of PATCH; true for apply.
    Patch(bool),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Create => "CreateOptions",
            Kind::Update => "UpdateOptions",
            Kind::Patch(_) => "PatchOptions",
        }
    }
}

impl Options {
    /// Reads and checks the options of a request.
    ///
    /// # Errors
    /// 422 in upstream's words.
    pub fn read(req: &Request, kind: Kind) -> Result<Self, Status> {
        let dry_run = values(req, "dryRun");
        let manager = req.param("fieldManager").unwrap_or_default().to_string();
        let validation = req.param("fieldValidation").unwrap_or_default();
        let force = req.param("force").filter(|_| matches!(kind, Kind::Patch(_))).map(truth);
        let mut errors = Errors::new();
        match kind {
            Kind::Patch(true) if manager.is_empty() => {
                errors.push(Error::required(&Path::new("fieldManager"), "is required for apply patch"));
            }
            Kind::Patch(false) if force.is_some() => {
                errors.push(Error::forbidden(&Path::new("force"), "may not be specified for non-apply patch"));
            }
            _ => {}
        }
        api::meta::field_manager(&mut errors, &manager, &Path::new("fieldManager"));
        check_dry_run(&dry_run, &mut errors);
        let validation = check_validation(validation, &mut errors);
        refuse(kind.name(), errors)?;
        let object = options_object(kind, &dry_run, &manager, req.param("fieldValidation").unwrap_or_default());
        Ok(Self { dry_run: !dry_run.is_empty(), field_manager: manager, validation, force, object })
    }

    /// Options of a caller inside the server.
    pub fn internal(kind: Kind, manager: &str) -> Self {
        let object = options_object(kind, &[], manager, "");
        Self { field_manager: manager.to_string(), object, ..Self::default() }
    }
}

/// Options as the review of a create or update shows them: those of a patch as UpdateOptions.
fn options_object(kind: Kind, dry_run: &[String], manager: &str, validation: &str) -> Value {
    let name = if kind == Kind::Create { "CreateOptions" } else { "UpdateOptions" };
    let mut object = type_meta(name);
    if !dry_run.is_empty() {
        object.insert("dryRun".into(), dry_run.into());
    }
    for (field, value) in [("fieldManager", manager), ("fieldValidation", validation)] {
        if !value.is_empty() {
            object.insert(field.into(), value.into());
        }
    }
    object.into()
}

fn type_meta(kind: &str) -> Map {
    Map::from_iter([("kind".into(), kind.into()), ("apiVersion".into(), "meta.k8s.io/v1".into())])
}

fn values(req: &Request, name: &str) -> Vec<String> {
    req.query.iter().filter(|(k, _)| k == name).map(|(_, v)| v.clone()).collect()
}

/// A boolean query parameter: everything but `false` and `0` is true.
fn truth(value: &str) -> bool {
    !value.eq_ignore_ascii_case("false") && value != "0"
}

fn refuse(kind: &str, errors: Errors) -> Result<(), Status> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(Of { group: "meta.k8s.io", name: kind }, "", errors)) }
}

/// Go's `unicode.IsPrint`, near enough: no controls, no separators but the space, nothing unassigned at the ends.
pub fn printable(c: char) -> bool {
    c == ' ' || !(c.is_control() || c.is_whitespace() || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{feff}'))
}

fn check_dry_run(values: &[String], errors: &mut Errors) {
    if values.iter().any(|v| v != "All") {
        errors.push(Error::not_supported(&Path::new("dryRun"), values.to_vec(), &["All"]));
    }
}

fn check_validation(value: &str, errors: &mut Errors) -> Validation {
    match value {
        "" | "Warn" => Validation::Warn,
        "Ignore" => Validation::Ignore,
        "Strict" => Validation::Strict,
        other => {
            let path = Path::new("fieldValidation");
            errors.push(Error::not_supported(&path, other, &["", "Ignore", "Strict", "Warn"]));
            Validation::Warn
        }
    }
}

/// What must hold of the object that a delete is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// Its UID.
    pub uid: Option<String>,
    /// Its resourceVersion.
    pub resource_version: Option<String>,
}

/// Options of a delete.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeleteOptions {
    /// Seconds of grace.
    pub grace: Option<i64>,
    /// What must hold.
    pub preconditions: Preconditions,
    /// `orphanDependents`, which `propagation` replaced.
    pub orphan: Option<bool>,
    /// `propagationPolicy`: `Orphan`, `Background` or `Foreground`.
    pub propagation: Option<String>,
    /// Nothing is deleted.
    pub dry_run: bool,
    /// The options as an object, for admission reviews.
    pub object: Value,
}

impl DeleteOptions {
    /// Reads options from a query.
    ///
    /// # Errors
    /// 400 when the grace period is no number, 422 when values make no sense.
    pub fn from_query(req: &Request) -> Result<Self, Status> {
        let mut object = type_meta("DeleteOptions");
        if let Some(text) = req.param("gracePeriodSeconds") {
            object.insert("gracePeriodSeconds".into(), integer(text)?.into());
        }
        if let Some(text) = req.param("orphanDependents") {
            object.insert("orphanDependents".into(), truth(text).into());
        }
        if let Some(text) = req.param("propagationPolicy") {
            object.insert("propagationPolicy".into(), text.into());
        }
        let dry_run = values(req, "dryRun");
        if !dry_run.is_empty() {
            object.insert("dryRun".into(), dry_run.into());
        }
        Self::from_object(object.into())
    }

    /// Takes options from an object that was decoded by its schema.
    ///
    /// # Errors
    /// 422 when values make no sense.
    pub fn from_object(mut object: Value) -> Result<Self, Status> {
        for (field, value) in type_meta("DeleteOptions") {
            object[field] = value;
        }
        let text = |path: &[&str]| super::object::at(&object, path).and_then(Value::as_str).map(str::to_string);
        let dry_run: Vec<String> =
            super::object::list(&object, &["dryRun"]).iter().filter_map(|v| v.as_str().map(str::to_string)).collect();
        let options = Self {
            grace: object.get("gracePeriodSeconds").and_then(Value::as_i64),
            preconditions: Preconditions {
                uid: text(&["preconditions", "uid"]),
                resource_version: text(&["preconditions", "resourceVersion"]),
            },
            orphan: object.get("orphanDependents").and_then(Value::as_bool),
            propagation: text(&["propagationPolicy"]),
            dry_run: !dry_run.is_empty(),
            object: Value::Null,
        };
        refuse("DeleteOptions", options.check(&dry_run))?;
        Ok(Self { object, ..options })
    }

    fn check(&self, dry_run: &[String]) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("propagationPolicy");
        if let Some(policy) = &self.propagation {
            if self.orphan.is_some() {
                let detail = "orphanDependents and deletionPropagation cannot be both set";
                errors.push(Error::invalid(&path, policy.as_str(), detail));
            }
            if !["Foreground", "Background", "Orphan"].contains(&policy.as_str()) {
                let allowed = ["Foreground", "Background", "Orphan", "nil"];
                errors.push(Error::not_supported(&path, policy.as_str(), &allowed));
            }
        }
        check_dry_run(dry_run, &mut errors);
        errors
    }

    /// Options of a caller inside the server.
    pub fn internal() -> Self {
        Self { object: type_meta("DeleteOptions").into(), ..Self::default() }
    }
}

fn integer(text: &str) -> Result<i64, Status> {
    let refuse =
        |why: &str| Status::bad_request(format!("strconv.ParseInt: parsing {}: {why}", api::field::quote(text)));
    text.parse::<i64>().map_err(|e| match e.kind() {
        std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => refuse("value out of range"),
        _ => refuse("invalid syntax"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(query: &[(&str, &str)]) -> Request {
        let mut req = crate::request::Request::of("POST", "/api/v1/namespaces/d/configmaps");
        req.query = query.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        req
    }

    #[test]
    fn unknown_dry_run_values_are_refused_by_the_list() {
        let error = Options::read(&request(&[("dryRun", "Some")]), Kind::Create).unwrap_err();
        let text =
            r#"CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Some"]: supported values: "All""#;
        assert_eq!(error.message, text);
    }

    #[test]
    fn field_managers_must_be_printable_and_short() {
        let error = Options::read(&request(&[("fieldManager", "a\nb")]), Kind::Create).unwrap_err();
        let text = r#"CreateOptions.meta.k8s.io "" is invalid: fieldManager: Invalid value: "a\nb": invalid character U+000A (at position 1)"#;
        assert_eq!(error.message, text);
        let long = "x".repeat(129);
        let error = Options::read(&request(&[("fieldManager", &long)]), Kind::Update).unwrap_err();
        assert!(error.message.ends_with("fieldManager: Too long: may not be more than 128 bytes"));
    }

    #[test]
    fn force_is_for_apply_only_and_apply_needs_a_manager() {
        let error = Options::read(&request(&[("force", "false")]), Kind::Patch(false)).unwrap_err();
        assert!(error.message.ends_with("force: Forbidden: may not be specified for non-apply patch"));
        let error = Options::read(&request(&[]), Kind::Patch(true)).unwrap_err();
        assert!(error.message.ends_with("fieldManager: Required value: is required for apply patch"));
    }

    #[test]
    fn propagation_and_orphan_dependents_exclude_each_other() {
        let error =
            DeleteOptions::from_object(json!({"propagationPolicy": "Orphan", "orphanDependents": true})).unwrap_err();
        let text = r#"DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Invalid value: "Orphan": orphanDependents and deletionPropagation cannot be both set"#;
        assert_eq!(error.message, text);
    }

    #[test]
    fn a_grace_period_that_is_no_number_is_a_bad_request() {
        let error = DeleteOptions::from_query(&request(&[("gracePeriodSeconds", "abc")])).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (400, r#"strconv.ParseInt: parsing "abc": invalid syntax"#));
    }
}
