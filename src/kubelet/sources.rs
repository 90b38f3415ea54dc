//! Static pods: manifests in a directory of the node.
//!
//! The directory is looked at when the kernel tells of a change in it (names, sizes and times; the files only when those
//! changed) and read anew from time to time; one that is not there yet, each second. A file that can't be read keeps its
//! pod for as long as one such interval: it may be half written.

use crate::descriptor;
use crate::pods::{self, CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE};
use k8s_openapi::api::core::v1::{Pod, Toleration};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;

/// What tells that a file may have changed.
type Mark = (u64, u64, i64, i64);

/// The static pods of a node.
pub struct Manifests {
    path: PathBuf,
    node: String,
    every: Duration,
    marks: BTreeMap<PathBuf, Mark>,
    read_at: Option<Instant>,
    good: BTreeMap<PathBuf, (Arc<Pod>, Instant)>,
    /// When each pod was first seen, by UID: a pod that is read again is the same pod.
    seen: HashMap<String, String>,
}

/// How often a directory is looked for that is not there.
const LOOK: Duration = Duration::from_secs(1);
/// How long the writer of a file is given.
const SETTLE: Duration = Duration::from_millis(50);

impl Manifests {
    /// Manifests in a directory (or one file), read anew after `every` without cause.
    pub fn new(path: PathBuf, node: String, every: Duration) -> Self {
        Self { path, node, every, marks: BTreeMap::new(), read_at: None, good: BTreeMap::new(), seen: HashMap::new() }
    }

