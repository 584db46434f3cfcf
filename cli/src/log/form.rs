//! How a line of the log looks, as text or as JSON, and which slice of which VM is in it.
//!
//! ```text
//!   event of any thread --text--> 2026-11-27T05:00:00Z  INFO its words vm=ID slice=N
//!                       \-json--> {"vm":"ID","slice":N,"timestamp":"...","level":"INFO","fields":{"message":"its words"},"target":"..."}
//!   what a process says --text--> tessera: its words
//!                       \-json--> as an event, without a target
//! ```
//! Not a span: a span is of one thread, and a slice has many that say something.

use super::owner::Owner;
use clap::ValueEnum;
use serde_json::{Value, json};
use std::fmt;
use std::sync::OnceLock;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// For people
    #[default]
    Text,
    /// An object of JSON in each line
    Json,
}

static FORM: OnceLock<Form> = OnceLock::new();

impl Form {
    /// From now on. Only the first time counts.
    pub(super) fn choose(self) {
        let _ = FORM.set(self);
    }

    /// That of this process.
    pub(crate) fn chosen() -> Self {
        FORM.get().copied().unwrap_or_default()
    }

    /// As options and environment name it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }

    /// A line that is not of the log, with its end.
    pub(super) fn said(self, level: Level, line: &str) -> String {
        match self {
            Self::Text => format!("tessera: {line}\n"),
            Self::Json => object(Owner::of_process().as_ref(), level, line),
        }
    }
}

/// A line of JSON that no event is behind.
fn object(owner: Option<&Owner>, level: Level, line: &str) -> String {
    let mut time = String::new();
    // Text takes everything, and the clock of a host is after 1970.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let object: Value =
        json!({"timestamp": time, "level": level.as_str(), "fields": {"message": line}});
    format!("{}\n", with_owner(owner, &object.to_string()))
}

/// An object with the VM and the slice in front.
fn with_owner(owner: Option<&Owner>, object: &str) -> String {
    match (owner, object.strip_prefix('{')) {
        (Some(Owner { vm, slice }), Some(rest)) => {
            let (vm, slice) = (json!(vm), json!(slice));
            format!("{{\"vm\":{vm},\"slice\":{slice},{rest}")
        }
        _ => object.to_owned(),
    }
}

/// A line of text with the VM and the slice behind, as far as they are known.
fn before_owner(line: &str, owner: Option<&Owner>) -> String {
    let mut line = line.trim_end_matches('\n').to_owned();
    if let Some(Owner { vm, slice }) = owner {
        let vm = vm.as_ref().map(|vm| format!(" vm={vm}"));
        let slice = slice.map(|slice| format!(" slice={slice}"));
        line.extend([vm, slice].into_iter().flatten());
    }
    line + "\n"
}

/// Forms events.
#[derive(Debug)]
pub(super) struct Formed {
    text: format::Format,
    json: format::Format<format::Json>,
    form: Form,
}

impl Formed {
    pub(super) fn new(form: Form, ansi: bool) -> Self {
        let text = format::format().with_target(false).with_ansi(ansi);
        let json = format::format().json().with_current_span(false).with_span_list(false);
        Self { text, json: json.with_ansi(false), form }
    }
}

impl<S, N> FormatEvent<S, N> for Formed
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let owner = Owner::of_process();
        let mut line = String::new();
        match self.form {
            Form::Text => {
                self.text.format_event(context, Writer::new(&mut line), event)?;
                writer.write_str(&before_owner(&line, owner.as_ref()))
            }
            Form::Json => {
                self.json.format_event(context, Writer::new(&mut line), event)?;
                writer.write_str(&with_owner(owner.as_ref(), &line))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner { vm: Some("ab".repeat(16)), slice: Some(3) }
    }

    #[test]
    fn line_of_a_slice_has_vm_and_slice_first_in_json_and_last_in_text() {
        let line = object(Some(&owner()), Level::WARN, "a \"quoted\"\nname");

        assert!(line.starts_with(&format!("{{\"vm\":\"{}\",\"slice\":3,", "ab".repeat(16))));
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["fields"]["message"], "a \"quoted\"\nname");
        assert_eq!((&object["level"], &object["slice"]), (&json!("WARN"), &json!(3)));
        let text = before_owner("when  INFO what\n", Some(&owner()));
        assert_eq!(text, format!("when  INFO what vm={} slice=3\n", "ab".repeat(16)));
    }

    #[test]
    fn what_is_not_known_yet_is_null_in_json_and_left_out_in_text() {
        let unknown = Owner { vm: None, slice: None };

        let line = object(Some(&unknown), Level::INFO, "waits");
        let object: Value = serde_json::from_str(&line).unwrap();
        assert!(object["vm"].is_null() && object.get("slice").is_some());
        assert_eq!(before_owner("waits\n", Some(&unknown)), "waits\n");
    }

    #[test]
    fn process_that_is_no_slice_names_none() {
        let object: Value = serde_json::from_str(&object(None, Level::INFO, "x")).unwrap();

        assert!(object.get("vm").is_none() && object.get("slice").is_none());
        assert_eq!(before_owner("x\n", None), "x\n");
        assert_eq!(Form::Text.said(Level::INFO, "x"), "tessera: x\n");
    }
}
