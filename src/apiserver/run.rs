//! From a command line to a running server, and to its end.
//!
//! Start: keys and certificates, etcd, the cache's first list, then the socket opens and the hooks of
//! [`crate::bootstrap`] run behind `/readyz`. End: `/readyz` fails, the delay passes, the socket closes, what runs
//! finishes, watches are closed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::resources::{Row, Text};
use base::Fault;
use base::component::{self, Threads};
use base::flags::Flags;
use base::shutdown::Shutdown;
use base::tls::{Authorities, Identity};

use crate::authn::bootstrap_token::BootstrapTokens;
use crate::authn::keys::{self, Signer, Terms, Verifier};
use crate::authn::service_account::ServiceAccounts;
use crate::authn::static_token::StaticTokens;
use crate::authn::{Authenticator, FrontProxy, Tokens};
use crate::authz::Authorizer;
use crate::cors::Cors;
use crate::discovery::Discovery;
use crate::endpoints::oidc::Oidc;
use crate::entry::Decoder;
use crate::flow::Flow;
use crate::health::Health;
use crate::lookup::Lookup;
use crate::metrics::Metrics;
use crate::options::{self, Options};
use crate::registry::Resources;
use crate::server::{Door, Server};
use crate::streams::Streams;
use crate::{Api, admission, allocation, bootstrap, subresources};

/// Seconds that the tokens of pods live when their life is extended: a year.
const EXTENDED: i64 = 365 * 24 * 3600;

/// The component `kube-apiserver`; the arguments start with its name.
pub fn main(args: Vec<OsString>) -> ExitCode {
    component::main(options::command(), args, Threads::PerProcessor, |flags: Flags, shutdown| async move {
        let options = Options::read(&flags)?;
        run(options, shutdown).await
    })
}

/// Runs the server until the shutdown.
///
/// # Errors
/// When it can't start.
pub async fn run(options: Options, shutdown: Shutdown) -> Result<(), Fault> {
    let started = Instant::now();
    tracing::info!(version = base::version::GIT_VERSION, "starting kube-apiserver");
    // Parsed on first use, which would be in the way of the first writes.
    tokio::task::spawn_blocking(api::schema::builtin);
    let identity = serving_identity(&options)?;
    identity.keep_fresh(&shutdown);
    let metrics = Arc::new(Metrics::new());
    let resources = Arc::new(Resources::new(table(&options.runtime_config)?));
    let store = connect(&options, metrics.clone()).await?;
    let health =
        Health::new(&store, (options.etcd.health_timeout, options.etcd.ready_timeout), options.livez_grace, &shutdown);
    let root = format!("{}/", options.settings.etcd_prefix);
    let decoder = || Decoder::new(&options.settings.etcd_prefix, resources.clone());
    let starting =
        retry(options.etcd.start_timeout, &shutdown, || store::cache::Cache::start(store.clone(), &root, decoder()));
    let Some(cache) = starting.await? else { return Ok(()) };
    tracing::info!(revision = cache.revision(), took = ?started.elapsed(), "the cache is filled");
    let lookup = Lookup::new(cache.clone(), resources.clone(), &options.settings.etcd_prefix);
    let verifiers = verifiers(&options)?;
    let oidc = oidc(&options, &verifiers);
    let authenticator = authenticator(&options, verifiers, &lookup, &shutdown)?;
    let ask: Vec<Arc<Authorities>> =
        authenticator.clients.iter().chain(authenticator.front_proxy.iter().map(|p| &p.authorities)).cloned().collect();
    let tls = base::tls::server(identity, Some(&ask), &options.tls)?;
    let api = Arc::new(Api {
        store,
        cache,
        resources: resources.clone(),
        settings: options.settings.clone(),
        authenticator: Arc::new(authenticator),
        authorizer: Arc::new(Authorizer::new(&options.authorization, &lookup)?),
        admission: admission::Chain::new(&options.settings),
        services: allocation::Services::new(&options.settings),
        tokens: issuer(&options)?,
    });
    let flow = Flow::new(options.in_flight);
    let discovery = Discovery::new(resources);
    let cors = Cors::new(&options.cors)?;
    let ending = Shutdown::new();
    let streams = Streams::new(&options.kubelet, &shutdown, ending.clone())?;
    let server = Arc::new(Server { api, options, flow, metrics, health, discovery, oidc, cors, streams, ending });
    serve(server, tls, shutdown, started).await
}

