//! The cluster's certificates, from the table in `certs/table.yaml`.
//!
//! Files have kubeadm's names and places. What is there and good is kept, so that a second `up` changes nothing.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, RsaKeySize, SanType,
};
use serde::Deserialize;
use time::{Duration, OffsetDateTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};

use super::{Context, Error, Layout, Result};

/// Life of an authority, in days.
const AUTHORITY_DAYS: i64 = 3650;
/// Life of what authorities sign, in days.
const CERTIFICATE_DAYS: i64 = 365;

/// The table: what is issued to whom.
#[derive(Debug, Deserialize)]
pub struct Table {
    authorities: Vec<Authority>,
    certificates: Vec<Certificate>,
    keys: Vec<Key>,
    kubeconfigs: Vec<Subject>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Authority {
    name: String,
    common_name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Certificate {
    name: String,
    ca: String,
    common_name: String,
    #[serde(default)]
    organizations: Vec<String>,
    usages: Vec<Usage>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    addresses: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Key {
    name: String,
}

/// A client certificate that lives in a kubeconfig of this name.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// Name of the kubeconfig.
    pub name: String,
    common_name: String,
    #[serde(default)]
    organizations: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Usage {
    Server,
    Client,
}

/// The table as it stands in the project.
pub fn table() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        serde_saphyr::from_str(include_str!("../../../certs/table.yaml"))
            .expect("certs/table.yaml is part of the program")
    });
    &TABLE
}

/// What the placeholders of the table stand for.
#[derive(Debug, Clone)]
pub struct Names {
    /// Name of the node.
    pub node: String,
    /// Address under which others reach the API server.
    pub advertise: IpAddr,
    /// First address of the service range.
    pub service_ip: IpAddr,
    /// The cluster's domain.
    pub domain: String,
}

impl Names {
    fn fill(&self, text: &str) -> String {
        text.replace("$NODE", &self.node)
            .replace("$ADVERTISE", &self.advertise.to_string())
            .replace("$SERVICE_IP", &self.service_ip.to_string())
            .replace("$DOMAIN", &self.domain)
    }
}

/// A certificate with its key, as PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

fn file(layout: &Layout, name: &str, ending: &str) -> PathBuf {
    layout.pki().join(format!("{name}.{ending}"))
}

/// Writes a file that only its owner may read, whole or not at all.
///
/// # Errors
/// When it can't be written.
pub fn write_secret(path: &Path, text: &str) -> Result<()> {
    write(path, text, 0o600)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    let what = || format!("writing {}", path.display());
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).context(what())?;
    }
    let draft = path.with_extension("draft");
    let _ = fs::remove_file(&draft);
    let mut options = fs::OpenOptions::new();
    let mut out = options.write(true).create_new(true).mode(mode).open(&draft).context(what())?;
    out.write_all(text.as_bytes()).context(what())?;
    fs::rename(&draft, path).context(what())
}

fn read_pair(layout: &Layout, name: &str) -> Option<Pair> {
    let certificate = fs::read_to_string(file(layout, name, "crt")).ok()?;
    let key = fs::read_to_string(file(layout, name, "key")).ok()?;
    Some(Pair { certificate, key })
}

fn write_pair(layout: &Layout, name: &str, pair: &Pair) -> Result<()> {
    write_secret(&file(layout, name, "key"), &pair.key)?;
    write(&file(layout, name, "crt"), &pair.certificate, 0o644)
}

fn params(common_name: &str, organizations: &[String], days: i64) -> CertificateParams {
    let mut name = DistinguishedName::new();
    for organization in organizations {
        name.push(DnType::OrganizationName, organization.as_str());
    }
    name.push(DnType::CommonName, common_name);
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    // Clocks of a cluster's machines differ by a little.
    params.not_before = now - Duration::minutes(5);
    params.not_after = now + Duration::days(days);
    params
}

