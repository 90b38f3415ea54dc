//! Probes and lifecycle hooks.

use super::containers::Pod;
use crate::Value;
use crate::field::{Error, Errors, Path};
use crate::kinds::rules;
use crate::kinds::view::View;
use crate::meta::check::push_all;
use crate::meta::names;

/// The three probes of a container.
pub fn probes(out: &mut Errors, container: &Value, path: &Path) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.some(name) else { continue };
        let path = path.child(name);
        self::probe(out, probe, &path);
        if name == "readinessProbe" {
            if let Some(seconds) = probe.some("terminationGracePeriodSeconds") {
                let path = path.child("terminationGracePeriodSeconds");
                out.push(Error::invalid(&path, seconds.clone(), "must not be set for readinessProbes"));
            }
        } else if probe.number("successThreshold") != 1 {
            let path = path.child("successThreshold");
            out.push(Error::invalid(&path, probe.number("successThreshold"), "must be 1"));
        }
    }
}

fn probe(out: &mut Errors, probe: &Value, path: &Path) {
    handler(out, probe, &["exec", "httpGet", "tcpSocket", "grpc"], None, path);
    let fields = ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];
    rules::not_negative_fields(out, probe, &fields, path);
    if let Some(seconds) = probe.int("terminationGracePeriodSeconds").filter(|s| *s <= 0) {
        out.push(Error::invalid(&path.child("terminationGracePeriodSeconds"), seconds, "must be greater than 0"));
    }
}

/// Lifecycle hooks.
pub fn lifecycle(out: &mut Errors, lifecycle: &Value, pod: &Pod<'_>, path: &Path) {
    for name in ["postStart", "preStop"] {
        if let Some(hook) = lifecycle.some(name) {
            handler(out, hook, &["exec", "httpGet", "tcpSocket", "sleep"], pod.grace(), &path.child(name));
        }
    }
    if let Some(signal) = lifecycle.at("stopSignal").as_str() {
        stop_signal(out, signal, pod.spec, &path.child("stopSignal"));
    }
}

/// One of several ways to act, each with its rule.
fn handler(out: &mut Errors, handler: &Value, kinds: &[&str], grace: Option<i64>, path: &Path) {
    let mut found = false;
    for kind in kinds.iter().filter(|kind| handler.has(kind)) {
        let path = path.child(kind);
        if found {
            out.push(Error::forbidden(&path, "may not specify more than 1 handler type"));
            continue;
        }
        found = true;
        let action = handler.at(kind);
        match *kind {
            "exec" if action.items("command").is_empty() => out.push(Error::required(&path.child("command"), "")),
            "exec" => {}
            "httpGet" => http_get(out, action, &path),
            "sleep" => sleep(out, action.number("seconds"), grace, &path),
            _ => rules::port_or_name(out, action.at("port"), &path.child("port")),
        }
    }
    if !found {
        out.push(Error::required(path, "must specify a handler type"));
    }
}

fn http_get(out: &mut Errors, action: &Value, path: &Path) {
    rules::required(out, action, "path", path);
    rules::port_or_name(out, action.at("port"), &path.child("port"));
    rules::supported(out, action.text("scheme"), &["HTTP", "HTTPS"], &path.child("scheme"));
    for header in action.items("httpHeaders") {
        let name = header.text("name");
        push_all(out, &path.child("httpHeaders"), name, names::http_header(name));
    }
}

fn sleep(out: &mut Errors, seconds: i64, grace: Option<i64>, path: &Path) {
    if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
        let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        out.push(Error::invalid(path, seconds, detail));
    }
}

const SIGNALS: &[&str] = &[
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGRTMAX",
    "SIGRTMAX-1",
    "SIGRTMAX-10",
    "SIGRTMAX-11",
    "SIGRTMAX-12",
    "SIGRTMAX-13",
    "SIGRTMAX-14",
    "SIGRTMAX-2",
    "SIGRTMAX-3",
    "SIGRTMAX-4",
    "SIGRTMAX-5",
    "SIGRTMAX-6",
    "SIGRTMAX-7",
    "SIGRTMAX-8",
    "SIGRTMAX-9",
    "SIGRTMIN",
    "SIGRTMIN+1",
    "SIGRTMIN+10",
    "SIGRTMIN+11",
    "SIGRTMIN+12",
    "SIGRTMIN+13",
    "SIGRTMIN+14",
    "SIGRTMIN+15",
    "SIGRTMIN+2",
    "SIGRTMIN+3",
    "SIGRTMIN+4",
    "SIGRTMIN+5",
    "SIGRTMIN+6",
    "SIGRTMIN+7",
    "SIGRTMIN+8",
    "SIGRTMIN+9",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

fn stop_signal(out: &mut Errors, signal: &str, spec: &Value, path: &Path) {
    match spec.at("os").text("name") {
        "windows" => rules::supported(out, signal, &["SIGKILL", "SIGTERM"], path),
        "linux" => rules::supported(out, signal, SIGNALS, path),
        _ if spec.has("os") => {}
        _ => out.push(Error::forbidden(path, "may not be set for containers with empty `spec.os.name`")),
    }
}
