//! How many requests run at a time. Reads and writes have a bound each; long-running ones are not counted.
//!
//! The seam for priority and fairness: [`Flow::admit`] is asked with who and what, and what it gives is held until the
//! answer is made.

use std::sync::Arc;

use api::status::Status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::info;
use crate::request::{Info, User};

/// Bounds.
pub struct Flow {
    reads: Option<Arc<Semaphore>>,
    writes: Option<Arc<Semaphore>>,
}

/// Held while a request runs.
#[derive(Debug, Default)]
pub struct Seat(#[expect(dead_code, reason = "held, not read")] Option<OwnedSemaphorePermit>);

impl Flow {
    /// With bounds on reads and writes; 0 for none.
    pub fn new((reads, writes): (usize, usize)) -> Self {
        let bound = |n: usize| (n > 0).then(|| Arc::new(Semaphore::new(n)));
        Self { reads: bound(reads), writes: bound(writes) }
    }

    /// Lets a request run.
    ///
    /// # Errors
    /// 429 when too many run already.
    pub fn admit(&self, user: &User, info: &Info) -> Result<Seat, Status> {
        if info::long_running(info) {
            return Ok(Seat::default());
        }
        let writes = matches!(info.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection");
        let Some(bound) = (if writes { &self.writes } else { &self.reads }) else { return Ok(Seat::default()) };
        match bound.clone().try_acquire_owned() {
            Ok(permit) => Ok(Seat(Some(permit))),
            // Administrators get through, so that an overload can be looked into.
            Err(_) if user.groups.iter().any(|g| g == "system:masters") => Ok(Seat::default()),
            Err(_) => {
                let text = "Too many requests, please try again later.";
                Err(Status::new(429, "TooManyRequests", text).retry_after(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_too_many_is_refused_until_another_ends() {
        let flow = Flow::new((1, 0));
        let read = Info { verb: "get".into(), is_resource: true, ..Info::default() };
        let seat = flow.admit(&User::default(), &read).expect("first");
        assert_eq!(flow.admit(&User::default(), &read).expect_err("second").code, 429);
        let watch = Info { verb: "watch".into(), is_resource: true, ..Info::default() };
        assert!(flow.admit(&User::default(), &watch).is_ok());
        drop(seat);
        assert!(flow.admit(&User::default(), &read).is_ok());
    }
}
