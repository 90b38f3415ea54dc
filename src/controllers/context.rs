//! What every controller gets when it starts.

use crate::options::Options;
use client::{Connection, Informer, Informers, Queue, Recorder};
use kube::Api;
use kube::core::NamespaceScope;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Why a run of a controller failed; it will be tried again.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The API server refused, or did not answer.
    #[error("{}", client::retry::message(.0))]
    Api(#[from] kube::Error),
    /// The object can't be worked on as it is.
    #[error("{0}")]
    Unusable(String),
    /// Several parts failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<Fault>),
}

impl Fault {
    /// One fault of several, or none.
    ///
    /// # Errors
    /// When there is any.
    pub fn all(mut faults: Vec<Fault>) -> Result<(), Fault> {
        match faults.len() {
            0 => Ok(()),
            1 => Err(faults.remove(0)),
            _ => Err(Self::Several(faults)),
        }
    }
}

impl From<api::selector::Error> for Fault {
    fn from(error: api::selector::Error) -> Self {
        Self::Unusable(error.0)
    }
}

/// The end of a run: whether and when to come back without being woken.
pub type Outcome = Result<Option<Duration>, Fault>;

/// The world as one controller sees it.
#[derive(Clone)]
pub struct Context {
    /// The controller's name in the table.
    pub name: &'static str,
    /// Acts as the controller.
    pub client: kube::Client,
    /// The component's own way to the API server.
    pub connection: Connection,
    /// Shared by all controllers.
    pub informers: Informers,
    /// The command line.
    pub options: Arc<Options>,
    /// Cancelled when the controller must end.
    pub stop: CancellationToken,
}

impl Context {
    /// The shared informer of a kind.
    pub fn informer<K: client::informer::Object + kube::Resource<DynamicType = ()>>(&self) -> Informer<K> {
        self.informers.of()
    }

    /// Cluster-scoped objects, or all for lists.
    pub fn all<K: kube::Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Objects of a namespace.
    pub fn within<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope: NamespaceScope>,
    {
        Api::all(self.client.clone()).constrain(namespace)
    }

    /// Sends events as `component`.
    pub fn recorder(&self, component: &str) -> Recorder {
        Recorder::core(self.client.clone(), component, "")
    }

    /// Serves a queue until the controller must end.
    pub async fn serve<T, F, Fut>(&self, queue: &Queue<T>, workers: usize, run: F)
    where
        T: Clone + Eq + Hash + Debug,
        F: Fn(T) -> Fut,
        Fut: Future<Output = Outcome>,
    {
        // A run that is under way is dropped at the end: every run may be cut anywhere and done again.
        self.stop.run_until_cancelled(queue.serve(workers, self.name, run)).await;
    }

    /// Ticks now and after each period.
    pub fn ticks(period: Duration) -> tokio::time::Interval {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks
    }

    /// Waits for the next tick; whether it came before the controller must end.
    pub async fn next(&self, ticks: &mut tokio::time::Interval) -> bool {
        self.stop.run_until_cancelled(ticks.tick()).await.is_some()
    }

    /// How long until all objects are looked at again: one to two of `--min-resync-period`.
    pub fn resync(&self) -> Duration {
        self.options.flags.duration("min-resync-period").mul_f64(rand::random_range(1.0..2.0))
    }

    /// Adds all keys of an informer to a queue after each resync period.
    pub fn resync_keys<K>(&self, informer: &Informer<K>, queue: &Queue<client::Key>)
    where
        K: kube::Resource + Send + Sync + 'static,
    {
        self.add_each(self.resync(), informer, queue, |_| true);
    }

    /// Adds the keys of some of an informer's objects to a queue after each period.
    pub fn add_each<K>(
        &self, period: Duration, informer: &Informer<K>, queue: &Queue<client::Key>, wanted: fn(&K) -> bool,
    ) where
        K: kube::Resource + Send + Sync + 'static,
    {
        let (stop, informer, queue) = (self.stop.clone(), informer.clone(), queue.clone());
        tokio::spawn(async move {
            while stop.run_until_cancelled(tokio::time::sleep(period)).await.is_some() {
                let objects = informer.list().into_iter().filter(|object| wanted(object));
                objects.for_each(|object| queue.add(client::Key::of(object.meta())));
            }
        });
    }
}
