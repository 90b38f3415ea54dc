//! Command lines as upstream's components take them: `--flag=value`, `--flag value`, `--switch`, `-v2`; lists that may
//! be repeated; `--help`, `--version`; and refusals in pflag's words (`unknown flag: --x`).
//!
//! A component describes its flags as a list of [`clap::Arg`]s made by [`text`], [`switch`], [`int`], [`duration`] …
//! and reads them back from [`Flags`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Command};

/// A flag that takes text.
pub fn text(name: &'static str, default: &str, help: &'static str) -> Arg {
    value(name, default, help, ValueParser::string()).value_name("string")
}

/// A flag that takes one of these words.
pub fn choice(name: &'static str, default: &str, words: &'static [&'static str], help: &'static str) -> Arg {
    value(name, default, help, PossibleValuesParser::new(words).into()).value_name("string").hide_possible_values(true)
}

/// A flag that is on or off: `--name`, `--name=false`.
pub fn switch(name: &'static str, default: bool, help: &'static str) -> Arg {
    value(name, if default { "true" } else { "false" }, help, ValueParser::new(parse_bool))
        .num_args(0..=1)
        .require_equals(true)
        .default_missing_value("true")
        .value_name("bool")
        .allow_hyphen_values(false)
}

/// A flag that takes a whole number.
pub fn int(name: &'static str, default: i64, help: &'static str) -> Arg {
    value(name, &default.to_string(), help, ValueParser::new(parse_int)).value_name("int")
}

/// A flag that takes a number.
pub fn float(name: &'static str, default: f64, help: &'static str) -> Arg {
    value(name, &default.to_string(), help, ValueParser::new(parse_float)).value_name("float")
}

/// A flag that takes a duration as Go writes it.
pub fn duration(name: &'static str, default: &str, help: &'static str) -> Arg {
    value(name, default, help, ValueParser::new(parse_go_duration)).value_name("duration")
}

/// A flag that takes an address.
pub fn ip(name: &'static str, default: &str, help: &'static str) -> Arg {
    value(name, default, help, ValueParser::new(parse_ip)).value_name("ip")
}

/// A flag that takes a list: by commas, or repeated.
pub fn list(name: &'static str, default: &str, help: &'static str) -> Arg {
    value(name, default, help, ValueParser::string()).action(ArgAction::Append).value_name("strings")
}

/// A flag that may be repeated, each time with one whole value.
pub fn array(name: &'static str, help: &'static str) -> Arg {
    value(name, "", help, ValueParser::string()).action(ArgAction::Append).value_name("stringArray")
}

/// A flag that takes `key=value` pairs: by commas, or repeated.
pub fn map(name: &'static str, help: &'static str) -> Arg {
    value(name, "", help, ValueParser::string()).action(ArgAction::Append).value_name("mapStringString")
}

fn value(name: &'static str, default: &str, help: &'static str, parser: ValueParser) -> Arg {
    let arg = Arg::new(name).long(name).help(help).value_parser(parser).allow_hyphen_values(true).num_args(1);
    if default.is_empty() { arg } else { arg.default_value(default.to_string()) }
}

/// A bool as Go reads it.
///
/// # Errors
/// In Go's words.
pub(crate) fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("strconv.ParseBool: parsing {text:?}: invalid syntax")),
    }
}

fn parse_int(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
}

fn parse_float(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| format!("strconv.ParseFloat: parsing {text:?}: invalid syntax"))
}

fn parse_ip(text: &str) -> Result<IpAddr, String> {
    text.trim().parse().map_err(|_| format!("failed to parse IP: {text:?}"))
}

fn parse_go_duration(text: &str) -> Result<Duration, String> {
    crate::clock::parse_duration(text).ok_or_else(|| format!("time: invalid duration {text:?}"))
}

