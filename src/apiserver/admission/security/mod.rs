//! PodSecurity: pods keep to the level that their namespace's labels name.

mod checks;

use api::Value;
use api::field::{Error, Errors, Path};
use api::status::{Of, Status};

use super::{Operation, Plugin, Review};
use crate::registry::object;
use checks::{Level, evaluate};

/// Pods that are looked at when a namespace becomes stricter.
const MAX_PODS: usize = 3000;

/// The plugin.
pub struct PodSecurity;

/// Kinds with a pod template, and where it is.
const TEMPLATES: [(&str, &str, &[&str]); 8] = [
    ("", "replicationcontrollers", &["spec", "template"]),
    ("", "podtemplates", &["template"]),
    ("apps", "replicasets", &["spec", "template"]),
    ("apps", "deployments", &["spec", "template"]),
    ("apps", "statefulsets", &["spec", "template"]),
    ("apps", "daemonsets", &["spec", "template"]),
    ("batch", "jobs", &["spec", "template"]),
    ("batch", "cronjobs", &["spec", "jobTemplate", "spec", "template"]),
];

fn template_path(review: &Review<'_>) -> Option<&'static [&'static str]> {
    TEMPLATES.iter().find(|(group, plural, _)| review.is(group, plural)).map(|(_, _, path)| *path)
}

#[async_trait::async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        let pods = review.is("", "pods") || is_pod_change(review);
        review.writes() && (pods || review.is("", "namespaces") || template_path(review).is_some())
    }

    async fn validate(&self, review: &Review<'_>, object: &Value) -> Result<(), Status> {
        if review.row.plural == "namespaces" {
            return check_namespace(review, object);
        }
        let namespace = review.find_settled("", "namespaces", "", review.namespace).await;
        let Some(namespace) = namespace else {
            return Err(Status::internal(format!("failed to lookup namespace \"{}\"", review.namespace)));
        };
        let (policy, _) = Policy::of(&*namespace.entry.value()?);
        match template_path(review) {
            Some(path) => {
                if let Some(template) = object::at(object, path) {
                    warn(review, &policy, template);
                }
                Ok(())
            }
            None => check_pod(review, &policy, object),
        }
    }
}

fn is_pod_change(review: &Review<'_>) -> bool {
    ["ephemeralcontainers", "resize"].iter().any(|sub| review.is_sub("", "pods", sub))
}

/// A level at a version of its definition; the newest when there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LevelVersion {
    level: Level,
    version: Option<u32>,
}

impl std::fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.version {
            Some(minor) => write!(f, "{}:v1.{minor}", self.level.name()),
            None => write!(f, "{}:latest", self.level.name()),
        }
    }
}

/// What a namespace asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    enforce: LevelVersion,
    warn: LevelVersion,
}

fn label_name(mode: &str) -> String {
    format!("pod-security.kubernetes.io/{mode}")
}

impl Policy {
    /// Reads the labels of a namespace; what is wrong with them makes the level restricted where it is enforced and
    /// privileged where it only warns.
    fn of(namespace: &Value) -> (Self, Errors) {
        let mut errors = Errors::new();
        let path = Path::new("metadata").child("labels");
        let none = LevelVersion { level: Level::Privileged, version: None };
        let mut policy = Self { enforce: none, warn: none };
        let mut read = |mode: &str, on_error: Level, into: &mut LevelVersion| {
            let mut good = (false, false);
            let (name, version_name) = (label_name(mode), label_name(&format!("{mode}-version")));
            if let Some(text) = object::label(namespace, &name) {
                good.0 = Level::parse(text).is_some();
                into.level = Level::parse(text).unwrap_or(on_error);
                if !good.0 {
                    let why = "must be one of privileged, baseline, restricted";
                    errors.push(Error::invalid(&path.key(&name), text, why));
                }
            }
            if let Some(text) = object::label(namespace, &version_name) {
                good.1 = true;
                match parse_version(text) {
                    Some(version) => into.version = version,
                    None => {
                        let why = "must be \"latest\" or \"v1.x\"";
                        errors.push(Error::invalid(&path.key(&version_name), text, why));
                    }
                }
            }
            good
        };
        let (enforced, _) = read("enforce", Level::Restricted, &mut policy.enforce);
        read("audit", Level::Privileged, &mut LevelVersion { level: Level::Privileged, version: None });
        let (_, warns_version) = read("warn", Level::Privileged, &mut policy.warn);
        let warns = object::label(namespace, &label_name("warn")).is_some();
        if !warns && enforced && policy.enforce.level > policy.warn.level {
            policy.warn.level = policy.enforce.level;
            if !warns_version {
                policy.warn.version = policy.enforce.version;
            }
        }
        (policy, errors)
    }
}

fn parse_version(text: &str) -> Option<Option<u32>> {
    if text == "latest" {
        return Some(None);
    }
    let digits = text.strip_prefix("v1.")?;
    let plain = !digits.is_empty() && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| plain).map(Some)
}

