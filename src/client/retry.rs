//! Trying again after a conflict, and telling refusals apart.

use std::time::Duration;

/// Runs `attempt` until it ends in anything but a 409 Conflict, five times at most, 10 ms apart with a little jitter
/// (client-go's DefaultRetry). The attempt must read the object anew each time.
///
/// # Errors
/// The last attempt's.
pub async fn on_conflict<T, F, Fut>(mut attempt: F) -> kube::Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = kube::Result<T>>,
{
    const ATTEMPTS: usize = 5;
    for _ in 1..ATTEMPTS {
        match attempt().await {
            Err(error) if is_conflict(&error) => {
                tokio::time::sleep(Duration::from_micros(10_000 + rand::random_range(0..1_000))).await;
            }
            other => return other,
        }
    }
    attempt().await
}

fn has_reason(error: &kube::Error, code: u16, reason: &str) -> bool {
    match error {
        kube::Error::Api(status) if status.reason.is_empty() => status.code == code,
        kube::Error::Api(status) => status.reason == reason,
        _ => false,
    }
}

/// The object was changed since it was read.
pub fn is_conflict(error: &kube::Error) -> bool {
    has_reason(error, 409, "Conflict")
}

/// The name is taken.
pub fn is_already_exists(error: &kube::Error) -> bool {
    has_reason(error, 0, "AlreadyExists")
}

/// No such object, or no such resource.
pub fn is_not_found(error: &kube::Error) -> bool {
    has_reason(error, 404, "NotFound")
}

/// The object is refused as it is.
pub fn is_invalid(error: &kube::Error) -> bool {
    has_reason(error, 422, "Invalid")
}

/// Whether the status carries a cause of this type, such as `NamespaceTerminating`.
pub fn has_cause(error: &kube::Error, cause: &str) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.details.as_ref().is_some_and(|details| details.causes.iter().any(|found| found.reason == cause))
}

/// Drops a NotFound: for deleting what may be gone.
///
/// # Errors
/// Every other one.
pub fn ignore_not_found<T>(result: kube::Result<T>) -> kube::Result<Option<T>> {
    match result {
        Err(error) if is_not_found(&error) => Ok(None),
        other => other.map(Some),
    }
}

/// The error as the API server worded it: a refusal's message alone, everything else as it prints.
pub fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use std::cell::Cell;

    fn refusal(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure("no", reason).with_code(code).boxed())
    }

    #[tokio::test]
    async fn conflicts_are_tried_five_times() {
        let count = Cell::new(0);
        let result: kube::Result<()> = on_conflict(|| {
            count.set(count.get() + 1);
            async { Err(refusal(409, "Conflict")) }
        })
        .await;
        assert!(result.is_err_and(|error| is_conflict(&error)));
        assert_eq!(count.get(), 5);
    }

    #[tokio::test]
    async fn other_refusals_end_at_once() {
        let count = Cell::new(0);
        let result: kube::Result<()> = on_conflict(|| {
            count.set(count.get() + 1);
            async { Err(refusal(409, "AlreadyExists")) }
        })
        .await;
        assert!(result.is_err_and(|error| is_already_exists(&error)));
        assert_eq!(count.get(), 1);
    }
}
