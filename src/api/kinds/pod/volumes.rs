//! Volumes: what each source needs. The rules are a table, since most sources are "these texts must be there".

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::containers::pull_policy;
use super::fields;
use super::options::Options;
use crate::Value;
use crate::field::{Error, Errors, Path, quote};
use crate::kinds::claim;
use crate::kinds::rules;
use crate::kinds::signer;
use crate::kinds::view::View;
use crate::meta::check::{self, push_all};
use crate::meta::names;

/// The valid volumes of a pod.
pub type ByName<'a> = BTreeMap<&'a str, &'a Value>;

/// A rule about a field of a volume source.
pub enum Rule {
    /// A text that must be there.
    Text(&'static str),
    /// A list that must have an item.
    Some(&'static str),
    /// A disk partition.
    Partition,
    /// A reference to a Secret, if there is one, has a name; true: and a namespace.
    Secret(bool),
    /// Mode bits of files, and items.
    Files,
    /// Anything else.
    Other(fn(&mut Errors, &Value, &Path)),
}

impl Rule {
    /// Applies it to a source.
    pub fn check(&self, out: &mut Errors, source: &Value, path: &Path) {
        match self {
            Rule::Text(field) => rules::required(out, source, field, path),
            Rule::Some(field) => {
                if source.items(field).is_empty() {
                    out.push(Error::required(&path.child(field), ""));
                }
            }
            Rule::Partition => {
                let partition = source.number("partition");
                if !(0..=255).contains(&partition) {
                    out.push(Error::invalid(&path.child("partition"), partition, names::range_text(1, 255)));
                }
            }
            Rule::Secret(namespace) => {
                let Some(secret) = source.some("secretRef") else { return };
                rules::required(out, secret, "name", &path.child("secretRef"));
                if *namespace {
                    rules::required(out, secret, "namespace", &path.child("secretRef"));
                }
            }
            Rule::Files => {
                rules::file_mode(out, source, "defaultMode", path);
                for (i, item) in source.items("items").iter().enumerate() {
                    key_to_path(out, item, &path.child("items").index(i));
                }
            }
            Rule::Other(check) => check(out, source, path),
        }
    }
}

/// A kind of volume source: field, what it is called when there are several, what it is called in paths, its rules.
type Source = (&'static str, &'static str, &'static str, &'static [Rule]);

/// In upstream's order. Sources that need to know of their pod have their rules in [`source`].
static SOURCES: &[Source] = &[
    ("emptyDir", "emptyDir", "emptyDir", &[]),
    ("hostPath", "hostPath", "hostPath", &[Rule::Other(host_path)]),
    ("gitRepo", "gitRepo", "gitRepo", &[Rule::Text("repository"), Rule::Other(git_directory)]),
    ("gcePersistentDisk", "gcePersistentDisk", "persistentDisk", &[Rule::Text("pdName"), Rule::Partition]),
    (
        "awsElasticBlockStore",
        "awsElasticBlockStore",
        "awsElasticBlockStore",
        &[Rule::Text("volumeID"), Rule::Partition],
    ),
    ("secret", "secret", "secret", &[Rule::Text("secretName"), Rule::Files]),
    ("nfs", "nfs", "nfs", &[Rule::Other(nfs)]),
    ("iscsi", "iscsi", "iscsi", &[Rule::Other(iscsi)]),
    ("glusterfs", "glusterfs", "glusterfs", &[Rule::Text("endpoints"), Rule::Text("path")]),
    ("flocker", "flocker", "flocker", &[Rule::Other(flocker)]),
    ("persistentVolumeClaim", "persistentVolumeClaim", "persistentVolumeClaim", &[Rule::Text("claimName")]),
    ("rbd", "rbd", "rbd", &[Rule::Some("monitors"), Rule::Text("image")]),
    ("cinder", "cinder", "cinder", &[Rule::Text("volumeID"), Rule::Secret(false)]),
    ("cephfs", "cephFS", "cephfs", &[Rule::Some("monitors")]),
    ("quobyte", "quobyte", "quobyte", &[Rule::Other(quobyte)]),
    ("downwardAPI", "downwarAPI", "downwardAPI", &[Rule::Other(downward)]),
    ("fc", "fc", "fc", &[Rule::Other(fibre_channel)]),
    ("flexVolume", "flexVolume", "flexVolume", &[Rule::Other(flex)]),
    ("configMap", "configMap", "configMap", &[Rule::Text("name"), Rule::Files]),
    ("azureFile", "azureFile", "azureFile", &[Rule::Text("secretName"), Rule::Text("shareName")]),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume", &[Rule::Text("volumePath")]),
    ("photonPersistentDisk", "photonPersistentDisk", "photonPersistentDisk", &[Rule::Text("pdID")]),
    ("portworxVolume", "portworxVolume", "portworxVolume", &[Rule::Text("volumeID")]),
    ("azureDisk", "azureDisk", "azureDisk", &[Rule::Other(azure_disk)]),
    ("storageos", "storageos", "storageos", &[Rule::Other(storage_os), Rule::Secret(false)]),
    ("projected", "projected", "projected", &[]),
    ("scaleIO", "scaleIO", "scaleIO", &[Rule::Text("gateway"), Rule::Text("system"), Rule::Text("volumeName")]),
    ("csi", "csi", "csi", &[Rule::Other(csi)]),
    ("ephemeral", "ephemeral", "ephemeral", &[Rule::Other(ephemeral)]),
    ("image", "image", "image", &[]),
];

/// A pod's volumes; returns those without fault.
pub fn volumes<'a>(
    out: &mut Errors, volumes: &'a [Value], meta: Option<&Value>, options: &Options, path: &Path,
) -> ByName<'a> {
    let pod = meta.map(|meta| meta.text("name")).unwrap_or_default();
    let created: BTreeSet<String> = volumes
        .iter()
        .filter(|v| !pod.is_empty() && v.has("ephemeral"))
        .map(|v| format!("{pod}-{}", v.text("name")))
        .collect();
    let mut found = ByName::new();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        let name = volume.text("name");
        let mut errors = Errors::new();
        source(&mut errors, volume, pod, options, &path);
        if name.is_empty() {
            errors.push(Error::required(&path.child("name"), ""));
        } else {
            rules::dns_label(&mut errors, name, &path.child("name"));
        }
        if found.contains_key(name) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
        if errors.is_empty() {
            found.insert(name, volume);
        }
        out.extend(errors);
        let claim = volume.at("persistentVolumeClaim").text("claimName");
        if created.contains(claim) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            out.push(Error::invalid(&path.child("persistentVolumeClaim").child("claimName"), claim, detail));
        }
    }
    found
}

