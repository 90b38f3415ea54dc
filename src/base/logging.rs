//! Logs to stderr in klog's text form or as JSON, by `-v` and `--logging-format`.
//!
//! Text: `I0102 15:04:05.000000    4242 module:17] "message" key="value"`, so that tools that read upstream's logs read
//! these. JSON: `{"ts":1136214245000.0,"caller":"module:17","msg":"message","v":0,"key":"value"}`.

use std::fmt::{self, Write as _};
use std::sync::LazyLock;

use jiff::tz::TimeZone;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// What the flags say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// `-v`: 0 to 3 informs, 4 and 5 help to debug, 6 and more trace.
    pub verbosity: u8,
    /// JSON instead of text.
    pub json: bool,
}

/// Starts logging. Call once; later calls change nothing.
pub fn init(options: Options) {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .event_format(Format { json: options.json, pid: std::process::id() });
    // A second call finds a subscriber in place, which is as it should be in tests.
    let _ = tracing_subscriber::registry().with(filter(options.verbosity)).with(layer).try_init();
}

/// Our own rooms speak at the level that `-v` asks for; libraries only when they warn, or at the highest verbosity.
fn filter(verbosity: u8) -> tracing_subscriber::EnvFilter {
    let (ours, libraries) = match verbosity {
        0..=3 => ("info", "warn"),
        4..=5 => ("debug", "warn"),
        6..=8 => ("trace", "info"),
        _ => ("trace", "debug"),
    };
    let mut text = libraries.to_string();
    for room in ROOMS {
        let _ = write!(text, ",{room}={ours}");
    }
    tracing_subscriber::EnvFilter::new(text)
}

const ROOMS: [&str; 11] =
    ["api", "apiserver", "base", "client", "cloud", "controllers", "dns", "kubelet", "navarch", "proxy", "scheduler"];

struct Format {
    json: bool,
    pid: u32,
}

impl<S, N> FormatEvent<S, N> for Format
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let meta = event.metadata();
        let caller = (meta.module_path().unwrap_or(meta.target()), meta.line().unwrap_or(0));
        match self.json {
            true => write_json(&mut out, *meta.level(), caller, &fields),
            false => write_text(&mut out, self.pid, *meta.level(), caller, &fields),
        }
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: Vec<(&'static str, String)>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_string(),
            name => self.rest.push((name, value.to_string())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.rest.push((name, format!("{value:?}"))),
        }
    }
}

/// The machine's time zone. Asking for it by its name would search the whole directory of zones, again and again.
fn zone() -> TimeZone {
    static ZONE: LazyLock<TimeZone> = LazyLock::new(|| match std::env::var_os("TZ") {
        Some(_) => TimeZone::system(),
        None => {
            let local = std::fs::read("/etc/localtime").ok();
            local.and_then(|file| TimeZone::tzif("local", &file).ok()).unwrap_or(TimeZone::UTC)
        }
    });
    ZONE.clone()
}

fn write_text(
    out: &mut Writer<'_>, pid: u32, level: Level, (module, line): (&str, u32), fields: &Fields,
) -> fmt::Result {
    let letter = match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let time = jiff::Timestamp::now().to_zoned(zone()).strftime("%m%d %H:%M:%S%.6f");
    write!(out, "{letter}{time} {pid:>7} {module}:{line}] {:?}", fields.message)?;
    for (key, value) in &fields.rest {
        write!(out, " {key}={value:?}")?;
    }
    writeln!(out)
}

fn write_json(out: &mut Writer<'_>, level: Level, (module, line): (&str, u32), fields: &Fields) -> fmt::Result {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let millis = jiff::Timestamp::now().as_microsecond() as f64 / 1000.0;
    let caller = quoted(&format!("{module}:{line}"));
    write!(out, "{{\"ts\":{millis},\"caller\":{caller},\"msg\":{}", quoted(&fields.message))?;
    if level > Level::ERROR {
        let v = match level {
            Level::TRACE => 6,
            Level::DEBUG => 4,
            _ => 0,
        };
        write!(out, ",\"v\":{v}")?;
    }
    for (key, value) in &fields.rest {
        write!(out, ",{}:{}", quoted(key), quoted(value))?;
    }
    writeln!(out, "}}")
}
