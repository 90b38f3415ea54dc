//! token-cleaner-controller: bootstrap tokens whose time is over are deleted.

use crate::context::{Context, Outcome};
use client::{Informer, Key, Queue, Selection, retry};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Preconditions};
use std::time::Duration;

const NAMESPACE: &str = "kube-system";
const KIND: &str = "bootstrap.kubernetes.io/token";

pub(crate) async fn run_token_cleaner(context: Context) {
    let secrets: Informer<Secret> = context.informers.select_in(NAMESPACE, &Selection::fields(format!("type={KIND}")));
    let queue = Queue::<Key>::default();
    let wake = queue.clone();
    secrets.on_change(move |change| wake.add(Key::of(&change.object().metadata)));
    secrets.synced().await;
    context.serve(&queue, 1, |key| clean(&context, &secrets, key)).await;
}

/// How long a token has left; nothing when it does not expire, or its time can't be read.
fn left(secret: &Secret, now: Timestamp) -> Option<Duration> {
    let text = secret.data.as_ref()?.get("expiration")?;
    let time: Timestamp = std::str::from_utf8(&text.0).ok()?.trim().parse().ok()?;
    Some(Duration::try_from(time.duration_since(now)).unwrap_or_default())
}

async fn clean(context: &Context, secrets: &Informer<Secret>, key: Key) -> Outcome {
    let Some(secret) = secrets.get(&key) else { return Ok(None) };
    let Some(left) = left(&secret, Timestamp::now()) else { return Ok(None) };
    if !left.is_zero() {
        return Ok(Some(left));
    }
    let preconditions = Preconditions { uid: secret.metadata.uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match context.within::<Secret>(NAMESPACE).delete(&key.name, &params).await {
        Err(error) if !retry::is_not_found(&error) && !retry::is_conflict(&error) => Err(error.into()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;

    #[test]
    fn tokens_expire_when_they_say() {
        let secret = |text: &str| Secret {
            data: Some([("expiration".to_owned(), ByteString(text.as_bytes().to_vec()))].into()),
            ..Default::default()
        };
        let now = Timestamp::from_second(100).unwrap();
        assert_eq!(left(&secret("1970-01-01T00:02:00Z"), now), Some(Duration::from_secs(20)));
        assert_eq!(left(&secret("1970-01-01T00:00:00Z"), now), Some(Duration::ZERO));
        assert_eq!(left(&secret("soon"), now), None);
        assert_eq!(left(&Secret::default(), now), None);
    }
}
