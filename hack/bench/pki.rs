//! Certificates and keys for one API server: an authority, the server's certificate, an administrator's, and the key of
//! service-account tokens. The same files serve every run of a bench.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    RsaKeySize,
};
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Result;

/// A folder with the files.
pub struct Pki {
    dir: PathBuf,
}

fn params(names: &[&str], common_name: &str, organization: &str) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(names.iter().map(|n| (*n).to_string()).collect::<Vec<_>>())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    if !organization.is_empty() {
        params.distinguished_name.push(DnType::OrganizationName, organization);
    }
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

impl Pki {
    /// Makes all.
    ///
    /// # Errors
    /// When a file can't be written.
    pub fn make(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let pki = Self { dir: dir.to_path_buf() };
        let write = |name: &str, text: String| std::fs::write(pki.path(name), text);
        let mut authority = params(&[], "bench-ca", "")?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate()?;
        write("ca.crt", authority.self_signed(&key)?.pem())?;
        let issuer = Issuer::new(authority, key);
        let server = params(&["localhost", "127.0.0.1", "10.96.0.1"], "kube-apiserver", "")?;
        let admin = params(&[], "bench", "system:masters")?;
        let usages = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        for ((name, mut params), usage) in [("server", server), ("admin", admin)].into_iter().zip(usages) {
            params.extended_key_usages = vec![usage];
            params.use_authority_key_identifier_extension = true;
            let key = KeyPair::generate()?;
            write(&format!("{name}.crt"), params.signed_by(&key, &issuer)?.pem())?;
            write(&format!("{name}.key"), key.serialize_pem())?;
        }
        let tokens = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048)?;
        write("sa.key", tokens.serialize_pem())?;
        write("sa.pub", tokens.public_key_pem())?;
        Ok(pki)
    }

    /// A file's path.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// How the administrator connects.
    ///
    /// # Errors
    /// When a file is broken.
    pub fn admin(&self) -> Result<Arc<rustls::ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("ca.crt"))?)?;
        let chain = vec![CertificateDer::from_pem_file(self.path("admin.crt"))?];
        let key = PrivateKeyDer::from_pem_file(self.path("admin.key"))?;
        let config = rustls::ClientConfig::builder().with_root_certificates(roots);
        Ok(Arc::new(config.with_client_auth_cert(chain, key)?))
    }
}
