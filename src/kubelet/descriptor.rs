//! Descriptors by which the kernel tells that something has happened: they become readable.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::unix::AsyncFd;

/// Makes a descriptor one that can be waited for. It must be non-blocking.
///
/// # Errors
/// When the system can't watch such a descriptor.
pub fn watch(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // `register` asks for a promise in unsafe code that the descriptor stays the same; an OwnedFd keeps it by its type.
    #[expect(deprecated)]
    AsyncFd::new(descriptor)
}
