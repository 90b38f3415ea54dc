//! Logs of containers, and files of the node's own log directory.

use super::{Answer, Query, Server, param, text, typed};
use crate::logs::read::{Options, stream};
use crate::pods::{self, status_of};
use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PodStatus;
use std::path::Path;

/// Reads the options of a query; `Err` answers it.
fn options(query: &Query) -> Result<(Options, bool), Answer> {
    let bad = || text(StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#);
    let invalid = || text(StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#);
    let flag = |name: &str| match param(query, name) {
        None => Ok(false),
        // Go's query decoder takes every text but these for true.
        Some(value) => Ok(!matches!(value.to_lowercase().as_str(), "false" | "0")),
    };
    let number = |name: &str| match param(query, name) {
        None => Ok(None),
        Some(value) => value.parse::<i64>().map(Some).map_err(|_| bad()),
    };
    let tail = match param(query, "tail") {
        Some("all") => None,
        Some(value) => Some(value.parse::<i64>().map_err(|_| bad())?),
        None => number("tailLines")?,
    };
    let since_seconds = number("sinceSeconds")?;
    let since_time = match param(query, "sinceTime").filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(text.parse::<Timestamp>().map_err(|_| bad())?),
    };
    let limit = number("limitBytes")?;
    let stream = match param(query, "stream") {
        None | Some("" | "All") => None,
        Some("Stdout") => Some("stdout"),
        Some("Stderr") => Some("stderr"),
        Some(_) => return Err(invalid()),
    };
    let out_of_range = tail.is_some_and(|n| n < 0)
        || limit.is_some_and(|n| n < 1)
        || since_seconds.is_some_and(|n| n < 1)
        || (since_seconds.is_some() && since_time.is_some())
        || (stream.is_some() && tail.is_some());
    if out_of_range {
        return Err(invalid());
    }
    let ago = since_seconds.map(|seconds| Timestamp::now() - SignedDuration::from_secs(seconds));
    let options = Options {
        follow: flag("follow")?,
        tail: tail.map(|n| n as u64),
        since: since_time.or(ago),
        timestamps: flag("timestamps")?,
        limit: limit.map(|n| n as u64),
        stream,
    };
    Ok((options, flag("previous")?))
}

/// The id of the run whose log is wanted.
fn run_of(pod: &str, status: &PodStatus, container: &str, previous: bool) -> Result<String, String> {
    let what = format!("container {container:?} in pod {pod:?}");
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let found = lists.into_iter().find_map(|list| status_of(list.as_ref(), container));
    let found = found.ok_or_else(|| format!("{what} is not available"))?;
    let state = found.state.clone().unwrap_or_default();
    let last = found.last_state.clone().unwrap_or_default().terminated;
    let last_id = last.as_ref().and_then(|last| last.container_id.clone()).filter(|id| !id.is_empty());
    let id = if previous {
        last_id.ok_or_else(|| format!("previous terminated {what} not found"))?
    } else if state.running.is_some() {
        found.container_id.clone().unwrap_or_default()
    } else if let Some(ended) = state.terminated {
        let own = ended.container_id.filter(|id| !id.is_empty());
        own.or(last_id).ok_or_else(|| format!("{what} is terminated"))?
    } else if last.is_some() {
        last_id.ok_or_else(|| format!("{what} is terminated"))?
    } else {
        let reason = state.waiting.and_then(|waiting| waiting.reason).unwrap_or_default();
        return Err(match reason.as_str() {
            "ErrImagePull" => format!("{what} is waiting to start: image can't be pulled"),
            "ImagePullBackOff" => format!("{what} is waiting to start: trying and failing to pull image"),
            reason => format!("{what} is waiting to start: {reason}"),
        });
    };
    Ok(id.split_once("://").map_or(id.as_str(), |(_, id)| id).to_owned())
}

/// The log of a container.
pub async fn container(server: &Server, namespace: &str, name: &str, container: &str, query: &Query) -> Answer {
    let (options, previous) = match options(query) {
        Ok(parsed) => parsed,
        Err(answer) => return answer,
    };
    let Some(pod) = server.pod(namespace, name, None) else {
        return text(StatusCode::NOT_FOUND, format!("pod {name:?} does not exist"));
    };
    if pods::place_of(&pod, container).is_none() {
        return text(StatusCode::NOT_FOUND, format!("container {container:?} not found in pod {name:?}"));
    }
    let id = match run_of(name, &server.status(&pod), container, previous) {
        Ok(id) => id,
        Err(error) => return text(StatusCode::BAD_REQUEST, error),
    };
    let status = match server.ctx.cri.container_status(&id).await {
        Ok(Some(status)) => status,
        _ => {
            let text_ = format!("unable to retrieve container logs for {}://{id}", server.ctx.runtime_name);
            return text(StatusCode::OK, text_);
        }
    };
    let cri = server.ctx.cri.clone();
    let running = move || -> futures::future::BoxFuture<'static, bool> {
        let (cri, id) = (cri.clone(), id.clone());
        Box::pin(async move {
            let running = k8s_cri::v1::ContainerState::ContainerRunning as i32;
            // A runtime that does not answer is no end of the log.
            cri.container_status(&id).await.map_or(true, |status| status.is_some_and(|s| s.state == running))
        })
    };
    let path = Path::new(&status.log_path);
    if let Err(error) = tokio::fs::metadata(path).await {
        let text_ = format!("failed to try resolving symlinks in path {:?}: {error}", status.log_path);
        return text(StatusCode::INTERNAL_SERVER_ERROR, text_);
    }
    let pieces = tokio_stream::wrappers::ReceiverStream::new(stream(path.to_owned(), options, Box::new(running)));
    let mut answer = Response::new(Body::from_stream(pieces));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer
}

