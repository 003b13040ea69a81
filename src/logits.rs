//! `logits`: computes the logits after every given token id, and writes or compares them.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use npyz::WriterBuilder;
use serde_json::json;

use super::output::Output;
use super::output_file::OutputFile;
use super::usage::UsageError;
use crate::args::{DeviceArgs, KvArgs, ModelArgs};
use crate::text_input;
use engine::Sizes;
use engine::plan::executor::Written;

/// Compute the logits of given token ids, and write them to a `.npy` file or compare them with one
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Lines of token ids, separated by blanks
    #[arg(long, value_name = "FILE")]
    ids: PathBuf,

    /// File for the logits: f32, (tokens of all lines, vocab_size), in the order of the lines
    #[arg(short, long, value_name = "OUT.npy")]
    output: Option<PathBuf>,

    /// Compare with these logits; exit 1 if |got - expected| > atol + rtol * |expected| anywhere
    #[arg(long, value_name = "FILE.npy")]
    expect: Option<PathBuf>,

    /// Relative tolerance; gpt-oss-amd uses 1e-4
    #[arg(long, default_value_t = 1e-4, requires = "expect")]
    rtol: f64,

    /// Absolute tolerance; gpt-oss-amd uses 1e-5, but two correct f32 programs differ by up to 1e-4
    #[arg(long, default_value_t = 1e-5, requires = "expect")]
    atol: f64,

    /// Print a few values after every op, on stderr
    #[arg(long)]
    trace: bool,

    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    cache: KvArgs,
}

/// Rows of logits that are kept on the device at a time.
const LOGIT_ROWS: usize = 32;

/// Values of a tensor that `--trace` shows.
const TRACED_VALUES: usize = 4;

pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    if args.output.is_none() && args.expect.is_none() && !args.trace {
        return Err(UsageError("nothing to do: give `-o`, `--expect` or `--trace`".into()).into());
    }
    let lines = read_ids(&args.ids)?;
    let file = args.output.as_deref().map(|path| OutputFile::create(path, "logits")).transpose()?;
    if let Some(file) = &file {
        file.remove_with_the_program().context("could not watch for signals")?;
    }
    let checkpoint = args.model.open(output)?;
    let vocab_size = checkpoint.config.vocab_size;
    let sizes = Sizes::for_tokens(1, lines.iter().map(Vec::len).max().unwrap_or(0), LOGIT_ROWS);
    let mut engine = args.device.load(&checkpoint, &args.cache, sizes, output)?;
    let mut logits = Vec::new();
    for (i, ids) in lines.iter().enumerate().filter(|(_, ids)| !ids.is_empty()) {
        let mut trace = |written: &Written<'_>| output.note(&trace_line(written));
        let observer = args.trace.then_some(&mut trace as engine::plan::executor::Observer<'_>);
        logits.extend(
            engine
                .teacher_force(ids, observer)
                .with_context(|| format!("could not run line {} of `{}`", i + 1, args.ids.display()))?,
        );
    }
    if let Some(file) = file {
        file.fill(|file| write_npy(file, &logits, vocab_size))?;
    }
    match &args.expect {
        Some(path) => compare(path, &logits, vocab_size, &args, output),
        None if output.is_json() => {
            let n_not_finite = logits.iter().filter(|logit| !logit.is_finite()).count();
            let rows = logits.len() / vocab_size;
            Ok(output
                .json(&json!({ "schema": 1, "rows": rows, "vocab_size": vocab_size, "not_finite": n_not_finite }))?)
        }
        None => Ok(()),
    }
}

pub(crate) fn read_ids(path: &Path) -> anyhow::Result<Vec<Vec<u32>>> {
    let name = path.display();
    let text = String::from_utf8(text_input::from_file(path, "ids")?);
    let text = text.with_context(|| format!("could not read ids `{name}`"))?;
    let line = |(i, line): (usize, &str)| {
        let id = |word: &str| {
            let parsed = word.parse::<u32>();
            parsed.with_context(|| format!("could not read ids `{name}`: line {}: `{word}` is no token id", i + 1))
        };
        line.split_whitespace().map(id).collect()
    };
    text.lines().enumerate().map(line).collect()
}

