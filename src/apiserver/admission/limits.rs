//! LimitRanger: default requests and limits of containers, and the bounds of a namespace's LimitRanges.

use api::Value;
use api::quantity::Quantity;
use api::status::Status;

use super::{Operation, Plugin, Review};
use crate::registry::object;
use api::quota::amounts::{Amounts, Side, amounts, of_container, of_pod};

/// The plugin.
pub struct LimitRanger;

#[async_trait::async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        let gone = review.old.is_some_and(object::deleting);
        let pods = review.is("", "pods") && review.operation == Operation::Create;
        let resize = review.is_sub("", "pods", "resize") && review.operation == Operation::Update;
        !gone && (pods || resize || (review.is("", "persistentvolumeclaims") && review.writes()))
    }

    async fn mutate(&self, review: &Review<'_>, object: &mut Value) -> Result<(), Status> {
        if review.row.plural != "pods" {
            return Ok(());
        }
        for range in review.list_settled("", "limitranges", review.namespace).await {
            set_defaults(object, &*range.entry.value()?);
        }
        Ok(())
    }

    async fn validate(&self, review: &Review<'_>, object: &Value) -> Result<(), Status> {
        for range in review.list_settled("", "limitranges", review.namespace).await {
            let range = range.entry.value()?;
            let errors = match &*review.row.plural {
                "pods" => check_pod(object, &range),
                _ => check_claim(object, &range),
            };
            if let Some(why) = join(errors) {
                return Err(review.forbidden(object, why));
            }
        }
        Ok(())
    }
}

fn join(mut errors: Vec<String>) -> Option<String> {
    let mut seen = Vec::new();
    errors.retain(|e| {
        let new = !seen.contains(e);
        seen.push(e.clone());
        new
    });
    match errors.len() {
        0 => None,
        1 => errors.pop(),
        _ => Some(format!("[{}]", errors.join(", "))),
    }
}

fn limits<'a>(range: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    object::list(range, &["spec", "limits"]).iter().filter(move |limit| object::text(limit, &["type"]) == kind)
}

