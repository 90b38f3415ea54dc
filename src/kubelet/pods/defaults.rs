//! What the API server would have filled in: static pods come without having passed it.
//!
//! Source of the values: the API reference. Only fields that the kubelet reads, or that a mirror pod must carry, matter;
//! the API fills the rest of the mirror.

use crate::images::name::default_policy;
use k8s_openapi::api::core::v1::{Container, PodSpec, Probe, Volume};

/// Fills in a pod's spec.
pub fn fill(spec: &mut PodSpec) {
    spec.restart_policy.get_or_insert_with(|| "Always".into());
    spec.dns_policy.get_or_insert_with(|| "ClusterFirst".into());
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.scheduler_name.get_or_insert_with(|| "default-scheduler".into());
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_default();
    let host_network = spec.host_network == Some(true);
    let inits = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(inits) {
        fill_container(container, host_network);
    }
    spec.volumes.iter_mut().flatten().for_each(fill_volume);
}

fn fill_container(container: &mut Container, host_network: bool) {
    container.termination_message_path.get_or_insert_with(|| "/dev/termination-log".into());
    container.termination_message_policy.get_or_insert_with(|| "File".into());
    let image = container.image.clone().unwrap_or_default();
    let tagged = crate::images::name::with_default_tag(&image).unwrap_or(image);
    container.image_pull_policy.get_or_insert_with(|| default_policy(&tagged).into());
    for port in container.ports.iter_mut().flatten() {
        port.protocol.get_or_insert_with(|| "TCP".into());
        if host_network {
            port.host_port.get_or_insert(port.container_port);
        }
    }
    for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe] {
        probe.iter_mut().for_each(fill_probe);
    }
    for var in container.env.iter_mut().flatten() {
        if let Some(field) = var.value_from.as_mut().and_then(|from| from.field_ref.as_mut()) {
            field.api_version.get_or_insert_with(|| "v1".into());
        }
    }
    if let Some(resources) = &mut container.resources {
        // A limit without a request is also the request.
        for (name, limit) in resources.limits.clone().into_iter().flatten() {
            resources.requests.get_or_insert_default().entry(name).or_insert(limit);
        }
    }
}

fn fill_probe(probe: &mut Probe) {
    let or = |value: &mut Option<i32>, default: i32| {
        if value.is_none_or(|value| value == 0) {
            *value = Some(default);
        }
    };
    or(&mut probe.timeout_seconds, 1);
    or(&mut probe.period_seconds, 10);
    or(&mut probe.success_threshold, 1);
    or(&mut probe.failure_threshold, 3);
    if let Some(get) = &mut probe.http_get {
        get.path.get_or_insert_with(|| "/".into());
        get.scheme.get_or_insert_with(|| "HTTP".into());
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn fill_volume(volume: &mut Volume) {
    const MODE: i32 = 0o644;
    if let Some(map) = &mut volume.config_map {
        map.default_mode.get_or_insert(MODE);
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(MODE);
    }
    if let Some(downward) = &mut volume.downward_api {
        downward.default_mode.get_or_insert(MODE);
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(MODE);
    }
    if let Some(host) = &mut volume.host_path {
        host.type_.get_or_insert_default();
    }
    let none = Volume { name: volume.name.clone(), ..Default::default() };
    if *volume == none {
        volume.empty_dir = Some(Default::default());
    }
}