fn source(out: &mut Errors, volume: &Value, pod: &str, options: &Options, path: &Path) {
    let mut found = false;
    for (field, several, place, rules) in SOURCES {
        let Some(source) = volume.some(field) else { continue };
        if found {
            out.push(Error::forbidden(&path.child(several), "may not specify more than 1 volume type"));
        } else {
            let at = path.child(place);
            rules.iter().for_each(|rule| rule.check(out, source, &at));
            in_pod(out, field, source, volume.text("name"), pod, options, path);
        }
        found = true;
        if *field == "iscsi" {
            initiator_fits(out, source, volume.text("name"), path);
        }
    }
    if !found {
        out.push(Error::required(path, "must specify a volume type"));
    }
}

/// Rules that look beyond the source.
fn in_pod(out: &mut Errors, field: &str, source: &Value, name: &str, pod: &str, options: &Options, path: &Path) {
    match field {
        "emptyDir" => {
            if source.some("sizeLimit").is_some_and(|limit| rules::quantity(limit).sign() < 0) {
                let detail = "SizeLimit field must be a valid resource quantity";
                out.push(Error::forbidden(&path.child("emptyDir").child("sizeLimit"), detail));
            }
        }
        "projected" => projected(out, source, options, &path.child("projected")),
        "ephemeral" if !pod.is_empty() && !name.is_empty() => {
            let claim = format!("{pod}-{name}");
            for wrong in names::subdomain(&claim) {
                let detail = format!("PVC name {}: {wrong}", quote(&claim));
                out.push(Error::invalid(&path.child("name"), name, detail));
            }
        }
        "image" => {
            if options.is_pod {
                rules::required(out, source, "reference", &path.child("image"));
            }
            pull_policy(out, source.text("pullPolicy"), &path.child("image").child("pullPolicy"));
        }
        _ => {}
    }
}

