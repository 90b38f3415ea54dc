//! etcd's failures, sorted by what a caller can do about them. The texts are etcd's public gRPC errors
//! (`api/v3rpc/rpctypes`).

use tonic::{Code, Status};

use crate::{Error, Revision};

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The request never left us: it can be repeated, whatever it is.
    Unsent(String),
    /// etcd can't be reached, has no leader, or did not answer in time.
    Unavailable(String),
    /// The revision is compacted away.
    Compacted,
    /// The revision is not reached yet (0: the caller knows which).
    Future(Revision),
    /// The request is too large.
    TooLarge,
    /// etcd is out of space.
    NoSpace,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unsent(text) | Failure::Unavailable(text) => Error::Unavailable(text),
            Failure::Compacted => Error::Compacted { oldest: 0 },
            Failure::Future(wanted) => Error::Future { wanted, current: 0 },
            Failure::TooLarge => Error::TooLarge,
            Failure::NoSpace => Error::NoSpace,
        }
    }
}

/// Sorts an error of the client library.
pub(super) fn classify(error: etcd_client::Error) -> Failure {
    let status = match error {
        etcd_client::Error::GRpcStatus(status) => status,
        other => return Failure::Unavailable(other.to_string()),
    };
    let text = status.message();
    match status.code() {
        Code::OutOfRange if text.contains("has been compacted") => Failure::Compacted,
        Code::OutOfRange if text.contains("future revision") => Failure::Future(0),
        Code::InvalidArgument if text.contains("request is too large") => Failure::TooLarge,
        Code::ResourceExhausted if text.contains("larger than max") => Failure::TooLarge,
        Code::ResourceExhausted if text.contains("space exceeded") => Failure::NoSpace,
        _ if refused(&status) => Failure::Unsent(describe(&status)),
        _ => Failure::Unavailable(describe(&status)),
    }
}

pub(super) fn unavailable(error: etcd_client::Error) -> Error {
    classify(error).into()
}

/// The lease of a write is not there (any more).
pub(super) fn is_lease_gone(text: &str) -> bool {
    text.contains("requested lease not found")
}

/// True when no connection could be made at all.
fn refused(status: &Status) -> bool {
    causes(status).any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}

/// The text of a status and, where it says nothing ("transport error"), of its innermost cause.
fn describe(status: &Status) -> String {
    match causes(status).last() {
        Some(cause) => format!("{}: {cause}", status.message()),
        None => status.message().to_string(),
    }
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(std::error::Error::source(status), |cause| cause.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: Code, text: &str) -> Failure {
        classify(etcd_client::Error::GRpcStatus(Status::new(code, text)))
    }

    #[test]
    fn etcds_texts_are_told_apart() {
        let compacted = of(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
        assert!(matches!(compacted, Failure::Compacted));
        let future = of(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision");
        assert!(matches!(future, Failure::Future(_)));
        let space = of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(space, Failure::NoSpace));
        let large = of(Code::InvalidArgument, "etcdserver: request is too large");
        assert!(matches!(large, Failure::TooLarge));
        let busy = of(Code::ResourceExhausted, "etcdserver: too many requests");
        assert!(matches!(busy, Failure::Unavailable(_)));
        assert!(is_lease_gone(&Error::from(of(Code::NotFound, "etcdserver: requested lease not found")).to_string()));
    }
}
