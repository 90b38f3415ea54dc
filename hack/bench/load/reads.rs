//! Single objects, lists and selections.

use serde::Deserialize;
use serde_json::Value;

use super::Row;
use super::client::Call;
use super::data::{self, LABELLED, PER_NODE, PODS};
use super::measure::{Cost, Volume, run};
use super::rig::{Rig, requests};
use crate::Result;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

macro_rules! row {
    ($name:expr, $goal:expr, $run:expr) => {
        Row { name: $name, goal: $goal, run: |rig| Box::pin($run(rig)) }
    };
}
pub(super) use row;

/// The rows.
pub fn rows() -> Vec<Row> {
    vec![
        row!("get a pod, newest, 16 clients", Some(0.15), |rig| get(rig, "")),
        row!("get a pod, resourceVersion=0, 16 clients", Some(0.08), |rig| get(rig, "?resourceVersion=0")),
        row!("list 10,000 pods, newest", Some(80.0), |rig| list(rig, "/api/v1/pods", None, PODS, 10)),
        row!("list 10,000 pods, resourceVersion=0", Some(80.0), |rig| {
            list(rig, "/api/v1/pods?resourceVersion=0", None, PODS, 10)
        }),
        row!("list 10,000 pods in pages of 500", Some(90.0), pages),
        row!("list 10,000 pods as a table", Some(70.0), |rig| {
            list(rig, "/api/v1/pods?resourceVersion=0", Some(TABLE), PODS, 10)
        }),
        row!("list 10,000 pods, metadata only", Some(40.0), |rig| {
            list(rig, "/api/v1/pods?resourceVersion=0", Some(METADATA), PODS, 10)
        }),
        row!("list 100 of 10,000 by label", Some(2.0), |rig| {
            list(rig, "/api/v1/pods?labelSelector=group%3Dgroup-7", None, LABELLED, 200)
        }),
        row!("list 30 of 10,000 by spec.nodeName", Some(0.4), |rig| {
            list(rig, "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-7", None, PER_NODE, 1000)
        }),
        row!("70% get, 10% list of a namespace, 20% write", Some(0.3), mixed),
    ]
}

async fn get(rig: &Rig, query: &'static str) -> Result<Cost> {
    Ok(requests(rig, Volume::seconds(16, 5), move |n| Call::get(pod_path(n * 7919) + query)).await)
}

/// The path of some pod.
pub fn pod_path(number: usize) -> String {
    let number = number % PODS;
    format!("/api/v1/namespaces/{}/pods/pod-{number}", data::namespace(number))
}

/// How many items an answer has: of a list, or rows of a table.
pub fn items(body: &[u8]) -> Result<usize> {
    #[derive(Deserialize)]
    struct Items {
        #[serde(default, alias = "rows")]
        items: Vec<serde::de::IgnoredAny>,
    }
    Ok(serde_json::from_slice::<Items>(body)?.items.len())
}

async fn list(
    rig: &Rig, path: &'static str, accept: Option<&'static str>, wanted: usize, times: usize,
) -> Result<Cost> {
    let call = Call::get(path);
    let call = match accept {
        Some(accept) => call.accepting(accept),
        None => call,
    };
    let found = items(&rig.client.body(&call).await?)?;
    if found != wanted {
        return Err(format!("{found} items instead of {wanted}").into());
    }
    Ok(requests(rig, Volume::count(1, times), move |_| call.clone()).await)
}

async fn walk(client: &super::client::Client) -> Result<(usize, usize)> {
    let (mut token, mut size, mut seen) = (String::new(), 0, 0);
    loop {
        let body = client.body(&Call::get(format!("/api/v1/pods?limit=500&continue={token}"))).await?;
        size += body.len();
        #[derive(Deserialize)]
        struct Page {
            metadata: Value,
            items: Vec<serde::de::IgnoredAny>,
        }
        let page: Page = serde_json::from_slice(&body)?;
        seen += page.items.len();
        token = page.metadata["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            return Ok((size, seen));
        }
    }
}

async fn pages(rig: &Rig) -> Result<Cost> {
    let client = rig.client.clone();
    let operation: super::measure::Operation = std::sync::Arc::new(move |_| {
        let client = client.clone();
        Box::pin(async move {
            match walk(&client).await? {
                (size, PODS) => Ok(size),
                (_, seen) => Err(format!("{seen} items instead of {PODS}").into()),
            }
        })
    });
    Ok(run(rig, Volume::count(1, 5), operation).await)
}

async fn mixed(rig: &Rig) -> Result<Cost> {
    let call = |n: usize| match n % 10 {
        0..7 => Call::get(pod_path(n * 7919)),
        7 => Call::get(format!("/api/v1/namespaces/load-{}/pods", n % data::NAMESPACES)),
        _ => {
            let name = format!("mixed-{}", n % 1000);
            let body = data::config_map(&name, n).to_string();
            let path = format!("/api/v1/namespaces/load-0/configmaps/{name}?fieldManager=bench&force=true");
            Call::send(http::Method::PATCH, path, body).of_type("application/apply-patch+yaml")
        }
    };
    Ok(requests(rig, Volume::seconds(16, 5), call).await)
}
