//! A report as Markdown: for people to read, with JSON in fences for programs: the first fence is the summary, and each
//! part that has a result has one.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};

use super::private::Private;

/// Values that are nested deeper stand on one line.
const DEPTH: usize = 2;

/// Of what a part told on stderr, this many lines at either end are kept.
const NOTES_AT_AN_END: usize = 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Ok,
    /// It said that something is wrong, or did not end well.
    Failed,
    /// It was not done when its time was up, which says nothing of what it would have found.
    OutOfTime,
    /// It was not done; the reason says why.
    LeftOut,
}

impl State {
    /// That of a part with a problem, which is nothing but its time perhaps.
    pub(crate) fn of_problem(problem: Option<&String>, is_late: bool) -> Self {
        match problem {
            None => Self::Ok,
            Some(_) if is_late => Self::OutOfTime,
            Some(_) => Self::Failed,
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::OutOfTime => "ran out of time",
            Self::LeftOut => "left out",
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ReportSection {
    pub(crate) name: &'static str,
    pub(crate) state: State,
    pub(crate) seconds: f64,
    /// Why it failed or was left out.
    pub(crate) reason: Option<String>,
    /// What can be run to see the same.
    pub(crate) commands: Vec<String>,
    #[serde(skip)]
    pub(crate) result: Value,
    #[serde(skip)]
    pub(crate) notes: Vec<String>,
}

pub(super) struct Page<'a> {
    pub(crate) device: &'a str,
    /// Whether nothing is still to come.
    pub(crate) is_complete: bool,
    pub(crate) parts: &'a [ReportSection],
}

impl Page<'_> {
    /// The text of the file.
    pub(crate) fn text(&self) -> String {
        let warning = |line: &&String| line.starts_with("warning: ");
        let mut warnings: Vec<&String> = self.parts.iter().flat_map(|part| &part.notes).filter(warning).collect();
        warnings.sort();
        warnings.dedup();
        let summary = json!({
            "schema": 1,
            "program": env!("CARGO_PKG_VERSION"),
            "unix_s": SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            "device": self.device,
            "is_complete": self.is_complete,
            "parts": self.parts,
            "warnings": warnings,
        });
        let mut text = format!(
            "# gptoss-jit report\n\nWritten by `gptoss-jit doctor --report`. The names of the user and of the machine and home folders are \
             replaced by USER, HOST and ~. Read it before you send it.\n\n{}",
            fence(&summary)
        );
        for part in self.parts {
            part.write(&mut text);
        }
        text
    }
}

impl ReportSection {
    /// The part without private data.
    pub(crate) fn without(self, private: &Private) -> Self {
        let texts = |texts: Vec<String>| texts.iter().map(|text| private.taken_out_of(text)).collect();
        Self {
            reason: self.reason.map(|reason| private.taken_out_of(&reason)),
            commands: texts(self.commands),
            result: private.taken_out_of_value(self.result),
            notes: texts(self.notes),
            ..self
        }
    }

