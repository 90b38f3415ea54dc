//! HTTP requests of probes and hooks: one GET, redirects on the same host, certificates not looked at.

use super::Outcome;
use super::dial::{dial, join};
use base::tls::provider;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Most of an answer's body that is read.
const MAX_BODY: usize = 10 * 1024;
/// Redirects that are followed.
const MAX_REDIRECTS: usize = 10;

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// TLS?
    pub https: bool,
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path and query.
    pub path: String,
    /// Headers.
    pub headers: HeaderMap,
}

impl Target {
    /// The target of an action; `purpose` goes into the User-Agent (`kube-<purpose>/1.36`).
    pub fn of(action: &HTTPGetAction, container: &Container, pod_ip: &str, purpose: &str) -> Result<Self, String> {
        let mut headers = HeaderMap::new();
        for given in action.http_headers.as_deref().unwrap_or_default() {
            let name = HeaderName::try_from(given.name.as_str());
            let value = HeaderValue::try_from(given.value.as_str());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.append(name, value);
            }
        }
        if !headers.contains_key(header::USER_AGENT) {
            let (major, minor) = base::version::MAJOR_MINOR;
            let agent = format!("kube-{purpose}/{major}.{minor}");
            headers.insert(header::USER_AGENT, HeaderValue::try_from(agent).map_err(|error| error.to_string())?);
        }
        match headers.get(header::ACCEPT) {
            None => drop(headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"))),
            Some(value) if value.is_empty() => drop(headers.remove(header::ACCEPT)),
            Some(_) => {}
        }
        let path = action.path.as_deref().unwrap_or_default();
        Ok(Self {
            https: action.scheme.as_deref() == Some("HTTPS"),
            host: action.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| pod_ip.to_owned()),
            port: crate::pods::resolve_port(&action.port, container)?,
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            headers,
        })
    }

    /// As a URL.
    pub fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", join(&self.host, self.port), self.path)
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Where a redirect points to.
    pub location: Option<String>,
    /// The beginning of the body.
    pub body: String,
}

/// Why nothing came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The other side speaks plain HTTP where TLS was expected.
    PlainHttp,
    /// Anything else, in words.
    Other(String),
}

/// Takes every certificate: a probe asks whether something answers, not who.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self, _: &CertificateDer<'_>, _: &[CertificateDer<'_>], _: &ServerName<'_>, _: &[u8], _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self, _: &[u8], _: &CertificateDer<'_>, _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self, _: &[u8], _: &CertificateDer<'_>, _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

static TLS: LazyLock<tokio_rustls::TlsConnector> = LazyLock::new(|| {
    // A probe tells no secrets, and is a new connection each second: without post-quantum keys it costs both sides less.
    let mut cheap = (*provider()).clone();
    cheap.kx_groups.retain(|group| group.name() != rustls::NamedGroup::X25519MLKEM768);
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(cheap))
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions of TLS")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate))
        .with_no_client_auth();
    Arc::new(config).into()
});

async fn exchange<I>(io: I, target: &Target) -> Result<Answer, String>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(|error| error.to_string())?;
    // The task ends with the connection; an error shows in the answer.
    let running = tokio::spawn(connection);
    let mut request = Request::builder().method("GET").uri(&target.path);
    if let Some(headers) = request.headers_mut() {
        *headers = target.headers.clone();
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        if !headers.contains_key(header::HOST) {
            let host = HeaderValue::try_from(join(&target.host, target.port)).map_err(|error| error.to_string())?;
            headers.insert(header::HOST, host);
        }
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| broken(&error));
    let answer = match response {
        Ok(response) => Ok(read(response).await),
        Err(error) => Err(error),
    };
    running.abort();
    answer
}

fn broken(error: &hyper::Error) -> String {
    if error.is_incomplete_message() {
        return "EOF".into();
    }
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| source.to_string())
}

async fn read(response: http::Response<Incoming>) -> Answer {
    let status = response.status().as_u16();
    let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while bytes.len() < MAX_BODY {
        match body.frame().await {
            Some(Ok(frame)) => bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..])),
            // A body cut short is read as far as it came.
            Some(Err(_)) | None => break,
        }
    }
    bytes.truncate(MAX_BODY);
    Answer { status, location, body: String::from_utf8_lossy(&bytes).into_owned() }
}

async fn once(target: &Target) -> Result<Answer, Fault> {
    let far = Duration::from_secs(3600);
    let stream = dial(&target.host, target.port, far).await.map_err(Fault::Other)?;
    if !target.https {
        return exchange(stream, target).await.map_err(Fault::Other);
    }
    let name = ServerName::try_from(target.host.clone()).map_err(|error| Fault::Other(error.to_string()))?;
    match TLS.connect(name, stream).await {
        Ok(stream) => exchange(stream, target).await.map_err(Fault::Other),
        Err(error) => Err(match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidMessage(_)) => Fault::PlainHttp,
            _ => Fault::Other(error.to_string()),
        }),
    }
}

/// One GET within a time limit.
pub async fn get(target: &Target, timeout: Duration) -> Result<Answer, Fault> {
    match tokio::time::timeout(timeout, once(target)).await {
        Ok(result) => result,
        Err(_) => {
            Err(Fault::Other("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".into()))
        }
    }
}

