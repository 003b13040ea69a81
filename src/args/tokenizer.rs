//! Chooses the tokenizer: the named one, else the checkpoint's, else the built-in one.

use std::path::{Path, PathBuf};

use clap::Args;

use model::checkpoint::gguf::Gguf;
use model::checkpoint::gguf::model::GgufTokenizer;
use model::checkpoint::layout::Layout;
use model::checkpoint::{Checkpoint, CheckpointError, TOKENIZER_BIN};
use model::hub;
use model::tokenizer::split::Split;
use model::tokenizer::{Tokenizer, TokenizerError};

/// What text and ids are converted with.
#[derive(Args, Debug)]
pub(crate) struct TokenizerArgs {
    /// A `tokenizer.bin` or `tokenizer.json`, a folder with one, or a GGUF file [default: the checkpoint's own, or a
    /// `tokenizer.bin` beside a `.bin` file; else the built-in o200k_harmony]
    #[arg(short = 'z', long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,

    /// How text is cut into words before merging [default: as the tokenizer's file says]
    #[arg(long, value_enum)]
    pub(crate) split: Option<Split>,
}

impl TokenizerArgs {
    /// The tokenizer for a checkpoint.
    pub(crate) fn for_checkpoint(&self, checkpoint: &Checkpoint) -> anyhow::Result<Tokenizer> {
        match &self.tokenizer {
            Some(path) => open(path, Some(checkpoint.config.vocab_size), self.split),
            None => Ok(Tokenizer::of_checkpoint(checkpoint, self.split)?),
        }
    }

    /// The named one, that of the model, or the built-in one.
    pub(crate) fn of_model(&self, model: Option<&Path>, vocab_size: Option<usize>) -> anyhow::Result<Tokenizer> {
        match (&self.tokenizer, model) {
            (_, Some(model)) => self.for_checkpoint(&Checkpoint::open(&hub::locate(model)?, Layout::Auto)?),
            (Some(path), None) => open(path, vocab_size, self.split),
            (None, None) => self.built_in(),
        }
    }

    fn built_in(&self) -> anyhow::Result<Tokenizer> {
        Ok(Tokenizer::o200k_harmony().split_as(self.split)?)
    }
}

/// Reads whichever kind of file it is.
fn open(path: &Path, vocab_size: Option<usize>, split: Option<Split>) -> anyhow::Result<Tokenizer> {
    if path.is_dir() {
        let files = ["tokenizer.json", TOKENIZER_BIN].map(|name| path.join(name));
        let file = files.iter().find(|file| file.exists()).unwrap_or(&files[0]);
        return Ok(Tokenizer::from_file(file, vocab_size, split)?);
    }
    let in_file = |source| TokenizerError::File { path: path.to_owned(), source: Box::new(source) };
    let tokenizer = |gguf: Gguf| Ok(GgufTokenizer::from_gguf(&gguf)?);
    match Gguf::open(path).and_then(|gguf| gguf.map(tokenizer).transpose()) {
        Ok(Some(gguf)) => Ok(Tokenizer::from_gguf(&gguf, vocab_size, split).map_err(in_file)?),
        Ok(None) => Ok(Tokenizer::from_file(path, vocab_size, split)?),
        Err(CheckpointError::Map(source)) => Err(TokenizerError::Read { path: path.to_owned(), source }.into()),
        Err(source) => Err(CheckpointError::File { path: path.to_owned(), source: source.into() }.into()),
    }
}
