//! A container's environment: what the pod declares, what it takes from ConfigMaps and Secrets, and the services.

use super::downward::{self, Surroundings};
use super::{expand::expand, namespace, spec};
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret, Service};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Everything outside the pod that its environment may draw on.
pub struct Sources<'a> {
    /// ConfigMaps of the pod's namespace by name; `None` when there is no such object.
    pub config_maps: &'a HashMap<String, Option<ConfigMap>>,
    /// Secrets of the pod's namespace by name.
    pub secrets: &'a HashMap<String, Option<Secret>>,
    /// All services.
    pub services: &'a [std::sync::Arc<Service>],
    /// Addresses and allocatable resources.
    pub around: &'a Surroundings,
    /// Where each volume of the pod lies on the node, for variables read from files.
    pub volumes: &'a HashMap<String, PathBuf>,
}

/// Names of the ConfigMaps and Secrets that the container's environment refers to, to be fetched beforehand.
pub fn references(container: &Container) -> (Vec<String>, Vec<String>) {
    let (mut maps, mut secrets) = (Vec::new(), Vec::new());
    for from in container.env_from.as_deref().unwrap_or_default() {
        maps.extend(from.config_map_ref.as_ref().map(|r| r.name.clone()));
        secrets.extend(from.secret_ref.as_ref().map(|r| r.name.clone()));
    }
    for source in container.env.as_deref().unwrap_or_default().iter().filter_map(|var| var.value_from.as_ref()) {
        maps.extend(source.config_map_key_ref.as_ref().map(|r| r.name.clone()));
        secrets.extend(source.secret_key_ref.as_ref().map(|r| r.name.clone()));
    }
    (maps, secrets)
}

/// An ordered environment in which the last setting of a name wins and keeps the first one's place.
#[derive(Default)]
struct Vars {
    order: Vec<(String, String)>,
    index: HashMap<String, usize>,
}

impl Vars {
    fn set(&mut self, name: String, value: String) {
        match self.index.get(&name) {
            Some(at) => self.order[*at].1 = value,
            None => {
                self.index.insert(name.clone(), self.order.len());
                self.order.push((name, value));
            }
        }
    }

    fn get(&self, name: &str) -> Option<String> {
        self.index.get(name).map(|at| self.order[*at].1.clone())
    }
}

/// The environment, in order: envFrom, env (which overrides it), then the services' variables that nothing overrides.
pub fn environment(pod: &Pod, container: &Container, from: &Sources<'_>) -> Result<Vec<(String, String)>, String> {
    let services = service_variables(pod, from.services);
    let mut vars = Vars::default();
    for source in container.env_from.as_deref().unwrap_or_default() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            let map = found(from.config_maps, &reference.name, reference.optional, pod, "configmaps")?;
            for (key, value) in map.and_then(|map| map.data.as_ref()).into_iter().flatten() {
                vars.set(format!("{prefix}{key}"), value.clone());
            }
        }
        if let Some(reference) = &source.secret_ref {
            let secret = found(from.secrets, &reference.name, reference.optional, pod, "secrets")?;
            for (key, value) in secret.and_then(|secret| secret.data.as_ref()).into_iter().flatten() {
                vars.set(format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned());
            }
        }
    }
    for var in container.env.as_deref().unwrap_or_default() {
        let value = match (&var.value, &var.value_from) {
            (Some(text), _) if !text.is_empty() => {
                expand(text, |name| vars.get(name).or_else(|| services.get(name).cloned()))
            }
            (_, Some(source)) => match value_from(pod, container, source, from)? {
                Some(value) => value,
                None => continue,
            },
            _ => String::new(),
        };
        vars.set(var.name.clone(), value);
    }
    for (name, value) in services {
        if !vars.index.contains_key(&name) {
            vars.set(name, value);
        }
    }
    Ok(vars.order)
}

fn found<'a, T>(
    all: &'a HashMap<String, Option<T>>, name: &str, optional: Option<bool>, pod: &Pod, resource: &str,
) -> Result<Option<&'a T>, String> {
    match all.get(name) {
        Some(Some(object)) => Ok(Some(object)),
        _ if optional == Some(true) => Ok(None),
        Some(None) => Err(format!("{} \"{name}\" not found", resource.trim_end_matches('s'))),
        None => Err(format!("couldn't get {} {}/{name}, no kubeClient defined", resource, namespace(pod))),
    }
}