fn initiator_fits(out: &mut Errors, iscsi: &Value, name: &str, path: &Path) {
    if iscsi.has("initiatorName") && name.len() + 1 + iscsi.text("targetPortal").len() > 64 {
        out.push(Error::invalid(&path.child("name"), name, INITIATOR_TOO_LONG));
    }
}

/// The name of an iSCSI session has its bounds.
pub const INITIATOR_TOO_LONG: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";

/// A key and the file that it becomes.
fn key_to_path(out: &mut Errors, item: &Value, path: &Path) {
    rules::required(out, item, "key", path);
    rules::required(out, item, "path", path);
    rules::unreserved_path(out, item.text("path"), &path.child("path"));
    rules::file_mode(out, item, "mode", path);
}

/// A directory or file of the host.
pub fn host_path(out: &mut Errors, source: &Value, path: &Path) {
    let value = source.text("path");
    if value.is_empty() {
        return out.push(Error::required(&path.child("path"), ""));
    }
    rules::no_backsteps(out, value, &path.child("path"));
    let types = ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
    rules::supported_if_set(out, source, "type", &types, path);
}

fn git_directory(out: &mut Errors, source: &Value, path: &Path) {
    rules::descending_path(out, source.text("directory"), &path.child("directory"));
}

/// An NFS export.
pub fn nfs(out: &mut Errors, source: &Value, path: &Path) {
    rules::required(out, source, "server", path);
    rules::required(out, source, "path", path);
    if !source.text("path").starts_with('/') {
        out.push(Error::invalid(&path.child("path"), source.text("path"), "must be an absolute path"));
    }
}

static IQN: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"iqn\.\d{4}-\d{2}\.([[:alnum:]\-.]+)(:[^,;*&$|\s]+)$").expect("a constant pattern"));

/// What is wrong with an iSCSI name: the texts for an unknown and for a malformed one.
fn iscsi_name(name: &str, unknown: &'static str) -> Option<&'static str> {
    let of_length = |prefix: &str, length: usize| {
        name.len() == prefix.len() + 1 + length && name[prefix.len() + 1..].bytes().all(|b| b.is_ascii_alphanumeric())
    };
    let ok = match name.get(..3) {
        Some("iqn") => IQN.is_match(name),
        Some("eui") => of_length("eui", 16),
        Some("naa") => of_length("naa", 32),
        _ => return Some(unknown),
    };
    (!ok).then_some("must be valid format")
}

fn iscsi(out: &mut Errors, source: &Value, path: &Path) {
    rules::required(out, source, "targetPortal", path);
    iscsi_names(out, source, "must be valid format starting with iqn, eui, or naa", false, path);
}

/// What iSCSI sources of volumes and PersistentVolumes share, from the name on.
pub fn iscsi_names(out: &mut Errors, source: &Value, unknown: &'static str, secret: bool, path: &Path) {
    let iqn = source.text("iqn");
    rules::required(out, source, "iqn", path);
    if let Some(detail) = iscsi_name(iqn, unknown).filter(|_| !iqn.is_empty()) {
        out.push(Error::invalid(&path.child("iqn"), iqn, detail));
    }
    rules::range(out, source.number("lun"), 0, 255, &path.child("lun"));
    if (source.flag("chapAuthDiscovery") || source.flag("chapAuthSession")) && !source.has("secretRef") {
        out.push(Error::required(&path.child("secretRef"), ""));
    }
    if secret {
        Rule::Secret(false).check(out, source, path);
    }
    if let Some(name) = source.at("initiatorName").as_str()
        && let Some(detail) = iscsi_name(name, unknown)
    {
        out.push(Error::invalid(&path.child("initiatorname"), name, detail));
    }
}

/// A Flocker dataset.
pub fn flocker(out: &mut Errors, source: &Value, path: &Path) {
    let (name, uuid) = (source.text("datasetName"), source.text("datasetUUID"));
    if name.is_empty() && uuid.is_empty() {
        out.push(Error::required(path, "one of datasetName and datasetUUID is required"));
    }
    if !name.is_empty() && !uuid.is_empty() {
        let detail = "datasetName and datasetUUID can not be specified simultaneously";
        out.push(Error::invalid(path, "resource", detail));
    }
    if name.contains('/') {
        out.push(Error::invalid(&path.child("datasetName"), name, "must not contain '/'"));
    }
}

/// A Quobyte volume.
pub fn quobyte(out: &mut Errors, source: &Value, path: &Path) {
    let detail = "must be a host:port pair or multiple pairs separated by commas";
    let registry = source.text("registry");
    if registry.is_empty() {
        out.push(Error::required(&path.child("registry"), detail));
    } else if source.text("tenant").len() >= 65 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        out.push(Error::required(&path.child("tenant"), detail));
    } else {
        for _ in registry.split(',').filter(|pair| !is_host_port(pair)) {
            out.push(Error::invalid(&path.child("registry"), registry, detail));
        }
    }
    rules::required(out, source, "volume", path);
}

