//! Workloads: Deployments and their like, Jobs, autoscalers, disruption budgets.

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::autoscaling::v2 as autoscaling;
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::core::v1 as core;

use super::columns::{self, field, text};
use super::read::{age, at, condition, containers, count, has, int_or_text, is, labels, list, name, number, quantity};
use super::{Cell, Column, duration, read, seconds};
use crate::Value;
use crate::selector::LabelSelector;

fn wide_containers() -> [Column; 2] {
    columns::containers().map(Column::wide)
}

const TEMPLATE: &str = "/spec/template/spec";

pub(super) fn deployment_columns() -> Vec<Column> {
    let [names, images] = wide_containers();
    vec![
        columns::name(),
        text("Ready", "Number of the pod with ready state"),
        field::<apps::DeploymentStatus>("Up-to-date", "updatedReplicas"),
        field::<apps::DeploymentStatus>("Available", "availableReplicas"),
        columns::age(),
        names,
        images,
        field::<apps::DeploymentSpec>("Selector", "selector").wide(),
    ]
}

pub(super) fn deployment(object: &Value) -> Vec<Cell> {
    let [names, images] = containers(object, TEMPLATE);
    let selector = LabelSelector::from_object(at(object, "/spec/selector"));
    vec![
        name(object),
        is(format!("{}/{}", number(object, "/status/readyReplicas"), number(object, "/spec/replicas"))),
        is(number(object, "/status/updatedReplicas")),
        is(number(object, "/status/availableReplicas")),
        age(object),
        names,
        images,
        is(selector.map_or("<invalid>".into(), |s| s.to_string())),
    ]
}

pub(super) fn replica_set_columns() -> Vec<Column> {
    let [names, images] = wide_containers();
    vec![
        columns::name(),
        field::<apps::ReplicaSetSpec>("Desired", "replicas").integer(),
        field::<apps::ReplicaSetStatus>("Current", "replicas").integer(),
        field::<apps::ReplicaSetStatus>("Ready", "readyReplicas").integer(),
        columns::age(),
        names,
        images,
        field::<apps::ReplicaSetSpec>("Selector", "selector").wide(),
    ]
}

fn replicas(object: &Value, selector: String) -> Vec<Cell> {
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        is(number(object, "/spec/replicas")),
        is(number(object, "/status/replicas")),
        is(number(object, "/status/readyReplicas")),
        age(object),
        names,
        images,
        is(selector),
    ]
}

pub(super) fn replica_set(object: &Value) -> Vec<Cell> {
    replicas(object, read::selector(object, "/spec/selector"))
}

pub(super) fn replication_controller_columns() -> Vec<Column> {
    let [names, images] = wide_containers();
    vec![
        columns::name(),
        field::<core::ReplicationControllerSpec>("Desired", "replicas").integer(),
        field::<core::ReplicationControllerStatus>("Current", "replicas").integer(),
        field::<core::ReplicationControllerStatus>("Ready", "readyReplicas").integer(),
        columns::age(),
        names,
        images,
        field::<core::ReplicationControllerSpec>("Selector", "selector").wide(),
    ]
}

pub(super) fn replication_controller(object: &Value) -> Vec<Cell> {
    replicas(object, labels(object, "/spec/selector"))
}

pub(super) fn daemon_set_columns() -> Vec<Column> {
    let status = |name: &'static str, of: &str| field::<apps::DaemonSetStatus>(name, of).integer();
    let [names, images] = wide_containers();
    vec![
        columns::name(),
        status("Desired", "desiredNumberScheduled"),
        status("Current", "currentNumberScheduled"),
        status("Ready", "numberReady"),
        status("Up-to-date", "updatedNumberScheduled"),
        status("Available", "numberAvailable"),
        field::<core::PodSpec>("Node Selector", "nodeSelector"),
        columns::age(),
        names,
        images,
        field::<apps::DaemonSetSpec>("Selector", "selector").wide(),
    ]
}

pub(super) fn daemon_set(object: &Value) -> Vec<Cell> {
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        is(number(object, "/status/desiredNumberScheduled")),
        is(number(object, "/status/currentNumberScheduled")),
        is(number(object, "/status/numberReady")),
        is(number(object, "/status/updatedNumberScheduled")),
        is(number(object, "/status/numberAvailable")),
        is(labels(object, "/spec/template/spec/nodeSelector")),
        age(object),
        names,
        images,
        is(read::selector(object, "/spec/selector")),
    ]
}

