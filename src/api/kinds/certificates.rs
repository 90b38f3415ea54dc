//! Requests for certificates, and bundles of those that are trusted.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::Value;
use crate::field::{Error, Errors, Path, quote};
use crate::kinds::view::{View, copy, fill_pointer, items_mut, set, structure, unset};
use crate::kinds::{diff, internal, rules, signer};
use crate::meta::check;
use crate::resources::{Context, Strategy};

/// Most bytes of a bundle of certificates.
const MAX_BUNDLE: usize = 1024 * 1024;
const LEGACY: &str = "kubernetes.io/legacy-unknown";
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// A block of PEM.
struct Block {
    label: String,
    headers: bool,
    bytes: Vec<u8>,
}

/// The blocks of a text; what is none is passed over, as Go's decoder does.
fn blocks(text: &str) -> Vec<Block> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some((_, line)) = rest.split_once("-----BEGIN ") {
        rest = line;
        let Some((label, body)) = line.split_once('\n') else { break };
        let Some(label) = label.trim_end().strip_suffix("-----") else { continue };
        let Some((body, after)) = body.split_once(&format!("-----END {label}-----")) else { continue };
        let (headers, data): (Vec<&str>, Vec<&str>) = body.lines().partition(|line| line.contains(':'));
        let data: String = data.concat().split_ascii_whitespace().collect();
        let Ok(bytes) = STANDARD.decode(data) else { continue };
        out.push(Block { label: label.into(), headers: !headers.is_empty(), bytes });
        rest = after;
    }
    out
}

fn text_of(bytes: &Value) -> String {
    let bytes = STANDARD.decode(bytes.as_str().unwrap_or_default()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Requests for certificates.
pub struct SigningRequest;

impl Strategy for SigningRequest {
    /// Who asks is what the server knows, not what the client says.
    fn prepare_create(&self, cx: &Context<'_>, new: &mut Value) {
        let spec = structure(new, "spec");
        for field in ["username", "uid", "groups", "extra"] {
            unset(spec, field);
        }
        set(spec, "username", cx.user.name);
        if !cx.user.uid.is_empty() {
            set(spec, "uid", cx.user.uid);
        }
        if !cx.user.groups.is_empty() {
            set(spec, "groups", cx.user.groups.to_vec());
        }
        if let Some(extra) = cx.user.extra.filter(|extra| !extra.is_empty()) {
            set(spec, "extra", json!(extra));
        }
        set(new, "status", crate::Map::new());
    }

    fn prepare_update(&self, cx: &Context<'_>, new: &mut Value, old: &Value) {
        copy(new, old, "spec");
        match cx.subresource {
            "status" => {
                keep_conditions(new, old);
                date_conditions(new, old, cx.now);
            }
            "approval" => {
                date_conditions(new, old, cx.now);
                let conditions = new.at("status").at("conditions").clone();
                copy(new, old, "status");
                set(structure(new, "status"), "conditions", conditions);
            }
            _ => copy(new, old, "status"),
        }
    }

    fn validate_name(&self, _name: &str, _prefix: bool) -> Vec<String> {
        Vec::new()
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        request(&mut out, new, None);
        out
    }

    fn validate_update(&self, cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let mut out = Errors::new();
        rules::whole_metadata(&mut out, new, false, &|_, _| Vec::new());
        request(&mut out, new, Some(old));
        kept_conditions(&mut out, new, old, cx.subresource == "approval");
        let path = Path::new("status").child("certificate");
        let (now, before) = (new.at("status").text("certificate"), old.at("status").text("certificate"));
        if now != before && cx.subresource != "status" {
            out.push(Error::forbidden(&path, "updates may not set certificate content"));
        } else if now != before && !before.is_empty() {
            out.push(Error::forbidden(&path, "updates may not modify existing certificate content"));
        }
        out
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        match subresource {
            "status" => &[&["spec"], &["status", "conditions"]],
            "approval" => &[&["spec"], &["status", "certificate"]],
            _ => &[&["spec"], &["status"]],
        }
    }
}

fn of_type<'a>(request: &'a Value, kind: &str) -> Vec<&'a Value> {
    request.at("status").items("conditions").iter().filter(|c| c.text("type") == kind).collect()
}

/// Approvals and denials stay as they were where there are as many as before.
fn keep_conditions(new: &mut Value, old: &Value) {
    for kind in ["Approved", "Denied"] {
        let before = of_type(old, kind);
        if of_type(new, kind).len() != before.len() {
            continue;
        }
        let now = items_mut(structure(new, "status"), "conditions").iter_mut().filter(|c| c.text("type") == kind);
        now.zip(before).for_each(|(now, before)| *now = before.clone());
    }
}

