//! Plugins for certificate requests: who may approve and sign them, and that none of them is for `system:masters`.

use api::Value;
use api::status::Status;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use x509_parser::prelude::{FromDer, X509CertificationRequest, X509Name};

use super::{Operation, Plugin, Review};
use crate::authz::{Attributes, Decision};
use crate::registry::object;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Only those who may `approve` for a signer change the approval.
pub struct CertificateApproval;

#[async_trait::async_trait]
impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.is_sub(GROUP, PLURAL, "approval") && review.operation == Operation::Update
    }

    async fn validate(&self, review: &Review<'_>, request: &Value) -> Result<(), Status> {
        let signer = object::text(review.old.unwrap_or(request), &["spec", "signerName"]);
        if may(review, "approve", signer) {
            return Ok(());
        }
        let why = format!("user not permitted to approve requests with signerName \"{signer}\"");
        Err(review.forbidden(request, why))
    }
}

/// Only those who may `sign` for a signer set the certificate or conditions.
pub struct CertificateSigning;

#[async_trait::async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.is_sub(GROUP, PLURAL, "status") && review.operation == Operation::Update
    }

    async fn validate(&self, review: &Review<'_>, request: &Value) -> Result<(), Status> {
        let old = review.old.unwrap_or(request);
        let same = |field: &str| object::at(old, &["status", field]) == object::at(request, &["status", field]);
        let signer = object::text(old, &["spec", "signerName"]);
        if same("certificate") && same("conditions") || may(review, "sign", signer) {
            return Ok(());
        }
        let why = format!("user not permitted to sign requests with signerName \"{signer}\"");
        Err(review.forbidden(request, why))
    }
}

/// True when the user may do that for the signer, or for all signers of its domain.
fn may(review: &Review<'_>, verb: &str, signer: &str) -> bool {
    let domain = format!("{}/*", signer.split('/').next().unwrap_or_default());
    [signer, &domain].iter().any(|name| {
        let asked = Attributes {
            verb,
            is_resource: true,
            group: GROUP,
            version: "*",
            resource: "signers",
            name,
            ..Attributes::default()
        };
        matches!(review.api.authorizer.authorize(review.user, &asked), Decision::Allow(_))
    })
}

/// No client certificate for `system:masters` comes through the API.
pub struct CertificateSubjectRestriction;

#[async_trait::async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, review: &Review<'_>) -> bool {
        review.is(GROUP, PLURAL) && review.operation == Operation::Create
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

/// Reads the subject of a request: base64 around PEM.
fn subject<T>(request: &str, read: impl Fn(&X509Name<'_>) -> T) -> Result<T, String> {
    let pem = STANDARD.decode(request).map_err(|e| e.to_string())?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).map_err(|e| e.to_string())?;
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).map_err(|e| e.to_string())?;
    Ok(read(&request.certification_request_info.subject))
}

/// The organizations of the subject of a request.
fn organizations(request: &str) -> Result<Vec<String>, String> {
    subject(request, |name| name.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_string)).collect())
}

/// The common names of the subject of a request.
///
/// # Errors
/// When it is no request.
pub fn common_names(request: &str) -> Result<Vec<String>, String> {
    subject(request, |name| name.iter_common_name().filter_map(|o| o.as_str().ok().map(str::to_string)).collect())
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
