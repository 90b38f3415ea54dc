//! The endpoints beside a component's work: `/healthz`, `/livez`, `/readyz` (each check by name, `?verbose`,
//! `?exclude=`), `/metrics`, `/configz`, `/version`, `/flagz`, `/statusz`. [`Checks`] alone also serves the API server.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use parking_lot::RwLock;
use rustls_pki_types::CertificateDer;

use crate::server::{Handler, Peer};
use crate::shutdown::Shutdown;

/// A check: all is well, or why not.
pub type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Makes a check of an async function.
pub fn check<F, Fut>(f: F) -> Check
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), String>> + Send + 'static,
{
    Arc::new(move || Box::pin(f()))
}

/// The check that upstream calls `shutdown`: it holds until the process begins to end.
pub fn not_ending(shutdown: &Shutdown) -> Check {
    let shutdown = shutdown.clone();
    check(move || {
        let ending = shutdown.is_cancelled();
        std::future::ready(if ending { Err("process is shutting down".into()) } else { Ok(()) })
    })
}

/// A check that holds from the moment it is told so; `why` is what it says before.
#[derive(Debug, Clone)]
pub struct Flag(Arc<(AtomicBool, &'static str)>);

impl Flag {
    /// Not yet.
    pub fn new(why: &'static str) -> Self {
        Self(Arc::new((AtomicBool::new(false), why)))
    }

    /// From now on it holds, or no longer.
    pub fn set(&self, holds: bool) {
        self.0.0.store(holds, Ordering::Release);
    }

    /// Does it hold?
    pub fn holds(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }

    /// As a check.
    pub fn check(&self) -> Check {
        let flag = self.clone();
        check(move || std::future::ready(if flag.holds() { Ok(()) } else { Err(flag.0.1.to_string()) }))
    }
}

/// Named checks in order, behind one endpoint.
#[derive(Clone, Default)]
pub struct Checks(Vec<(&'static str, Check)>);

impl Checks {
    /// With `ping`, which always holds.
    pub fn new() -> Self {
        Self::default().with("ping", check(|| std::future::ready(Ok(()))))
    }

    /// Adds a check at the end.
    #[must_use]
    pub fn with(mut self, name: &'static str, check: Check) -> Self {
        self.0.push((name, check));
        self
    }

    /// Names, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().map(|(name, _)| *name)
    }

    /// Answers for the endpoint called `endpoint` (`readyz`), in upstream's words: `ok`, or the list of checks.
    pub async fn report(&self, endpoint: &str, verbose: bool, exclude: &[&str]) -> Report {
        let mut lines = String::new();
        let mut failed = Vec::new();
        for (name, check) in &self.0 {
            if exclude.contains(name) {
                let _ = writeln!(lines, "[+]{name} excluded: ok");
                continue;
            }
            match check().await {
                Ok(()) => {
                    let _ = writeln!(lines, "[+]{name} ok");
                }
                Err(why) => {
                    let _ = writeln!(lines, "[-]{name} failed: reason withheld");
                    failed.push(format!("{name}: {why}"));
                }
            }
        }
        self.note_unknown(exclude, &mut lines);
        if !failed.is_empty() {
            tracing::debug!(?failed, "{endpoint} check failed");
        }
        match (failed.is_empty(), verbose) {
            (false, _) => Report { ok: false, text: format!("{lines}{endpoint} check failed\n") },
            (true, false) => Report { ok: true, text: "ok".into() },
            (true, true) => Report { ok: true, text: format!("{lines}{endpoint} check passed\n") },
        }
    }

    fn note_unknown(&self, exclude: &[&str], lines: &mut String) {
        let unknown: Vec<String> =
            exclude.iter().filter(|e| self.names().all(|n| n != **e)).map(|e| format!("{e:?}")).collect();
        if !unknown.is_empty() {
            let list = unknown.join(",");
            let _ = writeln!(lines, "warn: some health checks cannot be excluded: no matches for {list}");
        }
    }

    /// Answers for one check alone (`/readyz/etcd`); nothing when there is no such check.
    pub async fn report_one(&self, name: &str) -> Option<Report> {
        let (name, check) = self.0.iter().find(|(n, _)| *n == name)?;
        Some(match check().await {
            Ok(()) => Report { ok: true, text: "ok".into() },
            Err(why) => {
                tracing::debug!(check = name, %why, "check failed");
                Report { ok: false, text: format!("internal server error: {why}\n") }
            }
        })
    }
}

/// An answer of a health endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// 200, otherwise 500.
    pub ok: bool,
    /// Body, plain text.
    pub text: String,
}

/// Who may see what is not open to everybody (`/metrics`, `/configz`, …).
#[async_trait::async_trait]
pub trait Gate: Send + Sync + 'static {
    /// Lets the request pass, or says how it is refused.
    async fn admit(&self, asked: &Asked<'_>) -> Result<(), Refusal>;
}

/// The answer to those who don't pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Status code.
    pub code: StatusCode,
    /// Content type of the text.
    pub content_type: &'static str,
    /// Body.
    pub text: String,
}

/// A request at the gate.
#[derive(Debug)]
pub struct Asked<'a> {
    /// `get`, `post` …
    pub verb: String,
    /// Path.
    pub path: &'a str,
    /// Token of the Authorization header.
    pub bearer: Option<&'a str>,
    /// Client certificates, not yet verified.
    pub certificates: &'a [CertificateDer<'static>],
}

