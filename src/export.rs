//! `gptoss-jit export`: any checkpoint as a `.bin` file.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context;
use serde::Serialize;
use sha2::{Digest, Sha256};
use signal_hook::consts::SIGINT;

use super::output::Output;
use super::usage::UsageError;
use crate::args::ModelArgs;
use crate::run::getp::signals::ENDING;
use format::Dtype;
use hint::Hint;
use model::checkpoint::CheckpointError;
use model::checkpoint::export::BinFile;
use system::new_file::{NewFile, NoSpace};
use system::os::forget_read;
use system::units::human_bytes;

/// Write a gpt-oss checkpoint as a `.bin` file in f32 or bf16, with MXFP4 expanded
///
/// Prints one line, as `sha256sum` does. The file appears only when it is complete; a failed, interrupted or killed
/// export leaves nothing.
#[derive(clap::Args)]
#[command(allow_missing_positional = true, mut_arg("model", |model| model.index(1).help(MODEL).long_help(MODEL)))]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// The file to write
    #[arg(value_name = "OUT.bin", index = 2)]
    out: PathBuf,

    /// Number type [default: f32 for checkpoints that store f32, else bf16]
    #[arg(long, value_enum)]
    dtype: Option<BinDtype>,

    /// The header's longest sequence, in tokens [default: the checkpoint's]
    #[arg(long, value_name = "N")]
    max_seq_len: Option<u32>,

    /// Read the file back and compare its SHA-256 before it appears
    #[arg(long)]
    verify: bool,

    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

/// Other commands have a model that is built in; there is no use in that as a file.
const MODEL: &str = "A checkpoint: a folder or file of safetensors (Hugging Face's or OpenAI's), a GGUF or a `.bin` \
                     file; or the id of a model in Hugging Face's cache, such as openai/gpt-oss-20b. Required unless \
                     --shape names one";

/// Types that a `.bin` file can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BinDtype {
    /// 2 bytes a number: exact for OpenAI's weights
    Bf16,
    /// 4 bytes a number, as in most files of gpt-oss-amd
    F32,
}

/// The one object that `--json` prints.
#[derive(Serialize)]
struct Report {
    schema: u32,
    path: String,
    bytes: u64,
    parameters: u64,
    dtype: Dtype,
    max_seq_len: usize,
    /// Numbers that the type does not hold exactly.
    rounded: u64,
    sha256: String,
    verified: bool,
    seconds: f64,
}

/// Runs the command.
///
/// # Errors
/// The checkpoint cannot be read, or the file not written.
pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    let could_not = || format!("could not export to `{}`", args.out.display());
    if args.model.is_built_in() {
        return Err(UsageError("name a checkpoint and the file to write, or a `--shape` and the file".into()).into());
    }
    if args.model.quantize.is_some() {
        return Err(UsageError(
            "a `.bin` file has no place for blocks: leave `--quantize` out, and give it to `run`".into(),
        )
        .into());
    }
    if !args.force && args.out.symlink_metadata().is_ok() {
        return Err(ExportError::Exists).with_context(could_not);
    }
    let checkpoint = args.model.open(output)?;
    let dtype = match args.dtype {
        Some(BinDtype::Bf16) => Dtype::Bf16,
        Some(BinDtype::F32) => Dtype::F32,
        None if checkpoint.rounded().dense_dtype() == Dtype::F32 => Dtype::F32,
        None => Dtype::Bf16,
    };
    let bin = BinFile::new(&checkpoint, dtype, args.max_seq_len.map(|n| n as usize)).with_context(could_not)?;
    let start = Instant::now();
    let exported = export(&bin, &args, output).with_context(could_not)?;
    let report = Report {
        schema: 1,
        path: args.out.display().to_string(),
        bytes: bin.len_bytes(),
        parameters: bin.parameters(),
        dtype,
        max_seq_len: bin.max_seq_len(),
        rounded: exported.rounded,
        sha256: exported.sha256,
        verified: args.verify,
        seconds: start.elapsed().as_secs_f64(),
    };
    print(&report, checkpoint.config.max_seq_len, output)
}

