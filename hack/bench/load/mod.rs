//! What requests cost: reads, watches and writes, many at a time, against one API server or two in turn.
//!
//! ```text
//!   rows (name, goal, what to do) ─► Rig (server, etcd, clients, 10,000 pods) ─► measure ─► Cost ─► a table, or JSON lines
//! ```
//!
//! CPU of the server's process for each operation is what counts: time moves with the machine's noise, CPU far less. A
//! list is checked for its number of items before it is timed; what fails or is lost is counted and shown.

mod client;
mod data;
mod measure;
mod reads;
mod rig;
mod watches;
mod writes;

use futures::future::BoxFuture;

use crate::figure::Figure;
use crate::{Result, Settings};
use measure::Cost;
use rig::Rig;

/// One measure.
struct Row {
    name: &'static str,
    /// Milliseconds of the server's CPU that an operation may take at most.
    goal: Option<f64>,
    run: for<'a> fn(&'a Rig) -> BoxFuture<'a, Result<Cost>>,
}

/// The measures, in the order in which they are taken: reads first, since writes age the data.
fn rows() -> Vec<Row> {
    [reads::rows(), watches::rows(), writes::rows()].into_iter().flatten().collect()
}

/// Takes all measures, or those whose names hold one of the words of `--only`; against two servers each in turn.
///
/// # Errors
/// When a server does not start, or answers what it should not.
pub async fn run(settings: &Settings) -> Result<Vec<Figure>> {
    let mut rigs = vec![Rig::start(settings, settings.server()?).await?];
    if let Some(beside) = &settings.beside {
        rigs.push(Rig::start(settings, beside.clone()).await?);
    }
    let mut figures: Vec<Figure> = rigs.iter().flat_map(Rig::memory).collect();
    let chosen = |name: &str| settings.only.is_empty() || settings.only.iter().any(|word| name.contains(word.as_str()));
    for row in rows().into_iter().filter(|row| chosen(row.name)) {
        for round in 0..settings.rounds {
            for rig in &rigs {
                let cost = (row.run)(rig).await.map_err(|why| format!("{} ({}): {why}", row.name, rig.name))?;
                let name = if rigs.len() > 1 { format!("{} [{}]", row.name, rig.name) } else { row.name.to_owned() };
                let name = if settings.rounds > 1 { format!("{name} #{}", round + 1) } else { name };
                eprintln!("{}", cost.line(&name, row.goal));
                figures.extend(cost.figures(&name, row.goal));
            }
        }
    }
    Ok(figures)
}
