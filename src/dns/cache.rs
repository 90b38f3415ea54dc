//! Answers from outside, kept for as long as they say, and for half a minute at most (CoreDNS's `cache 30`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use parking_lot::Mutex;

/// Answers of each kind at most (CoreDNS's default).
const CAPACITY: usize = 9984;
/// How long an answer is kept at least and at most, in seconds; a failure of the resolver's.
const LEAST: u32 = 5;
const MOST: u32 = 30;
const FAILURE: u32 = 5;

/// What an answer says, as CoreDNS's metrics name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There are records.
    Success,
    /// There are none, or it could not be found out.
    Denial,
}

/// The answers.
#[derive(Default)]
pub struct Cache {
    success: Mutex<Entries>,
    denial: Mutex<Entries>,
}

type Entries = HashMap<(Name, RecordType), Entry>;

struct Entry {
    answer: Arc<Message>,
    ends: Instant,
}

impl Cache {
    /// What is known at that moment, its records living for as long as it is kept.
    pub fn get(&self, name: &Name, kind: RecordType, now: Instant) -> Option<(Kind, Message)> {
        let key = (name.clone(), kind);
        for (kind, entries) in [(Kind::Success, &self.success), (Kind::Denial, &self.denial)] {
            let mut entries = entries.lock();
            let Some(entry) = entries.get(&key) else { continue };
            let left = entry.ends.saturating_duration_since(now);
            if left.is_zero() {
                entries.remove(&key);
                continue;
            }
            let answer = entry.answer.clone();
            drop(entries);
            return Some((kind, aged(&answer, left.as_secs().try_into().unwrap_or(MOST))));
        }
        None
    }

    /// Keeps an answer, if it is one to keep.
    pub fn put(&self, name: &Name, kind: RecordType, answer: &Message, now: Instant) {
        let Some((class, seconds)) = life(answer) else { return };
        let mut entries = match class {
            Kind::Success => self.success.lock(),
            Kind::Denial => self.denial.lock(),
        };
        let key = (name.clone(), kind);
        // Any of them goes when there are too many: which one is not worth a list of their ages.
        if entries.len() >= CAPACITY
            && !entries.contains_key(&key)
            && let Some(other) = entries.keys().next().cloned()
        {
            entries.remove(&other);
        }
        let ends = now + Duration::from_secs(seconds.into());
        entries.insert(key, Entry { answer: Arc::new(answer.clone()), ends });
    }

    /// How many answers of a kind there are.
    pub fn len(&self, kind: Kind) -> usize {
        match kind {
            Kind::Success => self.success.lock().len(),
            Kind::Denial => self.denial.lock().len(),
        }
    }
}

fn records(answer: &Message) -> impl Iterator<Item = &Record> {
    answer.answers.iter().chain(&answer.authorities).chain(&answer.additionals)
}

/// Whether and for how many seconds an answer is kept.
fn life(answer: &Message) -> Option<(Kind, u32)> {
    if answer.metadata.truncation {
        return None;
    }
    let denied = || {
        let mut soas = answer.authorities.iter().filter_map(|record| match &record.data {
            RData::SOA(soa) => Some(soa.minimum.min(record.ttl)),
            _ => None,
        });
        soas.next().map(|seconds| (Kind::Denial, seconds.clamp(LEAST, MOST)))
    };
    match answer.metadata.response_code {
        ResponseCode::NoError if !answer.answers.is_empty() => {
            let least = records(answer).map(|record| record.ttl).min().unwrap_or(0);
            Some((Kind::Success, least.clamp(LEAST, MOST)))
        }
        ResponseCode::NoError | ResponseCode::NXDomain => denied(),
        ResponseCode::ServFail => Some((Kind::Denial, FAILURE)),
        _ => None,
    }
}

fn aged(answer: &Message, seconds: u32) -> Message {
    let mut answer = answer.clone();
    for records in [&mut answer.answers, &mut answer.authorities, &mut answer.additionals] {
        records.iter_mut().for_each(|record| record.ttl = seconds);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::rdata::{A, SOA};

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn answer(code: ResponseCode, ttl: Option<u32>) -> Message {
        let mut message = Message::query().into_response();
        message.metadata.response_code = code;
        let data = RData::A(A::new(192, 0, 2, 1));
        message.answers.extend(ttl.map(|ttl| Record::from_rdata(name("a.example."), ttl, data)));
        message
    }

    fn denial(code: ResponseCode, minimum: u32) -> Message {
        let mut message = answer(code, None);
        let soa = SOA::new(name("ns.example."), name("root.example."), 1, 1, 1, 1, minimum);
        message.authorities.push(Record::from_rdata(name("example."), 3600, RData::SOA(soa)));
        message
    }

    #[test]
    fn answers_live_as_long_as_they_say_within_bounds() {
        let life = |message: Message| life(&message);
        assert_eq!(life(answer(ResponseCode::NoError, Some(12))), Some((Kind::Success, 12)));
        assert_eq!(life(answer(ResponseCode::NoError, Some(3600))), Some((Kind::Success, 30)));
        assert_eq!(life(answer(ResponseCode::NoError, Some(0))), Some((Kind::Success, 5)));
        assert_eq!(life(denial(ResponseCode::NXDomain, 10)), Some((Kind::Denial, 10)));
        assert_eq!(life(denial(ResponseCode::NoError, 900)), Some((Kind::Denial, 30)));
        assert_eq!(life(answer(ResponseCode::ServFail, None)), Some((Kind::Denial, 5)));
        assert_eq!(life(answer(ResponseCode::NXDomain, None)), None, "it does not say how long");
        assert_eq!(life(answer(ResponseCode::Refused, None)), None);
        let mut cut = answer(ResponseCode::NoError, Some(12));
        cut.metadata.truncation = true;
        assert_eq!(life(cut), None);
    }

    #[test]
    fn what_is_kept_grows_old_and_ends() {
        let (cache, now, a) = (Cache::default(), Instant::now(), name("a.example."));
        cache.put(&a, RecordType::A, &answer(ResponseCode::NoError, Some(20)), now);
        let (kind, got) = cache.get(&name("A.Example."), RecordType::A, now + Duration::from_secs(8)).unwrap();
        assert_eq!((kind, got.answers[0].ttl), (Kind::Success, 12));
        assert!(cache.get(&a, RecordType::AAAA, now).is_none());
        assert!(cache.get(&a, RecordType::A, now + Duration::from_secs(20)).is_none());
        assert_eq!(cache.len(Kind::Success), 0);
    }

    #[test]
    fn there_are_never_more_than_there_may_be() {
        let (cache, now) = (Cache::default(), Instant::now());
        let one = answer(ResponseCode::NoError, Some(20));
        for i in 0..CAPACITY + 10 {
            cache.put(&name(&format!("{i}.example.")), RecordType::A, &one, now);
        }
        assert_eq!((cache.len(Kind::Success), cache.len(Kind::Denial)), (CAPACITY, 0));
    }
}
