//! root-ca-certificate-publisher-controller: every active namespace has the ConfigMap `kube-root-ca.crt` with the
//! authority that signed the API server's certificate.

use crate::context::{Context, Outcome};
use crate::serviceaccount::{is_active, tolerable};
use client::{Informer, Key, Queue, Selection};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ObjectMeta, PostParams};
use std::collections::BTreeMap;
use std::path::Path;

const NAME: &str = "kube-root-ca.crt";
const FIELD: &str = "ca.crt";
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
     internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes \
     clusters.",
);

/// Publishes until the context's end.
///
/// # Errors
/// When there is a file to publish, and it can't be read.
pub(crate) async fn run(context: Context) -> Result<(), base::Fault> {
    let file = context.options.flags.path("root-ca-file");
    let authority = authority(file.as_deref(), context.connection.config().root_cert.as_deref())?;
    let namespaces = context.informer::<Namespace>();
    let maps = context.informers.select::<ConfigMap>(&Selection::named(NAME));
    let queue = Queue::<Key>::default();
    let wake = queue.clone();
    namespaces.on_change(move |change| wake.add(Key::of(&change.object().metadata)));
    let wake = queue.clone();
    maps.on_change(move |change| {
        wake.add(Key::new("", change.object().metadata.namespace.clone().unwrap_or_default()))
    });
    namespaces.synced().await;
    maps.synced().await;
    context.resync_keys(&namespaces, &queue);
    context.serve(&queue, 1, |key| reconcile(&context, &namespaces, &maps, &authority, key)).await;
    Ok(())
}

/// The file of `--root-ca-file`; without one the authorities that this process trusts to sign the API server.
fn authority(file: Option<&Path>, trusted: Option<&[Vec<u8>]>) -> Result<String, base::Fault> {
    let Some(path) = file else {
        let certs: Vec<_> = trusted.unwrap_or_default().iter().map(|cert| cert.as_slice().into()).collect();
        return Ok(base::tls::pem(&certs));
    };
    let read = || -> Result<String, base::Fault> {
        let text = std::fs::read_to_string(path)?;
        base::tls::parse_certs(text.as_bytes())?;
        Ok(text)
    };
    read().map_err(|why| format!("error parsing root-ca-file at {}: {why}", path.display()).into())
}

#[derive(Debug, PartialEq)]
enum Command {
    Create(ConfigMap),
    Replace(ConfigMap),
}

fn plan(namespace: Option<&Namespace>, map: Option<&ConfigMap>, authority: &str) -> Option<Command> {
    if !is_active(namespace?) {
        return None;
    }
    let data = BTreeMap::from([(FIELD.to_owned(), authority.to_owned())]);
    let description = (DESCRIPTION.0.to_owned(), DESCRIPTION.1.to_owned());
    let Some(map) = map else {
        let metadata =
            ObjectMeta { name: Some(NAME.into()), annotations: Some([description].into()), ..Default::default() };
        return Some(Command::Create(ConfigMap { metadata, data: Some(data), ..Default::default() }));
    };
    let described = map.metadata.annotations.as_ref().and_then(|all| all.get(DESCRIPTION.0));
    if map.data.as_ref() == Some(&data) && described.is_some_and(|text| text == DESCRIPTION.1) {
        return None;
    }
    let mut map = map.clone();
    map.data = Some(data);
    map.metadata.annotations.get_or_insert_default().insert(description.0, description.1);
    Some(Command::Replace(map))
}

async fn reconcile(
    context: &Context, namespaces: &Informer<Namespace>, maps: &Informer<ConfigMap>, authority: &str, key: Key,
) -> Outcome {
    let (namespace, map) = (namespaces.get(&key), maps.find(&key.name, NAME));
    let Some(command) = plan(namespace.as_deref(), map.as_deref(), authority) else { return Ok(None) };
    let api = context.within::<ConfigMap>(&key.name);
    let done = match command {
        Command::Create(map) => api.create(&PostParams::default(), &map).await,
        Command::Replace(map) => api.replace(NAME, &PostParams::default(), &map).await,
    };
    match done {
        Err(error) if !tolerable(&error) => Err(error.into()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::NamespaceStatus;

    #[test]
    fn a_changed_authority_is_put_right() {
        let status = Some(NamespaceStatus { phase: Some("Active".into()), ..Default::default() });
        let namespace = Namespace { status, ..Default::default() };
        let Some(Command::Create(map)) = plan(Some(&namespace), None, "pem") else { panic!("should create") };
        assert_eq!(plan(Some(&namespace), Some(&map), "pem"), None);
        let mut spoilt = map.clone();
        spoilt.data = Some([(FIELD.to_owned(), "x".to_owned())].into());
        assert_eq!(plan(Some(&namespace), Some(&spoilt), "pem"), Some(Command::Replace(map)));
    }

    #[test]
    fn a_root_authority_that_cannot_be_read_is_an_error_and_without_one_the_trusted_are_published() {
        let why = |path: &str| authority(Some(Path::new(path)), None).unwrap_err().to_string();
        assert!(why("/nowhere/ca.crt").starts_with("error parsing root-ca-file at /nowhere/ca.crt: "));
        assert!(why("/dev/null").contains("does not contain any valid"));
        let published = authority(None, Some(&[vec![1, 2, 3]])).unwrap();
        assert_eq!(published, "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n");
    }
}
