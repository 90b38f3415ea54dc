//! What kube-scheduler is told: a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) and upstream's flags.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::flags::{self, Flags};
use client::leader::Timing;
use serde::Deserialize;
use serde_json::Value;

use crate::cycle::Weighted;
use crate::plugins::TABLE;
use crate::queue::Pauses;

/// Plugins that are the scheduler itself; a profile may name them.
const BUILT_IN: [&str; 3] = ["PrioritySort", "DefaultPreemption", "DefaultBinder"];
/// Upstream's plugins that look at volumes and devices, which this scheduler does not have yet; a profile may name them.
const MISSING: [&str; 6] = [
    "VolumeRestrictions",
    "NodeVolumeLimits",
    "VolumeBinding",
    "VolumeZone",
    "DynamicResources",
    "NodeDeclaredFeatures",
];

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("open {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// A file is no configuration.
    #[error("couldn't decode {0}: {1}")]
    Decode(PathBuf, String),
    /// A profile makes no sense.
    #[error("initializing profiles: {0}")]
    Profile(String),
    /// Leader election's times make no sense.
    #[error("leader election: {0}")]
    Election(&'static str),
}

/// A profile: pods that name this scheduler are placed by these plugins.
pub struct Profile {
    /// `spec.schedulerName` of its pods.
    pub name: String,
    /// Its plugins.
    pub plugins: Vec<Weighted>,
    /// More important pods may take the places of others.
    pub preempts: bool,
}

/// The settings, checked.
pub struct Config {
    /// Kubeconfig; none inside a cluster.
    pub kubeconfig: Option<PathBuf>,
    /// Profiles.
    pub profiles: Vec<Profile>,
    /// Share of nodes that is enough to find feasible, in percent; 0 adapts to the cluster's size.
    pub percentage: u32,
    /// Pauses between attempts.
    pub pauses: Pauses,
    /// Leader election; none runs at once.
    pub election: Option<Election>,
    /// The configuration as `/configz` shows it.
    pub shown: Value,
}

/// Leader election.
#[derive(Debug, Clone)]
pub struct Election {
    /// Times.
    pub timing: Timing,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    api_version: String,
    kind: String,
    client_connection: ClientConnection,
    leader_election: LeaderElection,
    percentage_of_nodes_to_score: Option<u32>,
    pod_initial_backoff_seconds: Option<u64>,
    pod_max_backoff_seconds: Option<u64>,
    profiles: Vec<FileProfile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClientConnection {
    kubeconfig: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LeaderElection {
    leader_elect: Option<bool>,
    resource_name: Option<String>,
    resource_namespace: Option<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FileProfile {
    scheduler_name: Option<String>,
    percentage_of_nodes_to_score: Option<u32>,
    plugins: PluginSets,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PluginSets {
    multi_point: PluginSet,
    filter: PluginSet,
    score: PluginSet,
    post_filter: PluginSet,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct PluginSet {
    enabled: Vec<PluginRef>,
    disabled: Vec<PluginRef>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct PluginRef {
    name: String,
    weight: Option<i64>,
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|p| p.name == name || p.name == "*") && !self.enables(name)
    }

    fn enables(&self, name: &str) -> bool {
        self.enabled.iter().any(|p| p.name == name)
    }

    fn weight(&self, name: &str) -> Option<i64> {
        self.enabled.iter().find(|p| p.name == name)?.weight.filter(|w| *w > 0)
    }

    fn check(&self) -> Result<(), Error> {
        let known = |name: &str| {
            TABLE.iter().any(|row| row.name == name) || BUILT_IN.contains(&name) || MISSING.contains(&name)
        };
        match self.enabled.iter().find(|p| !known(&p.name)) {
            None => Ok(()),
            Some(unknown) => Err(Error::Profile(format!("{} does not exist", unknown.name))),
        }
    }
}

impl FileProfile {
    fn build(&self) -> Result<Profile, Error> {
        let sets = &self.plugins;
        [&sets.multi_point, &sets.filter, &sets.score, &sets.post_filter].iter().try_for_each(|set| set.check())?;
        let plugins = TABLE.iter().filter(|row| {
            !sets.multi_point.disables(row.name) || sets.filter.enables(row.name) || sets.score.enables(row.name)
        });
        let weighted = plugins.map(|row| {
            let weight =
                sets.score.weight(row.name).or_else(|| sets.multi_point.weight(row.name)).unwrap_or(row.weight);
            Weighted {
                plugin: (row.make)(),
                weight: if sets.score.disables(row.name) { 0 } else { weight },
                filters: !sets.filter.disables(row.name),
            }
        });
        let preemption = "DefaultPreemption";
        Ok(Profile {
            name: self.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".into()),
            plugins: weighted.collect(),
            preempts: !sets.multi_point.disables(preemption) && !sets.post_filter.disables(preemption),
        })
    }
}

/// The command line.
pub fn command() -> clap::Command {
    let own = [
        flags::text("config", "", "path of the configuration file"),
        flags::text("kubeconfig", "", "path of the kubeconfig; the in-cluster one when empty"),
        flags::text("master", "", "address of the API server; the kubeconfig's when empty"),
        flags::text("write-config-to", "", "write the configuration to this file and quit"),
        flags::switch("profiling", true, "accepted; profiles are taken from outside"),
        flags::switch("contention-profiling", true, "accepted; profiles are taken from outside"),
        flags::float("kube-api-qps", 50.0, "accepted; requests are not limited"),
        flags::int("kube-api-burst", 100, "accepted; requests are not limited"),
        flags::text("kube-api-content-type", "", "accepted; requests are JSON"),
        flags::duration(
            "pod-max-in-unschedulable-pods-duration",
            "5m0s",
            "accepted; pods are tried again after this long",
        ),
        flags::map("feature-gates", "accepted; what is there is on"),
    ];
    let all = own.into_iter().chain(flags::serving(10259)).chain(flags::delegating());
    let all = all.chain(flags::leader_election("kube-scheduler"));
    let all = all.chain(flags::metrics()).chain(flags::emulation());
    flags::command("kube-scheduler", "Finds a node for every pod that has none.", all)
}

fn read(path: &Path) -> Result<(File, Value), Error> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::Read(path.into(), e))?;
    let decode = |why: String| Error::Decode(path.into(), why);
    let value: Value = serde_saphyr::from_str(&text).map_err(|e| decode(e.to_string()))?;
    let file: File = serde_json::from_value(value.clone()).map_err(|e| decode(e.to_string()))?;
    if (file.api_version.as_str(), file.kind.as_str())
        != ("kubescheduler.config.k8s.io/v1", "KubeSchedulerConfiguration")
    {
        return Err(decode(format!("no kind {:?} is registered for version {:?}", file.kind, file.api_version)));
    }
    Ok((file, value))
}

impl Config {
    /// What flags and file say together.
    ///
    /// # Errors
    /// When the file can't be read or makes no sense.
    pub fn from_flags(flags: &Flags) -> Result<Self, Error> {
        let (file, shown) = match flags.path("config") {
            Some(path) => read(&path)?,
            None => (File::default(), Value::Null),
        };
        let profiles = if file.profiles.is_empty() { vec![FileProfile::default()] } else { file.profiles.clone() };
        let built = profiles.iter().map(FileProfile::build).collect::<Result<Vec<_>, _>>()?;
        for (i, profile) in built.iter().enumerate() {
            if built[..i].iter().any(|p| p.name == profile.name) {
                return Err(Error::Profile(format!("duplicate profile with scheduler name {:?}", profile.name)));
            }
        }
        let own = profiles.first().and_then(|p| p.percentage_of_nodes_to_score);
        let seconds = |value: Option<u64>, default: u64| Duration::from_secs(value.unwrap_or(default));
        let kubeconfig = Some(PathBuf::from(&file.client_connection.kubeconfig)).filter(|p| !p.as_os_str().is_empty());
        Ok(Self {
            kubeconfig: kubeconfig.or_else(|| flags.path("kubeconfig")),
            profiles: built,
            percentage: own.or(file.percentage_of_nodes_to_score).unwrap_or(0),
            pauses: Pauses {
                initial: seconds(file.pod_initial_backoff_seconds, 1),
                max: seconds(file.pod_max_backoff_seconds, 10),
            },
            election: election(flags, &file.leader_election)?,
            shown,
        })
    }
}

fn election(flags: &Flags, file: &LeaderElection) -> Result<Option<Election>, Error> {
    if !file.leader_elect.unwrap_or_else(|| flags.switch("leader-elect")) {
        return Ok(None);
    }
    let timing = Timing {
        lease: flags.duration("leader-elect-lease-duration"),
        renew: flags.duration("leader-elect-renew-deadline"),
        retry: flags.duration("leader-elect-retry-period"),
    };
    timing.validate().map_err(Error::Election)?;
    let text = |own: &Option<String>, flag: &str| own.clone().unwrap_or_else(|| flags.text(flag).to_string());
    Ok(Some(Election {
        timing,
        namespace: text(&file.resource_namespace, "leader-elect-resource-namespace"),
        name: text(&file.resource_name, "leader-elect-resource-name"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(yaml: &str) -> Result<Profile, Error> {
        serde_saphyr::from_str::<FileProfile>(yaml).unwrap().build()
    }

    #[test]
    fn profiles_switch_plugins_and_weigh_them() {
        let built = profile("plugins: {multiPoint: {disabled: [{name: ImageLocality}]}, score: {enabled: [{name: NodeAffinity, weight: 7}]}}").unwrap();
        let find = |name: &str| built.plugins.iter().find(|w| w.plugin.name() == name).map(|w| w.weight);
        assert_eq!((find("ImageLocality"), find("NodeAffinity"), find("TaintToleration")), (None, Some(7), Some(3)));
        assert!(profile("plugins: {filter: {enabled: [{name: Nobody}]}}").is_err());
    }
}