fn check_pod(review: &Review<'_>, policy: &Policy, pod: &Value) -> Result<(), Status> {
    if review.old.is_some_and(|old| !changes_images(pod, old)) {
        return Ok(());
    }
    let enforce = policy.enforce;
    let found = evaluate(pod, enforce.level, enforce.version);
    if !found.is_empty() {
        let why = format!("violates PodSecurity \"{enforce}\": {}", checks::details(&found));
        return Err(review.forbidden(pod, why));
    }
    if policy.warn != enforce {
        warn(review, policy, pod);
    }
    Ok(())
}

/// Warns of what a pod (or a template) would break.
fn warn(review: &Review<'_>, policy: &Policy, pod: &Value) {
    let found = evaluate(pod, policy.warn.level, policy.warn.version);
    if !found.is_empty() {
        let text = format!("would violate PodSecurity \"{}\": {}", policy.warn, checks::details(&found));
        crate::registry::warn(&mut review.warnings.lock(), text);
    }
}

/// Only images and new containers can be changed in a way that matters here.
fn changes_images(new: &Value, old: &Value) -> bool {
    let images = |pod: &Value, field: &str| {
        let containers = object::list(pod, &["spec", field]).iter();
        containers.map(|c| object::text(c, &["image"]).to_string()).collect::<Vec<_>>()
    };
    let ephemeral = |pod: &Value| {
        let containers = object::list(pod, &["spec", "ephemeralContainers"]).iter();
        containers
            .map(|c| (object::text(c, &["name"]).to_string(), object::text(c, &["image"]).to_string()))
            .collect::<Vec<_>>()
    };
    let (now, before) = (ephemeral(new), ephemeral(old));
    ["containers", "initContainers"].iter().any(|field| images(new, field) != images(old, field))
        || now.iter().any(|c| !before.contains(c))
}

fn check_namespace(review: &Review<'_>, namespace: &Value) -> Result<(), Status> {
    let (policy, errors) = Policy::of(namespace);
    let invalid = |errors| Status::invalid(Of { group: "", name: "Namespace" }, object::name(namespace), errors);
    let (Operation::Update, Some(old)) = (review.operation, review.old) else {
        return if errors.is_empty() { Ok(()) } else { Err(invalid(errors)) };
    };
    let (before, old_errors) = Policy::of(old);
    if !errors.is_empty() && errors != old_errors {
        return Err(invalid(errors));
    }
    let (new, old) = (policy.enforce, before.enforce);
    let stricter = new.version != old.version || new.level > old.level;
    if new != old && new.level != Level::Privileged && stricter {
        let mut warnings = review.warnings.lock();
        for text in existing_pods(review, object::name(namespace), new) {
            crate::registry::warn(&mut warnings, text);
        }
    }
    Ok(())
}

/// Warnings of the pods that a stricter level finds in its namespace.
fn existing_pods(review: &Review<'_>, namespace: &str, enforce: LevelVersion) -> Vec<String> {
    let pods = review.list("", "pods", namespace);
    let mut texts = Vec::new();
    if pods.len() > MAX_PODS {
        texts.push(format!(
            "new PodSecurity enforce level only checked against the first {MAX_PODS} of {} existing pods",
            pods.len()
        ));
    }
    let mut found: std::collections::BTreeMap<String, (String, usize)> = std::collections::BTreeMap::new();
    for pod in pods.iter().take(MAX_PODS).filter_map(|cached| cached.entry.value().ok()) {
        let broken = evaluate(&pod, enforce.level, enforce.version);
        if broken.is_empty() {
            continue;
        }
        let reasons: Vec<&str> = broken.iter().map(|b| &*b.reason).collect();
        let (first, count) = found.entry(reasons.join(", ")).or_insert_with(|| (object::name(&pod).to_string(), 0));
        if object::name(&pod) < first.as_str() {
            *first = object::name(&pod).to_string();
        }
        *count += 1;
    }
    if !found.is_empty() {
        texts.push(format!(
            "existing pods in namespace \"{namespace}\" violate the new PodSecurity enforce level \"{enforce}\""
        ));
    }
    let mut lines: Vec<String> = found
        .into_iter()
        .map(|(reasons, (name, count))| match count {
            1 => format!("{name}: {reasons}"),
            2 => format!("{name} (and 1 other pod): {reasons}"),
            _ => format!("{name} (and {} other pods): {reasons}", count - 1),
        })
        .collect();
    lines.sort();
    texts.extend(lines);
    texts
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_enforced_also_warns_unless_the_labels_say_otherwise() {
        let namespace = |labels: Value| json!({"metadata": {"labels": labels}});
        let (policy, errors) = Policy::of(&namespace(json!({label_name("enforce"): "baseline"})));
        assert!(errors.is_empty());
        assert_eq!(
            (policy.enforce.to_string(), policy.warn.to_string()),
            ("baseline:latest".into(), "baseline:latest".into())
        );
        let labels = json!({label_name("enforce"): "bad", label_name("enforce-version"): "v1.x"});
        let (policy, errors) = Policy::of(&namespace(labels));
        assert_eq!(policy.enforce.level, Level::Restricted);
        let want = "[metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"bad\": must be one of \
                    privileged, baseline, restricted, metadata.labels[pod-security.kubernetes.io/enforce-version]: \
                    Invalid value: \"v1.x\": must be \"latest\" or \"v1.x\"]";
        assert_eq!(errors.aggregate().as_deref(), Some(want));
    }
}
