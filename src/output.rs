//! The only place through which the program prints.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::stderr::{self, Stderr};

/// When to colour stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The two streams, and what the global flags say about them.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    verbose: bool,
}

impl Output {
    /// Remembers the global flags and sets the colour choice of the process.
    pub(crate) fn new(json: bool, quiet: bool, verbose: bool, color: ColorChoice) -> Self {
        match color {
            ColorChoice::Auto => {}
            ColorChoice::Always => anstream::ColorChoice::Always.write_global(),
            ColorChoice::Never => anstream::ColorChoice::Never.write_global(),
        }
        Self { json, quiet, verbose }
    }

    /// Whether the result is to be JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether a progress bar would be seen: stderr is a terminal, and neither `--json` nor `--quiet` is on.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.json && !self.quiet && io::stderr().is_terminal()
    }

    /// Writes text to stdout as it is and flushes, so that a stream is seen as it comes.
    ///
    /// # Errors
    /// What writing to stdout gives; a broken pipe ends the program with success at the edge.
    pub(crate) fn text(&self, text: &str) -> io::Result<()> {
        self.bytes(text.as_bytes())
    }

    /// Writes bytes to stdout as they are and flushes.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    /// Writes one line to stdout.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(crate) fn line(&self, line: &str) -> io::Result<()> {
        self.bytes(format!("{line}\n").as_bytes())
    }

    /// Writes one JSON object on a line of its own to stdout.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(crate) fn json(&self, value: &impl Serialize) -> io::Result<()> {
        self.line(&serde_json::to_string(value).map_err(io::Error::other)?)
    }

    /// Writes an aligned table to stdout: two spaces between columns, no lines. Columns named in `right` hold numbers.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub(crate) fn table(&self, header: &[&str], rows: &[Vec<String>], right: &[&str]) -> io::Result<()> {
        self.text(&table(header, rows, right))
    }

    /// Tells something on stderr, unless `--quiet`. `{bold}` and colour come in as ANSI and are stripped where
    /// unwanted.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            self.stderr(text);
        }
    }

    /// The same kind of table on stderr, unless `--quiet`.
    pub(crate) fn note_table(&self, header: &[&str], rows: &[Vec<String>], right: &[&str]) {
        self.note(table(header, rows, right).trim_end());
    }

    /// Tells something on stderr that only `--verbose` asks for.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose {
            self.stderr(text);
        }
    }

    /// Warns on stderr, always.
    pub(crate) fn warning(&self, text: &str) {
        self.stderr(&format!("\x1b[33mwarning:\x1b[0m {text}"));
    }

    /// Reports an error on stderr.
    pub(crate) fn error(&self, text: &str) {
        self.stderr(&format!("\x1b[31merror:\x1b[0m {text}"));
    }

    /// Says what to do, after an error.
    pub(crate) fn hint(&self, text: &str) {
        self.stderr(&format!("\n\x1b[36mhint:\x1b[0m {text}"));
    }

    /// Tells something on stderr that does not belong to what is said, unless `--quiet`.
    pub(crate) fn aside(&self, text: &str) {
        self.note(&format!("\x1b[2m{text}\x1b[0m"));
    }

    /// Writes dimmed text on stderr, without a line end of its own, unless `--quiet`.
    pub(crate) fn dimmed(&self, text: &str) {
        if !self.quiet {
            stderr::write(&format!("\x1b[2m{text}\x1b[0m"));
        }
    }

    /// Shows a text in place of the current line, on a terminal; an empty text clears the line.
    pub(crate) fn status(&self, text: &str) {
        if self.shows_progress() {
            drop(Stderr.write_all(format!("\r\x1b[2K{text}").as_bytes()));
        }
    }

    fn stderr(&self, text: &str) {
        stderr::write(&format!("{text}\n"));
    }
}

/// An aligned table: two spaces between columns, no lines, no trailing blanks.
fn table(header: &[&str], rows: &[Vec<String>], right: &[&str]) -> String {
    use comfy_table::{CellAlignment, ContentArrangement, Table};

    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.to_vec());
    for row in rows {
        table.add_row(row.clone());
    }
    for (i, name) in header.iter().enumerate() {
        if let Some(column) = table.column_mut(i) {
            column.set_padding((0, if i + 1 == header.len() { 0 } else { 2 }));
            if right.contains(name) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    table.to_string().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_aligns_numbers_right_and_ends_no_line_with_blanks() {
        let rows = vec![vec!["a".into(), "1".into(), "x".into()], vec!["long".into(), "1,000".into(), "y".into()]];
        assert_eq!(
            table(&["name", "us", "note"], &rows, &["us"]),
            "name     us  note\na         1  x\nlong  1,000  y\n"
        );
    }
}