/// Flags that every component has: verbosity and form of the log, and its version.
pub fn common() -> Vec<Arg> {
    vec![
        int("v", 0, "number for the log level verbosity").short('v').value_name("Level"),
        text("vmodule", "", "accepted; the level of -v holds everywhere"),
        choice("logging-format", "text", &["text", "json"], "form of the log: text or json"),
        duration("log-flush-frequency", "5s", "accepted; the log is written at once"),
        switch("log-json-split-stream", false, "accepted; the log has one stream"),
        text("log-json-info-buffer-size", "0", "accepted; the log is not buffered"),
        switch("log-text-split-stream", false, "accepted; the log has one stream"),
        text("log-text-info-buffer-size", "0", "accepted; the log is not buffered"),
        Arg::new("version")
            .long("version")
            .help("print the version and quit; --version=raw prints its parts")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_name("version"),
    ]
}

/// Flags of a component that has metrics.
pub fn metrics() -> Vec<Arg> {
    vec![
        text("show-hidden-metrics-for-version", "", "accepted; no metric is hidden"),
        list("disabled-metrics", "", "accepted; all metrics are shown"),
        map("allow-metric-labels", "accepted; label values are not limited"),
        text("allow-metric-labels-manifest", "", "accepted; label values are not limited"),
    ]
}

/// Flags of a component that could behave as an older version does.
pub fn emulation() -> Vec<Arg> {
    vec![
        list("emulated-version", "", "accepted; the version is not emulated"),
        switch("emulation-forward-compatible", false, "accepted; the version is not emulated"),
    ]
}

/// Flags of a component that serves HTTPS.
pub fn serving(port: i64) -> Vec<Arg> {
    vec![
        ip("bind-address", "0.0.0.0", "address to listen on for --secure-port"),
        int("secure-port", port, "port of HTTPS with authentication and authorization"),
        text("cert-dir", "", "directory for certificates that are made when none are given"),
        text("tls-cert-file", "", "file with the certificate for HTTPS, followed by intermediates"),
        text("tls-private-key-file", "", "file with the key of --tls-cert-file"),
        list("tls-cipher-suites", "", "cipher suites for TLS 1.2, by commas; all good ones when none are given"),
        text("tls-min-version", "", "lowest version of TLS: VersionTLS12 or VersionTLS13"),
        array("tls-sni-cert-key", "certificate and key file for some names: cert,key:name1,name2"),
        int("http2-max-streams-per-connection", 0, "requests at a time on an HTTP/2 connection; 0 takes the default"),
        switch("permit-address-sharing", false, "set SO_REUSEADDR on the listening socket"),
        switch("permit-port-sharing", false, "set SO_REUSEPORT on the listening socket"),
    ]
}

/// Flags of a component that asks the API server who its clients are and what they may.
pub fn delegating() -> Vec<Arg> {
    vec![
        text("authentication-kubeconfig", "", "kubeconfig for asking who a client is"),
        switch("authentication-skip-lookup", false, "do not read authentication's settings from the cluster"),
        switch("authentication-tolerate-lookup-failure", true, "start although those settings can't be read"),
        duration("authentication-token-webhook-cache-ttl", "10s", "how long answers on tokens are kept"),
        text("authorization-kubeconfig", "", "kubeconfig for asking what a client may"),
        list("authorization-always-allow-paths", "/healthz,/readyz,/livez", "paths that are open to everybody"),
        duration("authorization-webhook-cache-authorized-ttl", "10s", "how long a yes is kept"),
        duration("authorization-webhook-cache-unauthorized-ttl", "10s", "how long a no is kept"),
        text("client-ca-file", "", "authorities whose client certificates are trusted"),
        list("requestheader-allowed-names", "", "common names that may speak for others through headers"),
        text("requestheader-client-ca-file", "", "authorities of those that speak for others"),
        list("requestheader-extra-headers-prefix", "x-remote-extra-", "prefixes of headers with extra values"),
        list("requestheader-group-headers", "x-remote-group", "headers with groups"),
        list("requestheader-uid-headers", "", "headers with the UID"),
        list("requestheader-username-headers", "x-remote-user", "headers with the user's name"),
    ]
}

