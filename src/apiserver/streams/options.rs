//! Options of the connecting subresources: read from the query, checked as upstream checks them. Pure.

use api::Value;
use api::field::{Error, Errors, Path, quote};
use api::status::{Of, Status};
use jiff::Timestamp;
use serde_json::json;

use crate::info::is_true;

/// Parameters of a query, decoded, in order.
type Query = [(String, String)];

fn first<'q>(query: &'q Query, name: &str) -> Option<&'q str> {
    query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn flag(query: &Query, name: &str) -> bool {
    first(query, name).is_some_and(is_true)
}

fn text(query: &Query, name: &str) -> String {
    first(query, name).unwrap_or_default().to_string()
}

/// Go's complaint about a number that is none.
fn no_number(function: &str, text: &str) -> String {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let numeric = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let why =
        if numeric && (function == "ParseInt" || digits == text) { "value out of range" } else { "invalid syntax" };
    format!("strconv.{function}: parsing {}: {why}", quote(text))
}

fn number(query: &Query, name: &str) -> Result<Option<i64>, String> {
    let Some(text) = first(query, name) else { return Ok(None) };
    text.parse().map(Some).map_err(|_| no_number("ParseInt", text))
}

fn time(query: &Query, name: &str) -> Result<Option<Timestamp>, String> {
    match first(query, name) {
        None | Some("" | "null") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| {
            let (shown, layout) = (quote(text), quote("2006-01-02T15:04:05Z07:00"));
            format!("parsing time {shown} as {layout}: cannot parse {shown} as \"2006\"")
        }),
    }
}

/// What a log is wanted of: PodLogOptions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Log {
    /// Container; empty for the only one.
    pub container: String,
    /// Follows what is written.
    pub follow: bool,
    /// Of the run before.
    pub previous: bool,
    /// Lines of the last seconds.
    pub since_seconds: Option<i64>,
    /// Lines since then.
    pub since_time: Option<Timestamp>,
    /// Each line with its time.
    pub timestamps: bool,
    /// The last lines.
    pub tail_lines: Option<i64>,
    /// At most so many bytes.
    pub limit_bytes: Option<i64>,
    /// The kubelet's certificate is not looked at.
    pub insecure: bool,
    /// `All`, `Stdout`, `Stderr`: refused, as upstream refuses it while PodLogsQuerySplitStreams is off by default.
    pub stream: Option<String>,
}

impl Log {
    /// Reads the options.
    ///
    /// # Errors
    /// The text of a 400.
    pub fn read(query: &Query) -> Result<Self, String> {
        Ok(Self {
            container: text(query, "container"),
            follow: flag(query, "follow"),
            previous: flag(query, "previous"),
            since_seconds: number(query, "sinceSeconds")?,
            since_time: time(query, "sinceTime")?,
            timestamps: flag(query, "timestamps"),
            tail_lines: number(query, "tailLines")?,
            limit_bytes: number(query, "limitBytes")?,
            insecure: flag(query, "insecureSkipTLSVerifyBackend"),
            stream: first(query, "stream").map(str::to_string),
        })
    }

    /// Checks the values.
    ///
    /// # Errors
    /// 422 in upstream's words.
    pub fn validate(&self, pod: &str) -> Result<(), Status> {
        let mut errors = Errors::new();
        let mut at_least = |name: &str, value: Option<i64>, least: i64, text: &str| {
            if let Some(value) = value.filter(|value| *value < least) {
                errors.push(Error::invalid(&Path::new(name), value, text));
            }
        };
        at_least("tailLines", self.tail_lines, 0, "must be greater than or equal to 0");
        at_least("limitBytes", self.limit_bytes, 1, "must be greater than 0");
        match self.since_time {
            None => at_least("sinceSeconds", self.since_seconds, 1, "must be greater than 0"),
            Some(_) if self.since_seconds.is_some() => {
                let text = "at most one of `sinceTime` or `sinceSeconds` may be specified";
                errors.push(Error::forbidden(&Path::new(""), text));
            }
            Some(_) => {}
        }
        if self.stream.is_some() {
            errors.push(Error::forbidden(&Path::new("stream"), "may not be specified"));
        }
        match errors.is_empty() {
            true => Ok(()),
            false => Err(Status::invalid(Of { group: "", name: "PodLogOptions" }, pod, errors)),
        }
    }

    /// The query for the kubelet.
    pub fn params(&self) -> Vec<(&'static str, String)> {
        let mut params = Vec::new();
        let mut set = |name: &'static str, on: bool| {
            if on {
                params.push((name, "true".to_string()));
            }
        };
        set("follow", self.follow);
        set("previous", self.previous);
        set("timestamps", self.timestamps);
        let number = |value: Option<i64>| value.map(|value| value.to_string());
        let values = [
            ("sinceSeconds", number(self.since_seconds)),
            ("sinceTime", self.since_time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())),
            ("tailLines", number(self.tail_lines)),
            ("limitBytes", number(self.limit_bytes)),
        ];
        params.extend(values.into_iter().filter_map(|(name, value)| Some((name, value?))));
        params
    }
}

