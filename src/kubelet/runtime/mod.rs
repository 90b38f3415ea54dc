//! The container runtime's side: what it runs now, what we ask it to run, and the calls in between.
//!
//! ```text
//! cri (calls) ──► state (what is there) ──► plan (pure: pod + state → actions)
//!                                               │
//! spec, security, resources (pure: pod → CRI configuration) ◄── sync (runs the actions)
//! ```

pub mod cri;
pub mod exits;
pub mod labels;
pub mod plan;
pub mod resources;
pub mod security;
pub mod spec;
pub mod state;
