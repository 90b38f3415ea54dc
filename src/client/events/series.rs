//! events.k8s.io/v1 events: equal ones become a series on the first, written when it begins, every half hour while it
//! lasts, and when six minutes passed without a new one.

use super::{ATTEMPTS, Record, event_name, is_refusal, namespace_of, pause};
use crate::retry;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

const FINISH: Duration = Duration::from_secs(6 * 60);
const REFRESH: Duration = Duration::from_secs(30 * 60);
/// Writes under way at a time: a scheduler tells of thousands of pods.
const WRITERS: usize = 16;

pub(super) async fn serve(client: kube::Client, controller: String, mut records: mpsc::Receiver<Record>) {
    let instance = format!("{controller}-{}", crate::hostname());
    let mut cache = SeriesCache { controller, instance, events: HashMap::new() };
    let writers = Arc::new(Semaphore::new(WRITERS));
    let start = tokio::time::Instant::now();
    let mut finish = tokio::time::interval_at(start + FINISH, FINISH);
    let mut refresh = tokio::time::interval_at(start + REFRESH, REFRESH);
    loop {
        let writes = tokio::select! {
            record = records.recv() => match record {
                None => return,
                Some(record) => cache.observe(record, Timestamp::now()).into_iter().collect(),
            },
            _ = finish.tick() => cache.finish(Timestamp::now()),
            _ = refresh.tick() => cache.running(),
        };
        for event in writes {
            let Ok(permit) = writers.clone().acquire_owned().await else { return };
            let client = client.clone();
            tokio::spawn(async move {
                write_out(&client, &event).await;
                drop(permit);
            });
        }
    }
}

async fn write_out(client: &kube::Client, event: &Event) {
    for attempt in 0..ATTEMPTS {
        match try_write(client, event).await {
            Ok(()) => return,
            // The event of this series appeared between the patch and the creation: patch it next time.
            Err(error) if event.series.is_some() && retry::is_already_exists(&error) => {}
            Err(error) if is_refusal(&error) => {
                tracing::debug!(%error, "server rejected event");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "unable to write event, may try again");
                pause(attempt == 0).await;
            }
        }
    }
}

async fn try_write(client: &kube::Client, event: &Event) -> kube::Result<()> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    if let Some(series) = &event.series {
        let name = event.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({"series": series});
        match events.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(error) if retry::is_not_found(&error) => {}
            other => return other.map(|_| ()),
        }
    }
    events.create(&PostParams::default(), event).await.map(|_| ())
}

/// All that makes two events equal.
#[derive(Clone, PartialEq, Eq, Hash)]
struct EventKey {
    kind: super::EventKind,
    action: String,
    reason: String,
    about: Vec<Option<String>>,
    related: Vec<Option<String>>,
}

fn parts(reference: &ObjectReference) -> Vec<Option<String>> {
    let ObjectReference { api_version, field_path, kind, name, namespace, resource_version, uid } = reference.clone();
    vec![api_version, field_path, kind, name, namespace, resource_version, uid]
}

struct SeriesCache {
    controller: String,
    instance: String,
    events: HashMap<EventKey, Event>,
}

impl SeriesCache {
    /// What to write for a record: a new event, or the series that begins with its second occurrence.
    fn observe(&mut self, record: Record, now: Timestamp) -> Option<Event> {
        let key = EventKey {
            kind: record.kind,
            action: record.action.clone(),
            reason: record.reason.clone(),
            about: parts(&record.about),
            related: record.related.as_ref().map(parts).unwrap_or_default(),
        };
        let Some(event) = self.events.get_mut(&key) else {
            let event = self.event(record, now);
            self.events.insert(key, event.clone());
            return Some(event);
        };
        match &mut event.series {
            Some(series) => {
                series.count += 1;
                series.last_observed_time = micro(now);
                None
            }
            None => {
                event.series = Some(EventSeries { count: 2, last_observed_time: micro(now) });
                Some(event.clone())
            }
        }
    }

    /// Ends what was quiet for six minutes; the last word of a series is written.
    fn finish(&mut self, now: Timestamp) -> Vec<Event> {
        let quiet = |event: &Event| {
            let last = event.series.as_ref().map(|series| series.last_observed_time.0);
            let last = last.or(event.event_time.as_ref().map(|time| time.0)).unwrap_or(now);
            now.duration_since(last) > SignedDuration::try_from(FINISH).unwrap_or_default()
        };
        let done: Vec<_> = self.events.iter().filter(|(_, event)| quiet(event)).map(|(key, _)| key.clone()).collect();
        done.iter().filter_map(|key| self.events.remove(key)).filter(|event| event.series.is_some()).collect()
    }

    /// The series that last, to be written again.
    fn running(&self) -> Vec<Event> {
        self.events.values().filter(|event| event.series.is_some()).cloned().collect()
    }

    fn event(&self, record: Record, now: Timestamp) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(event_name(&record.about, now)),
                namespace: Some(namespace_of(&record.about)),
                ..Default::default()
            },
            event_time: Some(micro(now)),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            action: Some(record.action),
            reason: Some(record.reason),
            regarding: Some(record.about),
            related: record.related,
            note: Some(record.message),
            type_: Some(record.kind.to_string()),
            ..Default::default()
        }
    }
}

fn micro(time: Timestamp) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::EventKind;

    fn record(message: &str) -> Record {
        Record {
            about: ObjectReference { name: Some("x".into()), namespace: Some("a".into()), ..Default::default() },
            related: None,
            kind: EventKind::Warning,
            reason: "FailedScheduling".into(),
            action: "Scheduling".into(),
            message: message.into(),
            annotations: Vec::new(),
        }
    }

    #[test]
    fn the_second_occurrence_begins_a_series_and_the_third_is_silent() {
        let mut cache =
            SeriesCache { controller: "scheduler".into(), instance: "scheduler-h".into(), events: HashMap::new() };
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = cache.observe(record("one"), at(0)).unwrap();
        assert_eq!(first.series, None);
        let second = cache.observe(record("two"), at(1)).unwrap();
        assert_eq!(second.metadata.name, first.metadata.name);
        assert_eq!(second.note.as_deref(), Some("one"));
        assert_eq!(second.series.map(|series| series.count), Some(2));
        assert_eq!(cache.observe(record("three"), at(2)), None);
        assert!(cache.finish(at(300)).is_empty());
        let last = cache.finish(at(363));
        assert_eq!(last[0].series.as_ref().map(|series| series.count), Some(3));
        assert!(cache.observe(record("four"), at(364)).unwrap().series.is_none());
    }
}
