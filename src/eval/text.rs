//! The tokens that are scored.

use std::io::{IsTerminal, stdin};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::Args;
use crate::logits::read_ids;
use crate::text_input;
use crate::usage::UsageError;
use chat::chat_format::specials::begin_of_texts;
use model::checkpoint::Checkpoint;
use workbench::eval::base_file::BaseFile;

/// The token that texts begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bos {
    /// As the checkpoint's tokenizer says.
    Auto,
    None,
    Id(u32),
}

impl FromStr for Bos {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            id => id.parse().map(Self::Id).map_err(|_| "expected `auto`, `none` or the id of a token".into()),
        }
    }
}

/// Where they come from.
pub(super) enum Source<'a> {
    Text(&'a Path),
    Ids(&'a Path),
    Either,
}

/// Tokens, and what windows begin with.
pub(super) struct Tokens {
    pub(super) ids: Vec<u32>,
    pub(super) bos: Option<u32>,
}

impl<'a> Source<'a> {
    pub(super) fn of(text: &'a Option<PathBuf>, ids: &'a Option<PathBuf>) -> Self {
        match (text, ids) {
            (Some(text), _) => Self::Text(text),
            (None, Some(ids)) => Self::Ids(ids),
            (None, None) => Self::Either,
        }
    }

    /// - `base`: the file that is compared with, if there is one
    pub(super) fn tokens(
        &self,
        args: &Args,
        checkpoint: &Checkpoint,
        base: Option<&BaseFile>,
    ) -> anyhow::Result<Tokens> {
        let tokenizer = args.model.tokenizer(&args.tokenizer, checkpoint);
        let bos = match args.bos {
            Bos::Auto => match &tokenizer {
                Ok(tokenizer) => begin_of_texts(checkpoint, tokenizer)?.first().copied(),
                Err(_) => None,
            },
            Bos::None => None,
            Bos::Id(id) => Some(id),
        };
        let text = match (self, base) {
            (Self::Ids(path), _) => return Ok(Tokens { ids: read_ids(path)?.concat(), bos }),
            (Self::Either, Some(base)) => return Ok(Tokens { ids: base.tokens().to_vec(), bos }),
            (Self::Text(path), _) if *path != Path::new("-") => text_input::from_file(path, "the text")?,
            (Self::Either, None) if stdin().is_terminal() => {
                return Err(UsageError("there is no text: give `--text FILE`, or a text on stdin".into()).into());
            }
            _ => text_input::from_stdin("the text")?,
        };
        let text = text.strip_suffix(b"\n").unwrap_or(&text);
        let ids = bos.into_iter().chain(tokenizer?.encode_prompt(text)?).collect();
        Ok(Tokens { ids, bos })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_of_beginnings_is_a_word_or_an_id() {
        let parsed = ["auto", "none", "128000"].map(str::parse);
        assert_eq!(parsed, [Ok(Bos::Auto), Ok(Bos::None), Ok(Bos::Id(128_000))]);
        assert!(["", "-1", "<s>"].iter().all(|text| text.parse::<Bos>().is_err()));
    }
}