/// Flags of a component that elects a leader.
pub fn leader_election(lock: &'static str) -> Vec<Arg> {
    vec![
        switch("leader-elect", true, "elect a leader among several copies before working"),
        duration("leader-elect-lease-duration", "15s", "how long others wait after the last renewal"),
        duration("leader-elect-renew-deadline", "10s", "how long the leader tries to renew"),
        duration("leader-elect-retry-period", "2s", "time between attempts"),
        choice("leader-elect-resource-lock", "leases", &["leases"], "kind of the object that is the lock"),
        text("leader-elect-resource-name", lock, "name of the lock"),
        text("leader-elect-resource-namespace", "kube-system", "namespace of the lock"),
    ]
}

/// How the help of a flag begins that is taken so that a command line written for upstream starts, and that has no
/// effect here. Such flags have a part of `--help` of their own, and one that is given is told of at start.
const IDLE: &str = "accepted";

fn is_idle(arg: &Arg) -> bool {
    arg.get_help().is_some_and(|help| help.to_string().starts_with(IDLE))
}

/// A component's command line: its name, a line about it, its flags and the common ones.
pub fn command(name: &'static str, about: &'static str, flags: impl IntoIterator<Item = Arg>) -> Command {
    let group = |arg: Arg| if is_idle(&arg) { arg.help_heading("Without effect here") } else { arg };
    Command::new(name)
        .about(about)
        .args(flags.into_iter().chain(common()).map(group))
        .args_override_self(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .max_term_width(120)
}

/// The flag of feature gates.
const GATES: &str = "feature-gates";

/// A command line, parsed.
#[derive(Debug, Clone)]
pub struct Flags {
    matches: ArgMatches,
    names: Vec<String>,
    idle: Vec<String>,
}

/// Why no flags come out of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// Print this and end well (`--help`, `--version`).
    Print(String),
    /// Print this as an error and end with 1.
    Refuse(String),
}

/// Parses arguments (without the program's name).
///
/// # Errors
/// What to print instead of starting.
pub fn parse(command: Command, args: impl IntoIterator<Item = OsString>) -> Result<Flags, Exit> {
    let mut command = command.no_binary_name(true);
    let args = args.into_iter().map(dashes);
    let matches = match command.try_get_matches_from_mut(args) {
        Ok(matches) => matches,
        Err(e) if e.kind() == ErrorKind::DisplayHelp => return Err(Exit::Print(e.render().to_string())),
        Err(e) => return Err(Exit::Refuse(refusal(&e))),
    };
    let names = command.get_arguments().map(|a| a.get_id().to_string()).filter(|n| n != "help").collect();
    let idle = command.get_arguments().filter(|a| is_idle(a)).map(|a| a.get_id().to_string()).collect();
    let flags = Flags { matches, names, idle };
    flags.check_gates()?;
    match flags.matches.get_one::<String>("version").map(String::as_str) {
        None | Some("false") => Ok(flags),
        Some("raw") => Err(Exit::Print(format!("{}\n", crate::health::version_json()))),
        Some(_) => Err(Exit::Print(format!("{}\n", crate::version::line()))),
    }
}

/// `--some_flag` is `--some-flag`.
fn dashes(arg: OsString) -> OsString {
    let Some(text) = arg.to_str().filter(|t| t.starts_with("--") && t.contains('_')) else { return arg };
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let name = name.replace('_', "-");
    value.map_or(name.clone(), |value| format!("{name}={value}")).into()
}

/// clap's refusal in pflag's words.
fn refusal(e: &clap::Error) -> String {
    let context = |kind| match e.get(kind) {
        Some(ContextValue::String(s)) => s.as_str(),
        _ => "",
    };
    let arg = context(ContextKind::InvalidArg);
    let flag = arg.split([' ', '=', '[']).next().unwrap_or(arg);
    match e.kind() {
        ErrorKind::UnknownArgument if arg.starts_with("--") => format!("unknown flag: {flag}"),
        ErrorKind::UnknownArgument if arg.starts_with('-') => {
            let letter = arg.chars().nth(1).unwrap_or_default();
            format!("unknown shorthand flag: '{letter}' in {arg}")
        }
        ErrorKind::UnknownArgument => format!("unknown command {arg:?}"),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if context(ContextKind::InvalidValue).is_empty() => {
            format!("flag needs an argument: {flag}")
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let value = context(ContextKind::InvalidValue);
            let why = std::error::Error::source(e).map_or_else(|| "unsupported value".to_string(), |s| s.to_string());
            format!("invalid argument {value:?} for {flag:?} flag: {why}")
        }
        _ => e.render().to_string().trim_end().trim_start_matches("error: ").to_string(),
    }
}

