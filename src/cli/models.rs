//! `gptoss-jit models`: the model families that are known, from `models/*.toml`.
//!
//! With `--json`, `ls` prints one object: `schema` (1) and `families`, a list of `name` and `shapes`, a list of `name`,
//! `layers`, `parameters` and `bytes` (as published: experts in MXFP4). `show` prints `schema`, `family`, `model`,
//! `config` (the dimensions), `parameters`, and `tensors`, a list of `name`, `count`, `shape`, `parameters` (of all of
//! them), `bytes`, and the stored names: `openai`, `hf`, `gguf`. `check` prints `schema`, `file`, `family`, `dims`,
//! `tensors` and `shapes`, which are numbers.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::json;

use super::output::Output;
use super::usage::UsageError;
use crate::checkpoint::encoding::Encoding;
use crate::checkpoint::tensors::{Group, groups, parameters};
use crate::config::{ModelConfig, NamedShape};
use crate::family::{Family, Format};
use crate::units::{grouped, human_bytes};

/// List, show and check model families (models/*.toml)
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the families, and the published models of each
    Ls,
    /// Show a family's tensors: shapes, sizes, names in files
    Show {
        /// The family
        #[arg(value_name = "FAMILY")]
        family: String,

        /// A published model, whose dimensions the tensors have
        #[arg(long, value_enum, value_name = "SHAPE")]
        shape: Option<NamedShape>,
    },
    /// Check a family's file: the first mistake, with its line
    Check {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// The longest file that is read; gpt-oss's has 8 kB.
const MAX_BYTES: u64 = 1 << 20;

/// A published model.
#[derive(Serialize)]
struct Shape {
    name: &'static str,
    layers: usize,
    parameters: u64,
    bytes: u64,
}

/// A tensor, or the same tensor of all layers.
#[derive(Serialize)]
struct Row {
    name: String,
    count: usize,
    shape: Vec<usize>,
    parameters: u64,
    bytes: u64,
    openai: String,
    hf: String,
    gguf: String,
}

/// Runs the command.
///
/// # Errors
/// A family that is not known, or what is wrong with a file.
pub fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    match args.command {
        Command::Ls => ls(output),
        Command::Show { family, shape } => show(&family, shape, output),
        Command::Check { file } => check(&file, output),
    }
}

fn ls(output: &Output) -> anyhow::Result<()> {
    let family = Family::gpt_oss();
    let shapes: Vec<Shape> = NamedShape::value_variants().iter().map(|shape| Shape::of(*shape)).collect();
    if output.is_json() {
        let families = [json!({"name": family.name, "shapes": shapes})];
        return Ok(output.json(&json!({"schema": 1, "families": families}))?);
    }
    let cells = |shape: &Shape| {
        let (name, layers) = (shape.name.to_owned(), shape.layers.to_string());
        vec![family.name.clone(), name, layers, grouped(shape.parameters), human_bytes(shape.bytes)]
    };
    let rows: Vec<Vec<String>> = shapes.iter().map(cells).collect();
    let header = ["family", "model", "layers", "parameters", "size"];
    Ok(output.table(&header, &rows, &["layers", "parameters", "size"])?)
}

impl Shape {
    fn of(shape: NamedShape) -> Self {
        let config = shape.config(None);
        let (name, layers) = (shape.name(), config.num_hidden_layers);
        let bytes = groups(&config).iter().map(|group| bytes_of(group, &config)).sum();
        Self { name, layers, parameters: parameters(&config).expect("published models fit 64 bits"), bytes }
    }
}

/// Bytes of all tensors of a group, as models are published.
fn bytes_of(group: &Group, config: &ModelConfig) -> u64 {
    let parts = Encoding::default().parts(group);
    let one: usize = parts.iter().map(|part| part.dtype.len_bytes(part.shape.iter().product())).sum();
    (one * group.count(config)) as u64
}

fn show(name: &str, shape: Option<NamedShape>, output: &Output) -> anyhow::Result<()> {
    let family = Family::gpt_oss();
    if name != family.name {
        return Err(UsageError(format!("there is no family `{name}`; there is `{}`", family.name)).into());
    }
    let shape = shape.unwrap_or_else(NamedShape::gpt_oss_20b);
    let config = shape.config(None);
    let rows: Vec<Row> = groups(&config).iter().map(|group| Row::of(group, &config)).collect();
    let total: u64 = rows.iter().map(|row| row.parameters).sum();
    if output.is_json() {
        return Ok(output.json(&json!({
            "schema": 1, "family": name, "model": shape.name(), "config": config, "parameters": total, "tensors": rows,
        }))?);
    }
    let bytes: u64 = rows.iter().map(|row| row.bytes).sum();
    output.line(&format!("{}: {} parameters, {}\n", shape.name(), grouped(total), human_bytes(bytes)))?;
    let cells = |row: &Row| {
        let (count, shape) = (row.count.to_string(), format!("{:?}", row.shape));
        vec![row.name.clone(), count, shape, human_bytes(row.bytes), row.hf.clone(), row.gguf.clone()]
    };
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let header = ["tensor", "count", "shape", "size", "Hugging Face", "GGUF"];
    Ok(output.table(&header, &cells, &["count", "size"])?)
}

impl Row {
    fn of(group: &Group, config: &ModelConfig) -> Self {
        let stored = |format| {
            let pieces = group.tensor.pieces(format, &config.scope());
            pieces.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" + ")
        };
        let count = group.count(config);
        Self {
            name: group.tensor.name.clone(),
            count,
            parameters: group.elements().expect("published models fit 64 bits") * count as u64,
            bytes: bytes_of(group, config),
            openai: stored(Format::OpenAi),
            hf: stored(Format::HuggingFace),
            gguf: stored(Format::Gguf),
            shape: group.shape.clone(),
        }
    }
}

fn check(file: &Path, output: &Output) -> anyhow::Result<()> {
    let path = file.display().to_string();
    let text = mapped_file::read_to_string(file, MAX_BYTES).with_context(|| format!("could not read `{path}`"))?;
    let Family { name, dims, tensors, shapes, .. } = Family::read(&path, &text)?;
    let (n_dims, n_tensors, n_shapes) = (dims.len(), tensors.len(), shapes.len());
    if output.is_json() {
        return Ok(output.json(&json!({
            "schema": 1, "file": path, "family": name, "dims": n_dims, "tensors": n_tensors, "shapes": n_shapes,
        }))?);
    }
    let counts = format!("{n_dims} dimensions, {n_tensors} tensors, {n_shapes} published models");
    Ok(output.line(&format!("{path}: family `{name}`: {counts}"))?)
}
