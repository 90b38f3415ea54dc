//! Hashes of templates, as they stand in labels and names: stable over restarts, safe in names.

use serde::Serialize;

/// Letters that spell no words and are not mistaken for each other.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The hash of an object's JSON and of how often its name was taken before.
pub fn of<T: Serialize>(object: &T, collisions: Option<i32>) -> String {
    let mut hash = Fnv::default();
    // Objects are sorted maps all the way down, so equal ones encode equally.
    let value = serde_json::to_value(object).unwrap_or_default();
    hash.write(value.to_string().as_bytes());
    if let Some(collisions) = collisions {
        hash.write(&(collisions as u32).to_le_bytes());
    }
    safe(&hash.0.to_string())
}

/// Makes text safe for names.
pub fn safe(text: &str) -> String {
    text.bytes().map(|byte| LETTERS[usize::from(byte) % LETTERS.len()] as char).collect()
}

/// FNV-1a of 32 bits.
pub struct Fnv(pub u32);

impl Default for Fnv {
    fn default() -> Self {
        Self(0x811c_9dc5)
    }
}

impl Fnv {
    /// Takes in more bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn equal_objects_hash_equally_whatever_the_order_of_their_keys() {
        let (a, b) = (json!({"x": 1, "y": 2}), json!({"y": 2, "x": 1}));
        assert_eq!(of(&a, None), of(&b, None));
        assert_ne!(of(&a, None), of(&a, Some(0)));
        assert_ne!(of(&a, Some(0)), of(&a, Some(1)));
        assert!(of(&a, None).len() <= 10);
    }

    #[test]
    fn hashes_stay_the_same_over_versions() {
        assert_eq!(of(&json!({"a": "b"}), None), "76668fc8d6");
    }
}