/// Which streams are wanted of a container: PodExecOptions and PodAttachOptions, the latter without a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remote {
    /// The client sends.
    pub stdin: bool,
    /// The client reads the output.
    pub stdout: bool,
    /// The client reads the errors.
    pub stderr: bool,
    /// A terminal: errors come with the output.
    pub tty: bool,
    /// Container; empty for the only one.
    pub container: String,
    /// What to run.
    pub command: Vec<String>,
}

impl Remote {
    /// Reads the options.
    pub fn read(query: &Query) -> Self {
        let command = query.iter().filter(|(key, _)| key == "command").map(|(_, value)| value.clone());
        Self {
            stdin: flag(query, "stdin"),
            stdout: flag(query, "stdout"),
            stderr: flag(query, "stderr"),
            tty: flag(query, "tty"),
            container: text(query, "container"),
            command: command.collect(),
        }
    }

    /// The query for the kubelet, which has names of its own.
    pub fn params(&self) -> Vec<(&'static str, String)> {
        let flags = [("input", self.stdin), ("output", self.stdout), ("error", self.stderr), ("tty", self.tty)];
        let flags = flags.into_iter().filter(|(_, on)| *on).map(|(name, _)| (name, "1".to_string()));
        flags.chain(self.command.iter().map(|word| ("command", word.clone()))).collect()
    }

    /// The options as the object that admission sees.
    pub fn object(&self, kind: &str) -> Value {
        let mut object = json!({
            "kind": kind, "apiVersion": "v1", "stdin": self.stdin, "stdout": self.stdout, "stderr": self.stderr,
            "tty": self.tty, "container": self.container,
        });
        if kind == "PodExecOptions" {
            object["command"] = self.command.clone().into();
        }
        object
    }
}

/// Ports of a port-forward, where the client names them in the query.
///
/// # Errors
/// The text of a 400.
pub fn ports(query: &Query) -> Result<Vec<u16>, String> {
    let given = query.iter().filter(|(key, _)| key == "ports").flat_map(|(_, value)| value.split(','));
    given
        .map(|text| text.parse().map_err(|_| format!("cannot convert to []int32: {}", no_number("ParseUint", text))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Vec<(String, String)> {
        base::health::parse_query(text)
    }

    #[test]
    fn log_options_go_to_the_kubelet_as_they_came() {
        let options = Log::read(&query("follow=true&previous&tailLines=5&sinceSeconds=60&limitBytes=1&container=c"));
        let options = options.expect("read");
        options.validate("p").expect("valid");
        let params = options.params();
        let names: Vec<&str> = params.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["follow", "previous", "sinceSeconds", "tailLines", "limitBytes"]);
        let time = Log::read(&query("sinceTime=2020-01-02T03:04:05%2B01:00&timestamps=0")).expect("read");
        assert_eq!(time.params(), [("sinceTime", "2020-01-02T02:04:05Z".to_string())]);
    }

    #[test]
    fn log_options_are_refused_in_upstreams_words() {
        let refused = |text: &str| match Log::read(&query(text)) {
            Err(text) => (400, text),
            Ok(options) => {
                let status = options.validate("p").expect_err("invalid");
                (status.code, status.message)
            }
        };
        assert_eq!(refused("tailLines=x"), (400, r#"strconv.ParseInt: parsing "x": invalid syntax"#.into()));
        let text = r#"strconv.ParseInt: parsing "99999999999999999999": value out of range"#;
        assert_eq!(refused("tailLines=99999999999999999999"), (400, text.into()));
        let invalid = |why: &str| (422, format!("PodLogOptions \"p\" is invalid: {why}"));
        assert_eq!(
            refused("tailLines=-1"),
            invalid("tailLines: Invalid value: -1: must be greater than or equal to 0")
        );
        assert_eq!(refused("limitBytes=0"), invalid("limitBytes: Invalid value: 0: must be greater than 0"));
        assert_eq!(
            refused("sinceSeconds=1&sinceTime=2020-01-02T03:04:05Z"),
            invalid(": Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified")
        );
        assert_eq!(refused("stream=All"), invalid("stream: Forbidden: may not be specified"));
    }

    #[test]
    fn commands_keep_their_order() {
        let options = Remote::read(&query("command=sh&command=-c&command=a+b&stdin=true&stdout=1&tty=false"));
        assert_eq!(options.command, ["sh", "-c", "a b"]);
        let names: Vec<&str> = options.params().iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["input", "output", "command", "command", "command"]);
    }

    #[test]
    fn ports_come_one_by_one_or_in_a_list() {
        assert_eq!(ports(&query("ports=1,2&ports=3")).expect("ports"), [1, 2, 3]);
        assert_eq!(
            ports(&query("ports=x")).expect_err("none"),
            r#"cannot convert to []int32: strconv.ParseUint: parsing "x": invalid syntax"#
        );
    }
}