pub(super) fn stateful_set_columns() -> Vec<Column> {
    let [names, images] = wide_containers();
    vec![columns::name(), text("Ready", "Number of the pod with ready state"), columns::age(), names, images]
}

pub(super) fn stateful_set(object: &Value) -> Vec<Cell> {
    let [names, images] = containers(object, TEMPLATE);
    let ready = format!("{}/{}", number(object, "/status/readyReplicas"), number(object, "/spec/replicas"));
    vec![name(object), is(ready), age(object), names, images]
}

pub(super) fn controller_revision_columns() -> Vec<Column> {
    vec![
        columns::name(),
        text("Controller", "Controller of the object"),
        field::<apps::ControllerRevision>("Revision", "revision"),
        columns::age(),
    ]
}

pub(super) fn controller_revision(object: &Value) -> Vec<Cell> {
    let owner = list(object, "/metadata/ownerReferences").iter().find(|o| o["controller"] == true);
    let controller = owner.map_or("<none>".to_string(), |owner| {
        let group = read::text(owner, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
        let kind = read::text(owner, "/kind");
        let kind = if group.is_empty() { kind.to_lowercase() } else { format!("{kind}.{group}").to_lowercase() };
        format!("{kind}/{}", read::text(owner, "/name"))
    });
    vec![name(object), is(controller), is(number(object, "/revision")), age(object)]
}

pub(super) fn job_columns() -> Vec<Column> {
    let [names, images] = wide_containers();
    vec![
        columns::name(),
        text("Status", "Status of the job."),
        field::<batch::JobStatus>("Completions", "succeeded"),
        text("Duration", "Time required to complete the job."),
        columns::age(),
        names,
        images,
        field::<batch::JobSpec>("Selector", "selector").wide(),
    ]
}

pub(super) fn job(object: &Value) -> Vec<Cell> {
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        is(job_status(object)),
        is(completions(object)),
        job_duration(object),
        age(object),
        names,
        images,
        is(read::selector(object, "/spec/selector")),
    ]
}

