//! What is counted of streams, under upstream's names.

use base::metrics::{Counter, Family};
use prometheus_client::encoding::EncodeLabelSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Routed {
    subresource: String,
    proxy_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Usage {
    usage: &'static str,
}

/// The counters.
pub struct Metrics {
    translated: Family<Code, Counter>,
    tunnelled: Family<Code, Counter>,
    routed: Family<Routed, Counter>,
    logs: Family<Usage, Counter>,
    /// Logs whose kubelet could not be verified.
    pub unverified: Counter,
}

impl Metrics {
    /// Counters that are told with the others of the process.
    pub fn register() -> Self {
        let registry = base::metrics::global();
        Self {
            translated: registry.add(
                "apiserver_stream_translator_requests",
                "Total number of requests that were handled by the StreamTranslatorProxy, which processes streaming RemoteCommand/V5",
                Family::default(),
            ),
            tunnelled: registry.add(
                "apiserver_stream_tunnel_requests",
                "Total number of requests that were handled by the StreamTunnelProxy, which processes streaming PortForward/V2",
                Family::default(),
            ),
            routed: registry.add(
                "apiserver_websocket_streaming_requests",
                "Total number of WebSocket streaming requests (exec/attach/portforward) routed by the API server, by subresource and by who translates them.",
                Family::default(),
            ),
            logs: registry.add(
                "kube_apiserver_pod_logs_insecure_backend",
                "Total number of requests for pods/logs sliced by usage type: enforce_tls, skip_tls_allowed, skip_tls_denied",
                Family::default(),
            ),
            unverified: registry.add(
                "kube_apiserver_pod_logs_backend_tls_failure",
                "Total number of requests for pods/logs that failed due to kubelet server TLS verification",
                Counter::default(),
            ),
        }
    }

    /// A remote command was translated, with that outcome.
    pub fn translated(&self, code: u16) {
        self.translated.get_or_create(&Code { code }).inc();
    }

    /// A tunnel was asked for, with that outcome.
    pub fn tunnelled(&self, code: u16) {
        self.tunnelled.get_or_create(&Code { code }).inc();
    }

    /// A stream was routed; `kubelet` when that translates by itself.
    pub fn routed(&self, subresource: &str, kubelet: bool) {
        let proxy_type = if kubelet { "proxied_to_kubelet" } else { "translated_at_apiserver" };
        self.routed.get_or_create(&Routed { subresource: subresource.to_string(), proxy_type }).inc();
    }

    /// A log was asked for.
    pub fn log(&self, insecure: bool) {
        let usage = if insecure { "skip_tls_allowed" } else { "enforce_tls" };
        self.logs.get_or_create(&Usage { usage }).inc();
    }
}
