//! The HTTPS endpoints of a component (`/healthz`, `/metrics`, `/configz` …) as upstream's flags describe them: where it
//! listens, with which certificate, and who may ask. The flags are those of [`base::flags::serving`] and
//! [`base::flags::delegating`].

use crate::Connection;
use crate::gate::{Delegated, Settings};
use base::Fault;
use base::flags::Flags;
use base::health::Endpoints;
use base::server::{self, Limits};
use base::shutdown::Shutdown;
use base::tls::{self, Authorities, Files, Identity};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;

/// Serves the endpoints in the background until the shutdown; nothing is served on `--secure-port=0`.
///
/// # Errors
/// When the port is taken, or a file that a flag names can't be used.
pub async fn serve(flags: &Flags, endpoints: Endpoints, shutdown: &Shutdown) -> Result<(), Fault> {
    match listen(flags)? {
        Some(listener) => serve_at(listener, flags, endpoints, shutdown).await,
        None => Ok(()),
    }
}

fn listen(flags: &Flags) -> Result<Option<TcpListener>, Fault> {
    let port = flags.int("secure-port");
    let Ok(port) = u16::try_from(port) else {
        let why = "must be between 0 and 65535, inclusive. 0 for turning off secure port";
        return Err(format!("--secure-port {port} {why}").into());
    };
    if port == 0 {
        return Ok(None);
    }
    let address = SocketAddr::new(flags.ip("bind-address").unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), port);
    let listener = server::listen(address, flags.switch("permit-port-sharing"));
    let refused = |e| format!("failed to create listener: failed to listen on {address}: {e}");
    Ok(Some(listener.map_err(refused)?))
}

async fn serve_at(
    listener: TcpListener, flags: &Flags, endpoints: Endpoints, shutdown: &Shutdown,
) -> Result<(), Fault> {
    let identity = identity(flags, endpoints.component)?;
    identity.keep_fresh(shutdown);
    let authorities = flags.path("client-ca-file").map(Authorities::load).transpose()?;
    if let Some(authorities) = &authorities {
        authorities.keep_fresh(shutdown);
    }
    let ask: Vec<Arc<Authorities>> = authorities.iter().cloned().collect();
    let tls = tls::server(identity, Some(&ask), &flags.tls_policy())?;
    let gate = Delegated::new(Settings {
        authentication: connect(flags, "authentication-kubeconfig", endpoints.component).await?,
        authorization: connect(flags, "authorization-kubeconfig", endpoints.component).await?,
        authorities,
        look_up: !flags.switch("authentication-skip-lookup"),
        open: flags.list("authorization-always-allow-paths"),
    });
    let endpoints = Endpoints { gate: Some(gate), ..endpoints };
    tokio::spawn(server::serve(listener, Some(tls), Limits::default(), Arc::new(endpoints), shutdown.clone()));
    Ok(())
}

async fn connect(flags: &Flags, flag: &str, component: &str) -> Result<Option<Connection>, Fault> {
    match flags.path(flag) {
        Some(path) => Ok(Some(Connection::open(Some(&path), component).await?)),
        None => Ok(None),
    }
}

/// The certificate that is given; else one that is kept in `--cert-dir`; else one of this process alone.
fn identity(flags: &Flags, component: &str) -> Result<Arc<Identity>, tls::Error> {
    if let (Some(cert), Some(key)) = (flags.path("tls-cert-file"), flags.path("tls-private-key-file")) {
        return Identity::from_files(Files { cert, key });
    }
    let names = ["localhost".to_string(), "127.0.0.1".to_string(), crate::hostname()];
    match flags.path("cert-dir") {
        Some(dir) => Identity::self_signed_in(&dir, component, &names),
        None => Identity::self_signed(&names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::flags;
    use base::health::Checks;
    use hyper_util::client::legacy::Client;
    use hyper_util::rt::TokioExecutor;
    use kube::client::Body;

    async fn get(address: SocketAddr, path: &str) -> u16 {
        let mut tls = (*tls::insecure_client(None, &["h2"]).unwrap()).clone();
        // The connector chooses protocols itself.
        tls.alpn_protocols.clear();
        let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().build();
        let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build(https);
        let request = http::Request::get(format!("https://{address}{path}")).body(Body::empty()).unwrap();
        let answer = client.request(request).await.unwrap();
        answer.status().as_u16()
    }

    #[tokio::test]
    async fn anonymous_clients_see_health_and_nothing_else() {
        let all = flags::serving(1).into_iter().chain(flags::delegating());
        let flags = flags::parse(flags::command("kube-test", "", all), []).unwrap();
        let endpoints = Endpoints {
            healthz: Checks::new(),
            livez: Checks::new(),
            readyz: Checks::new(),
            component: "kube-test",
            metrics: true,
            ..Endpoints::default()
        };
        let shutdown = Shutdown::new();
        let _end = shutdown.clone().drop_guard();
        let listener = server::listen("127.0.0.1:0".parse().unwrap(), false).unwrap();
        let address = listener.local_addr().unwrap();
        serve_at(listener, &flags, endpoints, &shutdown).await.unwrap();
        for path in ["/healthz", "/livez", "/readyz"] {
            assert_eq!(get(address, path).await, 200, "{path}");
        }
        for path in ["/metrics", "/configz", "/flagz", "/statusz", "/version", "/healthz/ping"] {
            assert_eq!(get(address, path).await, 403, "{path}");
        }
    }

    #[tokio::test]
    async fn ports_that_are_none_are_refused_and_none_is_opened_for_0() {
        let listener = |port: &str| {
            let flags = flags::parse(flags::command("kube-test", "", flags::serving(1)), [port.into()]).unwrap();
            listen(&flags)
        };
        assert!(listener("--secure-port=0").unwrap().is_none());
        let why = listener("--secure-port=70000").unwrap_err().to_string();
        assert_eq!(why, "--secure-port 70000 must be between 0 and 65535, inclusive. 0 for turning off secure port");
    }
}