/// Gives containers the requests and limits that they don't name, and says so in an annotation.
fn set_defaults(pod: &mut Value, range: &Value) {
    let (mut requests, mut most) = (api::Map::new(), api::Map::new());
    for limit in limits(range, "Container") {
        requests.extend(object::at(limit, &["defaultRequest"]).and_then(Value::as_object).cloned().unwrap_or_default());
        most.extend(object::at(limit, &["default"]).and_then(Value::as_object).cloned().unwrap_or_default());
    }
    let mut notes = Vec::new();
    for (field, word) in [("containers", "container"), ("initContainers", "init container")] {
        let list = pod.get_mut("spec").and_then(|s| s.get_mut(field)).and_then(Value::as_array_mut);
        for container in list.into_iter().flatten() {
            let name = object::text(container, &["name"]).to_string();
            let limited = fill(container, Side::Limits, &most);
            let requested = fill(container, Side::Requests, &requests);
            for (set, what) in [(requested, "request"), (limited, "limit")] {
                if !set.is_empty() {
                    notes.push(format!("{} {what} for {word} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        object::fields(pod, &["metadata", "annotations"]).insert("kubernetes.io/limit-ranger".into(), note.into());
    }
}

/// Adds what a container does not name; the names of what was added.
fn fill(container: &mut Value, side: Side, defaults: &api::Map) -> Vec<String> {
    let had = object::at(container, &["resources", side.field()]).and_then(Value::as_object);
    let missing: Vec<String> =
        defaults.keys().filter(|name| had.is_none_or(|had| !had.contains_key(*name))).cloned().collect();
    if !missing.is_empty() {
        let list = object::fields(container, &["resources", side.field()]);
        list.extend(missing.iter().map(|name| (name.clone(), defaults[name].clone())));
    }
    missing
}

fn check_pod(pod: &Value, range: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    for limit in object::list(range, &["spec", "limits"]) {
        let kind = object::text(limit, &["type"]);
        match kind {
            "Container" => {
                let both = ["containers", "initContainers"];
                for container in both.iter().flat_map(|field| object::list(pod, &["spec", field])) {
                    let (requests, most) =
                        (of_container(container, Side::Requests), of_container(container, Side::Limits));
                    check(limit, kind, &requests, &most, &mut errors);
                }
            }
            "Pod" => check(limit, kind, &of_pod(pod, Side::Requests), &of_pod(pod, Side::Limits), &mut errors),
            _ => {}
        }
    }
    errors
}

fn check(limit: &Value, kind: &str, requests: &Amounts, most: &Amounts, errors: &mut Vec<String>) {
    for (name, bound) in amounts(limit.get("min")) {
        errors.extend(below(kind, &name, bound, requests, most));
    }
    for (name, bound) in amounts(limit.get("max")) {
        errors.extend(above(kind, &name, bound, requests, most));
    }
    for (name, bound) in amounts(limit.get("maxLimitRequestRatio")) {
        errors.extend(ratio(kind, &name, bound, requests, most));
    }
}

fn check_claim(claim: &Value, range: &Value) -> Vec<String> {
    const KIND: &str = "PersistentVolumeClaim";
    let requests = amounts(object::at(claim, &["spec", "resources", "requests"]));
    let mut errors = Vec::new();
    for limit in limits(range, KIND) {
        for (name, bound) in amounts(limit.get("min")) {
            errors.extend(below(KIND, &name, bound, &requests, &Amounts::new()));
        }
        for (name, bound) in amounts(limit.get("max")) {
            let text = format!("maximum {name} usage per {KIND} is {bound}");
            match requests.get(&name) {
                None => errors.push(format!("{text}.  No request is specified")),
                Some(asked) if *asked > bound => errors.push(format!("{text}, but request is {asked}")),
                _ => {}
            }
        }
    }
    errors
}

fn below(kind: &str, name: &str, bound: Quantity, requests: &Amounts, most: &Amounts) -> Option<String> {
    let text = format!("minimum {name} usage per {kind} is {bound}");
    let Some(asked) = requests.get(name) else { return Some(format!("{text}.  No request is specified")) };
    if *asked < bound {
        return Some(format!("{text}, but request is {asked}"));
    }
    most.get(name).filter(|most| **most < bound).map(|most| format!("{text}, but limit is {most}"))
}

fn above(kind: &str, name: &str, bound: Quantity, requests: &Amounts, most: &Amounts) -> Option<String> {
    let text = format!("maximum {name} usage per {kind} is {bound}");
    let Some(limit) = most.get(name) else { return Some(format!("{text}.  No limit is specified")) };
    if *limit > bound {
        return Some(format!("{text}, but limit is {limit}"));
    }
    requests.get(name).filter(|asked| **asked > bound).map(|asked| format!("{text}, but request is {asked}"))
}

fn ratio(kind: &str, name: &str, bound: Quantity, requests: &Amounts, most: &Amounts) -> Option<String> {
    let text = format!("{name} max limit to request ratio per {kind} is {bound}");
    let Some(asked) = requests.get(name).filter(|q| !q.is_zero()) else {
        return Some(format!("{text}, but no request is specified or request is 0"));
    };
    let Some(limit) = most.get(name).filter(|q| !q.is_zero()) else {
        return Some(format!("{text}, but no limit is specified or limit is 0"));
    };
    let observed = limit.as_f64() / asked.as_f64();
    (observed > bound.as_f64()).then(|| format!("{text}, but provided ratio is {observed:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn range(limit: Value) -> Value {
        json!({"spec": {"limits": [limit]}})
    }

    #[test]
    fn defaults_are_set_and_noted() {
        let mut pod =
            json!({"metadata": {}, "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}});
        let limit =
            json!({"type": "Container", "default": {"cpu": "2", "memory": "1Gi"}, "defaultRequest": {"cpu": "100m"}});
        set_defaults(&mut pod, &range(limit));
        let want = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}});
        assert_eq!(pod["spec"]["containers"][0]["resources"], want);
        let note = "LimitRanger plugin set: cpu request for container c; memory limit for container c";
        assert_eq!(pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"], note);
    }

    #[test]
    fn bounds_are_named_in_upstreams_words() {
        let pod =
            json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "10m"}, "limits": {"cpu": "3"}}}]}});
        let limit = json!({
            "type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "4"},
        });
        let want = [
            "minimum cpu usage per Container is 100m, but request is 10m",
            "maximum cpu usage per Container is 2, but limit is 3",
            "cpu max limit to request ratio per Container is 4, but provided ratio is 300.000000",
        ];
        assert_eq!(check_pod(&pod, &range(limit)), want);
    }
}
