//! serviceaccount-controller: every active namespace has its `default` service account.

use crate::context::{Context, Fault, Outcome};
use client::{Informer, Key, Queue, Selection, retry};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{ObjectMeta, PostParams};

const NAME: &str = "default";

pub(crate) async fn run(context: Context) {
    let namespaces = context.informer::<Namespace>();
    let accounts = context.informers.select::<ServiceAccount>(&Selection::default());
    let queue = Queue::<Key>::default();
    let wake = queue.clone();
    namespaces.on_change(move |change| wake.add(Key::of(&change.object().metadata)));
    let wake = queue.clone();
    accounts.on_change(move |change| {
        if let (client::Change::Removed(account), meta) = (change, &change.object().metadata)
            && account.metadata.name.as_deref() == Some(NAME)
        {
            wake.add(Key::new("", meta.namespace.clone().unwrap_or_default()));
        }
    });
    namespaces.synced().await;
    accounts.synced().await;
    context.resync_keys(&namespaces, &queue);
    context.serve(&queue, 1, |key| reconcile(&context, &namespaces, &accounts, key)).await;
}

/// Whether the namespace lacks its account.
fn lacks(namespace: Option<&Namespace>, account: Option<&ServiceAccount>) -> bool {
    namespace.is_some_and(is_active) && account.is_none()
}

/// Whether things may be made in a namespace.
pub(crate) fn is_active(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
    namespace.metadata.deletion_timestamp.is_none() && phase != Some("Terminating")
}

async fn reconcile(
    context: &Context, namespaces: &Informer<Namespace>, accounts: &Informer<ServiceAccount>, key: Key,
) -> Outcome {
    let namespace = namespaces.get(&key);
    if !lacks(namespace.as_deref(), accounts.find(&key.name, NAME).as_deref()) {
        return Ok(None);
    }
    let metadata = ObjectMeta { name: Some(NAME.into()), ..Default::default() };
    let account = ServiceAccount { metadata, ..Default::default() };
    match context.within::<ServiceAccount>(&key.name).create(&PostParams::default(), &account).await {
        Err(error) if tolerable(&error) => Ok(None),
        Err(error) => Err(Fault::Api(error)),
        Ok(_) => Ok(None),
    }
}

/// It is there already, or the namespace is going.
pub(crate) fn tolerable(error: &kube::Error) -> bool {
    retry::is_already_exists(error) || retry::is_not_found(error) || retry::has_cause(error, "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::NamespaceStatus;

    #[test]
    fn only_active_namespaces_get_an_account() {
        let namespace = |phase: &str| Namespace {
            status: Some(NamespaceStatus { phase: Some(phase.into()), ..Default::default() }),
            ..Default::default()
        };
        assert!(lacks(Some(&namespace("Active")), None));
        assert!(!lacks(Some(&namespace("Terminating")), None));
        assert!(!lacks(Some(&namespace("Active")), Some(&ServiceAccount::default())));
        assert!(!lacks(None, None));
    }
}
