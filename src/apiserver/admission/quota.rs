//! ResourceQuota: what a write adds is charged to the quotas of the namespace before it is stored, or refused.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api::Value;
use api::quota::Counted;
use api::quota::amounts::{Amounts, amounts};
use api::status::Status;
use parking_lot::Mutex;

use super::{Operation, Plugin, Review};
use crate::registry::{internal, object};

/// How often quotas that others charge at the same time are tried again.
const ATTEMPTS: usize = 5;

/// The plugin. Writes to one namespace are charged one after the other, so that they don't lose races against each
/// other.
#[derive(Default)]
pub struct ResourceQuota {
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

#[async_trait::async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.writes() && !review.namespace.is_empty() && review.row.is_stored() && review.row.plural != "events"
    }

    async fn validate(&self, review: &Review<'_>, object: &Value) -> Result<(), Status> {
        let counted = Counted { group: &review.row.group, plural: &review.row.plural };
        if !counted.changes(review.subresource, review.old, object) {
            return Ok(());
        }
        if review.list_settled("", "resourcequotas", review.namespace).await.is_empty() {
            return Ok(());
        }
        let turn = self.turn(review.namespace);
        let _mine = turn.lock().await;
        for _ in 0..ATTEMPTS {
            review.api.admission.settle(review.api).await;
            if charge(review, &counted, object).await? {
                return Ok(());
            }
        }
        Err(Status::internal("resource quota evaluation timed out"))
    }
}

impl ResourceQuota {
    fn turn(&self, namespace: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock();
        // Nobody waits for a lock that only this table holds.
        if turns.len() > 1000 {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        turns.entry(namespace.to_string()).or_default().clone()
    }
}

/// Charges all quotas; false when one of them has changed meanwhile.
async fn charge(review: &Review<'_>, counted: &Counted<'_>, object: &Value) -> Result<bool, Status> {
    let row = review.row_of("", "resourcequotas").ok_or_else(|| Status::internal("no resource resourcequotas"))?;
    let mut quotas = Vec::new();
    for cached in review.list("", "resourcequotas", review.namespace) {
        quotas.push(cached.entry.value()?);
    }
    let bills = bills(review, counted, &quotas, object).map_err(|why| review.forbidden(object, why))?;
    if review.dry_run {
        return Ok(true);
    }
    for Bill { quota, used } in bills {
        let (name, before) = (object::name(quota), amounts(object::at(quota, &["status", "used"])));
        let set = |mut quota: Value| {
            if amounts(object::at(&quota, &["status", "used"])) != before {
                return Err(Status::new(409, "Conflict", "the quota has changed"));
            }
            let shown = used.iter().map(|(name, amount)| (name.clone(), amount.to_string().into())).collect();
            object::fields(&mut quota, &["status"]).insert("used".into(), Value::Object(shown));
            Ok(quota)
        };
        match internal::update(review.api, &row, review.namespace, name, "status", &set).await {
            Ok(_) => {}
            Err(status) if matches!(status.reason, "Conflict" | "NotFound") => return Ok(false),
            Err(status) => return Err(status),
        }
    }
    Ok(true)
}

/// A quota and what is used of it with this write.
struct Bill<'a> {
    quota: &'a Value,
    used: Amounts,
}

/// What the write costs each quota.
///
/// # Errors
/// Upstream's reason for a refusal.
fn bills<'a>(
    review: &Review<'_>, counted: &Counted<'_>, quotas: &'a [Arc<Value>], object: &Value,
) -> Result<Vec<Bill<'a>>, String> {
    let now = object::now();
    let usage = counted.usage(object, now);
    let negative: Vec<&str> = usage.iter().filter(|(_, q)| q.sign() < 0).map(|(name, _)| name.as_str()).collect();
    let mut bills = Vec::new();
    let mut matching = Vec::new();
    for quota in quotas.iter().filter(|quota| counted.matches(quota, object)) {
        let bounded = bounded(counted, quota);
        if let Some(why) = counted.unsaid(&bounded, object) {
            return Err(format!("failed quota: {}: {why}", object::name(quota)));
        }
        let used = amounts(object::at(quota, &["status", "used"]));
        if bounded.iter().any(|name| !used.contains_key(name)) {
            let names: Vec<&str> = bounded.iter().map(String::as_str).collect();
            return Err(format!("status unknown for quota: {}, resources: {}", object::name(quota), names.join(",")));
        }
        matching.push((quota, used));
    }
    if !negative.is_empty() {
        return Err(format!("quota usage is negative for resource(s): {}", negative.join(",")));
    }
    for (quota, used) in matching {
        let before = match (review.operation, review.old) {
            (Operation::Update, Some(old)) if counted.matches(quota, old) => counted.usage(old, now),
            _ => Amounts::new(),
        };
        let added = added(&usage, &before);
        if let Some(used) = bill(review, quota, used, &added)? {
            bills.push(Bill { quota, used });
        }
    }
    Ok(bills)
}

/// The bounded amounts of a quota for which a resource counts.
fn bounded(counted: &Counted<'_>, quota: &Value) -> BTreeSet<String> {
    amounts(object::at(quota, &["status", "hard"])).into_keys().filter(|name| counted.counts(name)).collect()
}

/// What is used more than before; what is used less is left to the quota controller.
fn added(usage: &Amounts, before: &Amounts) -> Amounts {
    let difference = usage.iter().map(|(name, amount)| {
        let had = before.get(name).copied();
        (name.clone(), had.map_or(*amount, |had| *amount - had))
    });
    difference.filter(|(_, amount)| amount.sign() > 0).collect()
}

/// What is used of a quota after a write; `None` when the write costs it nothing.
fn bill(review: &Review<'_>, quota: &Value, mut used: Amounts, added: &Amounts) -> Result<Option<Amounts>, String> {
    let hard = amounts(object::at(quota, &["status", "hard"]));
    let asked: Amounts = added.iter().filter(|(n, _)| hard.contains_key(*n)).map(|(n, q)| (n.clone(), *q)).collect();
    if asked.is_empty() {
        return Ok(None);
    }
    let before = used.clone();
    api::quota::amounts::add(&mut used, &asked);
    let exceeded: Vec<&String> = asked.keys().filter(|name| used[*name] > hard[*name]).collect();
    if exceeded.is_empty() || review.subresource == "status" {
        return Ok(Some(used));
    }
    let show = |of: &Amounts| {
        let parts = exceeded.iter().filter_map(|name| Some(format!("{name}={}", of.get(*name)?)));
        parts.collect::<Vec<_>>().join(",")
    };
    let name = object::name(quota);
    let (asked, before, hard) = (show(&asked), show(&before), show(&hard));
    Err(format!("exceeded quota: {name}, requested: {asked}, used: {before}, limited: {hard}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_is_more_than_before_is_charged() {
        let of = |cpu: &str, memory: &str| amounts(Some(&json!({"cpu": cpu, "memory": memory})));
        let more = added(&of("2", "1Gi"), &of("500m", "2Gi"));
        assert_eq!(more.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(), ["cpu=1500m"]);
    }
}