impl Flags {
    /// Was the flag given?
    pub fn given(&self, name: &str) -> bool {
        self.matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine)
    }

    /// Text; empty when it was not given and has no default.
    pub fn text(&self, name: &str) -> &str {
        self.matches.get_one::<String>(name).map_or("", String::as_str)
    }

    /// A path; none when it is empty.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.text(name)).filter(|t| !t.is_empty()).map(PathBuf::from)
    }

    /// On or off.
    pub fn switch(&self, name: &str) -> bool {
        self.matches.get_one(name).copied().unwrap_or(false)
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> i64 {
        self.matches.get_one(name).copied().unwrap_or(0)
    }

    /// A number.
    pub fn float(&self, name: &str) -> f64 {
        self.matches.get_one(name).copied().unwrap_or(0.0)
    }

    /// A duration.
    pub fn duration(&self, name: &str) -> Duration {
        self.matches.get_one(name).copied().unwrap_or_default()
    }

    /// An address; none when it was not given and has no default.
    pub fn ip(&self, name: &str) -> Option<IpAddr> {
        self.matches.get_one(name).copied()
    }

    /// The parts of a list, in order.
    pub fn list(&self, name: &str) -> Vec<String> {
        let each = self.array(name).into_iter();
        each.flat_map(|v| v.split(',').map(|s| s.trim().to_string()).collect::<Vec<_>>())
            .filter(|s| !s.is_empty())
            .collect()
    }

    /// Each value of a flag that may be repeated.
    pub fn array(&self, name: &str) -> Vec<String> {
        self.matches.get_many::<String>(name).map(|v| v.cloned().collect()).unwrap_or_default()
    }

    /// The pairs of a map; a key without `=` has the value `true`.
    pub fn map(&self, name: &str) -> BTreeMap<String, String> {
        let pairs = self.list(name).into_iter();
        pairs.map(|p| p.split_once('=').map_or((p.clone(), "true".into()), |(k, v)| (k.into(), v.into()))).collect()
    }

    fn check_gates(&self) -> Result<(), Exit> {
        let raw = self.array_if_there(GATES).join(",");
        crate::features::check_texts(&self.gates())
            .map_err(|why| Exit::Refuse(format!("invalid argument {raw:?} for \"--{GATES}\" flag: {why}")))
    }

    fn array_if_there(&self, name: &str) -> Vec<String> {
        if self.names.iter().any(|known| known == name) { self.array(name) } else { Vec::new() }
    }

    fn gates(&self) -> BTreeMap<String, String> {
        if self.names.iter().any(|known| known == GATES) { self.map(GATES) } else { BTreeMap::new() }
    }

    /// What was given and changes nothing here: flags, and feature gates that are set otherwise than their default.
    pub fn idle(&self) -> Vec<String> {
        let gates: Vec<(String, bool)> = self.gates().into_iter().map(|(name, on)| (name, on == "true")).collect();
        let gates = crate::features::changed(gates.iter().map(|(name, on)| (name, *on)));
        let gates = gates.into_iter().map(|name| format!("feature gate {name}"));
        self.idle.iter().filter(|name| self.given(name)).map(|name| format!("--{name}")).chain(gates).collect()
    }

    /// What the logging flags say.
    pub fn logging(&self) -> crate::logging::Options {
        crate::logging::Options {
            verbosity: self.int("v").clamp(0, 255) as u8,
            json: self.text("logging-format") == "json",
        }
    }

    /// What the `--tls-*` flags of [`serving`] say.
    pub fn tls_policy(&self) -> crate::tls::Policy {
        crate::tls::Policy {
            min_version: self.text("tls-min-version").to_string(),
            cipher_suites: self.list("tls-cipher-suites"),
            named: self.array("tls-sni-cert-key"),
        }
    }

    /// Every flag with its value, sorted by name, for `/flagz`.
    pub fn all(&self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self.names.iter().map(|n| (n.clone(), self.shown(n))).collect();
        all.sort();
        all
    }

    fn shown(&self, name: &str) -> String {
        let raw = self.matches.get_raw(name).map(|v| v.map(|s| s.to_string_lossy().into_owned()).collect::<Vec<_>>());
        raw.unwrap_or_default().join(",")
    }
}

