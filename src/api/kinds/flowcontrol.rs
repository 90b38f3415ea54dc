//! Flow schemas and priority levels: who shares which part of the server's capacity.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::view::{View, copy, fill, fill_pointer, set, some_mut, structure};
use crate::kinds::{halves, internal, rules};
use crate::meta::check::push_all;
use crate::meta::names;
use crate::resources::{Context, Strategy};

/// Largest precedence of a schema, which is the last.
const LAST_PRECEDENCE: i64 = 10_000;
const MAX_QUEUES: i64 = 10_000_000;
/// Bits of a hash that deal out the hands of queues.
const HASH_BITS: i64 = 60;
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// The objects that every server has, as name and spec by plural.
pub fn defaults() -> &'static Value {
    static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
        serde_json::from_str(include_str!("flowcontrol.json")).expect("flowcontrol.json is part of the program")
    });
    &DEFAULTS
}

/// The spec that an object of that name must have: those named `exempt` and `catch-all` are fixed.
fn fixed(plural: &str, name: &str) -> Option<&'static Value> {
    let known = defaults().items(plural).iter().find(|item| item.text("name") == name);
    known.filter(|_| ["exempt", "catch-all"].contains(&name)).map(|item| item.at("spec"))
}

fn conditions(out: &mut Errors, new: &Value) {
    let path = Path::new("status").child("conditions");
    let mut seen = BTreeSet::new();
    for (i, condition) in new.at("status").items("conditions").iter().enumerate() {
        let (kind, path) = (condition.text("type"), path.index(i).child("type"));
        if !seen.insert(kind) {
            out.push(Error::duplicate(&path, kind));
        }
        if kind.is_empty() {
            out.push(Error::required(&path, ""));
        }
    }
}

/// Flow schemas.
pub struct FlowSchema;

impl Strategy for FlowSchema {
    fn default(&self, object: &mut Value) {
        fill(structure(object, "spec"), "matchingPrecedence", 1000);
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", crate::Map::new());
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split_with_metadata(cx, new, old);
    }

    fn checks_meta(&self, update: bool) -> bool {
        !update
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let (name, spec, path) = (new.at("metadata").text("name"), new.at("spec"), Path::new("spec"));
        schema(&mut out, name, spec, &path);
        if fixed("flowschemas", name).is_some_and(|fixed| fixed != spec) {
            let detail = format!("spec of '{name}' must equal the fixed value");
            out.push(Error::invalid_shown(&path, internal::show("FlowSchemaSpec", spec), detail));
        }
        conditions(&mut out, new);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            conditions(&mut out, new);
            return out;
        }
        rules::as_new(&mut out, self, cx, new);
        out
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset_with_metadata(subresource)
    }
}

fn schema(out: &mut Errors, name: &str, spec: &Value, path: &Path) {
    let (precedence, precedence_path) = (spec.number("matchingPrecedence"), path.child("matchingPrecedence"));
    if precedence <= 0 {
        out.push(Error::invalid(&precedence_path, precedence, "must be a positive value"));
    }
    if precedence > LAST_PRECEDENCE {
        let detail = format!("must not be greater than {LAST_PRECEDENCE}");
        out.push(Error::invalid(&precedence_path, precedence, detail));
    }
    if precedence == 1 && name != "exempt" {
        let detail = "only the schema named 'exempt' may have matchingPrecedence 1";
        out.push(Error::invalid(&precedence_path, precedence, detail));
    }
    let methods = ["ByNamespace", "ByUser"];
    if let Some(method) = spec.some("distinguisherMethod").filter(|method| !methods.contains(&method.text("type"))) {
        let error = Error::not_supported(&path.child("distinguisherMethod").child("type"), "", &methods);
        out.push(Error { value: Some(internal::show("FlowDistinguisherMethod", method)), ..error });
    }
    let level_path = path.child("priorityLevelConfiguration").child("name");
    match spec.at("priorityLevelConfiguration").text("name") {
        "" => out.push(Error::required(&level_path, "must reference a priority level")),
        level => rules::dns_subdomain(out, level, &level_path),
    }
    for (i, rule) in spec.items("rules").iter().enumerate() {
        policy(out, rule, &path.child("rules").index(i));
    }
}

