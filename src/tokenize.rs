//! `gptoss-jit tokenize`: text to token ids.

use std::ffi::OsString;
use std::path::PathBuf;

use serde::Serialize;

use super::output::Output;
use crate::args::tokenizer::TokenizerArgs;
use crate::text_input;

/// Print the token ids of a text on one line
///
/// The text is used as it is, including a trailing newline on stdin, but without a byte order mark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model whose tokenizer is used: any that `run` takes
    model: Option<PathBuf>,

    /// The text [default: all of stdin]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    input: Option<OsString>,

    #[command(flatten)]
    tokenizer: TokenizerArgs,

    /// Vocabulary size: how many records of a `tokenizer.bin` to read [default: all]
    #[arg(long, value_name = "N", requires = "tokenizer", conflicts_with = "model")]
    vocab_size: Option<usize>,

    /// Parse names of special tokens in the text as those tokens
    #[arg(long)]
    special: bool,
}

#[derive(Serialize)]
struct Report {
    schema: u32,
    ids: Vec<u32>,
}

/// Runs the command.
///
/// # Errors
/// The tokenizer or stdin cannot be read, or the text not be encoded.
pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    let tokenizer = args.tokenizer.of_model(args.model.as_deref(), args.vocab_size)?;
    let text = match args.input {
        Some(text) => text.into_encoded_bytes(),
        None => text_input::from_stdin("the text")?,
    };
    let ids = if args.special { tokenizer.encode_with_specials(&text)? } else { tokenizer.encode_prompt(&text)? };
    if output.is_json() {
        output.json(&Report { schema: 1, ids })?;
    } else {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        output.line(&ids.join(" "))?;
    }
    Ok(())
}
