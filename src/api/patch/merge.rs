//! JSON merge patch, RFC 7386.

use crate::{Map, Value};

/// Merges `patch` into `live`; null deletes.
pub fn apply(live: &mut Value, patch: Value) {
    match (live, patch) {
        (Value::Object(live), Value::Object(patch)) => merge(live, patch),
        (live, mut patch) => {
            // A list that replaces an object keeps its nulls.
            if !live.is_object() {
                prune(&mut patch);
            }
            *live = patch;
        }
    }
}

fn merge(live: &mut Map, patch: Map) {
    for (name, mut value) in patch {
        if value.is_null() {
            live.remove(&name);
            continue;
        }
        match live.get_mut(&name) {
            Some(have) if !have.is_null() => apply(have, value),
            _ => {
                prune(&mut value);
                live.insert(name, value);
            }
        }
    }
}

/// Takes out the entries that are null; items of lists that are null stay.
fn prune(value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|_, value| {
            prune(value);
            !value.is_null()
        }),
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merges_as_the_rfc_says() {
        for (live, patch, want) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
            (json!({"a": null}), json!({"a": {"b": null, "c": [null, {"d": null}]}}), json!({"a": {"c": [null, {}]}})),
            (json!({"a": {"x": 1}}), json!({"a": [{"b": null}]}), json!({"a": [{"b": null}]})),
        ] {
            let mut merged = live.clone();
            apply(&mut merged, patch.clone());
            assert_eq!(merged, want, "{live} {patch}");
        }
    }
}
