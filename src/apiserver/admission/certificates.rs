//! CertificateSubjectRestriction: no client certificate for `system:masters` through the API.

use api::Value;
use api::status::Status;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use super::{Operation, Plugin, Review};
use crate::registry::object;

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// The plugin.
pub struct CertificateSubjectRestriction;

#[async_trait::async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.is("certificates.k8s.io", "certificatesigningrequests") && review.operation == Operation::Create
    }

    async fn validate(&self, review: &Review<'_>, request: &Value) -> Result<(), Status> {
        if object::text(request, &["spec", "signerName"]) != CLIENT_SIGNER {
            return Ok(());
        }
        let organizations = organizations(object::text(request, &["spec", "request"]))
            .map_err(|why| review.forbidden(request, format!("failed to parse CSR: {why}")))?;
        if organizations.iter().any(|name| name == "system:masters") {
            let why = format!("use of {CLIENT_SIGNER} signer with system:masters group is not allowed");
            return Err(review.forbidden(request, why));
        }
        Ok(())
    }
}

/// The organizations of the subject of a request: base64 around PEM.
fn organizations(request: &str) -> Result<Vec<String>, String> {
    let pem = STANDARD.decode(request).map_err(|e| e.to_string())?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).map_err(|e| e.to_string())?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).map_err(|e| e.to_string())?;
    let subject = request.certification_request_info.subject;
    Ok(subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_string)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_organizations_of_a_request_are_read() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        assert_eq!(organizations(&STANDARD.encode(pem)).unwrap(), ["system:masters"]);
    }
}