fn date_conditions(new: &mut Value, old: &Value, now: i64) {
    let now = crate::meta::timestamp(now);
    for condition in items_mut(structure(new, "status"), "conditions") {
        fill_pointer(condition, "lastUpdateTime", now.as_str());
        let same = |old: &&Value| ["type", "status"].iter().all(|field| old.text(field) == condition.text(field));
        let before = old.at("status").items("conditions").iter().filter(same);
        let before = before.filter_map(|c| c.some("lastTransitionTime")).next().cloned();
        fill_pointer(condition, "lastTransitionTime", before.unwrap_or_else(|| now.as_str().into()));
    }
}

fn request(out: &mut Errors, new: &Value, old: Option<&Value>) {
    let (spec, path) = (new.at("spec"), Path::new("spec"));
    if let Some(wrong) = wrong_request(&text_of(spec.at("request"))) {
        out.push(Error::invalid(&path.child("request"), spec.at("request").clone(), wrong));
    }
    usages(out, spec, old.map(|old| old.at("spec")), &path.child("usages"));
    let (name, name_path) = (spec.text("signerName"), path.child("signerName"));
    let was_legacy = old.is_some_and(|old| old.at("spec").text("signerName") == LEGACY);
    if name == LEGACY && !was_legacy {
        let detail = "the legacy signerName is not allowed via this API version";
        out.push(Error::invalid(&name_path, name, detail));
    } else {
        signer::signer_name(out, name, &name_path);
    }
    if let Some(seconds) = spec.int("expirationSeconds").filter(|seconds| *seconds < 600) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        out.push(Error::invalid(&path.child("expirationSeconds"), seconds, detail));
    }
    conditions(out, new, old);
    let (now, before) = (new.at("status").at("certificate"), old.map(|old| old.at("status").at("certificate")));
    let any = before.is_some_and(|before| before == now || wrong_certificate(before).is_some());
    if let Some(wrong) = wrong_certificate(now).filter(|_| !any) {
        out.push(Error::invalid(&Path::new("status").child("certificate"), "<certificate data>", wrong));
    }
}

fn wrong_request(text: &str) -> Option<String> {
    let block = blocks(text).into_iter().next().filter(|block| block.label == "CERTIFICATE REQUEST");
    match block {
        None => Some("PEM block type must be CERTIFICATE REQUEST".into()),
        Some(block) => der(&block.bytes),
    }
}

/// What is wrong with the outermost frame of a structure: a sequence that fills the bytes.
fn der(bytes: &[u8]) -> Option<String> {
    let [0x30, length, rest @ ..] = bytes else { return Some("asn1: structure error: tags don't match".into()) };
    let short = |length: usize, rest: &[u8]| match rest.len().cmp(&length) {
        std::cmp::Ordering::Less => Some("asn1: syntax error: data truncated".to_string()),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some("asn1: syntax error: trailing data".to_string()),
    };
    if *length < 0x80 {
        return short(usize::from(*length), rest);
    }
    let count = usize::from(length & 0x7f);
    if count == 0 || count > 4 || rest.len() < count {
        return Some("asn1: syntax error: invalid length".into());
    }
    let (length, rest) = rest.split_at(count);
    short(length.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), rest)
}

fn wrong_certificate(bytes: &Value) -> Option<String> {
    if bytes.as_str().unwrap_or_default().is_empty() {
        return None;
    }
    let blocks = blocks(&text_of(bytes));
    if blocks.is_empty() {
        return Some("must contain at least one CERTIFICATE PEM block".into());
    }
    blocks.iter().find_map(|block| {
        if block.label != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {}", quote(&block.label)));
        }
        if block.headers { Some("no PEM block headers are permitted".into()) } else { der(&block.bytes) }
    })
}

fn usages(out: &mut Errors, spec: &Value, old: Option<&Value>, path: &Path) {
    let unknown = |spec: &Value| spec.texts("usages").any(|usage| !USAGES.contains(&usage));
    let doubled = |spec: &Value| spec.texts("usages").collect::<BTreeSet<_>>().len() < spec.items("usages").len();
    if spec.items("usages").is_empty() {
        out.push(Error::required(path, ""));
    }
    if !old.is_some_and(unknown) {
        for (i, usage) in spec.texts("usages").enumerate() {
            rules::supported(out, usage, &USAGES, &path.index(i));
        }
    }
    if !old.is_some_and(doubled) {
        let mut seen = BTreeSet::new();
        for (i, usage) in spec.texts("usages").enumerate().filter(|(_, usage)| !seen.insert(*usage)) {
            out.push(Error::duplicate(&path.index(i), usage));
        }
    }
}