/// The small server of a component; give it to [`crate::server::serve`].
#[derive(Default)]
pub struct Endpoints {
    /// Behind `/healthz`.
    pub healthz: Checks,
    /// Behind `/livez`.
    pub livez: Checks,
    /// Behind `/readyz`.
    pub readyz: Checks,
    /// Name of the component, as `/statusz` and `/flagz` print it.
    pub component: &'static str,
    /// Sections of `/configz`: name and JSON.
    pub configz: Arc<RwLock<Vec<(String, serde_json::Value)>>>,
    /// Flags and their values, for `/flagz`.
    pub flags: Vec<(String, String)>,
    /// Serves `/metrics` from [`crate::metrics::global`].
    pub metrics: bool,
    /// Guards everything; none lets everybody in.
    pub gate: Option<Arc<dyn Gate>>,
    /// Further paths of the component's own, asked before anything is refused as not found.
    pub extra: Option<Extra>,
}

/// Serves what else a component has; gives the request back when the path is not its own.
pub type Extra = Arc<
    dyn Fn(http::Request<Incoming>) -> BoxFuture<'static, Result<Response<Full<Bytes>>, http::Request<Incoming>>>
        + Send
        + Sync,
>;

impl Handler for Endpoints {
    type Connection = Peer;
    type Body = Full<Bytes>;

    fn connected(&self, peer: Peer) -> Peer {
        peer
    }

    async fn call(&self, peer: Arc<Peer>, request: http::Request<Incoming>) -> Response<Full<Bytes>> {
        if let Some(gate) = &self.gate {
            let asked = Asked {
                verb: request.method().as_str().to_ascii_lowercase(),
                path: request.uri().path(),
                bearer: bearer(request.headers()),
                certificates: &peer.certificates,
            };
            if let Err(refusal) = gate.admit(&asked).await {
                return refused(refusal);
            }
        }
        match self.health(&request).await {
            Some(answer) => answer,
            None => self.rest(request).await,
        }
    }
}

impl Endpoints {
    async fn health(&self, request: &http::Request<Incoming>) -> Option<Response<Full<Bytes>>> {
        let path = request.uri().path();
        let (endpoint, one) = path[1.min(path.len())..].split_once('/').unwrap_or((path.get(1..)?, ""));
        let checks = match endpoint {
            "healthz" => &self.healthz,
            "livez" => &self.livez,
            "readyz" => &self.readyz,
            _ => return None,
        };
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Some(plain(StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed".into()));
        }
        let query = parse_query(request.uri().query().unwrap_or_default());
        let report = match one {
            "" => {
                let exclude: Vec<&str> =
                    query.iter().filter(|(k, _)| k == "exclude").map(|(_, v)| v.as_str()).collect();
                Some(checks.report(endpoint, query.iter().any(|(k, _)| k == "verbose"), &exclude).await)
            }
            name => checks.report_one(name).await,
        };
        Some(match report {
            Some(report) => health_answer(report),
            None => plain(StatusCode::NOT_FOUND, "404 page not found\n".into()),
        })
    }

    async fn rest(&self, request: http::Request<Incoming>) -> Response<Full<Bytes>> {
        match request.uri().path() {
            "/metrics" if self.metrics => typed(crate::metrics::CONTENT_TYPE, crate::metrics::global().text()),
            "/configz" => {
                let sections: serde_json::Map<_, _> = self.configz.read().iter().cloned().collect();
                typed("application/json", serde_json::Value::from(sections).to_string())
            }
            "/version" => typed("application/json", format!("{:#}", version_json())),
            "/flagz" => typed("text/plain; charset=utf-8", flagz(self.component, &self.flags)),
            "/statusz" => typed("text/plain; charset=utf-8", statusz(self.component, &[])),
            _ => match &self.extra {
                Some(extra) => match extra(request).await {
                    Ok(answer) => answer,
                    Err(_) => plain(StatusCode::NOT_FOUND, "404 page not found\n".into()),
                },
                None => plain(StatusCode::NOT_FOUND, "404 page not found\n".into()),
            },
        }
    }
}

/// The token of a bearer Authorization header.
pub fn bearer(headers: &http::HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|t| !t.is_empty())
}