/// A parser for values of a type of one's own.
pub fn typed<T: Clone + Send + Sync + 'static>(
    name: &'static str, default: &str, help: &'static str, parse: fn(&str) -> Result<T, String>,
) -> Arg {
    value(name, default, help, ValueParser::new(clap::builder::StringValueParser::new().try_map(move |s| parse(&s))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(args: &[&str]) -> Result<Flags, Exit> {
        let flags = [
            int("secure-port", 6443, ""),
            list("etcd-servers", "", ""),
            switch("profiling", true, ""),
            switch("allow-privileged", false, ""),
            duration("event-ttl", "1h0m0s", ""),
        ];
        parse(command("kube-sample", "", flags), args.iter().map(OsString::from))
    }

    #[test]
    fn upstreams_ways_to_write_a_flag_are_taken() {
        let args = ["--secure-port", "1", "--etcd-servers=a,b", "--etcd-servers", "c", "--allow_privileged", "-v4"];
        let flags = sample(&args).expect("parsed");
        assert_eq!(flags.int("secure-port"), 1);
        assert_eq!(flags.list("etcd-servers"), ["a", "b", "c"]);
        assert!(flags.switch("allow-privileged") && flags.switch("profiling"));
        assert_eq!(flags.logging().verbosity, 4);
        assert_eq!(flags.duration("event-ttl"), Duration::from_secs(3600));
        assert!(!sample(&["--profiling=false"]).expect("parsed").switch("profiling"));
        assert_eq!(sample(&["--v=2", "--v=3"]).expect("parsed").int("v"), 3);
    }

    #[test]
    fn refusals_have_pflags_words() {
        let refused = |args: &[&str]| match sample(args) {
            Err(Exit::Refuse(text)) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&["--nothing=1"]), "unknown flag: --nothing");
        assert_eq!(refused(&["--nothing"]), "unknown flag: --nothing");
        assert_eq!(refused(&["-x"]), "unknown shorthand flag: 'x' in -x");
        assert_eq!(
            refused(&["--secure-port=abc"]),
            "invalid argument \"abc\" for \"--secure-port\" flag: strconv.ParseInt: parsing \"abc\": invalid syntax"
        );
        assert_eq!(refused(&["--secure-port"]), "flag needs an argument: --secure-port");
    }

    #[test]
    fn what_has_no_effect_is_told_and_gates_are_checked() {
        let flags = || [switch("old-way", false, "accepted; there is no old way"), map(GATES, "gates")];
        let parse = |args: &[&str]| parse(command("kube-sample", "", flags()), args.iter().map(OsString::from));
        let given = parse(&["--old-way", "--feature-gates=APIServerIdentity=false,AllowServiceExternalIPs=true"]);
        assert_eq!(given.unwrap().idle(), ["--old-way", "feature gate APIServerIdentity"]);
        assert!(parse(&[]).unwrap().idle().is_empty());
        let Err(Exit::Refuse(text)) = parse(&["--feature-gates=A=true"]) else { panic!("an unknown gate") };
        let why = "invalid argument \"A=true\" for \"--feature-gates\" flag: unrecognized feature gate: A";
        assert_eq!(text, why);
        let Err(Exit::Print(help)) = parse(&["--help"]) else { panic!("no help") };
        assert!(help.contains("Without effect here:"), "{help}");
    }

    #[test]
    fn version_and_help_print() {
        let Err(Exit::Print(text)) = sample(&["--version"]) else { panic!("no version") };
        assert!(text.starts_with("Kubernetes v1.36.2+navarch."), "{text}");
        let Err(Exit::Print(text)) = sample(&["--help"]) else { panic!("no help") };
        assert!(text.contains("--etcd-servers"), "{text}");
    }
}
