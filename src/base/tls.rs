//! TLS for servers and clients: rustls on aws-lc-rs, certificates that are read again when their files change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

use crate::shutdown::Shutdown;

/// How often files are looked at again.
const RELOAD: Duration = Duration::from_secs(60);

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read or holds no PEM of the wanted kind.
    #[error("{path}: {why}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// rustls refuses what it is given.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
    /// A name that a flag gives is not known.
    #[error("{0}")]
    Flag(String),
}

fn file_error(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::File { path: path.display().to_string(), why: why.to_string() }
}

/// The cryptography that every connection uses.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::LazyLock<Arc<CryptoProvider>> =
        std::sync::LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    PROVIDER.clone()
}

/// Makes [`provider`] the default for libraries that ask for one. Idempotent.
pub fn install() {
    // An error says that one is installed, which is what is wanted.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Reads the certificates of a PEM file.
///
/// # Errors
/// When the file can't be read or holds none.
pub fn load_certs(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    parse_certs(&std::fs::read(path).map_err(|e| file_error(path, e))?).map_err(|why| file_error(path, why))
}

/// Certificates of PEM text.
///
/// # Errors
/// When there are none or one is malformed.
pub fn parse_certs(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certs: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|e| format!("malformed PEM: {e}"))?;
    if certs.is_empty() { Err("data does not contain any valid RSA or ECDSA certificates".into()) } else { Ok(certs) }
}

/// Reads the private key of a PEM file.
///
/// # Errors
/// When the file can't be read or holds none.
pub fn load_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    let pem = std::fs::read(path).map_err(|e| file_error(path, e))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|e| file_error(path, e))
}

/// A certificate chain and its key, as files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// PEM with the certificate and its intermediates.
    pub cert: PathBuf,
    /// PEM with the key.
    pub key: PathBuf,
}

impl Files {
    fn load(&self) -> Result<CertifiedKey, Error> {
        let key = provider().key_provider.load_private_key(load_key(&self.key)?)?;
        let certified = CertifiedKey::new(load_certs(&self.cert)?, key);
        certified.keys_match()?;
        Ok(certified)
    }
}

/// A certificate and key for servers or clients.
#[derive(Debug)]
pub struct Identity {
    files: Option<Files>,
    current: RwLock<Arc<CertifiedKey>>,
}

impl Identity {
    /// From files; [`Identity::keep_fresh`] reads them again.
    ///
    /// # Errors
    /// When they can't be read or don't fit together.
    pub fn from_files(files: Files) -> Result<Arc<Self>, Error> {
        let current = RwLock::new(Arc::new(files.load()?));
        Ok(Arc::new(Self { files: Some(files), current }))
    }

    /// A fresh self-signed certificate for these names and addresses, kept in memory only.
    ///
    /// # Errors
    /// When a name is no DNS name.
    pub fn self_signed(names: &[String]) -> Result<Arc<Self>, Error> {
        let made = rcgen::generate_simple_self_signed(names).map_err(|e| Error::Flag(e.to_string()))?;
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(|e| Error::Flag(e.to_string()))?;
        Self::from_der(vec![made.cert.der().clone()], key)
    }

    /// A self-signed certificate that is kept in a directory as `NAME.crt` and `NAME.key`, and made when it is not
    /// there.
    ///
    /// # Errors
    /// When the files can't be read or written.
    pub fn self_signed_in(dir: &Path, name: &str, names: &[String]) -> Result<Arc<Self>, Error> {
        let files = Files { cert: dir.join(format!("{name}.crt")), key: dir.join(format!("{name}.key")) };
        if !files.cert.exists() || !files.key.exists() {
            let made = rcgen::generate_simple_self_signed(names).map_err(|e| Error::Flag(e.to_string()))?;
            std::fs::create_dir_all(dir).map_err(|e| file_error(dir, e))?;
            write_private(&files.key, &made.signing_key.serialize_pem())?;
            std::fs::write(&files.cert, made.cert.pem()).map_err(|e| file_error(&files.cert, e))?;
        }
        Self::from_files(files)
    }

