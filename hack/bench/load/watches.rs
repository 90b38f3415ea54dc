//! Watches: streaming lists, fan-out, and watchers that want little of what happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::Row;
use super::client::{Call, Client};
use super::data::{self, PER_NODE, PODS};
use super::measure::{Cost, Meter, Operation, Volume, run};
use super::reads::{pod_path, row};
use super::rig::{Rig, status};
use crate::{Result, process};

/// Streams of one connection.
const STREAMS: usize = 90;
/// How long events may be under way.
const PATIENCE: Duration = Duration::from_secs(60);

/// The rows.
pub fn rows() -> Vec<Row> {
    vec![
        row!("streaming list of 10,000 pods, 1 client", Some(110.0), |rig| stream(rig, 1)),
        row!("streaming list of 10,000 pods, 16 clients", Some(110.0), |rig| stream(rig, 16)),
        row!("fan-out to 1,000 watchers, per event", Some(0.008), |rig| fan_out(rig, 1000, 200)),
        row!("fan-out to 5,000 watchers, per event", Some(0.008), |rig| fan_out(rig, 5000, 40)),
        row!("1,000 watchers by node, per status update", Some(0.7), by_node),
    ]
}

/// Reads a streaming list to the bookmark that ends it; its bytes.
async fn stream_once(client: &Client) -> Result<usize> {
    const PATH: &str =
        "/api/v1/pods?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    const END: &[u8] = b"k8s.io/initial-events-end";
    let mut body = client.open_stream(&Call::get(PATH)).await?.into_body();
    let (mut size, mut lines, mut line) = (0, 0, Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        size += data.len();
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(piece);
            if !line.ends_with(b"\n") {
                continue;
            }
            if line.windows(END.len()).any(|window| window == END) {
                return match lines {
                    PODS => Ok(size),
                    _ => Err(format!("{lines} events instead of {PODS}").into()),
                };
            }
            lines += 1;
            line.clear();
        }
    }
    Err("the stream ended before its bookmark".into())
}

async fn stream(rig: &Rig, clients: usize) -> Result<Cost> {
    let connections = rig.connections(clients).await?;
    stream_once(&connections).await?;
    let operation: Operation = Arc::new(move |_| {
        let client = connections.clone();
        Box::pin(async move { stream_once(&client).await })
    });
    let mut cost = run(rig, Volume::count(clients, clients.max(5)), operation).await;
    cost.more.push(("peak over rest".into(), cost.resident[1] - cost.resident[0], "MiB"));
    Ok(cost)
}

/// Watchers that count what they get.
struct Watchers {
    counts: Vec<Arc<AtomicUsize>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Watchers {
    async fn open(rig: &Rig, count: usize, path: impl Fn(usize) -> String) -> Result<Self> {
        let client = rig.connections(count.div_ceil(STREAMS)).await?;
        let (mut counts, mut tasks) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for number in 0..count {
            let body = client.open_stream(&Call::get(path(number))).await?.into_body();
            let seen = Arc::new(AtomicUsize::new(0));
            counts.push(seen.clone());
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                count_lines(body, &seen).await;
                drop(client);
            }));
        }
        Ok(Self { counts, tasks })
    }

    fn seen(&self) -> Vec<usize> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Waits until each has seen so much.
    async fn until(&self, wanted: &[usize]) {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && self.seen().iter().zip(wanted).any(|(seen, wanted)| seen < wanted) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

async fn count_lines(mut body: Incoming, seen: &AtomicUsize) {
    while let Some(Ok(frame)) = body.frame().await {
        let data = frame.into_data().unwrap_or_else(|_| Bytes::new());
        seen.fetch_add(data.iter().filter(|byte| **byte == b'\n').count(), Ordering::Relaxed);
    }
}

async fn fan_out(rig: &Rig, watchers: usize, events: usize) -> Result<Cost> {
    let maps = "/api/v1/namespaces/load-1/configmaps";
    let at = resource_version(rig, maps).await?;
    let before = process::memory(rig.server_pid()).resident;
    let watching = Watchers::open(rig, watchers, |_| format!("{maps}?watch=true&resourceVersion={at}")).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let each = (process::memory(rig.server_pid()).resident - before) * 1024.0 / watchers as f64;
    let meter = Meter::start(rig);
    for number in 0..events {
        let name = format!("fan-{}-{}-{number}", watchers, rand::random::<u32>());
        let body = data::config_map(&name, number).to_string();
        rig.client.size(&Call::send(http::Method::POST, maps, body)).await?;
    }
    let wanted = vec![events; watchers];
    watching.until(&wanted).await;
    let mut cost = meter.stop();
    settle(&mut cost, &watching.seen(), &wanted);
    cost.unit = Some("event");
    cost.more.push(("memory of an idle watcher".into(), each, "KiB"));
    Ok(cost)
}

/// What was delivered, and what was lost or came too often.
fn settle(cost: &mut Cost, seen: &[usize], wanted: &[usize]) {
    cost.operations = seen.iter().sum();
    cost.errors = seen.iter().zip(wanted).map(|(seen, wanted)| seen.abs_diff(*wanted)).sum();
    if cost.errors > 0 {
        cost.first_error = Some("events lost, or delivered twice".into());
    }
}

async fn resource_version(rig: &Rig, path: &str) -> Result<String> {
    let list: serde_json::Value =
        serde_json::from_slice(&rig.client.body(&Call::get(format!("{path}?limit=1"))).await?)?;
    Ok(list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
}

async fn by_node(rig: &Rig) -> Result<Cost> {
    const WATCHERS: usize = 1000;
    let nodes = PODS.div_ceil(PER_NODE);
    let at = resource_version(rig, "/api/v1/pods").await?;
    let path = |n: usize| {
        format!("/api/v1/pods?watch=true&resourceVersion={at}&fieldSelector=spec.nodeName%3Dnode-{}", n % nodes)
    };
    let watching = Watchers::open(rig, WATCHERS, path).await?;
    let round = rand::random_range(1..80_000);
    let client = rig.client.clone();
    let operation: Operation = Arc::new(move |number| {
        let client = client.clone();
        Box::pin(async move { client.size(&status(&pod_path(number), &data::pod_status(number, round))).await })
    });
    let updates = 2000;
    let mut cost = run(rig, Volume::count(16, updates), operation).await;
    let of_node = |node: usize| (0..updates).filter(|pod| pod / PER_NODE == node).count();
    let wanted: Vec<usize> = (0..WATCHERS).map(|n| of_node(n % nodes)).collect();
    watching.until(&wanted).await;
    let operations = cost.operations;
    let failed = cost.errors;
    settle(&mut cost, &watching.seen(), &wanted);
    cost.operations = operations;
    cost.errors += failed;
    cost.unit = Some("update");
    Ok(cost)
}
