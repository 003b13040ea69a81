//! The base of a comparison: a file of probabilities, or a model.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::Args;
use crate::args::source::SourceArgs;
use crate::args::{DeviceArgs, KvArgs, StoredWeightsArgs};
use crate::output::Output;
use crate::usage::UsageError;
use engine::device::Device;
use engine::{Engine, Sizes};
use hint::Hint;
use kernel::template::Precision;
use model::checkpoint::Checkpoint;
use model::checkpoint::kept::StoredWeights;
use model::hub;
use workbench::eval::base_file::{BaseFile, BaseFileError, MAGIC};
use workbench::eval::windows::Windows;

/// The base, and how it is computed.
#[derive(clap::Args, Debug)]
pub(super) struct AgainstArgs {
    /// The base: a model, or a base file of `--write-base` or of llama.cpp. Both models run side by side and are
    /// compared without rounding. `--precision`, `--quantize`, `--stored-weights`, `--kv-dtype`, `--templates` and
    /// `--tuning` do not apply to the base [default: the same model, if one of the next two is given]
    #[arg(long, value_name = "MODEL|FILE")]
    against: Option<PathBuf>,

    /// The base's precision [default: f32 for checkpoints that store f32, else bf16]
    #[arg(long, value_enum, value_name = "PRECISION")]
    against_precision: Option<Precision>,

    /// Where to run the base [default: as `--device`]
    #[arg(long, value_name = "D")]
    against_device: Option<Device>,
}

/// What is compared with.
pub(super) enum Against {
    Nothing,
    File(PathBuf, BaseFile),
    Other(PathBuf, Box<Checkpoint>),
    /// The same model in other ways, and what these are called.
    Same(String, Box<Checkpoint>),
}

/// The same, ready to be asked.
pub(super) enum Other<'a> {
    Nothing,
    File(&'a BaseFile),
    Model(Box<Engine>),
}

/// What is wrong with a base file, with its name.
#[derive(Debug, thiserror::Error)]
#[error("could not compare with `{}`", path.display())]
pub(crate) struct NotComparable {
    path: PathBuf,
    #[source]
    source: BaseFileError,
}

impl Hint for NotComparable {
    fn hint(&self) -> Option<String> {
        self.source.hint()
    }
}

/// The models have different vocabularies.
#[derive(Debug, thiserror::Error)]
#[error("could not compare with `{}`: its vocabulary has {found} tokens, the model's {expected}", path.display())]
pub(crate) struct OtherVocabulary {
    path: PathBuf,
    found: usize,
    expected: usize,
}

impl Hint for OtherVocabulary {
    fn hint(&self) -> Option<String> {
        Some("models are compared only if their tokens are the same".into())
    }
}

impl AgainstArgs {
    /// Opens it; nothing is loaded.
    pub(super) fn open(&self, args: &Args, output: &Output) -> anyhow::Result<Against> {
        let is_computed = self.against_precision.is_some() || self.against_device.is_some();
        let Some(path) = &self.against else {
            let ways =
                [self.against_precision.map(|p| p.to_string()), self.against_device.as_ref().map(|d| d.to_string())];
            let ways: Vec<String> = ways.into_iter().flatten().collect();
            return Ok(match is_computed {
                true => Against::Same(ways.join(", "), Box::new(args.model.unquantized()?)),
                false => Against::Nothing,
            });
        };
        if !is_base_file(path) {
            let checkpoint = Checkpoint::open(&hub::locate(path)?, args.model.layout)?;
            for finding in &checkpoint.findings {
                output.note(&format!("note: of the base: {finding}"));
            }
            return Ok(Against::Other(path.clone(), Box::new(checkpoint)));
        }
        if is_computed {
            let name = path.display();
            let what = "`--against-precision` and `--against-device` are of a model";
            return Err(UsageError(format!("`{name}` is a file of probabilities: {what}")).into());
        }
        let bytes = mapped_file::map(path).with_context(|| format!("could not read `{}`", path.display()))?;
        let file = BaseFile::read(bytes, args.chunks.map(|chunks| chunks as usize));
        let file = file.map_err(|source| NotComparable { path: path.clone(), source })?;
        Ok(Against::File(path.clone(), file))
    }
}

/// By what it begins with.
fn is_base_file(path: &Path) -> bool {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let mut magic = [0; MAGIC.len()];
    is_file && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *MAGIC
}

impl Against {
    /// The file, if it is one.
    pub(super) fn file(&self) -> Option<&BaseFile> {
        match self {
            Self::File(_, file) => Some(file),
            _ => None,
        }
    }

    /// What it is called in the report.
    pub(super) fn name(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::File(path, _) | Self::Other(path, _) => Some(path.display().to_string()),
            Self::Same(ways, _) => Some(format!("the same model ({ways})")),
        }
    }

    /// Whether a model's predictions of these windows can be compared with it.
    pub(super) fn check(&self, checkpoint: &Checkpoint, windows: &Windows) -> anyhow::Result<()> {
        let expected = checkpoint.config.vocab_size;
        match self {
            Self::Nothing | Self::Same(..) => Ok(()),
            Self::File(path, file) => {
                let checked = file.check(windows, expected);
                Ok(checked.map_err(|source| NotComparable { path: path.clone(), source })?)
            }
            Self::Other(path, other) => {
                windows.check_context(other.config.max_seq_len)?;
                match other.config.vocab_size {
                    found if found == expected => Ok(()),
                    found => Err(OtherVocabulary { path: path.clone(), found, expected }.into()),
                }
            }
        }
    }

    /// Loads it, if it is a model.
    pub(super) fn load(&self, args: &Args, sizes: Sizes, output: &Output) -> anyhow::Result<Other<'_>> {
        let checkpoint = match self {
            Self::Nothing => return Ok(Other::Nothing),
            Self::File(_, file) => return Ok(Other::File(file)),
            Self::Other(_, checkpoint) | Self::Same(_, checkpoint) => checkpoint,
        };
        let device = DeviceArgs {
            device: args.against.against_device.as_ref().unwrap_or(&args.device.device).clone(),
            precision: args.against.against_precision,
            stored: StoredWeightsArgs { stored_weights: Some(StoredWeights::None) },
            source: SourceArgs { templates: None, tuning: None },
            ..args.device.clone()
        };
        let cache = KvArgs { kv_dtype: None, kv16: false, kv32: false, ..args.cache.clone() };
        let engine = device.load(checkpoint, &cache, sizes, output).context("could not load the base")?;
        Ok(Other::Model(Box::new(engine)))
    }
}
