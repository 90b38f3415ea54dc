//! What every write does to an object's metadata before it is stored, and the checks that every resource shares.

use api::field::{Error, Errors, Path};
use api::status::Status;
use api::{Value, meta};

use super::engine::Write;
use super::object;

/// Erases what a creator may not say.
pub fn wipe(object: &mut Value) {
    for field in ["creationTimestamp", "uid", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        object::unset_meta(object, field);
    }
}

/// Gives a new object its UID, its time and, where it has none, a generated name.
pub fn init(object: &mut Value, now: i64) {
    meta::fill_system_fields(object, &object::time(now), &uuid::Uuid::new_v4().to_string());
    let base = object::meta_text(object, "generateName");
    if !base.is_empty() && object::name(object).is_empty() {
        let name = meta::generate_name(base, rand::random());
        object::set_meta(object, "name", name);
    }
}

/// Removes owner references that stand there twice, with a warning.
pub fn dedup_owners(w: &Write<'_>, object: &mut Value, after_admission: bool) {
    let owners = object::list(object, &["metadata", "ownerReferences"]);
    let mut kept: Vec<Value> = Vec::with_capacity(owners.len());
    let mut doubled = Vec::new();
    for owner in owners {
        if kept.contains(owner) {
            doubled.push(object::text(owner, &["uid"]).to_string());
        } else {
            kept.push(owner.clone());
        }
    }
    if doubled.is_empty() {
        return;
    }
    let uids = doubled.join(", ");
    w.warn(if after_admission {
        format!(
            ".metadata.ownerReferences contains duplicate entries after mutating admission happens; API server dedups \
             owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; \
             duplicate UID(s) observed: {uids}"
        )
    } else {
        format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and \
             may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {uids}"
        )
    });
    object::set_meta(object, "ownerReferences", kept);
}

/// Prepares and checks a new object.
///
/// # Errors
/// 422 with all that is wrong.
pub fn before_create(w: &Write<'_>, object: &mut Value, now: i64) -> Result<(), Status> {
    let (strategy, cx) = (w.row.strategy, w.context(now));
    if strategy.has_generation() {
        meta::first_generation(object);
    }
    strategy.prepare_create(&cx, object);
    w.row.check_create(&cx, object)?;
    strategy.warnings(&cx, object, None).into_iter().for_each(|text| w.warn(text));
    as_read(w, object);
    Ok(())
}

/// Prepares and checks a changed object.
///
/// # Errors
/// 422 with all that is wrong.
pub fn before_update(w: &Write<'_>, new: &mut Value, old: &Value, now: i64) -> Result<(), Status> {
    let (strategy, cx) = (w.row.strategy, w.context(now));
    meta::keep_system_fields(new, old);
    strategy.prepare_update(&cx, new, old);
    if strategy.has_generation() && cx.subresource != "status" && strategy.changes_generation(new, old) {
        meta::next_generation(new, old);
    }
    w.row.check_update(&cx, new, old)?;
    strategy.warnings(&cx, new, Some(old)).into_iter().for_each(|text| w.warn(text));
    as_read(w, new);
    Ok(())
}

/// Upstream fills in defaults whenever it reads an object: what the strategy reset or made shows with them at once.
fn as_read(w: &Write<'_>, object: &mut Value) {
    w.row.strategy.default(object);
}

/// Checks the resourceVersion that an update names; one without gets the current one where the row allows that.
///
/// # Errors
/// 409 when the object has changed, 422 when a version must be named, 500 when it is no number.
pub fn check_version(w: &Write<'_>, new: &mut Value, current: store::Revision) -> Result<(), Status> {
    let text = object::meta_text(new, "resourceVersion");
    let version = parse_version(text)?;
    if version == 0 && w.row.unconditional_update {
        object::set_meta(new, "resourceVersion", current.to_string());
        return Ok(());
    }
    if version == 0 {
        let path = Path::new("metadata").child("resourceVersion");
        let errors = Errors(vec![Error::invalid(&path, 0, "must be specified for an update")]);
        return Err(Status::invalid(w.row.group_resource(), w.name, errors));
    }
    if version != current as u64 {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        return Err(Status::conflict(w.row.group_resource(), w.name, why));
    }
    Ok(())
}

fn parse_version(text: &str) -> Result<u64, Status> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse::<u64>().map_err(|_| {
        Status::new(500, "", format!("strconv.ParseUint: parsing {}: invalid syntax", api::field::quote(text)))
    })
}

/// Gives managedFields their old times back when nothing but those times has changed.
pub fn keep_times(new: &mut Value, old: &Value) {
    let (now, before) =
        (object::list(new, &["metadata", "managedFields"]), object::list(old, &["metadata", "managedFields"]));
    if now.is_empty() || now.len() != before.len() || now == before {
        return;
    }
    let differs = |(a, b): (&Value, &Value)| !same_but_time(a, b);
    if now.iter().zip(before).any(differs) {
        return;
    }
    let mut candidate = new.clone();
    object::copy_meta(&mut candidate, old, "managedFields");
    if candidate == *old {
        *new = candidate;
    }
}

fn same_but_time(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else { return false };
    let rest = |map: &api::Map| {
        map.iter().filter(|(k, _)| *k != "time").map(|(k, v)| (k.clone(), v.clone())).collect::<Vec<_>>()
    };
    rest(a) == rest(b)
}

/// True when an update takes the last finalizer from an object that waits for nothing else to be deleted.
pub fn completes_deletion(new: &Value, old: &Value) -> bool {
    object::finalizers(new).is_empty() && object::deleting(old) && object::grace(old).unwrap_or_default() == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_write_that_changes_only_times_of_managed_fields_changes_nothing() {
        let entry = |time: &str| json!({"manager": "m", "operation": "Update", "time": time});
        let object =
            |time: &str, data: &str| json!({"metadata": {"name": "a", "managedFields": [entry(time)]}, "data": data});
        let mut new = object("t2", "x");
        keep_times(&mut new, &object("t1", "x"));
        assert_eq!(new, object("t1", "x"));
        let mut new = object("t2", "y");
        keep_times(&mut new, &object("t1", "x"));
        assert_eq!(new, object("t2", "y"));
    }

    #[test]
    fn deletion_completes_when_the_last_finalizer_goes_and_no_grace_is_left() {
        let object = |finalizers: &[&str], grace: i64| json!({"metadata": {"deletionTimestamp": "t", "deletionGracePeriodSeconds": grace, "finalizers": finalizers}});
        assert!(completes_deletion(&object(&[], 0), &object(&["a"], 0)));
        assert!(!completes_deletion(&object(&["a"], 0), &object(&["a"], 0)));
        assert!(!completes_deletion(&object(&[], 30), &object(&["a"], 30)));
        assert!(!completes_deletion(&json!({}), &json!({})));
    }
}