    /// From a chain and a key that are at hand.
    ///
    /// # Errors
    /// When they don't fit together.
    pub fn from_der(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Arc<Self>, Error> {
        let key = provider().key_provider.load_private_key(key)?;
        let certified = CertifiedKey::new(chain, key);
        certified.keys_match()?;
        Ok(Arc::new(Self { files: None, current: RwLock::new(Arc::new(certified)) }))
    }

    /// The certificate and key now.
    pub fn current(&self) -> Arc<CertifiedKey> {
        self.current.read().clone()
    }

    /// Reads the files again each minute until the shutdown; a pair that is broken is reported and not taken.
    pub fn keep_fresh(self: &Arc<Self>, shutdown: &Shutdown) {
        let (Some(files), identity) = (self.files.clone(), self.clone()) else { return };
        repeat(shutdown, move || match files.load() {
            Ok(new) if new.cert == identity.current().cert => {}
            Ok(new) => {
                tracing::info!(cert = %files.cert.display(), "reloaded certificate");
                *identity.current.write() = Arc::new(new);
            }
            Err(why) => tracing::error!(%why, "certificate can't be reloaded"),
        });
    }
}

/// Writes a file that nobody else may read.
fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let open = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    open.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|e| file_error(path, e))
}

fn repeat(shutdown: &Shutdown, work: impl Fn() + Send + 'static) {
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        while crate::shutdown::unless(&shutdown, tokio::time::sleep(RELOAD)).await.is_some() {
            work()
        }
    });
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

impl rustls::client::ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Several identities behind one socket: the one whose name the client asks for, else the first.
#[derive(Debug)]
struct ByName {
    default: Arc<Identity>,
    named: Vec<(Vec<String>, Arc<Identity>)>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asked = hello.server_name().unwrap_or_default().to_ascii_lowercase();
        let fits = |name: &String| match name.strip_prefix("*.") {
            Some(parent) => asked.split_once('.').is_some_and(|(_, rest)| rest == parent),
            None => *name == asked,
        };
        let named = self.named.iter().find(|(names, _)| names.iter().any(fits));
        Some(named.map_or(&self.default, |(_, identity)| identity).current())
    }
}

/// Reads a value of `--tls-sni-cert-key`: `cert,key` or `cert,key:name1,name2`; without names those of the certificate
/// hold.
///
/// # Errors
/// When it has another form or the files can't be read.
pub fn named(value: &str) -> Result<(Vec<String>, Arc<Identity>), Error> {
    let (files, names) = value.split_once(':').unwrap_or((value, ""));
    let (cert, key) = files.split_once(',').ok_or_else(|| {
        Error::Flag(format!("expected comma separated certificate and key file paths, found {value:?}"))
    })?;
    let identity = Identity::from_files(Files { cert: cert.into(), key: key.into() })?;
    let mut names: Vec<String> = names.split(',').filter(|n| !n.is_empty()).map(str::to_ascii_lowercase).collect();
    if names.is_empty() {
        names = dns_names(&identity.current().cert[0]);
    }
    Ok((names, identity))
}

fn dns_names(cert: &CertificateDer<'_>) -> Vec<String> {
    use x509_parser::prelude::{FromDer as _, GeneralName};
    let Ok((_, cert)) = x509_parser::certificate::X509Certificate::from_der(cert) else { return Vec::new() };
    let names = cert.subject_alternative_name().ok().flatten().map(|e| e.value.general_names.clone());
    let dns = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    };
    names.unwrap_or_default().iter().filter_map(dns).collect()
}

/// Certificate authorities that are trusted, read again when their file changes.
#[derive(Debug)]
pub struct Authorities {
    path: Option<PathBuf>,
    state: RwLock<Trusted>,
}

#[derive(Debug, Clone)]
struct Trusted {
    certs: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
}

impl Trusted {
    fn load(path: &Path) -> Result<Self, Error> {
        Self::of(load_certs(path)?)
    }

    fn of(certs: Vec<CertificateDer<'static>>) -> Result<Self, Error> {
        let roots = Arc::new(roots(&certs)?);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build();
        // The only thing it could miss is a root, and there is one.
        let clients = clients.map_err(|e| Error::Flag(e.to_string()))?;
        Ok(Self { certs, roots, clients })
    }
}

fn roots(certs: &[CertificateDer<'static>]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for cert in certs {
        roots.add(cert.clone())?;
    }
    Ok(roots)
}

impl Authorities {
    /// Reads a bundle.
    ///
    /// # Errors
    /// When the file can't be read or holds no certificate.
    pub fn load(path: impl Into<PathBuf>) -> Result<Arc<Self>, Error> {
        let path = path.into();
        let state = RwLock::new(Trusted::load(&path)?);
        Ok(Arc::new(Self { path: Some(path), state }))
    }

    /// From the text of a PEM file.
    ///
    /// # Errors
    /// When it holds no certificate.
    pub fn parse(pem: &[u8]) -> Result<Arc<Self>, Error> {
        let state = RwLock::new(Trusted::of(parse_certs(pem).map_err(Error::Flag)?)?);
        Ok(Arc::new(Self { path: None, state }))
    }

