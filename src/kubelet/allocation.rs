//! Resources granted to pods, and those put into force: what makes a resize in place a decision of the node and not of
//! whoever changed the spec. Both outlive the kubelet in one small file.

use crate::pods::admit::{Shortage, first_shortage};
use crate::pods::qos::{Side, totals};
use crate::pods::{self, apps, inits};
use crate::runtime::plan::resize_wanted;
use crate::runtime::state::{PodState, State};
use crate::status::conditions::condition;
use crate::units::{ResourceList, milli};
use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, ResourceRequirements};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type PerContainer = BTreeMap<String, ResourceRequirements>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Entry {
    /// What the node has granted.
    granted: PerContainer,
    /// What was last put into force.
    actuated: PerContainer,
    /// A wish that is not granted: reason, message, generation.
    #[serde(skip)]
    pending: Option<(String, String, i64)>,
    /// A grant that is not in force: reason and message of the last failure, generation.
    #[serde(skip)]
    in_progress: Option<(String, String, i64)>,
}

/// What became of a wish for other resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing was wished for.
    Same,
    /// Granted.
    Granted,
    /// Not now: too much is in use.
    Deferred(String),
    /// Never: the node is too small.
    Infeasible(String),
}

/// Grants of all pods.
pub struct Allocations {
    path: PathBuf,
    entries: Mutex<HashMap<String, Entry>>,
}

impl Allocations {
    /// Grants remembered in a file below `root`.
    ///
    /// # Errors
    /// When there is a record and it can't be read: without it, running pods would be taken for having what they only
    /// wish for. The text says what to do.
    pub fn load(root: &Path) -> Result<Self, String> {
        let path = root.join("resources_state.json");
        let unreadable = |error: &dyn std::fmt::Display| {
            let path = path.display();
            format!(
                "could not restore the resources granted to pods: {error}, please drain this node and delete {path:?} before restarting the kubelet"
            )
        };
        let entries = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| unreadable(&error))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => HashMap::new(),
            Err(error) => return Err(unreadable(&error)),
        };
        Ok(Self { path, entries: Mutex::new(entries) })
    }

    fn save(&self, entries: &HashMap<String, Entry>) {
        if let Err(error) = write_whole(&self.path, entries) {
            tracing::warn!(path = %self.path.display(), %error, "can't keep the record of granted resources");
        }
    }

    /// Grants a new pod what its spec says, unless it has a grant already.
    pub fn admit(&self, pod: &Pod) {
        let mut entries = self.entries.lock();
        if !entries.contains_key(pods::uid(pod)) {
            entries.insert(pods::uid(pod).into(), Entry { granted: wishes(pod), ..Default::default() });
            self.save(&entries);
        }
    }

    /// The pod with the resources that it has been granted.
    pub fn granted(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let entries = self.entries.lock();
        let Some(entry) = entries.get(pods::uid(pod)).filter(|entry| entry.granted != wishes(pod)) else {
            return pod.clone();
        };
        let mut changed = Pod::clone(pod);
        if let Some(spec) = &mut changed.spec {
            for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
                if let Some(granted) = entry.granted.get(&container.name) {
                    container.resources = Some(granted.clone());
                }
            }
        }
        Arc::new(changed)
    }

    /// Looks at what the pod's spec wishes now. `others` are the other pods alive, as granted.
    pub fn consider(&self, pod: &Pod, others: &[&Pod], allocatable: &ResourceList) -> Verdict {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(pods::uid(pod)) else { return Verdict::Same };
        let wished = wishes(pod);
        if wished == entry.granted {
            entry.pending = None;
            return Verdict::Same;
        }
        let generation = pod.metadata.generation.unwrap_or(0);
        let verdict = judge(pod, others, allocatable);
        match &verdict {
            Verdict::Same => {}
            Verdict::Granted => {
                entry.granted = wished;
                entry.pending = None;
                entry.in_progress = Some((String::new(), String::new(), generation));
                self.save(&entries);
            }
            Verdict::Deferred(text) => entry.pending = Some(("Deferred".into(), text.clone(), generation)),
            Verdict::Infeasible(text) => entry.pending = Some(("Infeasible".into(), text.clone(), generation)),
        }
        verdict
    }

    /// Is a wish of the pod waiting?
    pub fn is_pending(&self, uid: &str) -> bool {
        self.entries.lock().get(uid).is_some_and(|entry| entry.pending.is_some())
    }

    /// Notes what a container was given.
    pub fn actuated(&self, uid: &str, container: &str, resources: ResourceRequirements) {
        let mut entries = self.entries.lock();
        let entry = entries.entry(uid.into()).or_default();
        if entry.actuated.get(container) != Some(&resources) {
            entry.actuated.insert(container.into(), resources);
            self.save(&entries);
        }
    }

    /// What the pod's containers were last given.
    pub fn actuated_of(&self, uid: &str) -> HashMap<String, ResourceRequirements> {
        self.entries.lock().get(uid).map(|entry| entry.actuated.clone().into_iter().collect()).unwrap_or_default()
    }

    /// A grant could not be put into force.
    pub fn failed(&self, uid: &str, error: &str) {
        if let Some((reason, message, _)) =
            self.entries.lock().get_mut(uid).and_then(|entry| entry.in_progress.as_mut())
        {
            *reason = "Error".into();
            *message = error.into();
        }
    }

    /// Notes whether the grant is in force; the event's text when it has just become so.
    pub fn settle(&self, pod: &Pod, state: &PodState) -> Option<String> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(pods::uid(pod))?;
        let (_, _, generation) = entry.in_progress.as_ref()?;
        let differs = |container: &Container| {
            let running = state.latest(&container.name).is_some_and(|run| run.state == State::Running);
            running && entry.actuated.get(&container.name).is_some_and(|actuated| resize_wanted(container, actuated))
        };
        if apps(pod).iter().chain(inits(pod)).any(differs) {
            return None;
        }
        let text = format!("Pod resize completed: {}", summary(pod, *generation));
        entry.in_progress = None;
        Some(text)
    }

    /// Conditions that tell about wishes and grants.
    pub fn conditions(&self, uid: &str) -> Vec<PodCondition> {
        let entries = self.entries.lock();
        let Some(entry) = entries.get(uid) else { return Vec::new() };
        let make = |kind: &str, (reason, message, generation): &(String, String, i64)| PodCondition {
            observed_generation: Some(*generation).filter(|generation| *generation != 0),
            ..condition(&Pod::default(), kind, true, reason, message)
        };
        let pending = entry.pending.as_ref().map(|pending| make("PodResizePending", pending));
        let in_progress = entry.in_progress.as_ref().map(|progress| make("PodResizeInProgress", progress));
        pending.into_iter().chain(in_progress).collect()
    }

    /// Forgets a pod.
    pub fn forget(&self, uid: &str) {
        let mut entries = self.entries.lock();
        if entries.remove(uid).is_some() {
            self.save(&entries);
        }
    }
}

