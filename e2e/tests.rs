//! Areas, one module each.

mod control_plane;