    /// Reads the file again each minute until the shutdown.
    pub fn keep_fresh(self: &Arc<Self>, shutdown: &Shutdown) {
        let (Some(path), bundle) = (self.path.clone(), self.clone()) else { return };
        repeat(shutdown, move || match Trusted::load(&path) {
            Ok(new) if new.certs == bundle.state.read().certs => {}
            Ok(new) => {
                tracing::info!(bundle = %path.display(), "reloaded certificate authorities");
                *bundle.state.write() = new;
            }
            Err(why) => tracing::error!(%why, "certificate authorities can't be reloaded"),
        });
    }

    /// The certificates in the bundle.
    pub fn certs(&self) -> Vec<CertificateDer<'static>> {
        self.state.read().certs.clone()
    }

    /// The bundle as PEM text.
    pub fn pem(&self) -> String {
        pem(&self.certs())
    }

    /// The bundle as roots of trust for clients.
    pub fn roots(&self) -> Arc<RootCertStore> {
        self.state.read().roots.clone()
    }

    /// Does this chain, end entity first, lead to one of the authorities, and may it be used by a client?
    ///
    /// # Errors
    /// Why not.
    pub fn verify_client(&self, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let Some((end, intermediates)) = chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        let verifier = self.state.read().clients.clone();
        verifier.verify_client_cert(end, intermediates, UnixTime::now()).map(|_| ())
    }
}

/// Certificates as PEM text.
pub fn pem(certs: &[CertificateDer<'_>]) -> String {
    use base64::Engine as _;
    let mut text = String::new();
    for cert in certs {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let body = base64::engine::general_purpose::STANDARD.encode(cert);
        for line in body.as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

/// Takes any client certificate whose key the client has; whether it is trusted is decided after the handshake, once
/// per connection, so that a stranger gets a 401 and not a broken connection.
#[derive(Debug)]
struct AskForCertificate {
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AskForCertificate {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self, _: &CertificateDer<'_>, _: &[CertificateDer<'_>], _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self, message: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self, message: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// What the `--tls-*` flags say.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// `--tls-min-version`: empty, `VersionTLS12` or `VersionTLS13`.
    pub min_version: String,
    /// `--tls-cipher-suites`: names as Go has them; empty for all.
    pub cipher_suites: Vec<String>,
    /// `--tls-sni-cert-key`: see [`named`].
    pub named: Vec<String>,
}

static ONLY_13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

impl Policy {
    fn versions(&self) -> Result<&'static [&'static rustls::SupportedProtocolVersion], Error> {
        match self.min_version.as_str() {
            // Go serves 1.0 and 1.1 when told to; nobody should, and rustls can't.
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => Ok(rustls::ALL_VERSIONS),
            "VersionTLS13" => Ok(ONLY_13),
            other => Err(Error::Flag(format!("unknown tls version {other:?}"))),
        }
    }

    fn provider(&self) -> Result<Arc<CryptoProvider>, Error> {
        if self.cipher_suites.is_empty() {
            return Ok(provider());
        }
        let mut limited = rustls::crypto::aws_lc_rs::default_provider();
        let known = limited.cipher_suites.clone();
        // TLS 1.3 suites can't be chosen in Go either: all stay.
        let mut chosen: Vec<_> = known.iter().copied().filter(|s| s.tls13().is_some()).collect();
        for name in &self.cipher_suites {
            let wanted = suite_name(name);
            match known.iter().find(|s| format!("{:?}", s.suite()) == wanted) {
                Some(suite) if suite.tls13().is_none() => chosen.push(*suite),
                Some(_) => {}
                None => return Err(Error::Flag(format!("Cipher suite {name} not supported or doesn't exist"))),
            }
        }
        limited.cipher_suites = chosen;
        Ok(Arc::new(limited))
    }
}

/// Go's name of a suite as rustls prints it.
fn suite_name(go: &str) -> String {
    let name = match go {
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        other => other,
    };
    match name {
        "TLS_AES_128_GCM_SHA256" | "TLS_AES_256_GCM_SHA384" | "TLS_CHACHA20_POLY1305_SHA256" => {
            name.replacen("TLS", "TLS13", 1)
        }
        other => other.to_string(),
    }
}

/// A server's configuration: HTTP/2 and HTTP/1.1 by ALPN. With `ask`, clients are asked for a certificate that leads to
/// one of these authorities (a hint; see [`Authorities::verify_client`]).
///
/// # Errors
/// When the policy names what is not known.
pub fn server(
    identity: Arc<Identity>, ask: Option<&[Arc<Authorities>]>, policy: &Policy,
) -> Result<Arc<rustls::ServerConfig>, Error> {
    let provider = policy.provider()?;
    let builder =
        rustls::ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(policy.versions()?)?;
    let builder = match ask {
        None => builder.with_no_client_auth(),
        Some(bundles) => {
            let hints = bundles.iter().flat_map(|b| b.roots().subjects()).collect();
            builder.with_client_cert_verifier(Arc::new(AskForCertificate { hints, provider }))
        }
    };
    let named: Vec<_> = policy.named.iter().map(|value| named(value)).collect::<Result<_, _>>()?;
    let mut config = match named.is_empty() {
        true => builder.with_cert_resolver(identity),
        false => builder.with_cert_resolver(Arc::new(ByName { default: identity, named })),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Tickets keep no state on our side; one per handshake is enough for clients that come back.
    config.ticketer = Arc::new(Tickets::default());
    config.send_tls13_tickets = 1;
    Ok(Arc::new(config))
}

/// Session tickets whose keys are made with the first handshake: they take random numbers, which a start has not yet.
#[derive(Debug, Default)]
struct Tickets(std::sync::OnceLock<Option<Arc<dyn ProducesTickets>>>);

impl Tickets {
    fn made(&self) -> Option<&dyn ProducesTickets> {
        let make = || match rustls::crypto::aws_lc_rs::Ticketer::new() {
            Ok(tickets) => Some(tickets),
            Err(why) => {
                tracing::error!(%why, "no session tickets can be made");
                None
            }
        };
        self.0.get_or_init(make).as_deref()
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.made().map_or(0, ProducesTickets::lifetime)
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.made()?.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.made()?.decrypt(cipher)
    }
}

/// A client's configuration: whom it trusts, who it is, which protocols it offers (`h2`, `http/1.1`).
///
/// # Errors
/// When rustls refuses the versions.
pub fn client(
    roots: Arc<RootCertStore>, identity: Option<Arc<Identity>>, alpn: &[&str],
) -> Result<Arc<rustls::ClientConfig>, Error> {
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(rustls::ALL_VERSIONS)?
        .with_root_certificates(roots);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

/// A client that takes any server certificate: for the kubelet where no authority is given (`--kubelet-certificate-
/// authority`), and for `insecureSkipTLSVerify`. The key must still belong to the certificate.
///
/// # Errors
/// When rustls refuses the versions.
pub fn insecure_client(identity: Option<Arc<Identity>>, alpn: &[&str]) -> Result<Arc<rustls::ClientConfig>, Error> {
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(rustls::ALL_VERSIONS)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider())));
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self, _: &CertificateDer<'_>, _: &[CertificateDer<'_>], _: &rustls_pki_types::ServerName<'_>, _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self, message: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self, message: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Common name, organizations and UID attribute of a certificate's subject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// `CN`.
    pub common_name: String,
    /// `O`, each.
    pub organizations: Vec<String>,
    /// End of validity, seconds since 1970.
    pub not_after: i64,
}