    /// Sends the whole set of static pods when it may have changed, the first time at once.
    pub async fn run(mut self, out: mpsc::Sender<Vec<Arc<Pod>>>) {
        loop {
            // From here on the kernel tells: what changes after the look is not missed.
            let watch = watch(&self.path);
            match self.look() {
                Ok(Some(pods)) => {
                    if out.send(pods).await.is_err() {
                        return;
                    }
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(path = %self.path.display(), %error, "can't read the static pods"),
            }
            match watch {
                Ok(watch) => self.change(watch).await,
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Waits until something may have changed: the kernel says so, or it is time.
    async fn change(&self, watch: AsyncFd<OwnedFd>) {
        if let Ok(ready) = tokio::time::timeout(self.every, watch.readable()).await {
            match ready {
                // Writing a file takes several steps: one look for all of them.
                Ok(_) => tokio::time::sleep(SETTLE).await,
                Err(error) => tracing::warn!(path = %self.path.display(), %error, "can't watch the static pods"),
            }
        }
    }

    fn look(&mut self) -> io::Result<Option<Vec<Arc<Pod>>>> {
        let marks = marks(&self.path)?;
        let due = self.read_at.is_none_or(|at| at.elapsed() >= self.every);
        if marks == self.marks && !due {
            return Ok(None);
        }
        self.read_at = Some(Instant::now());
        self.marks = marks;
        Ok(Some(self.read()))
    }

    fn read(&mut self) -> Vec<Arc<Pod>> {
        let now = Instant::now();
        let mut pods: BTreeMap<PathBuf, (Arc<Pod>, Instant)> = BTreeMap::new();
        for path in self.marks.keys() {
            match read_pod(path, &self.node) {
                Ok(mut pod) => {
                    let uid = pods::uid(&pod).to_owned();
                    let seen = self.seen.entry(uid).or_insert_with(|| jiff::Timestamp::now().to_string());
                    pod.metadata.annotations.get_or_insert_default().insert(CONFIG_SEEN.into(), seen.clone());
                    pods.insert(path.clone(), (Arc::new(pod), now));
                }
                Err(error) => {
                    tracing::error!(path = %path.display(), error, "can't process a static pod's manifest");
                    if let Some((pod, at)) = self.good.get(path).filter(|(_, at)| at.elapsed() < self.every) {
                        pods.insert(path.clone(), (pod.clone(), *at));
                    }
                }
            }
        }
        self.good = pods;
        let list: Vec<Arc<Pod>> = self.good.values().map(|(pod, _)| pod.clone()).collect();
        self.seen.retain(|uid, _| list.iter().any(|pod| pods::uid(pod) == uid));
        list
    }
}

/// A watch over a directory of manifests, or one manifest.
fn watch(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let changes = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF;
    inotify.add_watch(path, changes)?;
    descriptor::watch(inotify.into())
}

/// The manifests there are. A directory that is not there has none.
fn marks(path: &Path) -> io::Result<BTreeMap<PathBuf, Mark>> {
    let mark = |meta: &std::fs::Metadata| (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    if meta.is_file() {
        return Ok(BTreeMap::from([(path.to_owned(), mark(&meta))]));
    }
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        // A file that goes away under our eyes is not there.
        if let Ok(meta) = std::fs::metadata(entry.path())
            && meta.is_file()
        {
            found.insert(entry.path(), mark(&meta));
        }
    }
    Ok(found)
}

fn read_pod(path: &Path, node: &str) -> Result<Pod, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    parse(&text, &path.display().to_string(), node)
}

/// A manifest as a pod of this node: named after it, with its hash as UID.
pub fn parse(text: &str, source: &str, node: &str) -> Result<Pod, String> {
    let mut value: serde_json::Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let kind = |key: &str| value.get(key).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    if (kind("apiVersion").as_str(), kind("kind").as_str()) != ("v1", "Pod") {
        return Err(format!("invalid pod: {:?} of {:?} is not one", kind("kind"), kind("apiVersion")));
    }
    let as_written: Pod = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    if pods::name(&as_written).is_empty() {
        return Err("invalid pod: name is needed for the pod".into());
    }
    let name = format!("{}-{node}", pods::name(&as_written));
    value["metadata"]["name"] = name.into();
    let namespace = as_written.metadata.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    value["metadata"]["namespace"] = namespace.unwrap_or("default").into();
    // What the API server would have done: static pods come without having passed it.
    api::kinds::pod::defaults::pod(&mut value);
    valid(&value)?;
    let mut pod: Pod = serde_json::from_value(value).map_err(|error| error.to_string())?;
    needs_no_api(&pod)?;
    if pod.metadata.uid.as_deref().is_none_or(str::is_empty) {
        pod.metadata.uid = Some(uid(&as_written, source, node));
    }
    let uid = pods::uid(&pod).to_owned();
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(CONFIG_HASH.into(), uid);
    annotations.insert(CONFIG_SOURCE.into(), "file".into());
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node.into());
        // Trouble of the node is no reason to end what the node itself has started.
        let everything =
            Toleration { operator: Some("Exists".into()), effect: Some("NoExecute".into()), ..Default::default() };
        let tolerations = spec.tolerations.get_or_insert_default();
        if !tolerations.contains(&everything) {
            tolerations.push(everything);
        }
    }
    pod.status = Some(k8s_openapi::api::core::v1::PodStatus { phase: Some("Pending".into()), ..Default::default() });
    Ok(pod)
}

/// Refuses what the API server would refuse.
fn valid(pod: &serde_json::Value) -> Result<(), String> {
    let mut errors = api::meta::validate(pod, true, &api::meta::names::dns_subdomain);
    api::kinds::pod::spec::pod(&mut errors, pod, &api::kinds::pod::options::Options::new_pod());
    match errors.0.is_empty() {
        true => Ok(()),
        false => {
            let all: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            Err(format!("invalid pod: [{}]", all.join(" ")))
        }
    }
}

/// Refuses references to other objects: a static pod must not need the API.
fn needs_no_api(pod: &Pod) -> Result<(), String> {
    let spec = pods::spec(pod);
    for container in spec.containers.iter().chain(pods::inits(pod)) {
        let (maps, secrets) = pods::env::references(container);
        for (names, resource) in [(maps, "configmaps"), (secrets, "secrets")] {
            if !names.is_empty() {
                return Err(format!("static pods may not reference {resource}"));
            }
        }
    }
    for volume in spec.volumes.as_deref().unwrap_or_default() {
        let refers = [
            (volume.config_map.is_some(), "configmaps"),
            (volume.secret.is_some(), "secrets"),
            (volume.persistent_volume_claim.is_some(), "persistentvolumeclaims"),
            (volume.projected.is_some(), "serviceaccounts"),
        ];
        if let Some((_, resource)) = refers.into_iter().find(|(refers, _)| *refers) {
            return Err(format!("static pods may not reference {resource}"));
        }
    }
    if spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Err("static pods may not reference serviceaccounts".into());
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Err("static pods may not use ResourceClaims".into());
    }
    Ok(())
}