/// What Go's `net.SplitHostPort` takes.
fn is_host_port(pair: &str) -> bool {
    match pair.strip_prefix('[') {
        Some(rest) => rest
            .split_once("]:")
            .is_some_and(|(host, port)| !(host.contains(['[', ']']) || port.contains([':', '[', ']']))),
        None => pair
            .split_once(':')
            .is_some_and(|(host, port)| !(host.contains(['[', ']']) || port.contains([':', '[', ']']))),
    }
}

const VOLUME_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

fn downward(out: &mut Errors, source: &Value, path: &Path) {
    rules::file_mode(out, source, "defaultMode", path);
    for item in source.items("items") {
        downward_file(out, item, path);
    }
}

fn downward_file(out: &mut Errors, file: &Value, path: &Path) {
    rules::required(out, file, "path", path);
    rules::unreserved_path(out, file.text("path"), &path.child("path"));
    match (file.some("fieldRef"), file.some("resourceFieldRef")) {
        (Some(field), resource) => {
            fields::of_pod(out, field, VOLUME_FIELDS, &path.child("fieldRef"));
            if resource.is_some() {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                out.push(Error::invalid(path, "resource", detail));
            }
        }
        (None, Some(resource)) => fields::of_container(out, resource, true, &path.child("resourceFieldRef")),
        (None, None) => out.push(Error::required(path, "one of fieldRef and resourceFieldRef is required")),
    }
    rules::file_mode(out, file, "mode", path);
}

/// A Fibre Channel disk.
pub fn fibre_channel(out: &mut Errors, source: &Value, path: &Path) {
    let (names, ids) = (source.items("targetWWNs"), source.items("wwids"));
    let names_path = path.child("targetWWNs");
    if names.is_empty() && ids.is_empty() {
        out.push(Error::required(&names_path, "must specify either targetWWNs or wwids, but not both"));
    }
    if !names.is_empty() && !ids.is_empty() {
        let detail = "targetWWNs and wwids can not be specified simultaneously";
        out.push(Error::invalid(&names_path, names.to_vec(), detail));
    }
    if names.is_empty() {
        return;
    }
    match source.int("lun") {
        None => out.push(Error::required(&path.child("lun"), "lun is required if targetWWNs is specified")),
        Some(lun) => rules::range(out, lun, 0, 255, &path.child("lun")),
    }
}

/// A FlexVolume; some names of options are Kubernetes' own.
pub fn flex(out: &mut Errors, source: &Value, path: &Path) {
    rules::required(out, source, "driver", path);
    for (key, _) in source.entries("options") {
        let namespace = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        let namespace = if key.contains('/') { namespace } else { format!(".{}", key.to_lowercase()) };
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            out.push(Error::invalid(&path.child("options").key(key), key, detail));
        }
    }
}