fn make_authority(common_name: &str) -> Result<Pair> {
    let what = format!("making the authority {common_name}");
    let mut params = params(common_name, &[], AUTHORITY_DAYS);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::KeyCertSign];
    params.subject_alt_names = vec![SanType::DnsName(common_name.try_into().context(&what)?)];
    let key = KeyPair::generate().context(&what)?;
    let certificate = params.self_signed(&key).context(&what)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn sign(ca: &Pair, mut params: CertificateParams, usages: &[Usage]) -> Result<Pair> {
    let what = "signing a certificate";
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = usages
        .iter()
        .map(|u| match u {
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        })
        .collect();
    params.use_authority_key_identifier_extension = true;
    let ca_key = KeyPair::from_pem(&ca.key).context(what)?;
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, ca_key).context(what)?;
    let key = KeyPair::generate().context(what)?;
    let certificate = params.signed_by(&key, &issuer).context(what)?;
    Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn issue(ca: &Pair, row: &Certificate, names: &Names) -> Result<Pair> {
    let organizations: Vec<String> = row.organizations.iter().map(|o| names.fill(o)).collect();
    let mut params = params(&names.fill(&row.common_name), &organizations, CERTIFICATE_DAYS);
    for name in &row.names {
        let name = names.fill(name);
        params.subject_alt_names.push(SanType::DnsName(name.as_str().try_into().context(format!("the name {name}"))?));
    }
    for address in &row.addresses {
        let address = names.fill(address);
        let ip = address.parse().context(format!("the address {address}"))?;
        if !params.subject_alt_names.contains(&SanType::IpAddress(ip)) {
            params.subject_alt_names.push(SanType::IpAddress(ip));
        }
    }
    sign(ca, params, &row.usages)
}

/// A client certificate for a subject of the table, signed by the cluster's authority.
///
/// # Errors
/// When the authority is missing or can't sign.
pub fn client(layout: &Layout, subject: &Subject, names: &Names) -> Result<Pair> {
    let organizations: Vec<String> = subject.organizations.iter().map(|o| names.fill(o)).collect();
    let params = params(&names.fill(&subject.common_name), &organizations, CERTIFICATE_DAYS);
    sign(&authority(layout, "ca")?, params, &[Usage::Client])
}

/// Subjects that have their certificate in a kubeconfig.
pub fn subjects() -> &'static [Subject] {
    &table().kubeconfigs
}

fn authority(layout: &Layout, name: &str) -> Result<Pair> {
    read_pair(layout, name)
        .ok_or_else(|| Error::new(format!("reading the authority {name}"), "its certificate or key is missing"))
}

fn make_key(layout: &Layout, name: &str) -> Result<()> {
    let what = format!("making the key {name}");
    if file(layout, name, "key").exists() && file(layout, name, "pub").exists() {
        return Ok(());
    }
    // RSA, since every verifier of service-account tokens knows RS256.
    let key = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).context(&what)?;
    write_secret(&file(layout, name, "key"), &key.serialize_pem())?;
    write(&file(layout, name, "pub"), &key.public_key_pem(), 0o644)
}

/// Makes what is missing. What is there is kept, unless it expires within 30 days or lacks a name or an address that
/// it must have by now.
///
/// # Errors
/// When a file can't be read or written.
pub fn ensure(layout: &Layout, names: &Names) -> Result<()> {
    ensure_below(layout, names, "")?;
    table().keys.iter().try_for_each(|row| make_key(layout, &row.name))
}

/// As [`ensure`], but only what etcd itself needs, so that it can start while the rest is made.
///
/// # Errors
/// When a file can't be read or written.
pub fn ensure_etcd(layout: &Layout, names: &Names) -> Result<()> {
    ensure_below(layout, names, "etcd/")
}

fn ensure_below(layout: &Layout, names: &Names, folder: &str) -> Result<()> {
    for row in table().authorities.iter().filter(|row| row.name.starts_with(folder)) {
        if read_pair(layout, &row.name).is_none() {
            write_pair(layout, &row.name, &make_authority(&row.common_name)?)?;
        }
    }
    for row in table().certificates.iter().filter(|row| row.name.starts_with(folder)) {
        if !is_good(layout, row, names) {
            write_pair(layout, &row.name, &issue(&authority(layout, &row.ca)?, row, names)?)?;
        }
    }
    Ok(())
}

/// Issues every certificate anew, with new keys; authorities and the service-account key stay.
///
/// # Errors
/// When a file can't be read or written.
pub fn renew(layout: &Layout, names: &Names) -> Result<()> {
    for row in &table().certificates {
        write_pair(layout, &row.name, &issue(&authority(layout, &row.ca)?, row, names)?)?;
    }
    Ok(())
}

/// When a certificate ends.
///
/// # Errors
/// When it is no certificate.
pub fn expiry(pem: &str) -> Result<OffsetDateTime> {
    let what = "reading a certificate";
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).context(what)?;
    let certificate = pem.parse_x509().context(what)?;
    Ok(certificate.validity().not_after.to_datetime())
}

