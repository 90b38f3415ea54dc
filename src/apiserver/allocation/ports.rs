//! Node ports: one bitmap for the cluster, under upstream's key and in a form that upstream reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::codec::proto;
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
    /// How often in a row a repair has found each of these ports taken by nobody.
    ownerless: Mutex<BTreeMap<u16, u8>>,
}

/// A port that nobody holds is free after so many repairs: a create takes its port before its Service is stored.
const REPAIRS: u8 = 3;

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
        Self { first, last, known: Mutex::default(), ownerless: Mutex::default() }
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

    /// Makes these ports taken, and frees what has been taken by nobody for several repairs.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn repair(&self, api: &Arc<Api>, held: &BTreeSet<u16>) -> Result<(), Status> {
        let mut ownerless = self.ownerless.lock().await;
        let mut counted = BTreeMap::new();
        self.change(api, false, |map| {
            let before = map.clone();
            counted = self.settle(map, held, &ownerless);
            *map != before
        })
        .await?;
        *ownerless = counted;
        Ok(())
    }

    /// One repair of a bitmap; how often each port that stays was found ownerless by now.
    fn settle(&self, map: &mut Bitmap, held: &BTreeSet<u16>, before: &BTreeMap<u16, u8>) -> BTreeMap<u16, u8> {
        let mut ownerless = BTreeMap::new();
        for i in 0..self.size() {
            let port = self.first + i as u16;
            if held.contains(&port) {
                map.set(i, true);
            } else if map.get(i) {
                let times = before.get(&port).copied().unwrap_or(0) + 1;
                if times < REPAIRS {
                    ownerless.insert(port, times);
                } else {
                    map.set(i, false);
                }
            }
        }
        ownerless
    }

    /// The bitmap of a stored value. One of another range is of the same ports, as far as they are of ours.
    fn read(&self, value: &[u8]) -> Result<Bitmap, Status> {
        let unreadable = |why: &str| Status::internal(format!("the allocation of node ports can't be read: {why}"));
        let (range, stored) = decode(value).map_err(unreadable)?;
        if range == self.range() {
            return Ok(stored);
        }
        let first: Option<u16> = range.split('-').next().and_then(|first| first.parse().ok());
        let first = first.ok_or_else(|| unreadable(&format!("range {range:?}")))?;
        let taken = (0..stored.0.len() * 8).filter(|i| stored.get(*i)).filter_map(|i| first.checked_add(i as u16));
        let mut map = Bitmap::default();
        taken.filter(|port| self.holds(*port)).for_each(|port| map.set(usize::from(port - self.first), true));
        Ok(map)
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
            let read = known.as_ref().map(|kv| self.read(&kv.value)).transpose();
            if read.is_err() {
                // Once somebody has mended it, that is to be seen.
                *known = None;
            }
            let mut map = read?.unwrap_or_default();
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

/// Range and bitmap in both forms: JSON, and upstream's protobuf (an `Unknown` around metadata, range and data).
fn decode(value: &[u8]) -> Result<(String, Bitmap), &'static str> {
    if value.starts_with(proto::MAGIC) {
        let unknown = proto::open(value).map_err(|_| "it is no protobuf message")?;
        let field = |number| proto::field(unknown.raw, number).map_err(|_| "its message is cut off");
        let range = String::from_utf8_lossy(field(2)?).into_owned();
        return Ok((range, Bitmap::of_bytes(field(3)?)));
    }
    let object: Value = serde_json::from_slice(value).map_err(|_| "it is no JSON")?;
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let data = STANDARD.decode(text("data").ok_or("it has no data")?).map_err(|_| "its data is no base64")?;
    Ok((text("range").unwrap_or_default().to_owned(), Bitmap::of_bytes(&data)))
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
        assert_eq!(decode(&encode(&map, "30000-32767")), Ok(("30000-32767".into(), map)));
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_free_ports() {
        let ports = Ports::new((30000, 32767));
        for broken in [&b"{"[..], b"k8s\0\xff\xff", br#"{"range":"30000-32767","data":"%"}"#, br#"{"range":"x"}"#] {
            assert_eq!(ports.read(broken).unwrap_err().code, 500, "{}", String::from_utf8_lossy(broken));
        }
    }

    #[test]
    fn ports_stay_taken_when_the_range_changes() {
        let mut map = Bitmap::default();
        [0, 100, 2767].iter().for_each(|i| map.set(*i, true));
        let moved = Ports::new((30050, 30150)).read(&encode(&map, "30000-32767")).unwrap();
        assert_eq!((0..101).filter(|i| moved.get(*i)).collect::<Vec<_>>(), [50]);
    }

    #[test]
    fn a_port_without_a_service_is_free_after_the_third_repair() {
        let ports = Ports::new((30000, 32767));
        let (mut map, held) = (Bitmap::default(), BTreeSet::from([30001]));
        map.set(5, true);
        let mut seen = BTreeMap::new();
        for repair in 1..=3 {
            seen = ports.settle(&mut map, &held, &seen);
            assert!(map.get(1));
            assert_eq!(map.get(5), repair < 3, "repair {repair}");
        }
        assert!(seen.is_empty());
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