/// The value of a source; `None` when an optional one is missing.
fn value_from(
    pod: &Pod, container: &Container, source: &EnvVarSource, from: &Sources<'_>,
) -> Result<Option<String>, String> {
    if let Some(reference) = &source.field_ref {
        return downward::field(pod, &reference.field_path, from.around).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return downward::resource(pod, container, selector, from.around).map(Some);
    }
    if let Some(reference) = &source.config_map_key_ref {
        let map = found(from.config_maps, &reference.name, reference.optional, pod, "configmaps")?;
        let Some(map) = map else { return Ok(None) };
        let value = map.data.as_ref().and_then(|data| data.get(&reference.key)).cloned();
        return missing_key(value, &reference.key, reference.optional, "ConfigMap", pod, &reference.name);
    }
    if let Some(reference) = &source.secret_key_ref {
        let secret = found(from.secrets, &reference.name, reference.optional, pod, "secrets")?;
        let Some(secret) = secret else { return Ok(None) };
        let value = secret.data.as_ref().and_then(|data| data.get(&reference.key));
        let value = value.map(|value| String::from_utf8_lossy(&value.0).into_owned());
        return missing_key(value, &reference.key, reference.optional, "Secret", pod, &reference.name);
    }
    if let Some(reference) = &source.file_key_ref {
        let volume = from.volumes.get(&reference.volume_name);
        let volume = volume
            .ok_or_else(|| format!("cannot find the volume {:?} referenced by FileKeyRef", reference.volume_name))?;
        let value = match crate::volumes::subpath::read_inside(volume, Path::new(&reference.path)) {
            Ok(text) => env_file_value(&text, &reference.key),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(_) => return Err("couldn't parse env file".into()),
        };
        return match value {
            Some(value) => Ok(Some(value)),
            None if reference.optional == Some(true) => Ok(None),
            None => Err(format!(
                "environment variable key {:?} not found in file {:?}",
                reference.key,
                volume.join(&reference.path).display().to_string()
            )),
        };
    }
    Ok(Some(String::new()))
}

fn missing_key(
    value: Option<String>, key: &str, optional: Option<bool>, kind: &str, pod: &Pod, name: &str,
) -> Result<Option<String>, String> {
    match value {
        Some(value) => Ok(Some(value)),
        None if optional == Some(true) => Ok(None),
        None => Err(format!("couldn't find key {key} in {kind} {}/{name}", namespace(pod))),
    }
}

/// The value of `key` in a file of `KEY='value'` lines; comments and blank lines are skipped.
fn env_file_value(text: &str, key: &str) -> Option<String> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .find(|(name, _)| name.trim_end() == key)
        .map(|(_, value)| {
            let value = value.trim();
            let inner = value.strip_prefix('\'').and_then(|v| v.strip_suffix('\''));
            inner.or_else(|| value.strip_prefix('"').and_then(|v| v.strip_suffix('"'))).unwrap_or(value).to_owned()
        })
}

/// Variables of the services a pod can see: `kubernetes` always, those of its namespace when links are enabled.
fn service_variables(pod: &Pod, services: &[std::sync::Arc<Service>]) -> BTreeMap<String, String> {
    let links = spec(pod).enable_service_links.unwrap_or(true);
    // Services of the pod's own namespace come last, so that they win over the master's.
    let (mut masters, mut own) = (Vec::new(), Vec::new());
    for service in services {
        let (ns, name) = (service.metadata.namespace.as_deref(), service.metadata.name.as_deref());
        if ns == Some(namespace(pod)) && links {
            own.push(service);
        } else if ns == Some("default") && name == Some("kubernetes") {
            masters.push(service);
        }
    }
    masters.into_iter().chain(own).flat_map(|service| variables_of(service)).collect()
}