fn policy(out: &mut Errors, rule: &Value, path: &Path) {
    let subjects = rule.items("subjects");
    for (i, subject) in subjects.iter().enumerate() {
        self::subject(out, subject, &path.child("subjects").index(i));
    }
    if subjects.is_empty() {
        out.push(Error::required(&path.child("subjects"), "subjects must contain at least one value"));
    }
    let (resources, others) = (rule.items("resourceRules"), rule.items("nonResourceRules"));
    if resources.is_empty() && others.is_empty() {
        let detail = "at least one of resourceRules and nonResourceRules has to be non-empty";
        out.push(Error::required(path, detail));
    }
    for (i, rule) in resources.iter().enumerate() {
        resource_rule(out, rule, &path.child("resourceRules").index(i));
    }
    for (i, rule) in others.iter().enumerate() {
        other_rule(out, rule, &path.child("nonResourceRules").index(i));
    }
}

/// Kinds of subjects and the fields that name them, in the order in which others are refused.
const SUBJECTS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];

fn subject(out: &mut Errors, subject: &Value, path: &Path) {
    let kind = subject.text("kind");
    let Some((_, field)) = SUBJECTS.iter().find(|(known, _)| *known == kind) else {
        return rules::supported(out, kind, &["Group", "ServiceAccount", "User"], &path.child("kind"));
    };
    let (named, own) = (subject.at(field), path.child(field));
    if named.is_null() {
        out.push(Error::required(&own, format!("{field} is required when subject kind is '{kind}'")));
    } else if kind == "ServiceAccount" {
        service_account(out, named, &own);
    } else {
        rules::required(out, named, "name", &own);
    }
    for (other, field) in SUBJECTS.iter().filter(|(other, field)| *other != kind && subject.has(field)) {
        let detail = format!("{field} is forbidden when subject kind is not '{other}'");
        out.push(Error::forbidden(&path.child(field), detail));
    }
}

fn service_account(out: &mut Errors, account: &Value, path: &Path) {
    match account.text("name") {
        "" => out.push(Error::required(&path.child("name"), "")),
        "*" => {}
        name => rules::dns_subdomain(out, name, &path.child("name")),
    }
    match account.text("namespace") {
        "" => out.push(Error::required(&path.child("namespace"), "must specify namespace for service account")),
        namespace => rules::dns_label(out, namespace, &path.child("namespace")),
    }
}

/// A list that holds something, and nothing beside a wildcard; true when it has neither a fault nor a wildcard.
fn listed(out: &mut Errors, rule: &Value, field: &str, needed: &str, others: &str, path: &Path) -> bool {
    let (list, path) = (rule.items(field), path.child(field));
    let wildcard = list.iter().any(|v| v == "*");
    if list.is_empty() {
        out.push(Error::required(&path, needed));
    } else if wildcard && list.len() > 1 {
        let detail = format!("if '*' is present, must not specify other {others}");
        out.push(Error::invalid(&path, rule.at(field).clone(), detail));
    }
    !list.is_empty() && !wildcard
}

fn verbs(out: &mut Errors, rule: &Value, path: &Path) {
    let plain = listed(out, rule, "verbs", "verbs must contain at least one value", "verbs", path);
    if plain && !rule.texts("verbs").all(|verb| VERBS.contains(&verb)) {
        out.push(Error::not_supported(&path.child("verbs"), rule.at("verbs").clone(), &VERBS));
    }
}

