//! garbage-collector-controller: objects whose owners are gone go too.
//!
//! ```text
//!   metadata of all resources ──► graph (pure: who owns whom) ──item──► worker: look at the live owners, classify
//!                                                                       (pure), delete | patch
//! ```
//!
//! The graph only says what may have to be done; before anything is deleted, the object and each of its owners are read
//! from the API server.

mod absent;
mod classify;
mod graph;
mod shell;

pub(crate) use shell::run;