fn print(report: &Report, checkpoint_max_seq_len: usize, output: &Output) -> anyhow::Result<()> {
    if report.rounded > 0 {
        let (rounded, all) = (report.rounded, report.parameters);
        output.note(&format!("note: {rounded} of {all} numbers were rounded to {}", report.dtype));
    }
    if report.max_seq_len != checkpoint_max_seq_len {
        let (written, read) = (report.max_seq_len, checkpoint_max_seq_len);
        output.note(&format!("note: the header's max_seq_len is {written}, the checkpoint's is {read}"));
    }
    if output.is_json() {
        return Ok(output.json(report)?);
    }
    let (size, seconds) = (human_bytes(report.bytes), report.seconds);
    let rate = human_bytes((report.bytes as f64 / seconds.max(1e-9)) as u64);
    let verified = if report.verified { ", read back and compared" } else { "" };
    output.note(&format!("{size} of {} in {seconds:.1} s, {rate}/s{verified}", report.dtype));
    Ok(output.line(&format!("{}  {}", report.sha256, report.path))?)
}

/// Why a file was not written, besides what the system and the checkpoint have to say.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    #[error("there is a file of this name")]
    Exists,
    #[error("interrupted")]
    Interrupted,
    #[error("the file was not written correctly: its SHA-256 is {found}, expected {expected}")]
    Differs { expected: String, found: String },
    #[error("the disk is too small")]
    NoSpace(#[from] NoSpace),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Hint for ExportError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Exists => Some("`--force` replaces it".into()),
            Self::NoSpace(_) => {
                Some("name a file on another disk; `--dtype bf16` takes half as much as `--dtype f32`".into())
            }
            Self::Differs { .. } => Some("the disk or the memory is faulty: export again, elsewhere".into()),
            Self::Checkpoint(source) => source.hint(),
            Self::Interrupted | Self::Io(_) => None,
        }
    }
}

/// What a file that was written turned out to be.
struct Exported {
    rounded: u64,
    sha256: String,
}

fn export(bin: &BinFile, args: &Args, output: &Output) -> Result<Exported, ExportError> {
    let interrupted = Interrupted::on_signals()?;
    let mut new = NewFile::create(&args.out)?;
    new.reserve(bin.len_bytes())?;
    let bar = progress("writing", bin.len_bytes(), output);
    let mut hasher = Sha256::new();
    let rounded = bin.write(&mut |chunk: &[u8]| {
        interrupted.check()?;
        let file = new.file();
        let (written, ()) = rayon::join(|| file.write_all(chunk), || hasher.update(chunk));
        bar.inc(chunk.len() as u64);
        written.map_err(ExportError::Io)
    })?;
    new.file().sync_all()?; // so that what `--verify` reads is what the disk has
    bar.finish_and_clear();
    let sha256 = hex(&hasher.finalize());
    if args.verify {
        let bar = progress("reading", bin.len_bytes(), output);
        let found = read_back(new.file(), &interrupted, &bar)?;
        bar.finish_and_clear();
        if found != sha256 {
            return Err(ExportError::Differs { expected: sha256, found });
        }
    }
    interrupted.check()?;
    new.publish()?;
    Ok(Exported { rounded, sha256 })
}

/// The SHA-256 of a file, read from the disk and not from what the system remembers of it, if it lets go of that.
fn read_back(file: &mut File, interrupted: &Interrupted, bar: &indicatif::ProgressBar) -> Result<String, ExportError> {
    forget_read(file);
    file.rewind()?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 22];
    loop {
        interrupted.check()?;
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => {
                hasher.update(&buffer[..n]);
                bar.inc(n as u64);
            }
        }
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn progress(doing: &'static str, len_bytes: u64, output: &Output) -> indicatif::ProgressBar {
    if !output.shows_progress() {
        return indicatif::ProgressBar::hidden();
    }
    let template = "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
    let style = indicatif::ProgressStyle::with_template(template).expect("a constant template");
    indicatif::ProgressBar::new(len_bytes).with_style(style).with_message(doing)
}

/// Whether the program was asked to end. It ends at the next chunk, so that a temporary file is removed; a second
/// Ctrl-C ends it at once.
struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    fn on_signals() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register_conditional_shutdown(SIGINT, 1, flag.clone())?;
        for signal in ENDING {
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Self(flag))
    }

    fn check(&self) -> Result<(), ExportError> {
        if self.0.load(Ordering::Relaxed) { Err(ExportError::Interrupted) } else { Ok(()) }
    }
}