/// One line: where, by which template, which tensor, its first values, and what tells two runs apart.
fn trace_line(written: &Written<'_>) -> String {
    let first: Vec<String> = written.values.iter().take(TRACED_VALUES).map(|v| format!("{v:>12.6}")).collect();
    let norm = written.values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    format!(
        "{:<40} {:<22} {:<24} {}  |{}| = {norm:.6e}",
        written.label,
        written.template,
        written.tensor,
        first.join(" "),
        written.values.len()
    )
}

/// f32, (tokens of all lines, vocab_size).
fn write_npy(file: &mut File, logits: &[f32], vocab_size: usize) -> io::Result<()> {
    let mut buffered = BufWriter::new(file);
    let shape = [(logits.len() / vocab_size) as u64, vocab_size as u64];
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(&mut buffered).begin_nd()?;
    writer.extend(logits)?;
    writer.finish()?;
    buffered.flush()
}

/// The logits are further from the expected ones than the tolerance allows.
#[derive(Debug, thiserror::Error)]
#[error(
    "{n_beyond} of {n_values} logits are beyond the tolerance, the first at token {row}, id {id}: expected {expected}, got {got}"
)]
struct Beyond {
    n_beyond: usize,
    n_values: usize,
    row: usize,
    id: usize,
    expected: f32,
    got: f32,
}

fn compare(path: &Path, logits: &[f32], vocab_size: usize, args: &Args, output: &Output) -> anyhow::Result<()> {
    let expected = read_npy(path, logits.len() / vocab_size, vocab_size)?;
    let within = |(got, want): (&f32, &f32)| {
        difference(*got, *want) <= args.atol + args.rtol * f64::from(want.abs()).min(f64::from(f32::MAX))
    };
    let beyond: Vec<usize> =
        logits.iter().zip(&expected).enumerate().filter(|(_, pair)| !within(*pair)).map(|(i, _)| i).collect();
    let largest = logits.iter().zip(&expected).map(|(got, want)| difference(*got, *want)).fold(0.0, f64::max);
    if output.is_json() {
        output.json(&json!({
            "schema": 1, "values": logits.len(), "beyond": beyond.len(), "largest_difference": largest,
            "rtol": args.rtol, "atol": args.atol,
        }))?;
    } else {
        output.line(&format!(
            "{} logits, largest difference {largest:.3e}, {} beyond rtol {:e} / atol {:e}",
            logits.len(),
            beyond.len(),
            args.rtol,
            args.atol
        ))?;
    }
    match beyond.first() {
        None => Ok(()),
        Some(&at) => Err(Beyond {
            n_beyond: beyond.len(),
            n_values: logits.len(),
            row: at / vocab_size,
            id: at % vocab_size,
            expected: expected[at],
            got: logits[at],
        }
        .into()),
    }
}

/// How far two logits are apart: without end where one is infinite or no number and the other is not the same infinity.
fn difference(got: f32, want: f32) -> f64 {
    let difference = (f64::from(got) - f64::from(want)).abs();
    match got == want {
        true => 0.0,
        false if difference.is_nan() => f64::INFINITY,
        false => difference,
    }
}

fn read_npy(path: &Path, n_rows: usize, vocab_size: usize) -> anyhow::Result<Vec<f32>> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("could not read logits `{name}`"))?;
    let npy = npyz::NpyFile::new(BufReader::new(file)).with_context(|| format!("could not read logits `{name}`"))?;
    let (shape, expected) = (npy.shape().to_vec(), [n_rows as u64, vocab_size as u64]);
    anyhow::ensure!(
        shape == expected && npy.order() == npyz::Order::C,
        "could not compare with `{name}`: expected shape {expected:?} in C order, found {shape:?} in {:?} order",
        npy.order()
    );
    npy.into_vec::<f32>().with_context(|| format!("could not read logits `{name}`: expected f32"))
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn what_is_no_number_is_far_from_everything_and_infinity_only_near_itself() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!((difference(1.0, 3.5), difference(inf, inf), difference(-inf, -inf)), (2.5, 0.0, 0.0));
        for (got, want) in [(1.0, inf), (inf, 1.0), (inf, -inf), (nan, 1.0), (1.0, nan), (nan, nan), (nan, inf)] {
            assert_eq!(difference(got, want), f64::INFINITY, "{got} {want}");
        }
    }
}
