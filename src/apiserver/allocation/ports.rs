//! Node ports: one bitmap for the cluster, under upstream's key and in a form that upstream reads.

use std::sync::Arc;

use api::status::Status;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use store::{Expect, KeyValue};
use tokio::sync::Mutex;

use crate::Api;

/// The allocator of node ports.
pub struct Ports {
    first: u16,
    last: u16,
    known: Mutex<Option<KeyValue>>,
}

/// Why a port can't be had, in upstream's words.
pub type Refusal = String;

/// One bit per port, the lowest bit being the first port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Bitmap(Vec<u8>);

impl Bitmap {
    fn get(&self, i: usize) -> bool {
        self.0.get(i / 8).is_some_and(|byte| byte & (1 << (i % 8)) != 0)
    }

    fn set(&mut self, i: usize, on: bool) {
        if self.0.len() <= i / 8 {
            self.0.resize(i / 8 + 1, 0);
        }
        if on { self.0[i / 8] |= 1 << (i % 8) } else { self.0[i / 8] &= !(1 << (i % 8)) }
    }

    /// The number's bytes, the highest first and without zeros before it, as Go's big.Int gives them.
    fn bytes(&self) -> Vec<u8> {
        let zeros = self.0.iter().rev().take_while(|byte| **byte == 0).count();
        self.0[..self.0.len() - zeros].iter().rev().copied().collect()
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        Self(bytes.iter().rev().copied().collect())
    }
}

impl Ports {
    /// An allocator of the ports from the first to the last of a range.
    pub fn new((first, last): (u16, u16)) -> Self {
        Self { first, last, known: Mutex::new(None) }
    }

    fn key(api: &Api) -> String {
        format!("{}/ranges/servicenodeports", api.settings.etcd_prefix)
    }

    fn range(&self) -> String {
        format!("{}-{}", self.first, self.last)
    }

    fn size(&self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    /// True for ports of the range.
    pub fn holds(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Takes a port: the wanted one, or any where that is 0.
    ///
    /// # Errors
    /// The outer when the store does not answer, the inner when the port can't be had.
    pub async fn take(&self, api: &Arc<Api>, wanted: u16, dry_run: bool) -> Result<Result<u16, Refusal>, Status> {
        if wanted != 0 && !(self.first..=self.last).contains(&wanted) {
            let why = format!("provided port is not in the valid range. The range of valid ports is {}", self.range());
            return Ok(Err(why));
        }
        let mut taken = Err(String::new());
        self.change(api, dry_run, |map| {
            taken = self.choose(map, wanted);
            if let Ok(port) = taken {
                map.set(usize::from(port - self.first), true);
            }
            taken.is_ok()
        })
        .await?;
        Ok(taken)
    }

    fn choose(&self, map: &Bitmap, wanted: u16) -> Result<u16, Refusal> {
        if wanted != 0 {
            let free = !map.get(usize::from(wanted - self.first));
            return if free { Ok(wanted) } else { Err("provided port is already allocated".into()) };
        }
        // The lower part is given at random only when the rest is full: people like to choose from it.
        let size = self.size();
        let reserved = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
        for (from, count) in [(reserved, size - reserved), (0, reserved)] {
            let start = if count == 0 { 0 } else { rand::random_range(0..count) };
            let free = (0..count).map(|i| from + (start + i) % count).find(|i| !map.get(*i));
            if let Some(i) = free {
                return Ok(self.first + i as u16);
            }
        }
        Err("range is full".into())
    }

    /// Gives ports back.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn release(&self, api: &Arc<Api>, ports: &[u16]) -> Result<(), Status> {
        let mine: Vec<usize> = ports
            .iter()
            .filter(|p| (self.first..=self.last).contains(*p))
            .map(|p| usize::from(p - self.first))
            .collect();
        if mine.is_empty() {
            return Ok(());
        }
        self.change(api, false, |map| {
            mine.iter().for_each(|i| map.set(*i, false));
            true
        })
        .await
    }

    /// Makes exactly these ports taken.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn reset(&self, api: &Arc<Api>, ports: &[u16]) -> Result<(), Status> {
        self.change(api, false, |map| {
            let mut wanted = Bitmap::default();
            let mine = ports.iter().filter(|p| (self.first..=self.last).contains(*p));
            mine.for_each(|p| wanted.set(usize::from(p - self.first), true));
            let differs = wanted.bytes() != map.bytes();
            *map = wanted;
            differs
        })
        .await
    }