/// Reads the subject of a certificate.
///
/// # Errors
/// When it is malformed.
pub fn subject(cert: &CertificateDer<'_>) -> Result<Subject, String> {
    use x509_parser::prelude::FromDer as _;
    let (_, cert) = x509_parser::certificate::X509Certificate::from_der(cert).map_err(|e| e.to_string())?;
    let text = |a: &x509_parser::x509::AttributeTypeAndValue<'_>| a.as_str().unwrap_or_default().to_string();
    Ok(Subject {
        common_name: cert.subject().iter_common_name().last().map(text).unwrap_or_default(),
        organizations: cert.subject().iter_organization().map(text).collect(),
        not_after: cert.validity().not_after.timestamp(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_self_signed_identity_round_trips_through_pem() {
        let identity = Identity::self_signed(&["localhost".into(), "127.0.0.1".into()]).expect("made");
        let chain = identity.current().cert.clone();
        assert_eq!(parse_certs(pem(&chain).as_bytes()).expect("parsed"), chain);
    }

    #[test]
    fn cipher_suites_go_by_gos_names() {
        let named = |names: &[&str]| Policy {
            cipher_suites: names.iter().map(|s| s.to_string()).collect(),
            ..Default::default()
        };
        assert!(named(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"]).provider().is_ok());
        let refused = named(&["NOT_A_SUITE"]).provider().expect_err("refused");
        assert_eq!(refused.to_string(), "Cipher suite NOT_A_SUITE not supported or doesn't exist");
    }
}
