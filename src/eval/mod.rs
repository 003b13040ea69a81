//! `eval`: how well a model predicts a text, and how far its predictions are from a base's.
//!
//! [`text`] finds the tokens, [`against`] the base, [`report`] prints the results, [`plot`] draws them.
//! [`workbench::eval`] computes the numbers.

pub(crate) mod against;
mod plot;
mod progress;
mod report;
mod text;

use std::path::PathBuf;

use anyhow::Context;

use super::output::Output;
use super::output_file::OutputFile;
use super::usage::UsageError;
use crate::args::tokenizer::TokenizerArgs;
use crate::args::{DeviceArgs, KvArgs, ModelArgs};
use against::{Against, AgainstArgs, Other};
use engine::{Engine, EngineError, PromptError, Sizes};
use progress::ProgressLine;
use report::{LimitArgs, Report};
use system::units::grouped;
use text::{Bos, Source};
use workbench::eval::base_file;
use workbench::eval::distribution::NotANumber;
use workbench::eval::tally::{Base, Scored, Summary, encoded_rows, scored};
use workbench::eval::windows::{SHORTEST_CONTEXT, Windows};

/// Measure a model's perplexity on a text, and its divergence from another model, format, precision or device
///
/// The text is cut into windows, and the second half of each is scored, as llama.cpp's `llama-perplexity` does. With a
/// base, the Kullback-Leibler divergence from it is measured too, in nats. If a limit is exceeded, the exit code is 1.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// The text; `-` is stdin. A final line end is ignored [default: stdin; with a base file, its tokens]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,

    /// Token ids instead of a text, separated by blanks or line ends
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    ids: Option<PathBuf>,

    /// Tokens per window [default: 512; with a base file, as its windows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(SHORTEST_CONTEXT as i64..))]
    context: Option<u32>,

    /// Only the first N windows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,

    /// The token before the text, which also replaces each window's first: an id, `none`, or `auto` (as the
    /// checkpoint's tokenizer says)
    #[arg(long, value_name = "ID", default_value = "auto")]
    bos: Bos,

    #[command(flatten)]
    against: AgainstArgs,

    /// Write the model's probabilities into a base file, in the format of llama.cpp's `--kl-divergence-base`: two bytes
    /// per scored token and vocabulary token
    #[arg(long, value_name = "FILE")]
    write_base: Option<PathBuf>,

    /// Draw into a file: the divergence by tokens and along the text, or without a base the perplexity along the text
    #[arg(long, alias = "plot", value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    limits: LimitArgs,

    #[command(flatten)]
    tokenizer: TokenizerArgs,

    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    cache: KvArgs,
}

/// Rows of logits that are kept at a time, on the device and here.
const LOGIT_ROWS: usize = 64;

/// Tokens of a window, unless a flag or a base file says otherwise.
const CONTEXT: usize = 512;

pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    let source = Source::of(&args.text, &args.ids);
    let against = args.against.open(&args, output)?;
    if matches!(against, Against::Nothing) && args.limits.are_given() {
        return Err(UsageError("limits are of a comparison: they need `--against`".into()).into());
    }
    let created = |path: &Option<PathBuf>, contents| {
        let file = path.as_deref().map(|path| OutputFile::create(path, contents)).transpose()?;
        file.iter().try_for_each(OutputFile::remove_with_the_program).context("could not watch for signals")?;
        Ok::<_, anyhow::Error>(file)
    };
    let (base_file, svg) = (created(&args.write_base, "probabilities")?, created(&args.svg, "the plot")?);

    let checkpoint = args.model.open(output)?;
    let config = &checkpoint.config;
    let tokens = source.tokens(&args, &checkpoint, against.file())?;
    let windows = Windows::new(tokens.ids, args.context_of(&against), args.n_windows(&against), tokens.bos)?;
    windows.check_context(config.max_seq_len)?;
    PromptError::check_ids(windows.tokens(), config.vocab_size).map_err(EngineError::Prompt)?;
    PromptError::check_ids(tokens.bos.as_slice(), config.vocab_size).map_err(EngineError::Prompt)?;
    against.check(&checkpoint, &windows)?;

    let n_scored = grouped((windows.n_windows() * windows.scored().len()) as u64);
    output.note(&format!("{}: {}, {n_scored} tokens scored", args.model.name(), report::scope(&windows)));
    against.name().iter().for_each(|name| output.note(&format!("base: {name}")));
    let sizes = Sizes::for_tokens(1, windows.context(), LOGIT_ROWS);
    let engine = args.device.load(&checkpoint, &args.cache, sizes, output)?;
    let other = against.load(&args, sizes, output)?;
    let mut work = Work { windows: &windows, vocab_size: config.vocab_size, engine, other, base_file };
    let tokens = work.run(output)?;
    if let Some(file) = work.base_file.take() {
        file.finish()?;
    }
    let report = Report {
        model: args.model.name(),
        base: against.name(),
        device: work.engine.executor().pipeline().driver().describe(),
        precision: args.device.precision(&checkpoint).0,
        windows: &windows,
        summary: Summary::of(&tokens),
    };
    if let Some(svg) = svg {
        svg.fill(|file| plot::write(file, &report, &tokens))?;
    }
    report.print(&args.limits, output)?;
    args.limits.check(&report.summary)
}

