//! `gptoss-jit decode`: token ids to text.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::Serialize;

use super::output::Output;
use crate::args::tokenizer::TokenizerArgs;
use crate::text_input;
use hint::Hint;
use model::tokenizer::{Tokenizer, TokenizerError};

/// Print the text of token ids: one text per line of ids
///
/// Bytes that are not UTF-8 are printed as U+FFFD. A text with newlines takes several lines; `--json` keeps texts
/// apart.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model whose tokenizer is used: any that `run` takes
    model: Option<PathBuf>,

    /// A file with ids separated by blanks [default: stdin]
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,

    #[command(flatten)]
    tokenizer: TokenizerArgs,

    /// Only this line, counted from 1
    #[arg(long, value_name = "N")]
    line: Option<NonZeroUsize>,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    line: usize,
    text: &'a str,
}

/// Why a line of ids has no text.
#[derive(Debug, thiserror::Error)]
pub(super) enum DecodeError {
    #[error("could not decode `{word}` in line {line}: expected a token id")]
    NotAnId { line: usize, word: String },
    #[error("could not decode `{word}` in line {line}")]
    UnknownId {
        line: usize,
        word: String,
        #[source]
        source: TokenizerError,
    },
    #[error("could not decode line {asked}: the input has {found} lines")]
    NoSuchLine { asked: usize, found: usize },
}

impl Hint for DecodeError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NotAnId { .. } => {
                Some("ids are integers separated by blanks, as `tokenize` and `run -m getp` write them".into())
            }
            Self::UnknownId { source, .. } => source.hint(),
            Self::NoSuchLine { .. } => None,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The tokenizer or the ids cannot be read, or a line is not one of ids.
pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    let input = match &args.input {
        Some(path) => text_input::from_file(path, "ids")?,
        None => text_input::from_stdin("ids")?,
    };
    let tokenizer = args.tokenizer.of_model(args.model.as_deref(), None)?;
    let input = String::from_utf8_lossy(&input); // a word that is not UTF-8 is no id either
    let asked = args.line.map(NonZeroUsize::get);
    for (i, line) in input.lines().enumerate().filter(|(i, _)| asked.is_none_or(|asked| asked == i + 1)) {
        let text = decode_line(&tokenizer, i + 1, line)?;
        if output.is_json() {
            output.json(&Report { schema: 1, line: i + 1, text: &text })?;
        } else {
            output.line(&text)?;
        }
    }
    let found = input.lines().count();
    match asked {
        Some(asked) if asked > found => Err(DecodeError::NoSuchLine { asked, found }.into()),
        _ => Ok(()),
    }
}

fn decode_line(tokenizer: &Tokenizer, number: usize, line: &str) -> Result<String, DecodeError> {
    let mut ids = Vec::new();
    for word in line.split_whitespace() {
        let id = word.parse().map_err(|_| DecodeError::NotAnId { line: number, word: word.to_owned() })?;
        let unknown = |source| DecodeError::UnknownId { line: number, word: word.to_owned(), source };
        tokenizer.decode(id).map_err(unknown)?;
        ids.push(id);
    }
    let bytes = tokenizer.text_of(&ids).expect("each was looked at");
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_named_with_its_line() {
        let tokenizer = Tokenizer::o200k_harmony();
        let message = |line: &str| decode_line(&tokenizer, 3, line).unwrap_err().to_string();
        assert_eq!(message("13225 x9 2"), "could not decode `x9` in line 3: expected a token id");
        assert_eq!(message("-1"), "could not decode `-1` in line 3: expected a token id");
        assert_eq!(message("201088"), "could not decode `201088` in line 3");
        assert_eq!(decode_line(&tokenizer, 1, " 13225  11\t2375\r").unwrap(), "Hello, world");
    }
}
