//! Bytes to [`Value`](crate::Value) and back: JSON, YAML, protobuf, each driven by the facts of [`crate::schema`].

pub mod json;
pub mod leaf;
pub mod proto;
pub mod yaml;

#[cfg(test)]
mod roundtrip;
