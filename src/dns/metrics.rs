//! Metrics under CoreDNS's names.

use std::net::SocketAddr;
use std::time::Duration;

use base::metrics::{self, Counter, Family, Gauge, Histogram};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use prometheus_client::encoding::EncodeLabelSet;

use crate::cache::Kind;

/// The server, as CoreDNS names one on the usual port, with its one zone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    server: &'static str,
    zone: &'static str,
    view: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    server: &'static str,
    zone: &'static str,
    view: &'static str,
    proto: &'static str,
    family: &'static str,
    r#type: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    server: &'static str,
    zone: &'static str,
    view: &'static str,
    rcode: String,
    plugin: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kept {
    server: &'static str,
    r#type: &'static str,
    zones: &'static str,
    view: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Missed {
    server: &'static str,
    zones: &'static str,
    view: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Told {
    proxy_name: &'static str,
    to: String,
    rcode: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Looked {
    proxy_name: &'static str,
    to: String,
}

const SERVER: &str = "dns://:53";
const ZONE: &str = ".";

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// All of them.
pub struct Metrics {
    requests: Family<Asked, Counter>,
    responses: Family<Answered, Counter>,
    duration: Histograms<Of>,
    kept: Family<Kept, Gauge>,
    hits: Family<Kept, Counter>,
    misses: Family<Missed, Counter>,
    told: Histograms<Told>,
    looked: Family<Looked, Counter>,
    /// Questions that were too many at a time.
    pub rejected: Counter,
    /// Times that all resolvers seemed dead.
    pub broken: Counter,
}

impl Metrics {
    /// Registered with the process.
    pub fn new() -> Self {
        let registry = metrics::global();
        let seconds: fn() -> Histogram = || Histogram::new(metrics::exponential(0.00025, 2.0, 16));
        Self {
            requests: registry.add(
                "coredns_dns_requests",
                "Counter of DNS requests made per zone, protocol and family.",
                Family::default(),
            ),
            responses: registry.add("coredns_dns_responses", "Counter of response status codes.", Family::default()),
            duration: registry.add(
                "coredns_dns_request_duration_seconds",
                "Histogram of the time (in seconds) each request took per zone.",
                Family::new_with_constructor(seconds),
            ),
            kept: registry.add("coredns_cache_entries", "The number of elements in the cache.", Family::default()),
            hits: registry.add("coredns_cache_hits", "The count of cache hits.", Family::default()),
            misses: registry.add("coredns_cache_misses", "The count of cache misses.", Family::default()),
            told: registry.add(
                "coredns_proxy_request_duration_seconds",
                "Histogram of the time each request took.",
                Family::new_with_constructor(seconds),
            ),
            looked: registry.add(
                "coredns_proxy_healthcheck_failures",
                "Counter of the number of failed healthchecks.",
                Family::default(),
            ),
            rejected: registry.add(
                "coredns_forward_max_concurrent_rejects",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
                Counter::default(),
            ),
            broken: registry.add(
                "coredns_forward_healthcheck_broken",
                "Counter of the number of complete failures of the healthchecks.",
                Counter::default(),
            ),
        }
    }

    /// A question came.
    pub fn asked(&self, from: SocketAddr, proto: &'static str, kind: Option<RecordType>) {
        // Types that are rare have one name, so that nobody can make up more.
        let known = kind.filter(|kind| COMMON.contains(kind));
        let r#type = known.map_or_else(|| "other".to_owned(), |kind| kind.to_string());
        let family = if from.is_ipv4() { "1" } else { "2" };
        let asked = Asked { server: SERVER, zone: ZONE, view: "", proto, family, r#type };
        self.requests.get_or_create(&asked).inc();
    }

    /// It was answered.
    pub fn replied(&self, code: ResponseCode, plugin: &'static str, took: Duration) {
        let answered = Answered { server: SERVER, zone: ZONE, view: "", rcode: rcode(code), plugin };
        self.responses.get_or_create(&answered).inc();
        let of = Of { server: SERVER, zone: ZONE, view: "" };
        self.duration.get_or_create(&of).observe(took.as_secs_f64());
    }

    /// A resolver answered.
    pub fn answered(&self, to: SocketAddr, code: ResponseCode, took: Duration) {
        let told = Told { proxy_name: "forward", to: to.to_string(), rcode: rcode(code) };
        self.told.get_or_create(&told).observe(took.as_secs_f64());
    }

    /// A resolver that failed is not back yet.
    pub fn looked_in_vain(&self, to: SocketAddr) {
        self.looked.get_or_create(&Looked { proxy_name: "forward", to: to.to_string() }).inc();
    }

    /// The cache was asked, and had an answer of this kind or none.
    pub fn cached(&self, kind: Option<Kind>) {
        match kind {
            Some(kind) => self.hits.get_or_create(&kept(kind)).inc(),
            None => self.misses.get_or_create(&Missed { server: SERVER, zones: ZONE, view: "" }).inc(),
        };
    }

    /// So many answers of a kind are kept.
    pub fn keeps(&self, kind: Kind, count: usize) {
        self.kept.get_or_create(&kept(kind)).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

const COMMON: [RecordType; 14] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::ANY,
    RecordType::CNAME,
    RecordType::HTTPS,
    RecordType::MX,
    RecordType::NS,
    RecordType::NSEC,
    RecordType::PTR,
    RecordType::SOA,
    RecordType::SRV,
    RecordType::SVCB,
    RecordType::TXT,
    RecordType::DS,
];

fn kept(kind: Kind) -> Kept {
    let r#type = if kind == Kind::Success { "success" } else { "denial" };
    Kept { server: SERVER, r#type, zones: ZONE, view: "" }
}

/// A code as Go's library names it.
fn rcode(code: ResponseCode) -> String {
    match code {
        ResponseCode::NoError => "NOERROR".into(),
        ResponseCode::FormErr => "FORMERR".into(),
        ResponseCode::ServFail => "SERVFAIL".into(),
        ResponseCode::NXDomain => "NXDOMAIN".into(),
        ResponseCode::NotImp => "NOTIMP".into(),
        ResponseCode::Refused => "REFUSED".into(),
        ResponseCode::BADVERS => "BADVERS".into(),
        other => u16::from(other).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_corednss_names_and_labels() {
        let metrics = Metrics::new();
        metrics.asked("192.0.2.1:5".parse().unwrap(), "udp", Some(RecordType::A));
        metrics.asked("[2001:db8::1]:5".parse().unwrap(), "tcp", Some(RecordType::NULL));
        metrics.replied(ResponseCode::NXDomain, "kubernetes", Duration::from_millis(1));
        metrics.cached(Some(Kind::Denial));
        metrics.cached(None);
        let text = metrics::global().text();
        for line in [
            "coredns_dns_requests_total{server=\"dns://:53\",zone=\".\",view=\"\",proto=\"udp\",family=\"1\",type=\"A\"} 1",
            "coredns_dns_requests_total{server=\"dns://:53\",zone=\".\",view=\"\",proto=\"tcp\",family=\"2\",type=\"other\"} 1",
            "coredns_dns_responses_total{server=\"dns://:53\",zone=\".\",view=\"\",rcode=\"NXDOMAIN\",plugin=\"kubernetes\"} 1",
            "coredns_cache_hits_total{server=\"dns://:53\",type=\"denial\",zones=\".\",view=\"\"} 1",
            "coredns_cache_misses_total{server=\"dns://:53\",zones=\".\",view=\"\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