fn resource_rule(out: &mut Errors, rule: &Value, path: &Path) {
    verbs(out, rule, path);
    listed(out, rule, "apiGroups", "resource rules must supply at least one api group", "api groups", path);
    listed(out, rule, "resources", "resource rules must supply at least one resource", "resources", path);
    if rule.flag("clusterScope") && rule.items("namespaces").is_empty() {
        return;
    }
    let needed = "resource rules that are not cluster scoped must supply at least one namespace";
    if !listed(out, rule, "namespaces", needed, "namespaces", path) {
        return;
    }
    for (i, namespace) in rule.texts("namespaces").enumerate() {
        for wrong in names::label(namespace) {
            let detail = format!("each member of this list must be '*' or a DNS-1123 label; {wrong}");
            out.push(Error::invalid(&path.child("namespaces").index(i), namespace, detail));
        }
    }
}

fn other_rule(out: &mut Errors, rule: &Value, path: &Path) {
    verbs(out, rule, path);
    let needed = "nonResourceURLs must contain at least one value";
    if !listed(out, rule, "nonResourceURLs", needed, "non-resource URLs", path) {
        return;
    }
    for (i, url) in rule.texts("nonResourceURLs").enumerate() {
        push_all(
            out,
            &path.child("nonResourceURLs").index(i),
            url,
            wrong_url(url).into_iter().map(Into::into).collect(),
        );
    }
}

fn wrong_url(url: &str) -> Option<&'static str> {
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !url.starts_with('/') => Some("must start with slash"),
        _ if url.contains(' ') => Some("must not contain white-space"),
        _ if url.contains("//") => Some("must not contain double slash"),
        _ if url.matches('*').count() > 1 || (url.contains('*') && !url.ends_with("/*")) => {
            Some("wildcard can only do suffix matching")
        }
        _ => None,
    }
}

/// Priority levels.
pub struct PriorityLevel;

impl Strategy for PriorityLevel {
    fn default(&self, object: &mut Value) {
        let spec = structure(object, "spec");
        if let Some(exempt) = some_mut(spec, "exempt") {
            fill_pointer(exempt, "nominalConcurrencyShares", 0);
            fill_pointer(exempt, "lendablePercent", 0);
        }
        let Some(limited) = some_mut(spec, "limited") else { return };
        fill_pointer(limited, "nominalConcurrencyShares", 30);
        fill_pointer(limited, "lendablePercent", 0);
        let queuing = limited.get_mut("limitResponse").and_then(|response| some_mut(response, "queuing"));
        if let Some(queuing) = queuing {
            fill(queuing, "handSize", 8);
            fill(queuing, "queues", 64);
            fill(queuing, "queueLengthLimit", 50);
        }
    }

    fn prepare_create(&self, _cx: &Context<'_>, new: &mut Value) {
        set(new, "status", crate::Map::new());
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        halves::split_with_metadata(cx, new, old);
    }

    fn checks_meta(&self, update: bool) -> bool {
        !update
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        let (meta, spec, path) = (new.at("metadata"), new.at("spec"), Path::new("spec"));
        let preserve = "flowcontrol.k8s.io/preserve-zero-concurrency-shares";
        if meta.at("annotations").has(preserve) {
            let path = Path::new("metadata").child("annotations");
            out.push(Error::forbidden(&path, format!("annotation '{preserve}' is forbidden")));
        }
        let name = meta.text("name");
        level(&mut out, name, spec, &path);
        if let Some(fixed) = fixed("prioritylevelconfigurations", name) {
            unchanged(&mut out, name, spec, fixed, &path);
        }
        conditions(&mut out, new);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, _old: &Value) -> Errors {
        let mut out = Errors::new();
        if cx.subresource == "status" {
            conditions(&mut out, new);
            return out;
        }
        rules::as_new(&mut out, self, cx, new);
        out
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        halves::reset_with_metadata(subresource)
    }
}

fn unchanged(out: &mut Errors, name: &str, spec: &Value, fixed: &Value, path: &Path) {
    let mut have = spec.clone();
    let mut except = "";
    if name == "exempt" {
        copy(&mut have, fixed, "exempt");
        except = " except the 'spec.exempt' field";
    }
    if have != *fixed {
        let shown = internal::show("PriorityLevelConfigurationSpec", spec);
        out.push(Error::invalid_shown(path, shown, format!("spec of '{name}'{except} must equal the fixed value")));
    }
}

