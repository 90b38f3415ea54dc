//! The pod's status: made from what the runtime holds (pure), kept and sent to the API (shell).

pub mod conditions;
pub mod containers;
pub mod generate;
pub mod manager;
pub mod patch;
pub mod phase;