fn conditions(out: &mut Errors, new: &Value, old: Option<&Value>) {
    let path = Path::new("status").child("conditions");
    let before = old.map(|old| old.at("status").items("conditions")).unwrap_or_default();
    let types: BTreeSet<&str> = before.iter().map(|c| c.text("type")).collect();
    let (any_empty, any_double) = (types.contains(""), types.len() < before.len());
    let any_both = types.contains("Approved") && types.contains("Denied");
    let mut seen = BTreeSet::new();
    for (i, condition) in new.at("status").items("conditions").iter().enumerate() {
        let (kind, own) = (condition.text("type"), path.index(i));
        if kind.is_empty() && !any_empty {
            out.push(Error::required(&own.child("type"), ""));
        }
        let settled = ["Approved", "Denied", "Failed"].contains(&kind);
        let allowed: &[&str] = if settled { &["True"] } else { &["False", "True", "Unknown"] };
        rules::one_of(out, condition.text("status"), allowed, &own.child("status"));
        let other = match kind {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "\0",
        };
        if seen.contains(other) && !any_both {
            out.push(Error::invalid(&path, kind, "Approved and Denied conditions are mutually exclusive"));
        }
        if !seen.insert(kind) && !any_double {
            out.push(Error::duplicate(&own.child("type"), kind));
        }
    }
}

/// What is settled stays; approvals and denials come through their own subresource alone.
fn kept_conditions(out: &mut Errors, new: &Value, old: &Value, approval: bool) {
    let path = Path::new("status").child("conditions");
    for kind in ["Approved", "Denied", "Failed"] {
        if of_type(new, kind).len() < of_type(old, kind).len() {
            let detail = format!("updates may not remove a condition of type {}", quote(kind));
            out.push(Error::forbidden(&path, detail));
        }
    }
    for kind in ["Approved", "Denied"].iter().filter(|_| !approval) {
        let (now, before) = (of_type(new, kind), of_type(old, kind));
        if now.len() > before.len() {
            out.push(Error::forbidden(&path, format!("updates may not add a condition of type {}", quote(kind))));
        } else if now.len() == before.len() && now != before {
            let lines = |list: Vec<&Value>| {
                internal::show_lines("[]CertificateSigningRequestCondition", &list.into_iter().cloned().collect())
            };
            let diff = diff::unified(&lines(before), &lines(now));
            let detail = format!("updates may not modify a condition of type {}\n{diff}", quote(kind));
            out.push(Error::forbidden(&path, detail));
        }
    }
}

/// Bundles of certificates that are trusted.
pub struct ClusterTrustBundle;

impl Strategy for ClusterTrustBundle {
    fn checks_meta(&self, _update: bool) -> bool {
        false
    }

    fn validate_create(&self, _cx: &Context<'_>, new: &Value) -> Errors {
        let mut out = Errors::new();
        bundle(&mut out, new, true);
        out
    }

    fn validate_update(&self, _cx: &Context<'_>, new: &Value, old: &Value) -> Errors {
        let (mut out, field) = (Errors::new(), "trustBundle");
        bundle(&mut out, new, new.at("spec").at(field) != old.at("spec").at(field));
        out.extend(check::validate_update(new, old));
        rules::immutable(&mut out, new.at("spec"), old.at("spec"), "signerName", &Path::new("spec"));
        out
    }
}

fn bundle(out: &mut Errors, new: &Value, parse: bool) {
    let (spec, path) = (new.at("spec"), Path::new("spec"));
    let signer = spec.text("signerName");
    rules::whole_metadata(out, new, false, &|name, _| signer::bundle_name(name, signer));
    if !signer.is_empty() {
        signer::signer_name(out, signer, &path.child("signerName"));
    }
    if parse {
        anchors(out, spec.text("trustBundle"), &path.child("trustBundle"));
    }
}

fn anchors(out: &mut Errors, text: &str, path: &Path) {
    if text.len() > MAX_BUNDLE {
        return out.push(Error::too_long(path, MAX_BUNDLE));
    }
    let mut found: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    let before = out.0.len();
    for (i, block) in blocks(text).into_iter().enumerate() {
        let wrong = if block.label != "CERTIFICATE" {
            Some(format!("entry {i} has bad block type: {}", block.label))
        } else if block.headers {
            Some(format!("entry {i} has PEM block headers"))
        } else {
            der(&block.bytes).map(|_| format!("entry {i} does not parse as X.509"))
        };
        match wrong {
            Some(wrong) => out.push(Error::invalid(path, "<value omitted>", wrong)),
            None => found.entry(block.bytes).or_default().push(i.to_string()),
        }
    }
    if out.0.len() > before {
        return;
    }
    if found.is_empty() {
        out.push(Error::invalid(path, "<value omitted>", "at least one trust anchor must be provided"));
    }
    for indices in found.values().filter(|indices| indices.len() > 1) {
        let detail = format!("duplicate trust anchor (indices [{}])", indices.join(" "));
        out.push(Error::invalid(path, "<value omitted>", detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_between_other_lines() {
        let text =
            "junk\n-----BEGIN A-----\neA==\n-----END A-----\nmore\n-----BEGIN B-----\nk: v\n\neHg=\n-----END B-----\n";
        let found: Vec<(String, bool, usize)> =
            blocks(text).into_iter().map(|b| (b.label, b.headers, b.bytes.len())).collect();
        assert_eq!(found, [("A".to_string(), false, 1), ("B".to_string(), true, 2)]);
    }
}
