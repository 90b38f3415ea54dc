//! The four kinds of patch, each a pure function from a live object and a patch to a new object.

pub mod apply;
pub mod json;
pub mod merge;
pub mod strategic;
#[cfg(test)]
mod tests;