/// A disk of Azure.
pub fn azure_disk(out: &mut Errors, source: &Value, path: &Path) {
    rules::required(out, source, "diskName", path);
    rules::required(out, source, "diskURI", path);
    rules::supported_if_set(out, source, "cachingMode", &["None", "ReadOnly", "ReadWrite"], path);
    rules::supported_if_set(out, source, "kind", &["Dedicated", "Managed", "Shared"], path);
    let (kind, uri) = (source.at("kind").as_str(), source.text("diskURI"));
    let (prefix, form) = match kind {
        None => return,
        Some("Managed") => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        Some(_) => ("https://", "https://{account-name}.blob.windows.net/{container-name}/{disk-name}.vhd"),
    };
    if !uri.starts_with(prefix) {
        out.push(Error::not_supported(&path.child("diskURI"), uri, &[form]));
    }
}

/// A volume of StorageOS.
pub fn storage_os(out: &mut Errors, source: &Value, path: &Path) {
    match source.text("volumeName") {
        "" => out.push(Error::required(&path.child("volumeName"), "")),
        name => rules::dns_label(out, name, &path.child("volumeName")),
    }
    let namespace = source.text("volumeNamespace");
    if !namespace.is_empty() {
        rules::dns_label(out, namespace, &path.child("volumeNamespace"));
    }
}

fn csi(out: &mut Errors, source: &Value, path: &Path) {
    rules::csi_driver(out, source.text("driver"), &path.child("driver"));
    if let Some(secret) = source.some("nodePublishSecretRef") {
        match secret.text("name") {
            "" => out.push(Error::required(&path.child("nodePublishSecretRef").child("name"), "")),
            name => rules::dns_subdomain(out, name, &path.child("name")),
        }
    }
}

fn ephemeral(out: &mut Errors, source: &Value, path: &Path) {
    let path = path.child("volumeClaimTemplate");
    let Some(template) = source.some("volumeClaimTemplate") else {
        return out.push(Error::required(&path, ""));
    };
    claim::template(out, template, &path);
}

/// Several sources in one directory.
fn projected(out: &mut Errors, source: &Value, options: &Options, path: &Path) {
    rules::file_mode(out, source, "defaultMode", path);
    let mut files = Files { seen: BTreeSet::new(), path };
    for (i, part) in source.items("sources").iter().enumerate() {
        let at = path.child("sources").index(i);
        let kinds: [(&str, Projection); 6] = [
            ("secret", secret_files),
            ("configMap", secret_files),
            ("downwardAPI", downward_files),
            ("serviceAccountToken", token_file),
            ("clusterTrustBundle", bundle_file),
            ("podCertificate", certificate_files),
        ];
        let mut count = 0;
        for (field, check) in kinds {
            if let Some(part) = part.some(field) {
                count += 1;
                check(out, part, &mut files, options, &at.child(field));
            }
        }
        if count > 1 {
            out.push(Error::forbidden(&at, "may not specify more than 1 volume type per source"));
        }
    }
}

type Projection = for<'a> fn(&mut Errors, &'a Value, &mut Files<'a, '_>, &Options, &Path);

/// Files of a projected volume.
struct Files<'a, 'p> {
    seen: BTreeSet<&'a str>,
    path: &'p Path,
}

impl<'a> Files<'a, '_> {
    /// Notes a file; `shown` is what the error shows when it is there already.
    fn add(&mut self, out: &mut Errors, file: &'a str, shown: &str) {
        if !self.seen.insert(file) {
            out.push(Error::invalid(self.path, shown, "conflicting duplicate paths"));
        }
    }
}

fn secret_files<'a>(out: &mut Errors, part: &'a Value, files: &mut Files<'a, '_>, _: &Options, path: &Path) {
    rules::required(out, part, "name", path);
    for (i, item) in part.items("items").iter().enumerate() {
        key_to_path(out, item, &path.child("items").index(i));
        if !item.text("path").is_empty() {
            files.add(out, item.text("path"), part.text("name"));
        }
    }
}

fn downward_files<'a>(out: &mut Errors, part: &'a Value, files: &mut Files<'a, '_>, _: &Options, path: &Path) {
    for item in part.items("items") {
        downward_file(out, item, path);
        if !item.text("path").is_empty() {
            files.add(out, item.text("path"), item.text("path"));
        }
    }
}