fn level(out: &mut Errors, name: &str, spec: &Value, path: &Path) {
    let kind = spec.text("type");
    if (name == "exempt") != (kind == "Exempt") {
        let detail = "must be 'Exempt' if and only if `name` is 'exempt'";
        out.push(Error::invalid(&path.child("type"), kind, detail));
    }
    let (limited, exempt) = (path.child("limited"), path.child("exempt"));
    match kind {
        "Exempt" => {
            if spec.has("limited") {
                out.push(Error::forbidden(&limited, "must be nil if the type is not Limited"));
            }
            shares(out, spec.at("exempt"), &exempt);
        }
        "Limited" => {
            if spec.has("exempt") {
                out.push(Error::forbidden(&exempt, "must be nil if the type is Limited"));
            }
            match spec.some("limited") {
                None => out.push(Error::required(&limited, "must not be empty when type is Limited")),
                Some(spec) => self::limited(out, spec, &limited),
            }
        }
        _ => rules::supported(out, kind, &["Exempt", "Limited"], &path.child("type")),
    }
}

fn shares(out: &mut Errors, of: &Value, path: &Path) {
    let shares = of.number("nominalConcurrencyShares");
    if shares < 0 {
        out.push(Error::invalid(&path.child("nominalConcurrencyShares"), shares, "must be a non-negative integer"));
    }
    lendable(out, of, path);
}

fn lendable(out: &mut Errors, of: &Value, path: &Path) {
    if let Some(percent) = of.int("lendablePercent").filter(|percent| !(0..=100).contains(percent)) {
        out.push(Error::invalid(&path.child("lendablePercent"), percent, "must be between 0 and 100, inclusive"));
    }
}

fn limited(out: &mut Errors, of: &Value, path: &Path) {
    let count = of.number("nominalConcurrencyShares");
    if count < 0 {
        out.push(Error::invalid(&path.child("nominalConcurrencyShares"), count, "must be a non-negative integer"));
    }
    let (response, response_path) = (of.at("limitResponse"), path.child("limitResponse"));
    let queuing_path = response_path.child("queuing");
    match (response.text("type"), response.some("queuing")) {
        ("Reject", Some(_)) => {
            let detail = "must be nil if limited.limitResponse.type is not Limited";
            out.push(Error::forbidden(&queuing_path, detail));
        }
        ("Reject", None) => {}
        ("Queue", Some(queuing)) => self::queuing(out, queuing, &queuing_path),
        ("Queue", None) => {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            out.push(Error::required(&queuing_path, detail));
        }
        (kind, _) => rules::supported(out, kind, &["Queue", "Reject"], &response_path.child("type")),
    }
    lendable(out, of, path);
    if let Some(percent) = of.int("borrowingLimitPercent").filter(|percent| *percent < 0) {
        let detail = "if specified, must be a non-negative integer";
        out.push(Error::invalid(&path.child("borrowingLimitPercent"), percent, detail));
    }
}

fn queuing(out: &mut Errors, queuing: &Value, path: &Path) {
    let [length, queues, hand] = ["queueLengthLimit", "queues", "handSize"].map(|field| queuing.number(field));
    let (queues_path, hand_path) = (path.child("queues"), path.child("handSize"));
    if length <= 0 {
        out.push(Error::invalid(&path.child("queueLengthLimit"), length, "must be positive"));
    }
    if queues <= 0 {
        out.push(Error::invalid(&queues_path, queues, "must be positive"));
    } else if queues > MAX_QUEUES {
        out.push(Error::invalid(&queues_path, queues, format!("must not be greater than {MAX_QUEUES}")));
    }
    if hand <= 0 {
        out.push(Error::invalid(&hand_path, hand, "must be positive"));
    } else if hand > queues {
        out.push(Error::invalid(&hand_path, hand, format!("should not be greater than queues ({queues})")));
    } else if ((queues as f64).log2() * hand as f64).ceil() as i64 > HASH_BITS {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        out.push(Error::invalid(&hand_path, hand, detail));
    }
}