fn variables_of(service: &Service) -> Vec<(String, String)> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let Some(ip) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { return Vec::new() };
    let ports = spec.ports.as_deref().unwrap_or_default();
    let Some(first) = ports.first() else { return Vec::new() };
    let upper = |text: &str| text.replace('-', "_").to_uppercase();
    let prefix = upper(service.metadata.name.as_deref().unwrap_or_default());
    let mut vars = vec![
        (format!("{prefix}_SERVICE_HOST"), ip.to_owned()),
        (format!("{prefix}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            vars.push((format!("{prefix}_SERVICE_PORT_{}", upper(name)), port.port.to_string()));
        }
    }
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let url = format!("{}://{host}:{}", protocol.to_lowercase(), port.port);
        if index == 0 {
            vars.push((format!("{prefix}_PORT"), url.clone()));
        }
        let name = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        vars.push((name.clone(), url));
        vars.push((format!("{name}_PROTO"), protocol.to_lowercase()));
        vars.push((format!("{name}_PORT"), port.port.to_string()));
        vars.push((format!("{name}_ADDR"), ip.to_owned()));
    }
    vars
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(
        pod: serde_json::Value, maps: serde_json::Value, services: serde_json::Value,
    ) -> Result<Vec<(String, String)>, String> {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let config_maps: HashMap<String, Option<ConfigMap>> = serde_json::from_value(maps).unwrap();
        let services: Vec<Service> = serde_json::from_value(services).unwrap();
        let services: Vec<_> = services.into_iter().map(std::sync::Arc::new).collect();
        let sources = Sources {
            config_maps: &config_maps,
            secrets: &HashMap::new(),
            services: &services,
            around: &Surroundings::default(),
            volumes: &HashMap::new(),
        };
        environment(&pod, &super::super::apps(&pod)[0], &sources)
    }

    fn pod(container: serde_json::Value) -> serde_json::Value {
        json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [container]}})
    }

    #[test]
    fn env_overrides_env_from_and_the_last_duplicate_wins() {
        let vars = run(
            pod(json!({"name": "c",
                "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}, {"configMapRef": {"name": "no", "optional": true}}],
                "env": [{"name": "A", "value": "1"}, {"name": "P_k", "value": "own-$(A)-$(NO)"}, {"name": "A", "value": "2"}]})),
            json!({"m": {"metadata": {}, "data": {"k": "v", "z": "w"}}, "no": null}),
            json!([]),
        )
        .unwrap();
        let expected = [("P_k", "own-1-$(NO)"), ("P_z", "w"), ("A", "2")];
        assert_eq!(vars, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn a_missing_object_or_key_is_named() {
        let env = |source| pod(json!({"name": "c", "env": [{"name": "A", "valueFrom": {"configMapKeyRef": source}}]}));
        let maps = json!({"m": {"metadata": {}, "data": {}}, "no": null});
        let error = run(env(json!({"name": "no", "key": "k"})), maps.clone(), json!([])).unwrap_err();
        assert_eq!(error, "configmap \"no\" not found");
        let error = run(env(json!({"name": "m", "key": "k"})), maps.clone(), json!([])).unwrap_err();
        assert_eq!(error, "couldn't find key k in ConfigMap n/m");
        assert_eq!(run(env(json!({"name": "m", "key": "k", "optional": true})), maps, json!([])).unwrap(), []);
    }

    #[test]
    fn services_give_host_port_and_link_variables() {
        let services = json!([
            {"metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.1",
              "ports": [{"name": "https", "port": 443, "protocol": "TCP"}]}},
            {"metadata": {"name": "other", "namespace": "x"}, "spec": {"clusterIP": "10.96.0.2", "ports": [{"port": 1}]}},
            {"metadata": {"name": "my-web", "namespace": "n"}, "spec": {"clusterIP": "None", "ports": [{"port": 1}]}}
        ]);
        let vars = run(pod(json!({"name": "c"})), json!({}), services).unwrap();
        let vars: HashMap<_, _> = vars.into_iter().collect();
        assert_eq!(vars["KUBERNETES_SERVICE_PORT_HTTPS"], "443");
        assert_eq!(vars["KUBERNETES_PORT_443_TCP"], "tcp://10.96.0.1:443");
        assert_eq!(vars["KUBERNETES_PORT_443_TCP_ADDR"], "10.96.0.1");
        assert_eq!(vars.len(), 8);
    }
}
