//! How long the API server takes to start: on an etcd with nothing in it, and again on what the first start wrote.

use crate::etcd::Etcd;
use crate::figure::Figure;
use crate::pki::Pki;
use crate::server::{Folder, Server};
use crate::{Result, Settings};

/// Takes the figures.
///
/// # Errors
/// When a server does not start.
pub async fn run(settings: &Settings) -> Result<Vec<Figure>> {
    let folder = Folder::new()?;
    let pki = Pki::make(&folder.path().join("pki"))?;
    let (mut first, mut again) = (Samples::default(), Samples::default());
    for run in 0..settings.runs {
        let dir = folder.path().join(run.to_string());
        let etcd = Etcd::start(&settings.etcd, &dir).await?;
        for samples in [&mut first, &mut again] {
            let server = Server::start(settings, &etcd, &pki, &dir.join("server.log")).await?;
            samples.wall.push(server.ready_after.as_secs_f64() * 1e3);
            samples.cpu.push(server.cpu_at_ready * 1e3);
        }
    }
    let how =
        "a running etcd of its own for each run, plain HTTP; asked every millisecond as a member of system:masters";
    let cpu = "user and system time of its threads at that moment (schedstat)";
    Ok(vec![
        Figure::new("exec to first 200 of /readyz, empty etcd", "ms", first.wall, how).at_most(150.0),
        Figure::new("CPU until then", "ms", first.cpu, cpu),
        Figure::new("the same on the etcd that this filled", "ms", again.wall, how),
        Figure::new("CPU until then", "ms", again.cpu, cpu),
    ])
}

#[derive(Default)]
struct Samples {
    wall: Vec<f64>,
    cpu: Vec<f64>,
}
