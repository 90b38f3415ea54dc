//! One question for all who wait: what is the store's revision?
//!
//! Who asks while a question is on its way must not take its answer, which may be older than a write that was
//! acknowledged meanwhile; all of those share the next question.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::{Error, Result, Revision, Store};

type Waiter = oneshot::Sender<Result<Revision>>;

pub(super) struct Refresher {
    waiters: mpsc::UnboundedSender<Waiter>,
}

impl Refresher {
    /// Starts the task that asks; it ends with the refresher.
    pub(super) fn start(store: Arc<dyn Store>) -> Self {
        let (waiters, mut queue) = mpsc::unbounded_channel::<Waiter>();
        tokio::spawn(async move {
            let mut waiting = Vec::new();
            while queue.recv_many(&mut waiting, usize::MAX).await > 0 {
                let answer = store.revision().await;
                for waiter in waiting.drain(..) {
                    // Who went away needs no answer.
                    let _ = waiter.send(answer.clone());
                }
            }
        });
        Self { waiters }
    }

    pub(super) async fn ask(&self) -> Result<Revision> {
        let (waiter, answer) = oneshot::channel();
        let gone = || Error::Unavailable("the store is closed".into());
        self.waiters.send(waiter).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}
