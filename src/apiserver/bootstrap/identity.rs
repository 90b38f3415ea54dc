//! The Lease that says which API servers run: `apiserver-<hash of the host name>` in kube-system, renewed every ten
//! seconds. Those that nobody renews for an hour are collected.

use std::sync::{Arc, LazyLock};

use api::Value;
use api::status::Status;
use serde_json::json;
use sha2::Digest as _;

use super::{Wanted, cached, ensure, row};
use crate::Api;
use crate::registry::internal;

const GROUP: &str = "coordination.k8s.io";
const NAMESPACE: &str = "kube-system";
const LABEL: &str = "apiserver.kubernetes.io/identity";
/// Seconds that a Lease is good for.
const DURATION: i64 = 3600;

struct Identity {
    host: String,
    name: String,
    holder: String,
}

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string();
    let name = format!("apiserver-{}", base32(&sha2::Sha256::digest(host.as_bytes())[..16]));
    let holder = format!("{name}_{}", uuid::Uuid::new_v4());
    Identity { host, name, holder }
});

/// RFC 4648's base 32 in lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut text = String::new();
    let (mut bits, mut count) = (0u32, 0);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            text.push(char::from(ALPHABET[(bits >> count) as usize & 31]));
        }
    }
    if count > 0 {
        text.push(char::from(ALPHABET[(bits << (5 - count)) as usize & 31]));
    }
    text
}

/// Makes or renews our Lease.
///
/// # Errors
/// When it can't be written.
pub async fn renew(api: &Arc<Api>) -> Result<(), Status> {
    let Identity { host, name, holder } = &*IDENTITY;
    let row = row(api, GROUP, "leases")?;
    let now = base::clock::now_micro();
    if cached(api, &row, NAMESPACE, name).is_none() {
        let labels = json!({LABEL: "kube-apiserver", "kubernetes.io/hostname": host});
        let object = json!({
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": DURATION, "renewTime": now},
        });
        let wanted = Wanted { group: GROUP, plural: "leases", namespace: NAMESPACE.into(), object };
        return ensure(api, wanted, &|_, _| None).await;
    }
    let change = |mut lease: Value| {
        lease["spec"]["renewTime"] = now.clone().into();
        lease["spec"]["holderIdentity"] = holder.clone().into();
        Ok(lease)
    };
    internal::update(api, &row, NAMESPACE, name, "", &change).await.map(|_| ())
}

/// Deletes Leases of servers that are gone.
///
/// # Errors
/// When one can't be deleted.
pub async fn collect(api: &Arc<Api>) -> Result<(), Status> {
    let row = row(api, GROUP, "leases")?;
    let now = base::clock::unix();
    for lease in internal::list(api, &row, NAMESPACE)?.iter().filter(|l| expired(l, now)) {
        let name = lease["metadata"]["name"].as_str().unwrap_or_default();
        match internal::delete(api, &row, NAMESPACE, name).await {
            Err(e) if e.code != 404 => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

fn expired(lease: &Value, now: i64) -> bool {
    if lease["metadata"]["labels"][LABEL] != "kube-apiserver" {
        return false;
    }
    let renewed = lease["spec"]["renewTime"].as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok());
    let duration = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(0);
    renewed.is_none_or(|t| t.as_second() + duration < now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base32_is_the_usual_one() {
        assert_eq!(base32(b"f"), "my");
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
    }

    #[test]
    fn only_old_leases_of_api_servers_are_collected() {
        let lease = |label: &str, time: &str| json!({"metadata": {"labels": {LABEL: label}}, "spec": {"renewTime": time, "leaseDurationSeconds": 3600}});
        assert!(expired(&lease("kube-apiserver", "1970-01-01T00:00:00.000000Z"), 4000));
        assert!(!expired(&lease("kube-apiserver", "1970-01-01T00:10:00.000000Z"), 4000));
        assert!(!expired(&lease("other", "1970-01-01T00:00:00.000000Z"), 4000));
    }
}
