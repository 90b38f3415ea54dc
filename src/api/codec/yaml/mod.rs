//! YAML requests and answers, through the same [`Value`](crate::Value)s. What is read and how it is written is YAML 1.1
//! as Go's yaml.v2 has it: `yes` is true, `0o17` and `1_000` are numbers, `<<` merges.

mod read;
mod resolve;
mod write;

use super::json::Strictness;
use crate::Value;
use crate::status::Status;

/// Parses the first YAML document of a body; bounded in depth and in alias expansion. Duplicate keys take the last
/// value and are noted, all in one text, as upstream has it.
///
/// # Errors
/// 400 with upstream's words, bare, when the text is not YAML.
pub fn parse(bytes: &[u8]) -> Result<(Value, Strictness), Status> {
    read::parse(bytes).map_err(|text| Status::bad_request(format!("yaml: {text}")))
}

/// Writes YAML as sigs.k8s.io/yaml does: sorted keys, two spaces, lines folded at 80 columns.
pub fn encode(value: &Value) -> Vec<u8> {
    write::document(value)
}

#[cfg(test)]
mod tests;
