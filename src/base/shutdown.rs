//! The end of a process: one token that everything watches.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};
pub use tokio_util::sync::CancellationToken;

/// Told to end. Clones share it; children end with their parent, but can be ended alone.
pub type Shutdown = CancellationToken;

/// A token that SIGTERM or SIGINT cancels. A second signal ends the process at once, as upstream does.
///
/// # Errors
/// When signals can't be caught.
pub fn on_signals() -> std::io::Result<Shutdown> {
    let token = Shutdown::new();
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let told = token.clone();
    tokio::spawn(async move {
        wait(&mut term, &mut int).await;
        tracing::info!("shutting down");
        told.cancel();
        wait(&mut term, &mut int).await;
        std::process::exit(1);
    });
    Ok(token)
}

async fn wait(a: &mut tokio::signal::unix::Signal, b: &mut tokio::signal::unix::Signal) {
    tokio::select! {
        _ = a.recv() => {}
        _ = b.recv() => {}
    }
}

/// Runs a future until it ends or the shutdown comes; `None` in the latter case.
pub async fn unless<T>(shutdown: &Shutdown, work: impl Future<Output = T>) -> Option<T> {
    shutdown.run_until_cancelled(work).await
}