fn uid(pod: &Pod, source: &str, node: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(serde_json::to_vec(pod).unwrap_or_default());
    hash.update(format!("host:{node}file:{source}"));
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: c, image: i}]\n";

    #[test]
    fn a_manifest_becomes_a_pod_of_the_node() {
        let pod = parse(MANIFEST, "/m/web.yaml", "node1").unwrap();
        assert_eq!((pods::name(&pod), pods::namespace(&pod)), ("web-node1", "default"));
        assert_eq!(pods::annotation(&pod, CONFIG_HASH), pod.metadata.uid.as_deref());
        assert_eq!(pods::uid(&pod).len(), 32);
        assert!(pods::is_static(&pod));
        assert_eq!(pods::apps(&pod)[0].image_pull_policy.as_deref(), Some("Always"));
        assert_eq!(parse(MANIFEST, "/m/web.yaml", "node1").unwrap(), pod);
        assert_ne!(
            parse(&MANIFEST.replace("image: i", "image: j"), "/m/web.yaml", "node1").unwrap().metadata.uid,
            pod.metadata.uid
        );
    }

    #[test]
    fn a_static_pod_may_not_need_the_api() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: w}\nspec:\n  containers: [{name: c, image: i}]\n  volumes: [{name: v, secret: {secretName: s}}]\n";
        assert_eq!(parse(text, "f", "n").unwrap_err(), "static pods may not reference secrets");
        assert!(parse("apiVersion: v1\nkind: Service\n", "f", "n").is_err());
    }

    #[test]
    fn what_the_api_server_would_refuse_is_refused_by_field() {
        let text = MANIFEST.replace("name: c", "name: C_").replace("name: web", "name: web_");
        let error = parse(&text, "f", "n").unwrap_err();
        assert!(error.starts_with("invalid pod: [metadata.name: Invalid value: \"web_-n\""), "{error}");
        assert!(error.contains("spec.containers[0].name: Invalid value: \"C_\""), "{error}");
        let text = MANIFEST.replace("containers: [{name: c, image: i}]", "containers: []");
        assert_eq!(parse(&text, "f", "n").unwrap_err(), "invalid pod: [spec.containers: Required value]");
    }

    #[test]
    fn changes_are_noticed_and_a_broken_file_keeps_its_pod_for_a_while() {
        let dir = std::env::temp_dir().join(format!("kubelet-manifests-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut manifests = Manifests::new(dir.clone(), "n".into(), Duration::from_secs(3600));
        assert_eq!(manifests.look().unwrap(), Some(vec![]));
        std::fs::write(dir.join("a.yaml"), MANIFEST).unwrap();
        std::fs::write(dir.join(".hidden"), MANIFEST).unwrap();
        let first = manifests.look().unwrap().unwrap();
        assert_eq!(first.len(), 1);
        assert_eq!(manifests.look().unwrap(), None);
        std::fs::write(dir.join("a.yaml"), "half: [").unwrap();
        assert_eq!(manifests.look().unwrap().unwrap(), first);
        std::fs::remove_file(dir.join("a.yaml")).unwrap();
        assert_eq!(manifests.look().unwrap(), Some(vec![]));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test]
    async fn a_manifest_is_seen_when_it_comes_and_when_it_goes_without_waiting_for_the_next_reading() {
        let path = std::env::temp_dir().join(format!("kubelet-manifests-watched-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let (send, mut sets) = mpsc::channel(1);
        let manifests = Manifests::new(path.clone(), "n".into(), Duration::from_secs(3600));
        let running = tokio::spawn(manifests.run(send));
        assert_eq!(sets.recv().await.unwrap().len(), 0);
        std::fs::write(path.join("a.yaml"), MANIFEST).unwrap();
        while sets.recv().await.unwrap().len() != 1 {}
        std::fs::remove_file(path.join("a.yaml")).unwrap();
        while !sets.recv().await.unwrap().is_empty() {}
        running.abort();
        std::fs::remove_dir_all(path).unwrap();
    }
}
