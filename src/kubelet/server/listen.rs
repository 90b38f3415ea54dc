//! The kubelet's listeners: HTTPS with authentication, the read-only port, the health port.

use super::auth::Guard;
use super::{Front, Server, stats};
use crate::flags::Options;
use crate::kubelet::Listed;
use crate::table::Table;
use crate::work::context::Context;
use base::Fault;
use base::flags::Flags;
use base::shutdown::Shutdown;
use base::tls::{Authorities, Files, Identity};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// The serving certificate: given, or made once and kept.
fn identity(options: &Options, ips: &[String]) -> Result<Arc<Identity>, Fault> {
    let config = &options.config;
    if !config.tls_cert_file.is_empty() && !config.tls_private_key_file.is_empty() {
        let files =
            Files { cert: config.tls_cert_file.clone().into(), key: config.tls_private_key_file.clone().into() };
        return Ok(Identity::from_files(files)?);
    }
    let files = Files { cert: options.cert_dir.join("kubelet.crt"), key: options.cert_dir.join("kubelet.key") };
    if !(files.cert.exists() && files.key.exists()) {
        let mut names = vec![options.node_name.clone(), "localhost".into()];
        names.extend(ips.iter().cloned());
        let made = rcgen::generate_simple_self_signed(names)?;
        std::fs::create_dir_all(&options.cert_dir)?;
        crate::bootstrap::write_secret(&files.key, &made.signing_key.serialize_pem())?;
        std::fs::write(&files.cert, made.cert.pem())?;
    }
    Ok(Identity::from_files(files)?)
}

/// Listens on the ports of the configuration until the shutdown; the tasks end when the ports are free again.
///
/// # Errors
/// When a certificate can't be read or made, or a port can't be had.
pub fn serve(
    flags: &Flags, options: &Options, ctx: &Arc<Context>, table: &Arc<Table>, listed: &Listed, shutdown: &Shutdown,
) -> Result<Vec<JoinHandle<()>>, Fault> {
    let config = &options.config;
    let ca_file = Path::new(&config.authentication.x509.client_ca_file);
    let authorities = match ca_file.as_os_str().is_empty() {
        true => None,
        false => Some(Authorities::load(ca_file)?),
    };
    if let Some(authorities) = &authorities {
        authorities.keep_fresh(shutdown);
    }
    let server = |readable: bool| {
        Arc::new(Server {
            ctx: ctx.clone(),
            table: table.clone(),
            configz: serde_json::to_value(config).unwrap_or_default(),
            flags: flags.all(),
            debugging: config.enable_debugging_handlers && !readable,
            system_logs: config.enable_system_log_handler && config.enable_debugging_handlers && !readable,
            listed: listed.clone(),
            meter: stats::Meter::default(),
        })
    };
    let guard = Guard::new(
        options.node_name.clone(),
        ctx.client.clone(),
        authorities.clone(),
        config.authentication.clone(),
        config.authorization.clone(),
    );
    // Streams outlive a request by hours; they end with the process.
    let limits = base::server::Limits { drain: Duration::from_secs(1), ..Default::default() };
    let mut servers = Vec::new();
    if config.enable_server {
        let identity = identity(options, &ctx.host_ips.read())?;
        identity.keep_fresh(shutdown);
        let ask: Vec<Arc<Authorities>> = authorities.into_iter().collect();
        let policy = base::tls::Policy {
            min_version: config.tls_min_version.clone(),
            cipher_suites: config.tls_cipher_suites.clone(),
            named: Vec::new(),
        };
        let tls = base::tls::server(identity, (!ask.is_empty()).then_some(ask.as_slice()), &policy)?;
        let listener = listen(&config.address, config.port)?;
        let front = Arc::new(Front::new(server(false), Some(guard)));
        servers.push(tokio::spawn(base::server::serve(listener, Some(tls), limits, front, shutdown.clone())));
        if config.read_only_port != 0 {
            let listener = listen(&config.address, config.read_only_port)?;
            let open = Arc::new(Front::new(server(true), None));
            servers.push(tokio::spawn(base::server::serve(listener, None, limits, open, shutdown.clone())));
        }
    }
    if config.healthz_port != 0 {
        let listener = listen(&config.healthz_bind_address, config.healthz_port)?;
        let health = Arc::new(Front::health(server(true)));
        servers.push(tokio::spawn(base::server::serve(listener, None, limits, health, shutdown.clone())));
    }
    Ok(servers)
}

fn listen(address: &str, port: u16) -> Result<tokio::net::TcpListener, Fault> {
    let ip: IpAddr = address.parse().map_err(|_| format!("invalid address {address:?}"))?;
    let at = SocketAddr::new(ip, port);
    base::server::listen(at, false).map_err(|error| format!("can't listen at {at}: {error}").into())
}