async fn serve(
    server: Arc<Server>, tls: Arc<rustls::ServerConfig>, shutdown: Shutdown, started: Instant,
) -> Result<(), Fault> {
    let options = &server.options;
    let listener = base::server::listen(options.listen, options.share_port)
        .map_err(|e| format!("failed to create listener: failed to listen on {}: {e}", options.listen))?;
    tracing::info!(address = %listener.local_addr()?, took = ?started.elapsed(), "serving securely");
    server.health.hooks.done_except(bootstrap::PENDING);
    let work = tokio::spawn(bootstrap::run(server.clone(), shutdown.clone()));
    // The socket closes only after the delay; health checks fail from the first moment.
    let closing = Shutdown::new();
    tokio::spawn({
        let (server, shutdown, closing) = (server.clone(), shutdown.clone(), closing.clone());
        async move {
            shutdown.cancelled().await;
            tokio::time::sleep(server.options.shutdown_delay).await;
            closing.cancel();
            tokio::time::sleep(server.options.watch_grace).await;
            server.ending.cancel();
        }
    });
    let limits = base::server::Limits {
        streams: if options.streams == 0 { 100 } else { options.streams },
        drain: options.request_timeout.max(options.watch_grace),
        ..base::server::Limits::default()
    };
    base::server::serve(listener, Some(tls), limits, Arc::new(Door(server.clone())), closing).await;
    if let Err(why) = work.await {
        tracing::error!(%why, "the hooks after the start ended badly");
    }
    tracing::info!("ended");
    Ok(())
}

/// Tries until it works, the time is over or the shutdown comes (`None`).
async fn retry<T, F: Future<Output = store::Result<T>>>(
    patience: Duration, shutdown: &Shutdown, attempt: impl Fn() -> F,
) -> Result<Option<T>, Fault> {
    let deadline = Instant::now() + patience;
    let policy = base::backoff::Policy::doubling(Duration::from_millis(20), Duration::from_secs(2));
    let mut backoff = base::backoff::Backoff::new(policy);
    loop {
        let Some(outcome) = base::shutdown::unless(shutdown, attempt()).await else { return Ok(None) };
        match outcome {
            Ok(value) => return Ok(Some(value)),
            Err(why) if Instant::now() >= deadline => return Err(format!("etcd can't be read: {why}").into()),
            Err(why) => {
                tracing::warn!(%why, "waiting for etcd");
                if base::shutdown::unless(shutdown, tokio::time::sleep(backoff.failed())).await.is_none() {
                    return Ok(None);
                }
            }
        }
    }
}

async fn connect(options: &Options, metrics: Arc<Metrics>) -> Result<Arc<dyn store::Store>, Fault> {
    let etcd = store::etcd::Options {
        endpoints: options.etcd.servers.clone(),
        ca: options.etcd.ca.clone(),
        identity: options.etcd.identity.clone(),
        compaction: options.etcd.compaction,
        observer: Some(metrics),
    };
    Ok(store::etcd::Etcd::connect(etcd).await?)
}

/// The certificate we serve with; made on the spot when none is given.
fn serving_identity(options: &Options) -> Result<Arc<Identity>, Fault> {
    if let Some(files) = &options.serving {
        return Ok(Identity::from_files(files.clone())?);
    }
    let mut names: Vec<String> =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1"]
            .map(String::from)
            .into();
    names.push(options.advertise.to_string());
    if !options.external_hostname.is_empty() {
        names.push(options.external_hostname.clone());
    }
    tracing::info!(?names, dir = %options.cert_dir.display(), "no certificate is given; a self-signed one serves");
    Ok(Identity::self_signed_in(&options.cert_dir, "apiserver", &names)?)
}

/// The table with the versions that are served: the default ones, as `--runtime-config` changes them.
///
/// # Errors
/// When a key of it makes no sense.
pub fn table(config: &BTreeMap<String, String>) -> Result<BTreeMap<(Text, Text), Arc<Row>>, String> {
    for (key, value) in config {
        if !matches!(value.as_str(), "true" | "false" | "") {
            return Err(format!("runtime-config invalid: cannot parse value of key {key}={value}"));
        }
    }
    let say = |key: &str| config.get(key).map(|v| v != "false");
    let served = |group: &str, version: &str, plural: &str, default: bool| {
        let name = api::resources::api_version(group, version);
        let stage = match version {
            v if v.contains("alpha") => "api/alpha",
            v if v.contains("beta") => "api/beta",
            _ => "api/ga",
        };
        let specific = say(&format!("{name}/{plural}")).or_else(|| say(&name));
        specific.or_else(|| say(stage)).or_else(|| say("api/all")).unwrap_or(default)
    };
    let rows = api::resources::builtin().iter().filter_map(|row| {
        let mut row = row.clone();
        let (group, plural) = (row.group.clone(), row.plural.clone());
        row.versions.retain(|v| served(&group, &v.name, &plural, v.default));
        (!row.versions.is_empty()).then(|| ((group, plural), Arc::new(row)))
    });
    Ok(rows.collect())
}