/// A file below /var/log, or the names in a directory there.
pub async fn system(below: &str) -> Answer {
    let root = Path::new("/var/log");
    let below: std::path::PathBuf = below.split('/').filter(|part| !part.is_empty()).collect();
    let opened = tokio::task::spawn_blocking(move || look(root, &below)).await;
    match opened {
        Ok(Ok(Found::File(bytes))) => typed(StatusCode::OK, "text/plain; charset=utf-8", bytes),
        Ok(Ok(Found::Directory(names))) => {
            let lines: String = names.iter().map(|name| format!("<a href=\"{name}\">{name}</a>\n")).collect();
            typed(StatusCode::OK, "text/html; charset=utf-8", format!("<pre>\n{lines}</pre>\n"))
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

enum Found {
    File(Vec<u8>),
    Directory(Vec<String>),
}

fn look(root: &Path, below: &Path) -> std::io::Result<Found> {
    use crate::volumes::subpath::open_inside;
    use std::os::fd::AsRawFd;
    let fd = match below.as_os_str().is_empty() {
        true => std::fs::File::open(root)?.into(),
        false => open_inside(root, below)?,
    };
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    if !std::fs::metadata(&path)?.is_dir() {
        return Ok(Found::File(std::fs::read(&path)?));
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&path)? {
        let entry = entry?;
        let end = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{}{end}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(Found::Directory(names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_run_whose_log_is_wanted_is_found_or_refused_in_upstreams_words() {
        let status = |state: serde_json::Value, last: serde_json::Value| -> PodStatus {
            serde_json::from_value(
                json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "containerID": "containerd://now", "state": state, "lastState": last}]}),
            )
            .unwrap()
        };
        let running =
            status(json!({"running": {}}), json!({"terminated": {"exitCode": 1, "containerID": "containerd://old"}}));
        assert_eq!(run_of("p", &running, "c", false).unwrap(), "now");
        assert_eq!(run_of("p", &running, "c", true).unwrap(), "old");
        let waiting = status(json!({"waiting": {"reason": "ImagePullBackOff"}}), json!({}));
        assert_eq!(
            run_of("p", &waiting, "c", false).unwrap_err(),
            "container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image"
        );
        assert_eq!(
            run_of("p", &waiting, "c", true).unwrap_err(),
            "previous terminated container \"c\" in pod \"p\" not found"
        );
    }

    #[test]
    fn options_are_read_and_checked() {
        let parse =
            |text: &str| options(&Query(base::health::parse_query(text))).map_err(|answer| answer.status().as_u16());
        let (options, previous) = parse("follow=true&tailLines=5&timestamps=1&previous=false").unwrap();
        assert!(options.follow && options.timestamps && !previous);
        assert_eq!(options.tail, Some(5));
        assert_eq!(parse("tailLines=x").unwrap_err(), 400);
        assert_eq!(parse("tailLines=-1").unwrap_err(), 422);
        assert_eq!(parse("sinceSeconds=1&sinceTime=2024-01-01T00:00:00Z").unwrap_err(), 422);
    }
}
