//! The flag and argument that name the model.

use std::path::PathBuf;

use anyhow::Context;
use chat::chat_format::specials::begin_of_texts;
use clap::Args;
use model::built_in::BuiltInFile;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;
use model::hub;
use model::tokenizer::Tokenizer;

use super::quantize::QuantizeArgs;
use super::shapes::ShapeArgs;
use super::tokenizer::TokenizerArgs;
use crate::output::Output;

/// The tiny model in `examples/tiny`, embedded: it runs from any folder.
static TINY_MODEL: &[u8] = include_bytes!("../../examples/tiny/model.bin");
static TINY_TOKENIZER: &[u8] = include_bytes!("../../examples/tiny/tokenizer.bin");

/// The tiny model's files.
pub(crate) fn built_in_file(file: BuiltInFile) -> &'static [u8] {
    match file {
        BuiltInFile::Model => TINY_MODEL,
        BuiltInFile::Tokenizer => TINY_TOKENIZER,
    }
}

/// The tiny model that comes with the program.
///
/// # Errors
/// If this program does not understand it.
pub(crate) fn built_in_model() -> anyhow::Result<Checkpoint> {
    tiny(Layout::Auto)
}

fn tiny(layout: Layout) -> anyhow::Result<Checkpoint> {
    Checkpoint::from_bytes(TINY_MODEL.into(), layout).context("the built-in tiny model")
}

/// Which model, and which tokenizer.
#[derive(Args, Debug)]
pub(crate) struct ModelArgs {
    /// A checkpoint: a folder or file of safetensors (Hugging Face's or OpenAI's), a GGUF or a `.bin` file; or the id
    /// of a model in Hugging Face's cache, such as openai/gpt-oss-20b [default: the built-in tiny model]
    pub(crate) model: Option<PathBuf>,

    /// How the tensors of a `.bin` file are stored, for exporters that got it wrong
    #[arg(long, value_enum, default_value_t = Layout::Auto)]
    pub(crate) layout: Layout,

    #[command(flatten)]
    pub(crate) shape: ShapeArgs,

    #[command(flatten)]
    pub(crate) quantize: QuantizeArgs,
}

impl ModelArgs {
    /// Opens the checkpoint, and says what was found in it.
    pub(crate) fn open(&self, output: &Output) -> anyhow::Result<Checkpoint> {
        if self.is_built_in() {
            output.detail("model: the built-in tiny one (examples/tiny)");
        }
        let checkpoint = self.checkpoint()?;
        for finding in &checkpoint.findings {
            output.note(&format!("note: {finding}"));
        }
        Ok(checkpoint)
    }

    /// The checkpoint, without a word.
    pub(crate) fn checkpoint(&self) -> anyhow::Result<Checkpoint> {
        Ok(self.quantize.applied(self.unquantized()?))
    }

    /// The same, its matrices as they are.
    pub(crate) fn unquantized(&self) -> anyhow::Result<Checkpoint> {
        match (&self.model, self.shape.checkpoint()) {
            (Some(model), _) => Ok(Checkpoint::open(&hub::locate(model)?, self.layout)?),
            (None, Some(random)) => Ok(random?),
            (None, None) => tiny(self.layout),
        }
    }

    pub(crate) fn name(&self) -> String {
        match (&self.model, self.shape.shape) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(shape)) => shape.name().to_owned(),
            (None, None) => "the built-in tiny model".to_owned(),
        }
    }

    /// Whether this is the tiny model that comes with the program.
    pub(crate) fn is_built_in(&self) -> bool {
        self.model.is_none() && self.shape.shape.is_none()
    }

    /// The tokenizer for this model.
    pub(crate) fn tokenizer(&self, args: &TokenizerArgs, checkpoint: &Checkpoint) -> anyhow::Result<Tokenizer> {
        if self.is_built_in() && args.tokenizer.is_none() {
            return Ok(Tokenizer::from_bin(TINY_TOKENIZER.into(), Some(checkpoint.config.vocab_size), args.split)?);
        }
        let tokenizer = args.for_checkpoint(checkpoint)?;
        let begin = begin_of_texts(checkpoint, &tokenizer)?;
        Ok(tokenizer.with_begin(begin))
    }
}
