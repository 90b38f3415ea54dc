//! Names of certificate signers and of the trust bundles that belong to them.

use crate::field::{Error, Errors, Path, quote};
use crate::meta::names::{self, Wrong};

/// True for signers of Kubernetes' own.
pub fn is_kubernetes(signer: &str) -> bool {
    let host = signer.split('/').next().unwrap_or_default();
    host == "kubernetes.io" || host.ends_with(".kubernetes.io")
}

/// A signer's name: `example.com/signer-name`.
pub fn signer_name(out: &mut Errors, name: &str, path: &Path) {
    if name.is_empty() {
        return out.push(Error::required(path, ""));
    }
    let segments: Vec<&str> = name.split('/').collect();
    let [domain, rest] = segments.as_slice() else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return out.push(Error::invalid(path, name, detail));
    };
    if domain.len() > 253 {
        out.push(Error::too_long(path, 253));
    }
    first_wrong(out, domain, names::label, path);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        out.push(Error::invalid(path, *domain, detail));
    }
    first_wrong(out, rest, names::subdomain, path);
    const MAX: usize = 253 + (253 + 63 + 1) + 1;
    if name.len() > MAX {
        out.push(Error::too_long(path, MAX));
    }
}

/// Refuses a segment for the first of its parts that breaks the rule.
fn first_wrong(out: &mut Errors, segment: &str, rule: fn(&str) -> Wrong, path: &Path) {
    let wrong = segment.split('.').map(|part| (part, rule(part))).find(|(_, wrong)| !wrong.is_empty());
    let Some((part, wrong)) = wrong else { return };
    for text in wrong {
        out.push(Error::invalid(path, segment, format!("validating label {}: {text}", quote(part))));
    }
}

/// The signer that a bundle's name speaks of, with `:` where the signer has `/`.
pub fn of_bundle(name: &str) -> Option<&str> {
    name.rsplit_once(':').map(|(signer, _)| signer)
}

/// What is wrong with the name of a ClusterTrustBundle of a signer (empty: of none).
pub fn bundle_name(name: &str, signer: &str) -> Wrong {
    if signer.is_empty() {
        if name.contains(':') {
            return vec!["ClusterTrustBundle without signer name must not have \":\" in its name".into()];
        }
        return names::subdomain(name);
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => names::subdomain(rest),
        None => {
            let signer = signer.replacen(':', "/", 1);
            vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")]
        }
    }
}