fn verifiers(options: &Options) -> Result<Vec<Verifier>, String> {
    let files = options.service_accounts.keys.iter();
    let keys: Result<Vec<Vec<Verifier>>, String> = files.map(|path| keys::verifiers(path)).collect();
    let mut keys: Vec<Verifier> = keys?.into_iter().flatten().collect();
    let mut seen = std::collections::HashSet::new();
    keys.retain(|k| seen.insert(k.id.clone()));
    Ok(keys)
}

fn oidc(options: &Options, keys: &[Verifier]) -> Oidc {
    let accounts = &options.service_accounts;
    let issuer = accounts.issuers.first().map_or("", String::as_str);
    let own = || {
        let host = match options.external_hostname.as_str() {
            "" => std::net::SocketAddr::new(options.advertise, options.listen.port()).to_string(),
            name => format!("{name}:{}", options.listen.port()),
        };
        format!("https://{host}/openid/v1/jwks")
    };
    let uri = if accounts.jwks_uri.is_empty() { own() } else { accounts.jwks_uri.clone() };
    Oidc::new(issuer, &uri, keys)
}

fn issuer(options: &Options) -> Result<Option<Arc<dyn subresources::token::Issuer>>, String> {
    let accounts = &options.service_accounts;
    let (Some(key), Some(issuer)) = (&accounts.signing_key, accounts.issuers.first()) else { return Ok(None) };
    let terms = Terms {
        issuer: issuer.clone(),
        audiences: options.authentication.audiences.clone(),
        max_expiration: accounts.max_expiration,
        extension: if accounts.extend { EXTENDED } else { 0 },
    };
    Ok(Some(Arc::new(Signer::load(key, terms)?)))
}

fn authenticator(
    options: &Options, keys: Vec<Verifier>, lookup: &Lookup, shutdown: &Shutdown,
) -> Result<Authenticator, Fault> {
    let told = &options.authentication;
    let load = |path: &std::path::PathBuf| -> Result<Arc<Authorities>, base::tls::Error> {
        let bundle = Authorities::load(path)?;
        bundle.keep_fresh(shutdown);
        Ok(bundle)
    };
    let clients = told.client_ca.as_ref().map(load).transpose()?;
    let [username_headers, uid_headers, group_headers, extra_prefixes] = told.front_proxy_headers.clone();
    let front_proxy = told.front_proxy_ca.as_ref().map(load).transpose()?.map(|authorities| FrontProxy {
        authorities,
        allowed_names: told.front_proxy_names.clone(),
        username_headers,
        uid_headers,
        group_headers,
        extra_prefixes,
    });
    let mut tokens: Vec<Box<dyn Tokens>> = Vec::new();
    if let Some(path) = &told.token_file {
        tokens.push(Box::new(StaticTokens::load(path)?));
    }
    let accounts = &options.service_accounts;
    tokens.push(Box::new(ServiceAccounts::new(
        accounts.issuers.clone(),
        told.audiences.clone(),
        keys,
        lookup.clone(),
        accounts.lookup,
    )));
    if told.bootstrap_tokens {
        tokens.push(Box::new(BootstrapTokens(lookup.clone())));
    }
    let anonymous = told.anonymous && options.authorization != ["AlwaysAllow"];
    Ok(Authenticator { clients, front_proxy, tokens, audiences: told.audiences.clone(), anonymous })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_config_switches_versions() {
        let served = |pairs: &[(&str, &str)], group: &'static str, plural: &'static str| {
            let config = pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            let table = table(&config).expect("table");
            let row = table.get(&(Text::Borrowed(group), Text::Borrowed(plural)));
            row.map(|r| r.versions.iter().map(|v| v.name.to_string()).collect::<Vec<_>>()).unwrap_or_default()
        };
        assert_eq!(served(&[], "apps", "deployments"), ["v1"]);
        assert_eq!(served(&[("apps/v1", "false")], "apps", "deployments"), Vec::<String>::new());
        assert_eq!(served(&[], "resource.k8s.io", "resourceclaims"), ["v1"]);
        assert!(served(&[("api/beta", "true")], "resource.k8s.io", "resourceclaims").len() > 1);
        assert!(table(&BTreeMap::from([("api/all".to_string(), "maybe".to_string())])).is_err());
    }
}
