//! The log on stderr: warnings of the library, and a server's line per request.

use std::fmt;
use std::io;

use anstream::AutoStream;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::stderr::Stderr;

/// Which events are printed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Events {
    /// What goes wrong, as warnings of the command line look.
    Warnings,
    /// The server's requests too, each with its time.
    Lines,
    /// The same as JSON objects.
    JsonLines,
}

/// Has what the library tells printed on stderr. `GPTOSS_JIT_LOG` says what, if it is set.
pub(super) fn begin(events: Events) {
    let usual = match events {
        Events::Warnings => "warn",
        Events::Lines | Events::JsonLines => "warn,gptoss_jit_serve=info",
    };
    let filter = EnvFilter::try_from_env("GPTOSS_JIT_LOG").unwrap_or_else(|_| usual.into());
    // Otherwise it prints its own errors to stderr, and panics if that fails.
    let subscriber = tracing_subscriber::fmt().log_internal_errors(false);
    subscriber.with_env_filter(filter).with_writer(|| Stderr).event_format(events).init();
}

impl<S, N> FormatEvent<S, N> for Events
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if *self == Self::JsonLines {
            return json_line(writer, event);
        }
        if *self == Self::Lines {
            SystemTime.format_time(&mut writer)?;
            write!(writer, " ")?;
        }
        let colored = AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
        match (*event.metadata().level(), colored) {
            (Level::ERROR | Level::WARN, true) => write!(writer, "\x1b[33mwarning:\x1b[0m ")?,
            (Level::ERROR | Level::WARN, false) => write!(writer, "warning: ")?,
            (level, _) => write!(writer, "{}: ", level.as_str().to_lowercase())?,
        }
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// An object of the time, the level, the words and the fields.
fn json_line(mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    let mut fields = Fields(Map::new());
    fields.0.insert("time".into(), time.into());
    fields.0.insert("level".into(), event.metadata().level().as_str().to_lowercase().into());
    event.record(&mut fields);
    writeln!(writer, "{}", Value::Object(fields.0))
}

struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }
}
