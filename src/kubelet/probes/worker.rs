//! One probe of one container: when to ask, how often in a row it must fail or succeed, and how to ask.

use super::http::Target;
use super::manager::Shared;
use super::{Outcome, ProbeKind, dial, grpc, http};
use crate::events::Level;
use crate::pods::{self, is_sidecar, should_restart, status_of};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, Probe};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An errored probe is tried so often before it counts as errored.
const TRIES: usize = 3;
/// Most of a command's output that is kept.
const MAX_OUTPUT: usize = 10 * 1024;

/// The probe that a container has of a kind.
pub fn spec(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Startup => container.startup_probe.as_ref(),
    }
}

/// A number of the probe, or its default where it is missing or zero.
fn or_default(value: Option<i32>, default: i32) -> i32 {
    value.filter(|value| *value > 0).unwrap_or(default)
}

/// A probe's own state.
pub struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) kind: ProbeKind,
    pub(super) init: bool,
    id: String,
    on_hold: bool,
    last: Option<bool>,
    run: i32,
}

/// What a probe looks at before it asks.
struct Seen {
    over: bool,
    container: Option<ContainerStatus>,
    pod_ip: String,
}

/// Shall the worker go on?
#[derive(PartialEq)]
enum Next {
    Go,
    End,
}

/// What a probe said goes with it, also when its task is dropped.
impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.results.remove(self.kind, &self.id);
        self.shared.metrics.forget(&self.pod, &self.container.name, self.kind);
    }
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, pod: Arc<Pod>, container: Container, kind: ProbeKind, init: bool) -> Self {
        Self { shared, pod, container, kind, init, id: String::new(), on_hold: false, last: None, run: 0 }
    }

    fn probe(&self) -> Probe {
        spec(&self.container, self.kind).cloned().unwrap_or_default()
    }

    /// Probes until the container is over for good, or the task is dropped. `poke` asks for a probing out of turn.
    pub(super) async fn run(mut self, poke: Arc<tokio::sync::Notify>) {
        let period = Duration::from_secs(or_default(self.probe().period_seconds, 10) as u64);
        // After a restart of the kubelet the probes of all that runs already would come at once.
        if self.shared.started.elapsed() < period && self.older_than_us() {
            tokio::time::sleep(period.mul_f64(rand::random_range(0.0..1.0))).await;
        }
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await;
        while self.step().await == Next::Go {
            tokio::select! {
                _ = ticks.tick() => {}
                () = poke.notified() => ticks.reset(),
            }
        }
    }

    /// Did the container run before this kubelet did?
    fn older_than_us(&self) -> bool {
        let state = self.look().and_then(|seen| seen.container?.state);
        let since = state.and_then(|state| state.running?.started_at);
        since.is_some_and(|since| since.0 < self.shared.started_at)
    }

    fn set(&self, result: bool) {
        self.shared.set(pods::uid(&self.pod), self.kind, &self.id, result);
    }

    /// What the kubelet knows of the container and its pod.
    fn look(&self) -> Option<Seen> {
        self.shared.statuses.read(pods::uid(&self.pod), |status| {
            let list = if self.init { &status.init_container_statuses } else { &status.container_statuses };
            Seen {
                over: pods::is_terminal(status.phase.as_deref().unwrap_or_default()),
                container: status_of(list.as_ref(), &self.container.name).cloned(),
                pod_ip: status.pod_ip.clone().unwrap_or_default(),
            }
        })
    }

    async fn step(&mut self) -> Next {
        let Some(Seen { over, container, pod_ip }) = self.look() else { return Next::Go };
        if over {
            return Next::End;
        }
        let Some(container) = container else { return Next::Go };
        let id = container.container_id.as_deref().and_then(|id| id.split_once("://")).map_or("", |(_, id)| id);
        if id.is_empty() {
            return Next::Go;
        }
        if id != self.id {
            self.adopt(id.to_owned(), &container);
        }
        if self.on_hold {
            return Next::Go;
        }
        let state = container.state.clone().unwrap_or_default();
        let Some(running) = state.running else {
            self.set(false);
            let over = state.terminated.is_some_and(|t| !should_restart(&self.pod, &self.container, t.exit_code));
            return if over { Next::End } else { Next::Go };
        };
        // The pod as it was when the worker was made may not have been on its way out yet.
        let deleting = self.shared.is_terminating(pods::uid(&self.pod));
        if deleting && self.kind != ProbeKind::Readiness {
            self.set(true);
            return Next::End;
        }
        let since = running.started_at.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let age = Timestamp::now().duration_since(since).as_secs();
        if age < i64::from(self.probe().initial_delay_seconds.unwrap_or(0)) {
            return Next::Go;
        }
        // Startup probes until it has started; the others after that.
        if (container.started == Some(true)) == (self.kind == ProbeKind::Startup) {
            return Next::Go;
        }
        let began = Instant::now();
        let outcome = self.ask(&pod_ip).await;
        self.shared.metrics.note(&self.pod, &self.container.name, self.kind, &outcome, began.elapsed());
        self.tell(&outcome);
        self.judge(outcome);
        Next::Go
    }

    /// Another run of the container: results start from the beginning, unless only the kubelet is new.
    fn adopt(&mut self, id: String, container: &ContainerStatus) {
        self.shared.results.remove(self.kind, &self.id);
        self.id = id;
        self.on_hold = false;
        let running = container.state.as_ref().and_then(|state| state.running.as_ref());
        let since = running.and_then(|running| running.started_at.as_ref()).map(|time| time.0);
        let older_than_us = since.is_some_and(|since| since < self.shared.started_at);
        if self.kind == ProbeKind::Startup && container.started == Some(true) && is_sidecar(&self.container) {
            self.set(true);
            return;
        }
        // No result counts as "not yet" for readiness and startup, as "well" for liveness.
        if self.kind == ProbeKind::Readiness && !older_than_us {
            self.set(false);
        }
    }

    fn judge(&mut self, outcome: Outcome) {
        let result = match outcome {
            Outcome::Success | Outcome::Warning(_) => true,
            Outcome::Failure(_) => false,
            Outcome::Error(_) => return,
        };
        self.run = if self.last == Some(result) { self.run + 1 } else { 1 };
        self.last = Some(result);
        let probe = self.probe();
        let needed = match result {
            true => or_default(probe.success_threshold, 1),
            false => or_default(probe.failure_threshold, 3),
        };
        if self.run < needed {
            return;
        }
        self.set(result);
        // A container that is about to be killed is left alone until it runs anew.
        if (self.kind == ProbeKind::Liveness && !result) || self.kind == ProbeKind::Startup {
            self.on_hold = true;
            self.run = 0;
        }
    }

    fn tell(&self, outcome: &Outcome) {
        let word = self.kind.word();
        let tell = |reason: &str, text: String| {
            self.shared.events.container(&self.pod, &self.container.name, Level::Warning, reason, text);
        };
        match outcome {
            Outcome::Success => {}
            Outcome::Warning(text) => tell("ProbeWarning", format!("{word} probe warning: {text}")),
            Outcome::Failure(text) => tell("Unhealthy", format!("{word} probe failed: {text}")),
            Outcome::Error(text) => {
                tell("Unhealthy", format!("{word} probe errored and resulted in unknown state: {text}"));
            }
        }
    }

    async fn ask(&self, pod_ip: &str) -> Outcome {
        let mut outcome = Outcome::Success;
        for _ in 0..TRIES {
            outcome = self.ask_once(pod_ip).await;
            if !matches!(outcome, Outcome::Error(_)) {
                break;
            }
        }
        outcome
    }

    async fn ask_once(&self, pod_ip: &str) -> Outcome {
        let probe = self.probe();
        let timeout = Duration::from_secs(or_default(probe.timeout_seconds, 1) as u64);
        if let Some(exec) = &probe.exec {
            return self.exec(exec.command.as_deref().unwrap_or_default(), timeout).await;
        }
        if let Some(action) = &probe.http_get {
            return match Target::of(action, &self.container, pod_ip, "probe") {
                Ok(target) => http::probe(target, timeout).await,
                Err(error) => Outcome::Error(error),
            };
        }
        if let Some(action) = &probe.tcp_socket {
            let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(pod_ip);
            return match pods::resolve_port(&action.port, &self.container) {
                Ok(port) => match dial::dial(host, port, timeout).await {
                    Ok(_) => Outcome::Success,
                    Err(error) => Outcome::Failure(error),
                },
                Err(error) => Outcome::Error(error),
            };
        }
        if let Some(action) = &probe.grpc {
            let service = action.service.as_deref().unwrap_or_default();
            return match u16::try_from(action.port) {
                Ok(port) => grpc::probe(pod_ip, port, service, timeout).await,
                Err(_) => Outcome::Error(format!("invalid port number: {}", action.port)),
            };
        }
        let what = format!("{}:{}", pods::describe(&self.pod), self.container.name);
        Outcome::Error(format!("missing probe handler for {what}"))
    }

    async fn exec(&self, command: &[String], timeout: Duration) -> Outcome {
        // Only plain values can stand in a probe's command.
        let vars = self.container.env.as_deref().unwrap_or_default();
        let lookup =
            |name: &str| vars.iter().find(|v| v.name == name && v.value_from.is_none()).and_then(|v| v.value.clone());
        let command: Vec<String> = command.iter().map(|text| crate::pods::expand::expand(text, lookup)).collect();
        match self.shared.cri.exec_sync(&self.id, &command, timeout).await {
            Ok(answer) => {
                let mut output = answer.stdout;
                output.extend(answer.stderr);
                output.truncate(MAX_OUTPUT);
                match answer.exit_code {
                    0 => Outcome::Success,
                    _ => Outcome::Failure(String::from_utf8_lossy(&output).into_owned()),
                }
            }
            Err(error) if error.0.code() == tonic::Code::DeadlineExceeded => {
                let text = format!("command {:?} timed out", command.join(" "));
                Outcome::Failure(text)
            }
            Err(error) => Outcome::Error(error.with_code()),
        }
    }
}