/// Names and ends of all certificates, authorities first.
pub fn expiries(layout: &Layout) -> Vec<(String, Option<OffsetDateTime>)> {
    let names = table().authorities.iter().map(|r| &r.name).chain(table().certificates.iter().map(|r| &r.name));
    let read = |name: &String| {
        let pem = fs::read_to_string(file(layout, name, "crt")).ok()?;
        expiry(&pem).ok()
    };
    names.map(|name| (name.clone(), read(name))).collect()
}

/// Is a certificate there that lasts, is of the authority as it is now, and has the names and addresses of its row?
fn is_good(layout: &Layout, row: &Certificate, names: &Names) -> bool {
    let (Some(pair), Some(ca)) = (read_pair(layout, &row.name), read_pair(layout, &row.ca)) else { return false };
    let read = |pem: &str| x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok().map(|(_, pem)| pem);
    let (Some(pem), Some(ca)) = (read(&pair.certificate), read(&ca.certificate)) else { return false };
    let (Ok(certificate), Ok(ca)) = (pem.parse_x509(), ca.parse_x509()) else { return false };
    let has = alternatives(&certificate);
    fresh(certificate.validity().not_after.to_datetime())
        && issuer_key(&certificate).is_some_and(|key| Some(key) == own_key(&ca))
        && row.names.iter().all(|name| has.contains(&names.fill(name)))
        && row.addresses.iter().all(|a| names.fill(a).parse::<IpAddr>().is_ok_and(|ip| has.contains(&ip.to_string())))
}

/// Names and addresses that a certificate stands for.
fn alternatives(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(list)) = certificate.subject_alternative_name() else { return Vec::new() };
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match *bytes {
            [a, b, c, d] => Some(IpAddr::from([*a, *b, *c, *d]).to_string()),
            _ => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
        },
        _ => None,
    };
    list.value.general_names.iter().filter_map(text).collect()
}

/// Which key signed a certificate.
fn issuer_key<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a [u8]> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0),
        _ => None,
    })
}

/// The identifier of an authority's own key.
fn own_key<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a [u8]> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    })
}

fn fresh(ends: OffsetDateTime) -> bool {
    ends > OffsetDateTime::now_utc() + Duration::days(30)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(advertise: &str) -> Names {
        Names {
            node: "n1".into(),
            advertise: advertise.parse().unwrap(),
            service_ip: "10.96.0.1".parse().unwrap(),
            domain: "cluster.local".into(),
        }
    }

    #[test]
    fn what_is_good_is_kept_and_a_new_name_address_or_authority_makes_a_new_certificate() {
        let dir = std::env::temp_dir().join(format!("navarch-pki-{}", std::process::id()));
        let layout = Layout::new(&dir).unwrap();
        ensure(&layout, &names("192.0.2.7")).unwrap();
        let read = |name: &str| fs::read_to_string(file(&layout, name, "crt")).unwrap();
        let (ca, apiserver, client) = (read("ca"), read("apiserver"), read("front-proxy-client"));
        ensure(&layout, &names("192.0.2.7")).unwrap();
        assert_eq!((&ca, &apiserver), (&read("ca"), &read("apiserver")));
        ensure(&layout, &names("192.0.2.8")).unwrap();
        assert_eq!((&ca, &client), (&read("ca"), &read("front-proxy-client")));
        assert_ne!(apiserver, read("apiserver"));
        let (apiserver, renamed) = (read("apiserver"), Names { node: "n2".into(), ..names("192.0.2.8") });
        ensure(&layout, &renamed).unwrap();
        assert_ne!(apiserver, read("apiserver"), "another name of the node");
        assert_eq!(client, read("front-proxy-client"));
        fs::remove_file(file(&layout, "front-proxy-ca", "key")).unwrap();
        ensure(&layout, &renamed).unwrap();
        assert_ne!(client, read("front-proxy-client"), "another authority");
        let client = read("front-proxy-client");
        renew(&layout, &names("192.0.2.8")).unwrap();
        assert_ne!(client, read("front-proxy-client"));
        assert!(expiries(&layout).iter().all(|(_, end)| end.is_some_and(fresh)));
        fs::remove_dir_all(dir).unwrap();
    }
}
