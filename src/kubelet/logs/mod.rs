//! Container logs: reading them in the runtime's format, across rotations; rotating them.

pub mod read;
pub mod rotate;
