//! Areas, one module each.

mod control_plane;
mod walkthrough;
