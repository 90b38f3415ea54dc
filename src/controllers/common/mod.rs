//! What several controllers share: pods, ownership, writes that are not yet seen, hashes.

pub mod claim;
pub mod expect;
pub mod hash;
pub mod history;
pub mod pods;
pub mod ranks;
pub mod wake;