fn job_status(object: &Value) -> &'static str {
    let holds = |kind: &str| condition(object, kind) == Some("True");
    match () {
        () if holds("Complete") => "Complete",
        () if holds("Failed") => "Failed",
        () if has(object, "/metadata/deletionTimestamp") => "Terminating",
        () if holds("Suspended") => "Suspended",
        () if holds("FailureTarget") => "FailureTarget",
        () if holds("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn completions(object: &Value) -> String {
    let succeeded = number(object, "/status/succeeded");
    match (at(object, "/spec/completions").as_i64(), number(object, "/spec/parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        _ => format!("{succeeded}/1"),
    }
}

fn job_duration(object: &Value) -> Cell {
    let time = |pointer: &str| seconds(read::text(object, pointer));
    match (time("/status/startTime"), time("/status/completionTime")) {
        (None, _) => is(""),
        (Some(start), None) => Cell::Since("".into(), start, "".into()),
        (Some(start), Some(end)) => is(duration(end - start)),
    }
}

pub(super) fn cron_job_columns() -> Vec<Column> {
    let [names, images] = wide_containers();
    vec![
        columns::name(),
        field::<batch::CronJobSpec>("Schedule", "schedule"),
        field::<batch::CronJobSpec>("Timezone", "timeZone"),
        field::<batch::CronJobSpec>("Suspend", "suspend").boolean(),
        field::<batch::CronJobStatus>("Active", "active").integer(),
        field::<batch::CronJobStatus>("Last Schedule", "lastScheduleTime"),
        columns::age(),
        names,
        images,
        field::<batch::JobSpec>("Selector", "selector").wide(),
    ]
}

pub(super) fn cron_job(object: &Value) -> Vec<Cell> {
    let [names, images] = containers(object, "/spec/jobTemplate/spec/template/spec");
    let suspend = match at(object, "/spec/suspend").as_bool() {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    };
    let last = at(object, "/status/lastScheduleTime");
    vec![
        name(object),
        is(read::text(object, "/spec/schedule")),
        is(read::text_or(object, "/spec/timeZone", "<none>")),
        is(suspend),
        is(count(object, "/status/active")),
        if last.is_null() { is("<none>") } else { Cell::age(last) },
        age(object),
        names,
        images,
        is(read::selector(object, "/spec/jobTemplate/spec/selector")),
    ]
}

pub(super) fn disruption_budget_columns() -> Vec<Column> {
    vec![
        columns::name(),
        text("Min Available", "The minimum number of pods that must be available."),
        text("Max Unavailable", "The maximum number of pods that may be unavailable."),
        text("Allowed Disruptions", "Calculated number of pods that may be disrupted at this time.").integer(),
        columns::age(),
    ]
}

pub(super) fn disruption_budget(object: &Value) -> Vec<Cell> {
    let bound = |pointer: &str| match at(object, pointer) {
        Value::Null => "N/A".to_string(),
        value => int_or_text(value),
    };
    vec![
        name(object),
        is(bound("/spec/minAvailable")),
        is(bound("/spec/maxUnavailable")),
        is(number(object, "/status/disruptionsAllowed")),
        age(object),
    ]
}

pub(super) fn autoscaler_columns() -> Vec<Column> {
    let spec = |name: &'static str, of: &str| field::<autoscaling::HorizontalPodAutoscalerSpec>(name, of);
    vec![
        columns::name(),
        spec("Reference", "scaleTargetRef"),
        spec("Targets", "metrics"),
        spec("MinPods", "minReplicas"),
        spec("MaxPods", "maxReplicas"),
        field::<autoscaling::HorizontalPodAutoscalerStatus>("Replicas", "currentReplicas"),
        columns::age(),
    ]
}

pub(super) fn autoscaler(object: &Value) -> Vec<Cell> {
    let target = at(object, "/spec/scaleTargetRef");
    let least = at(object, "/spec/minReplicas").as_i64();
    vec![
        name(object),
        is(format!("{}/{}", read::text(target, "/kind"), read::text(target, "/name"))),
        is(metrics(object)),
        is(least.map_or("<unset>".into(), |n| n.to_string())),
        is(number(object, "/spec/maxReplicas")),
        is(number(object, "/status/currentReplicas")),
        age(object),
    ]
}

fn metrics(object: &Value) -> String {
    let (specs, statuses) = (list(object, "/spec/metrics"), list(object, "/status/currentMetrics"));
    if specs.is_empty() {
        return "<none>".into();
    }
    let shown: Vec<String> = specs
        .iter()
        .take(2)
        .enumerate()
        .map(|(i, spec)| metric(spec, statuses.get(i).unwrap_or(&Value::Null)))
        .collect();
    let shown = shown.join(", ");
    if specs.len() > 2 { format!("{shown} + {} more...", specs.len() - 2) } else { shown }
}

fn metric(spec: &Value, status: &Value) -> String {
    let kind = read::text(spec, "/type");
    let source = match kind {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".into(),
    };
    let (spec, status) = (&spec[source], &status[source]);
    let target = &spec["target"];
    // What of the current value is shown; whole sources that are there but empty count as zero.
    let current = |field: &str, needed: bool| match &status["current"][field] {
        _ if status.is_null() => "<unknown>".to_string(),
        Value::Null if needed => "<unknown>".into(),
        value => quantity(value),
    };
    let average = target.get("averageValue").filter(|v| !v.is_null());
    match (source, average) {
        ("external" | "object", Some(average)) => {
            format!("{}/{} (avg)", current("averageValue", true), quantity(average))
        }
        ("external" | "object", None) => format!("{}/{}", current("value", false), quantity(&target["value"])),
        ("pods", _) => format!("{}/{}", current("averageValue", false), quantity(&target["averageValue"])),
        (_, Some(average)) => {
            format!("{}: {}/{}", read::text(spec, "/name"), current("averageValue", false), quantity(average))
        }
        (_, None) => {
            let percent = |value: &Value, or: &str| value.as_i64().map_or(or.to_string(), |n| format!("{n}%"));
            let now = percent(&status["current"]["averageUtilization"], "<unknown>");
            let wanted = percent(&target["averageUtilization"], "<auto>");
            format!("{}: {now}/{wanted}", read::text(spec, "/name"))
        }
    }
}

pub(super) fn scale_columns() -> Vec<Column> {
    use k8s_openapi::api::autoscaling::v1::{ScaleSpec, ScaleStatus};
    let mut first = columns::name();
    first.format = "".into();
    vec![
        first,
        field::<ScaleSpec>("Desired", "replicas").integer(),
        field::<ScaleStatus>("Available", "replicas").integer(),
        columns::age(),
    ]
}

pub(super) fn scale(object: &Value) -> Vec<Cell> {
    vec![name(object), is(number(object, "/spec/replicas")), is(number(object, "/status/replicas")), age(object)]
}
