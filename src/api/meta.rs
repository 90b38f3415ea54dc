//! Object metadata: names, labels, annotations, owner references, finalizers, generated names.

/// Checks a DNS-1123 subdomain (at most 253 characters); `prefix` says that the name is a `generateName`, whose
/// trailing dash is allowed. Returns upstream's texts.
pub fn dns_subdomain(_name: &str, _prefix: bool) -> Vec<String> {
    todo!()
}