/// The target of a redirect, and whether it stays on the host.
fn redirect(from: &Target, location: &str) -> Option<(Target, bool)> {
    let uri: Uri = location.parse().ok()?;
    let host = uri.host().map(|host| host.trim_matches(['[', ']']).to_owned());
    let same = host.as_deref().is_none_or(|host| host == from.host);
    let https = uri.scheme_str().map_or(from.https, |scheme| scheme == "https");
    let default = if https { 443 } else { 80 };
    let port = match (&host, uri.port_u16()) {
        (_, Some(port)) => port,
        (None, None) => from.port,
        (Some(_), None) => default,
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let host = host.unwrap_or_else(|| from.host.clone());
    Some((Target { https, host, port, path, headers: from.headers.clone() }, same))
}

/// Probes: 2xx and 3xx are well, redirects on the same host are followed.
pub async fn probe(target: Target, timeout: Duration) -> Outcome {
    let first = target.url();
    match tokio::time::timeout(timeout, follow(target)).await {
        Ok(outcome) => outcome,
        Err(_) => Outcome::Failure(format!(
            "Get {first:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        )),
    }
}

async fn follow(mut target: Target) -> Outcome {
    for _ in 0..=MAX_REDIRECTS {
        let answer = match once(&target).await {
            Ok(answer) => answer,
            Err(Fault::PlainHttp) => {
                let text = "http: server gave HTTP response to HTTPS client";
                return Outcome::Failure(format!("Get {:?}: {text}", target.url()));
            }
            Err(Fault::Other(text)) => return Outcome::Failure(format!("Get {:?}: {text}", target.url())),
        };
        let next = match answer.status {
            301 | 302 | 303 | 307 | 308 => answer.location.as_deref().and_then(|to| redirect(&target, to)),
            _ => None,
        };
        match next {
            Some((next, true)) => target = next,
            _ => return judge(&answer),
        }
    }
    Outcome::Failure(format!("Get {:?}: stopped after 10 redirects", target.url()))
}

fn judge(answer: &Answer) -> Outcome {
    match answer.status {
        200..=299 => Outcome::Success,
        300..=399 => Outcome::Warning(format!("Probe terminated redirects, Response body: {}", answer.body)),
        status => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Serves each connection with the next of the answers and returns what was asked.
    async fn serve(answers: Vec<&'static str>) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut text = vec![0; 4096];
                let read = stream.read(&mut text).await.unwrap();
                asked.push(String::from_utf8_lossy(&text[..read]).into_owned());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            asked
        });
        (port, task)
    }

    fn target(port: u16, more: serde_json::Value) -> Target {
        let mut action = json!({"port": port, "path": "/healthz?a=b"});
        for (key, value) in more.as_object().unwrap() {
            action[key] = value.clone();
        }
        Target::of(&serde_json::from_value(action).unwrap(), &Container::default(), "127.0.0.1", "probe").unwrap()
    }

    const WAIT: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn status_codes_decide_and_headers_are_upstreams() {
        let (port, task) = serve(vec!["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]).await;
        let asked = target(port, json!({"httpHeaders": [{"name": "X-A", "value": "1"}]}));
        assert_eq!(probe(asked, WAIT).await, Outcome::Success);
        let text = task.await.unwrap().remove(0).to_lowercase();
        assert!(text.starts_with("get /healthz?a=b http/1.1\r\n"), "{text}");
        for line in ["user-agent: kube-probe/1.36", "accept: */*", "x-a: 1", "connection: close"] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let (port, _task) = serve(vec!["HTTP/1.1 503 x\r\ncontent-length: 0\r\n\r\n"]).await;
        let failed = Outcome::Failure("HTTP probe failed with statuscode: 503".into());
        assert_eq!(probe(target(port, json!({})), WAIT).await, failed);
    }

    #[tokio::test]
    async fn redirects_on_the_same_host_are_followed_and_others_only_told() {
        let there = "HTTP/1.1 302 x\r\nlocation: /there\r\ncontent-length: 0\r\n\r\n";
        let (port, task) = serve(vec![there, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]).await;
        assert_eq!(probe(target(port, json!({})), WAIT).await, Outcome::Success);
        assert!(task.await.unwrap()[1].starts_with("GET /there "));
        let away = "HTTP/1.1 302 x\r\nlocation: http://example.invalid/\r\ncontent-length: 4\r\n\r\ngone";
        let (port, _task) = serve(vec![away]).await;
        let told = Outcome::Warning("Probe terminated redirects, Response body: gone".into());
        assert_eq!(probe(target(port, json!({})), WAIT).await, told);
    }

    #[tokio::test]
    async fn failures_read_as_upstreams() {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let text = format!(
            "Get \"http://127.0.0.1:{port}/healthz?a=b\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        );
        assert_eq!(probe(target(port, json!({})), WAIT).await, Outcome::Failure(text));
        let (port, _task) = serve(vec!["HTTP/1.1 400 x\r\n\r\n"]).await;
        assert_eq!(get(&target(port, json!({"scheme": "HTTPS"})), WAIT).await.unwrap_err(), Fault::PlainHttp);
    }
}
