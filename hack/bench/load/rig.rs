//! What the measures are taken on: a server with its etcd, filled with pods, and clients.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::client::{Call, Client};
use super::data;
use super::measure::{Operation, Volume, run};
use crate::etcd::Etcd;
use crate::figure::Figure;
use crate::pki::Pki;
use crate::process;
use crate::server::{Folder, Server};
use crate::{Result, Settings};

/// Connections over which requests go.
const CONNECTIONS: usize = 4;

/// A server under measure.
pub struct Rig {
    /// The program's name.
    pub name: String,
    /// Its clients' connections.
    pub client: Arc<Client>,
    server: Server,
    etcd: Etcd,
    pki: Pki,
    empty: process::Memory,
    filled: process::Memory,
    restarted: Duration,
    _folder: Folder,
}

impl Rig {
    /// Starts a server, fills it, and starts it again on what is stored.
    ///
    /// # Errors
    /// When it does not start, or refuses the objects.
    pub async fn start(settings: &Settings, program: PathBuf) -> Result<Self> {
        let folder = Folder::new()?;
        let pki = Pki::make(&folder.path().join("pki"))?;
        let etcd = Etcd::start(&settings.etcd, folder.path()).await?;
        let settings = Settings { server: Some(program.clone()), ..settings.clone() };
        let log = folder.path().join("server.log");
        let first = Server::start(&settings, &etcd, &pki, &log).await?;
        tokio::time::sleep(Duration::from_secs(settings.settle)).await;
        let empty = process::memory(first.pid());
        let client = Arc::new(Client::open(first.port, &pki.admin()?, CONNECTIONS).await?);
        fill(&client).await?;
        drop((client, first));
        let server = Server::start(&settings, &etcd, &pki, &log).await?;
        tokio::time::sleep(Duration::from_secs(settings.settle)).await;
        let filled = process::memory(server.pid());
        let client = Arc::new(Client::open(server.port, &pki.admin()?, CONNECTIONS).await?);
        let name = program.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let restarted = server.ready_after;
        Ok(Self { name, client, server, etcd, pki, empty, filled, restarted, _folder: folder })
    }

    /// The server's process.
    pub fn server_pid(&self) -> u32 {
        self.server.pid()
    }

    /// CPU seconds of the server, of etcd and of this program.
    pub fn cpu(&self) -> [f64; 3] {
        [self.server.pid(), self.etcd.pid(), std::process::id()].map(|pid| process::cpu(pid).unwrap_or_default())
    }

    /// More connections, for what needs many streams.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn connections(&self, count: usize) -> Result<Arc<Client>> {
        Ok(Arc::new(Client::open(self.server.port, &self.pki.admin()?, count).await?))
    }

    /// Memory and start, which were measured on the way.
    pub fn memory(&self) -> Vec<Figure> {
        let name = |what: &str| format!("{what} [{}]", self.name);
        vec![
            Figure::new(name("resident, idle"), "MiB", vec![self.empty.resident], "nothing stored").at_most(30.0),
            Figure::new(
                name("resident with 10,000 pods, before any request"),
                "MiB",
                vec![self.filled.resident],
                "started on what is stored",
            )
            .at_most(120.0),
            Figure::new(
                name("exec to ready with 10,000 pods stored"),
                "ms",
                vec![self.restarted.as_secs_f64() * 1e3],
                "once",
            )
            .at_most(600.0),
        ]
    }
}

/// Stores all pods, each with the status of a running one.
async fn fill(client: &Arc<Client>) -> Result<()> {
    for number in 0..data::NAMESPACES {
        let name = format!("load-{number}");
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        client.size(&Call::send(Method::POST, "/api/v1/namespaces", body.to_string())).await?;
        // Admission wants to see the account that a controller would make.
        let body = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        client
            .size(&Call::send(Method::POST, format!("/api/v1/namespaces/{name}/serviceaccounts"), body.to_string()))
            .await?;
    }
    let all = (0..16).map(|part| {
        let client = client.clone();
        tokio::spawn(async move {
            for number in (part..data::PODS).step_by(16) {
                let pods = format!("/api/v1/namespaces/{}/pods", data::namespace(number));
                let name = format!("pod-{number}");
                client.size(&Call::send(Method::POST, &pods, data::pod(&name, number).to_string())).await?;
                client.size(&status(&format!("{pods}/{name}"), &data::pod_status(number, 0))).await?;
            }
            Ok::<(), crate::Fault>(())
        })
    });
    for part in futures::future::join_all(all).await {
        part??;
    }
    Ok(())
}

/// The patch by which a kubelet tells of a pod.
pub fn status(path: &str, status: &Value) -> Call {
    let patch = Call::send(Method::PATCH, format!("{path}/status"), status.to_string());
    patch.of_type("application/strategic-merge-patch+json")
}

/// Runs requests that depend only on their number.
pub async fn requests(
    rig: &Rig, volume: Volume, call: impl Fn(usize) -> Call + Send + Sync + 'static,
) -> super::measure::Cost {
    let client = rig.client.clone();
    let operation: Operation = Arc::new(move |number| {
        let (client, call) = (client.clone(), call(number));
        Box::pin(async move { client.size(&call).await })
    });
    run(rig, volume, operation).await
}
