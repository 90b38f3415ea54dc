//! A store in memory: for tests, with the same answers as etcd.

/// A store in memory.
#[derive(Default)]
pub struct Memory {}

impl Memory {
    /// An empty store, at revision 1 as a new etcd.
    pub fn new() -> Self {
        Self::default()
    }
}
