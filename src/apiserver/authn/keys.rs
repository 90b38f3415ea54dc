//! Keys of service-account tokens: those that verify, the one that signs, and the JWKS document that tells others.

use std::path::Path;

use api::Value;
use api::status::Status;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header};
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use sha2::Digest as _;
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// A key that verifies tokens.
pub struct Verifier {
    /// `kid`: hash of the key.
    pub id: String,
    /// Algorithm of its signatures.
    pub algorithm: Algorithm,
    /// The key.
    pub key: DecodingKey,
    /// As an entry of the JWKS document.
    pub jwk: Value,
}

impl Verifier {
    /// From a SubjectPublicKeyInfo.
    fn new(spki: &[u8]) -> Result<Self, String> {
        let (_, parsed) = SubjectPublicKeyInfo::from_der(spki).map_err(|e| e.to_string())?;
        let id = URL_SAFE_NO_PAD.encode(sha2::Sha256::digest(spki));
        let pem = pem("PUBLIC KEY", spki);
        let key = parsed.parsed().map_err(|e| e.to_string())?;
        let (algorithm, key, mut jwk) = match key {
            PublicKey::RSA(rsa) => {
                let number = |n: &[u8]| URL_SAFE_NO_PAD.encode(&n[n.iter().take_while(|b| **b == 0).count()..]);
                let jwk = json!({"kty": "RSA", "n": number(rsa.modulus), "e": number(rsa.exponent)});
                (Algorithm::RS256, DecodingKey::from_rsa_pem(pem.as_bytes()), jwk)
            }
            PublicKey::EC(point) => {
                let point = point.data();
                let half = point.len() / 2;
                let (algorithm, curve) = match half {
                    32 => (Algorithm::ES256, "P-256"),
                    48 => (Algorithm::ES384, "P-384"),
                    _ => return Err("unknown curve of a service account key".into()),
                };
                let encode = |b: &[u8]| URL_SAFE_NO_PAD.encode(b);
                let jwk =
                    json!({"kty": "EC", "crv": curve, "x": encode(&point[1..=half]), "y": encode(&point[half + 1..])});
                (algorithm, DecodingKey::from_ec_pem(pem.as_bytes()), jwk)
            }
            _ => return Err("unknown kind of service account key".into()),
        };
        jwk["use"] = "sig".into();
        jwk["kid"] = id.clone().into();
        jwk["alg"] = format!("{algorithm:?}").into();
        Ok(Self { id, algorithm, key: key.map_err(|e| e.to_string())?, jwk })
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let body = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}

/// The keys of a PEM file: public ones, certificates, or private ones (whose public half counts).
///
/// # Errors
/// When the file can't be read or holds no key.
pub fn verifiers(path: &Path) -> Result<Vec<Verifier>, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let found: Result<Vec<_>, String> = public_keys(&bytes).and_then(|k| k.iter().map(|k| Verifier::new(k)).collect());
    match found {
        Ok(keys) if keys.is_empty() => {
            Err(format!("{}: data does not contain any valid RSA or ECDSA public keys", path.display()))
        }
        other => other.map_err(|e| format!("{}: {e}", path.display())),
    }
}

/// SubjectPublicKeyInfo of every key in PEM text.
fn public_keys(bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut keys = Vec::new();
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(bytes) {
        let (kind, der) = section.map_err(|e| e.to_string())?;
        match kind {
            SectionKind::PublicKey => keys.push(der),
            SectionKind::Certificate => keys.push(of_certificate(&CertificateDer::from(der))?),
            SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                let key = PrivateKeyDer::from_pem(kind, der).ok_or("not a private key")?;
                keys.push(public_half(key)?);
            }
            _ => {}
        }
    }
    Ok(keys)
}

fn of_certificate(der: &CertificateDer<'_>) -> Result<Vec<u8>, String> {
    let (_, cert) = x509_parser::certificate::X509Certificate::from_der(der).map_err(|e| e.to_string())?;
    Ok(cert.public_key().raw.to_vec())
}

fn public_half(key: PrivateKeyDer<'static>) -> Result<Vec<u8>, String> {
    let key = base::tls::provider().key_provider.load_private_key(key).map_err(|e| e.to_string())?;
    Ok(key.public_key().ok_or("the key has no public half")?.to_vec())
}

/// Signs service-account tokens.
pub struct Signer {
    header: Header,
    key: EncodingKey,
    issuer: String,
    audiences: Vec<String>,
    max_expiration: i64,
    extension: i64,
}

/// What the `--service-account-*` flags say about tokens.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// `iss`.
    pub issuer: String,
    /// Audiences of tokens whose request names none.
    pub audiences: Vec<String>,
    /// Longest life in seconds; 0 for no bound.
    pub max_expiration: i64,
    /// Life of the tokens that pods ask for by their usual 3607 seconds; 0 leaves it at that.
    pub extension: i64,
}

impl Signer {
    /// Reads the key.
    ///
    /// # Errors
    /// When the file holds no RSA or EC key.
    pub fn load(path: &Path, terms: Terms) -> Result<Self, String> {
        let fault = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let bytes = std::fs::read(path).map_err(|e| fault(&e))?;
        let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| fault(&e))?;
        let verifier = Verifier::new(&public_half(key.clone_key()).map_err(|e| fault(&e))?).map_err(|e| fault(&e))?;
        let encoding = match verifier.algorithm {
            Algorithm::RS256 => EncodingKey::from_rsa_pem(&bytes),
            _ => {
                // Keys in SEC 1 form are brought into PKCS#8 first, the only one that the JWT library reads.
                let pair = rcgen::KeyPair::try_from(&key).map_err(|e| fault(&e))?;
                EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes())
            }
        };
        let mut header = Header::new(verifier.algorithm);
        header.typ = None;
        header.kid = Some(verifier.id);
        let Terms { issuer, audiences, max_expiration, extension } = terms;
        Ok(Self { header, key: encoding.map_err(|e| fault(&e))?, issuer, audiences, max_expiration, extension })
    }
}

impl crate::subresources::token::Issuer for Signer {
    fn issuer(&self) -> &str {
        &self.issuer
    }

    fn audiences(&self) -> &[String] {
        &self.audiences
    }

    fn max_expiration(&self) -> i64 {
        self.max_expiration
    }

    fn extension(&self) -> i64 {
        self.extension
    }

    fn sign(&self, claims: &Value) -> Result<String, Status> {
        let signed = jsonwebtoken::encode(&self.header, claims, &self.key);
        signed.map_err(|e| Status::internal(format!("failed to generate token: {e}")))
    }
}