impl Args {
    fn context_of(&self, against: &Against) -> usize {
        let of_file = || against.file().map_or(CONTEXT, base_file::BaseFile::context);
        self.context.map_or_else(of_file, |context| context as usize)
    }

    /// So many windows are wanted, if it is known how many.
    fn n_windows(&self, against: &Against) -> Option<usize> {
        let of_file = || Some(against.file()?.n_windows());
        self.chunks.map(|chunks| chunks as usize).or_else(of_file)
    }
}

/// A text on its way through one model, or through two of them side by side.
struct Work<'a> {
    windows: &'a Windows,
    vocab_size: usize,
    engine: Engine,
    other: Other<'a>,
    /// Where the model's probabilities go.
    base_file: Option<OutputFile>,
}

impl Work<'_> {
    /// The scored tokens of all windows.
    fn run(&mut self, output: &Output) -> anyhow::Result<Vec<Scored>> {
        if let Some(file) = &mut self.base_file {
            file.append(&base_file::header(self.windows, self.vocab_size))?;
        }
        let n_windows = self.windows.n_windows();
        let (mut tokens, mut progress) = (Vec::new(), ProgressLine::new(n_windows, output));
        for window in 0..n_windows {
            self.window(window, &mut tokens).with_context(|| format!("could not score window {}", window + 1))?;
            progress.show(window + 1, || Summary::of(&tokens).perplexity.value);
        }
        progress.end();
        Ok(tokens)
    }

    /// Scores a window piece by piece: of both models no more logits are kept than of one piece.
    fn window(&mut self, window: usize, tokens: &mut Vec<Scored>) -> anyhow::Result<()> {
        let (seen, positions) = (self.windows.seen(window), self.windows.scored());
        let seen = &seen[..positions.end]; // what the last position predicts is in no window
        let mut forced = self.engine.forced(seen, positions.start)?;
        let (file, mut other) = match &mut self.other {
            Other::Nothing => (None, None),
            Other::File(file) => (Some(*file), None),
            Other::Model(engine) => (None, Some(engine.forced(seen, positions.start)?)),
        };
        let (targets, mut first) = (self.windows.targets(window), 0);
        while let Some(logits) = forced.next_rows(None)? {
            let n_rows = logits.len() / self.vocab_size;
            let base = match (file, &mut other) {
                (Some(file), _) => Base::File { file, window, first },
                (None, Some(other)) => Base::Logits(other.next_rows(None)?.expect("as many pieces of the same text")),
                (None, None) => Base::None,
            };
            let not_a_number = |(row, error): (usize, NotANumber)| {
                let place = format!("that of token {} at position {}", error.id, positions.start + first + row);
                EngineError::NotANumber { where_: Some(place) }
            };
            tokens.extend(scored(logits, base, &targets[first..first + n_rows]).map_err(not_a_number)?);
            if let Some(file) = &mut self.base_file {
                file.append(&encoded_rows(logits, self.vocab_size).map_err(not_a_number)?)?;
            }
            first += n_rows;
        }
        Ok(())
    }
}
