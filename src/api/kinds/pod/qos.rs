//! The quality of service that a pod gets, from what its containers ask for.

use crate::Value;
use crate::kinds::compute::{Amounts, amounts};
use crate::kinds::rules::quantity;
use crate::kinds::view::View;

/// Amounts of a list that count: cpu and memory above zero.
fn counted(list: &Value) -> Amounts {
    let mut out = amounts(list);
    out.retain(|name, amount| (name == "cpu" || name == "memory") && amount.sign() > 0);
    out
}

/// True when a list bounds both cpu and memory.
fn bounds_both(list: &Value) -> bool {
    ["cpu", "memory"].iter().all(|name| list.some(name).is_some_and(|value| quantity(value).sign() > 0))
}

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub fn class(spec: &Value) -> &'static str {
    let mut lists: Vec<&Value> = Vec::new();
    match spec.some("resources") {
        Some(own) => lists.push(own),
        None => {
            let containers = spec.items("containers").iter().chain(spec.items("initContainers"));
            lists.extend(containers.map(|c| c.at("resources")));
        }
    }
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    let mut guaranteed = true;
    for own in lists {
        for (total, list) in [(&mut requests, "requests"), (&mut limits, "limits")] {
            for (name, amount) in counted(own.at(list)) {
                *total.entry(name).or_default() += amount;
            }
        }
        let pod_without_limits = spec.has("resources") && own.entries("limits").next().is_none();
        guaranteed &= pod_without_limits || bounds_both(own.at("limits"));
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if guaranteed && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::class;

    #[test]
    fn classes() {
        let with = |resources: serde_json::Value| json!({"containers": [{"resources": resources}]});
        let both = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(class(&with(json!({}))), "BestEffort");
        assert_eq!(class(&with(json!({"requests": {"cpu": "1"}}))), "Burstable");
        assert_eq!(class(&with(json!({"requests": both, "limits": both}))), "Guaranteed");
        assert_eq!(class(&with(json!({"requests": {"cpu": "1"}, "limits": both}))), "Burstable");
        assert_eq!(class(&json!({"resources": {"requests": both, "limits": both}, "containers": [{}]})), "Guaranteed");
    }
}