/// Writes a file in one step: its reader sees the old or the new one.
///
/// # Errors
/// As the system says.
pub(crate) fn write_whole(path: &Path, entries: &impl serde::Serialize) -> io::Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(entries)?)?;
    std::fs::rename(new, path)
}

/// What the spec asks for, per container.
fn wishes(pod: &Pod) -> PerContainer {
    let of = |c: &Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
    apps(pod).iter().chain(inits(pod)).map(of).collect()
}

fn judge(pod: &Pod, others: &[&Pod], allocatable: &ResourceList) -> Verdict {
    if pods::is_static(pod) {
        return Verdict::Infeasible("In-place resize of static-pods is not supported".into());
    }
    let wanted = totals(pod, Side::Requests, true);
    for name in ["cpu", "memory"] {
        let (asked, capacity) = (wanted.get(name).copied().unwrap_or(0), allocatable.get(name).map(milli).unwrap_or(0));
        if asked > capacity {
            let unit = if name == "cpu" { 1 } else { 1000 };
            let text = format!(
                "Node didn't have enough capacity: {name}, requested: {}, capacity: {}",
                asked / unit,
                capacity / unit
            );
            return Verdict::Infeasible(text);
        }
    }
    match first_shortage(&wanted, others, allocatable) {
        Some(short @ Shortage { .. }) => Verdict::Deferred(short.message()),
        None => Verdict::Granted,
    }
}

/// The resources of the spec, as events about resizes carry them.
pub fn summary(pod: &Pod, generation: i64) -> String {
    #[derive(Serialize)]
    struct One<'a> {
        name: &'a str,
        resources: ResourceRequirements,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct All<'a> {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        init_containers: Vec<One<'a>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        containers: Vec<One<'a>>,
        generation: i64,
    }
    fn list(containers: &[Container]) -> Vec<One<'_>> {
        containers.iter().map(|c| One { name: &c.name, resources: c.resources.clone().unwrap_or_default() }).collect()
    }
    let all = All { init_containers: list(inits(pod)), containers: list(apps(pod)), generation };
    serde_json::to_string(&all).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

    fn pod(cpu: &str) -> Arc<Pod> {
        let value = json!({"metadata": {"name": "p", "uid": "u", "generation": 2}, "spec": {"containers": [
            {"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn an_infeasible_resize_is_told_and_changes_nothing() {
        let dir = std::env::temp_dir().join(format!("kubelet-grants-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let grants = Allocations::load(&dir).unwrap();
        let allocatable: ResourceList =
            [("cpu", "2"), ("pods", "10")].map(|(k, v)| (k.to_owned(), Quantity(v.into()))).into();
        grants.admit(&pod("1"));
        let text = "Node didn't have enough capacity: cpu, requested: 3000, capacity: 2000";
        assert_eq!(grants.consider(&pod("3"), &[], &allocatable), Verdict::Infeasible(text.into()));
        assert_eq!(grants.granted(&pod("3")), pod("1"));
        let condition = &grants.conditions("u")[0];
        assert_eq!((condition.type_.as_str(), condition.reason.as_deref()), ("PodResizePending", Some("Infeasible")));
        let other = pod("1");
        assert!(matches!(grants.consider(&pod("1500m"), &[&other], &allocatable), Verdict::Deferred(_)));
        assert_eq!(grants.consider(&pod("1500m"), &[], &allocatable), Verdict::Granted);
        assert_eq!(grants.conditions("u")[0].type_, "PodResizeInProgress");
        // A kubelet that starts anew still knows.
        assert_eq!(
            Allocations::load(&dir).unwrap().granted(&pod("3")),
            Arc::new(Pod { ..Pod::clone(&pod3_as("1500m")) })
        );
        std::fs::remove_dir_all(dir).unwrap();
    }

    fn pod3_as(cpu: &str) -> Arc<Pod> {
        pod(cpu)
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_taken_for_none() {
        let dir = std::env::temp_dir().join(format!("kubelet-broken-grants-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert!(Allocations::load(&dir).is_ok());
        std::fs::write(dir.join("resources_state.json"), "{").unwrap();
        let error = Allocations::load(&dir).err().unwrap();
        assert!(error.contains("drain this node and delete"), "{error}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