fn token_file<'a>(out: &mut Errors, part: &'a Value, files: &mut Files<'a, '_>, options: &Options, path: &Path) {
    let (seconds, seconds_path) = (part.number("expirationSeconds"), path.child("expirationSeconds"));
    if seconds < 600 {
        out.push(Error::invalid(&seconds_path, seconds, "may not specify a duration less than 10 minutes"));
    }
    if seconds > 1 << 32 {
        out.push(Error::invalid(&seconds_path, seconds, "may not specify a duration larger than 2^32 seconds"));
    }
    let path = files.path.child("path");
    match part.text("path") {
        "" => out.push(Error::required(&path, "")),
        value if !options.any_token_path => rules::unreserved_path(out, value, &path),
        _ => {}
    }
}

fn bundle_file<'a>(out: &mut Errors, part: &'a Value, files: &mut Files<'a, '_>, _: &Options, path: &Path) {
    match (part.at("name").as_str(), part.at("signerName").as_str()) {
        (Some(_), Some(_)) => {
            let shown = crate::kinds::internal::show("ClusterTrustBundleProjection", part);
            out.push(Error::invalid_shown(path, shown, "only one of name and signerName may be used"));
        }
        (Some(name), None) => {
            if name.is_empty() {
                out.push(Error::required(&path.child("name"), "must be a valid object name"));
            }
            for wrong in signer::bundle_name(name, signer::of_bundle(name).unwrap_or_default()) {
                let detail = format!("not a valid clustertrustbundlename: {wrong}");
                out.push(Error::invalid(&path.child("name"), name, detail));
            }
            if let Some(selector) = part.some("labelSelector") {
                let detail = "labelSelector must be unset if name is specified";
                out.push(Error::invalid(&path.child("labelSelector"), selector.clone(), detail));
            }
        }
        (None, Some(name)) => {
            if name.is_empty() {
                out.push(Error::required(&path.child("signerName"), "must be a valid signer name"));
            }
            signer::signer_name(out, name, &path.child("signerName"));
            let options = check::SelectorOptions::default();
            check::selector(out, part.at("labelSelector"), options, &path.child("labelSelector"));
        }
        (None, None) => out.push(Error::required(path, "either name or signerName must be specified")),
    }
    rules::required(out, part, "path", path);
    rules::unreserved_path(out, part.text("path"), &path.child("path"));
    files.add(out, part.text("path"), part.text("path"));
}

const KEY_TYPES: &[&str] = &["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"];
const DAY: i64 = 24 * 60 * 60;

fn certificate_files<'a>(out: &mut Errors, part: &'a Value, files: &mut Files<'a, '_>, _: &Options, path: &Path) {
    let signer = part.text("signerName");
    signer::signer_name(out, signer, &path.child("signerName"));
    for (key, _) in part.entries("userAnnotations") {
        let (path, key) = (path.child("userAnnotations"), key.to_lowercase());
        let wrong = names::label_key(&key);
        if wrong.is_empty() && !key.contains('/') {
            let detail = "must be a domain-prefixed key (such as \"acme.io/foo\")";
            out.push(Error::invalid(&path, key.as_str(), detail));
        }
        push_all(out, &path, key.as_str(), wrong);
    }
    rules::supported(out, part.text("keyType"), KEY_TYPES, &path.child("keyType"));
    if let Some(seconds) = part.int("maxExpirationSeconds") {
        let path = path.child("maxExpirationSeconds");
        let most = if signer::is_kubernetes(signer) { DAY } else { 91 * DAY };
        if seconds < 3600 {
            let detail = "if provided, maxExpirationSeconds must be >= 3600";
            out.push(Error::invalid(&path, seconds, detail));
        }
        if seconds > most {
            let detail = format!("if provided, maxExpirationSeconds must be <= {most}");
            out.push(Error::invalid(&path, seconds, detail));
        }
    }
    let mut count = 0;
    for field in ["credentialBundlePath", "keyPath", "certificateChainPath"] {
        let file = part.text(field);
        if !file.is_empty() {
            count += 1;
            rules::unreserved_path(out, file, &path.child(field));
            files.add(out, file, file);
        }
    }
    if count == 0 {
        let detail = "specify at least one of credentialBundlePath, keyPath, and certificateChainPath";
        out.push(Error::required(path, detail));
    }
}