    fn write(&self, text: &mut String) {
        let Self { name, state, seconds, reason, commands, result, notes } = self;
        let _ = writeln!(text, "\n## {name}: {}, {seconds:.1} s", state.words());
        let commands = commands.iter().map(|command| format!("    {command}\n")).collect::<String>();
        let result = if result.is_null() { String::new() } else { fence(result) };
        let reason = reason.iter().map(|reason| format!("{reason}\n")).collect::<String>();
        for piece in [commands, reason, result].iter().filter(|piece| !piece.is_empty()) {
            let _ = write!(text, "\n{piece}");
        }
        if !notes.is_empty() {
            let _ = write!(text, "\n```text\n{}```\n", ends(notes));
        }
    }
}

/// The first and the last lines.
fn ends(lines: &[String]) -> String {
    let hidden = lines.len().saturating_sub(2 * NOTES_AT_AN_END);
    let mut text = String::new();
    for (i, line) in lines.iter().enumerate() {
        if hidden == 0 || i < NOTES_AT_AN_END || i >= NOTES_AT_AN_END + hidden {
            let _ = writeln!(text, "{}", line.replace("```", "'''"));
        } else if i == NOTES_AT_AN_END {
            let _ = writeln!(text, "… {hidden} lines …");
        }
    }
    text
}

fn fence(value: &Value) -> String {
    let mut text = String::from("```json\n");
    write_value(&mut text, value, 0);
    text + "\n```\n"
}

/// JSON with a line for each value down to [`DEPTH`].
fn write_value(text: &mut String, value: &Value, depth: usize) {
    let open = |text: &mut String, n: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n("  ", n));
    };
    match value {
        Value::Object(map) if depth < DEPTH && !map.is_empty() => {
            text.push('{');
            for (i, (name, value)) in map.iter().enumerate() {
                text.push_str(if i > 0 { "," } else { "" });
                open(text, depth + 1);
                let _ = write!(text, "{}: ", Value::from(name.as_str()));
                write_value(text, value, depth + 1);
            }
            open(text, depth);
            text.push('}');
        }
        Value::Array(list) if depth < DEPTH && !list.is_empty() => {
            text.push('[');
            for (i, value) in list.iter().enumerate() {
                text.push_str(if i > 0 { "," } else { "" });
                open(text, depth + 1);
                write_value(text, value, depth + 1);
            }
            open(text, depth);
            text.push(']');
        }
        // A fence in a text would end this one; in JSON it can be written otherwise.
        value => text.push_str(&value.to_string().replace("```", "\\u0060\\u0060\\u0060")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_readable_and_reads_back() {
        let value = json!({"a": [1, {"b": [1, 2], "c": "```"}], "d": {}, "e": null, "f\"": {"g": {"h": 1}}});
        let text = fence(&value);
        let inner = text.strip_prefix("```json\n").and_then(|text| text.strip_suffix("\n```\n")).expect("a fence");
        assert!(!inner.contains("```"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(inner).expect("JSON"), value);
        assert!(text.contains("\n    {\"b\":[1,2],"), "{text}");
    }

    #[test]
    fn a_part_names_nobody_and_its_json_is_as_it_was() {
        let private = Private::new(Some("/home/ok"), ["ok".to_owned()].into_iter(), "seconds");
        let told = || "is it\nok, seconds?".to_owned();
        let (commands, notes) = (vec![told()], vec!["ok".into()]);
        let result = json!({"ok": [told(), 1]});
        let part = ReportSection {
            name: "doctor",
            state: State::Ok,
            seconds: 1.0,
            reason: Some(told()),
            commands,
            result,
            notes,
        };
        let parts = [part.without(&private)];
        let text = Page { device: "cpu", is_complete: true, parts: &parts }.text();
        let fences: Vec<Value> = text
            .split("```json\n")
            .skip(1)
            .map(|rest| serde_json::from_str(rest.split("\n```").next().expect("an end")).expect("JSON"))
            .collect();
        let without = "is it\nUSER, HOST?";
        let part = &fences[0]["parts"][0];
        let got = (&part["state"], &part["seconds"], &part["reason"], &part["commands"][0]);
        assert_eq!(got, (&"ok".into(), &1.0.into(), &without.into(), &without.into()), "{text}");
        assert_eq!(fences[1], json!({"ok": [without, 1]}));
        assert!(text.ends_with("```text\nUSER\n```\n"), "{text}");
    }

    #[test]
    fn long_notes_keep_both_ends() {
        let lines: Vec<String> = (0..100).map(|i| format!("line {i}")).collect();
        let text = ends(&lines);
        assert!(text.starts_with("line 0\n") && text.ends_with("line 99\n"), "{text}");
        assert!(text.contains("line 29\n… 40 lines …\nline 70\n"), "{text}");
        assert_eq!(ends(&lines[..60]).lines().count(), 60);
    }
}
