//! The work on one pod: bring it up, keep it as it shall be, take it down.
//!
//! ```text
//! worker (one task per pod) ─► sync: observe → status → volumes → plan → start / kill ─► status
//!                           └► terminate: hooks, grace, stop ─► clean up ─► last status
//! ```

pub mod context;
pub mod kill;
pub mod mounts;
pub mod start;
pub mod sync;
pub mod terminate;
pub mod worker;
