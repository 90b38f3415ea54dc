//! SPDY/3.1 as a client, as much of it as kubelets and container runtimes speak: streams with headers, data, ends,
//! resets, pings, goodbye. No crate for it is kept alive.
//!
//! - [`headers`]: blocks of names and values, compressed with the protocol's dictionary. Pure.
//! - [`frame`]: frames to bytes and back.
//! - [`connection`]: streams over one connection.

pub mod connection;
pub mod frame;
pub mod headers;