    /// Changes the bitmap in one transaction; the function says whether there is anything to write.
    async fn change(
        &self, api: &Arc<Api>, dry_run: bool, mut change: impl FnMut(&mut Bitmap) -> bool,
    ) -> Result<(), Status> {
        let mut known = self.known.lock().await;
        let key = Self::key(api);
        if known.is_none() {
            *known = api.store.get(&key).await.map_err(unavailable)?.0;
        }
        loop {
            let mut map = known.as_ref().map(|kv| decode(&kv.value)).unwrap_or_default();
            if !change(&mut map) {
                // What this server remembers may be old: refuse only by what the store says.
                let fresh = api.store.get(&key).await.map_err(unavailable)?.0;
                let same = fresh.as_ref().map(|kv| kv.mod_revision) == known.as_ref().map(|kv| kv.mod_revision);
                *known = fresh;
                if same {
                    return Ok(());
                }
                continue;
            }
            if dry_run {
                return Ok(());
            }
            let value = encode(&map, &self.range());
            let expect = known.as_ref().map_or(Expect::Absent, |kv| Expect::At(kv.mod_revision));
            match api.store.put(&key, value.clone(), expect, 0).await {
                Ok(revision) => {
                    let kv = KeyValue { key: Arc::from(&*key), value, mod_revision: revision, create_revision: 0 };
                    *known = Some(kv);
                    return Ok(());
                }
                Err(store::Error::Conflict(found)) => *known = found,
                Err(e) => return Err(unavailable(e)),
            }
        }
    }
}

fn unavailable(error: store::Error) -> Status {
    Status::internal(error)
}

fn encode(map: &Bitmap, range: &str) -> Bytes {
    let object = json!({
        "kind": "RangeAllocation",
        "apiVersion": "v1",
        "metadata": {},
        "range": range,
        "data": STANDARD.encode(map.bytes()),
    });
    object.to_string().into_bytes().into()
}

/// Reads both forms: JSON, and upstream's protobuf (an `Unknown` around metadata, range and data).
fn decode(value: &[u8]) -> Bitmap {
    if value.starts_with(api::codec::proto::MAGIC)
        && let Ok(unknown) = api::codec::proto::open(value)
    {
        return Bitmap::of_bytes(message_field(unknown.raw, 3));
    }
    let object: Value = serde_json::from_slice(value).unwrap_or_default();
    let text = object.get("data").and_then(Value::as_str).unwrap_or_default();
    Bitmap::of_bytes(&STANDARD.decode(text).unwrap_or_default())
}

/// The bytes of a length-delimited field of a protobuf message in which all fields are such.
fn message_field(mut raw: &[u8], number: u64) -> &[u8] {
    while let Some((tag, rest)) = varint(raw) {
        let Some((length, rest)) = varint(rest) else { break };
        if tag & 7 != 2 || rest.len() < length as usize {
            break;
        }
        let (content, rest) = rest.split_at(length as usize);
        if tag >> 3 == number {
            return content;
        }
        raw = rest;
    }
    &[]
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (i, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[i + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bitmap_is_a_number_as_go_writes_it() {
        let mut map = Bitmap::default();
        map.set(0, true);
        map.set(9, true);
        assert_eq!(map.bytes(), [0b10, 0b1]);
        assert_eq!(Bitmap::of_bytes(&map.bytes()), map);
        map.set(9, false);
        assert_eq!(map.bytes(), [0b1]);
    }

    #[test]
    fn a_value_is_read_as_it_was_written() {
        let mut map = Bitmap::default();
        map.set(2767, true);
        assert_eq!(decode(&encode(&map, "30000-32767")), map);
    }

    #[test]
    fn fields_of_a_message_are_found() {
        let raw = [0x0a, 1, 7, 0x12, 2, b'a', b'b', 0x1a, 3, 1, 2, 3];
        assert_eq!(message_field(&raw, 3), [1, 2, 3]);
        assert!(message_field(&raw, 4).is_empty());
    }

    #[test]
    fn random_ports_leave_the_lower_part_until_the_rest_is_full() {
        let ports = Ports::new((30000, 32767));
        for _ in 0..200 {
            assert!(ports.choose(&Bitmap::default(), 0).unwrap() >= 30086);
        }
        let mut full = Bitmap::default();
        (86..2768).for_each(|i| full.set(i, true));
        assert!(ports.choose(&full, 0).unwrap() < 30086);
        (0..86).for_each(|i| full.set(i, true));
        assert_eq!(ports.choose(&full, 0), Err("range is full".into()));
    }
}
