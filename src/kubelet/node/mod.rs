//! The node as the API sees it: registration, status, lease.

pub mod addresses;
pub mod agent;
pub mod lease;
pub mod machine;
pub mod patch;
pub mod status;