/// Answer of a health endpoint over HTTP.
fn health_answer(report: Report) -> Response<Full<Bytes>> {
    plain(if report.ok { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }, report.text)
}

fn refused(refusal: Refusal) -> Response<Full<Bytes>> {
    let mut answer = typed(refusal.content_type, refusal.text);
    *answer.status_mut() = refusal.code;
    answer
}

fn plain(code: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut answer = typed("text/plain; charset=utf-8", text);
    *answer.status_mut() = code;
    answer.headers_mut().insert("X-Content-Type-Options", http::HeaderValue::from_static("nosniff"));
    answer
}

fn typed(content_type: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(text));
    answer.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    answer.headers_mut().insert(header::CACHE_CONTROL, http::HeaderValue::from_static("no-cache, private"));
    answer
}

/// `/version` as every component answers it.
pub fn version_json() -> serde_json::Value {
    let (major, minor) = crate::version::MAJOR_MINOR;
    serde_json::json!({
        "major": major.to_string(),
        "minor": minor.to_string(),
        "emulationMajor": major.to_string(),
        "emulationMinor": minor.to_string(),
        "minCompatibilityMajor": major.to_string(),
        "minCompatibilityMinor": (minor - 1).to_string(),
        "gitVersion": crate::version::GIT_VERSION,
        // Whoever builds a release says what it is made from.
        "gitCommit": option_env!("NAVARCH_GIT_COMMIT").unwrap_or_default(),
        "gitTreeState": option_env!("NAVARCH_GIT_TREE_STATE").unwrap_or_default(),
        "buildDate": option_env!("NAVARCH_BUILD_DATE").unwrap_or_default(),
        "goVersion": "",
        "compiler": "rustc",
        "platform": crate::version::platform(),
    })
}

/// `/flagz`: each flag and its value.
pub fn flagz(component: &str, flags: &[(String, String)]) -> String {
    let mut text = format!(
        "\n{component} flags\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n\n"
    );
    for (name, value) in flags {
        let _ = writeln!(text, "{name}={value}");
    }
    text
}

/// `/statusz`: since when, what version, which paths.
pub fn statusz(component: &str, paths: &[&str]) -> String {
    let started = STARTED.elapsed().as_secs();
    let (h, m, s) = (started / 3600, started / 60 % 60, started % 60);
    let since = crate::clock::rfc3339(crate::clock::unix() - started as i64);
    format!(
        "\n{component} statusz\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n\nStarted: {since}\nUp: {h} hr {m:02} min {s:02} sec\nGo version: none\nBinary version: {}\nEmulation version: {}.{}\nPaths: {}\n",
        crate::version::KUBERNETES,
        crate::version::MAJOR_MINOR.0,
        crate::version::MAJOR_MINOR.1,
        paths.join(" "),
    )
}

static STARTED: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);

/// Key and value of each parameter of a query, decoded as Go does; a pair that is malformed is left out.
pub fn parse_query(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|p| !p.is_empty() && !p.contains(';'));
    pairs
        .filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((unescape(key, true)?, unescape(value, true)?))
        })
        .collect()
}

/// Undoes percent-encoding; `plus` turns `+` into a space as in queries. Malformed escapes and what is no UTF-8 give
/// nothing.
pub fn unescape(text: &str, plus: bool) -> Option<String> {
    if !text.contains(['%', '+']) {
        return Some(text.to_string());
    }
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'%' => {
                let hex = bytes.get(at + 1..at + 3)?;
                out.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
                at += 2;
            }
            b'+' if plus => out.push(b' '),
            other => out.push(other),
        }
        at += 1;
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reports_have_upstreams_words() {
        let flag = Flag::new("not finished");
        let checks = Checks::new().with("etcd", flag.check());
        let report = checks.report("readyz", false, &[]).await;
        assert!(!report.ok);
        assert_eq!(report.text, "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n");
        assert_eq!(checks.report("readyz", false, &["etcd"]).await, Report { ok: true, text: "ok".into() });
        flag.set(true);
        assert_eq!(checks.report("readyz", true, &[]).await.text, "[+]ping ok\n[+]etcd ok\nreadyz check passed\n");
        assert!(checks.report_one("nothing").await.is_none());
    }

    #[test]
    fn queries_decode_as_go_does() {
        let query = parse_query("a=b%20c+d&verbose&x=%zz&y=1");
        assert_eq!(query, [("a".into(), "b c d".into()), ("verbose".into(), String::new()), ("y".into(), "1".into())]);
    }
}
