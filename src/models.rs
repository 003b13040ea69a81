//! `gptoss-jit models`: the model families that are known, from `models/*.toml`.
//!
//! With `--json`, `ls` prints one object: `schema` (1) and `families`, a list of `name` and `shapes`, a list of `name`,
//! `layers`, `parameters` and `bytes` (as published: experts in MXFP4). `show` prints `schema`, `family`, `model`,
//! `config` (the dimensions), `parameters`, and `tensors`, a list of `name`, `count`, `shape`, `parameters` (of all of
//! them), `bytes`, and the stored names: `openai`, `hf`, `gguf`; and `nodes` of the forward pass: `node`, `count`,
//! `op`, `dims`, `dtypes`, `constants`, `flags`, `weight_bytes` (of one). `check` prints `schema`, `file`,
//! `family`, and the numbers `dims`, `tensors`, `shapes` and `graphs`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use super::model_problems::graph;
use super::output::Output;
use super::usage::UsageError;
use engine::graph::{Graph, Storage};
use kernel::target::Target;
use kernel::template::library::Library;
use kernel::template::{Precision, Problem};
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;
use model::checkpoint::layout::Layout;
use model::checkpoint::tensors::{Group, groups, parameters};
use model::config::{ModelConfig, NamedShape};
use model::family::known::{Broken, broken, put_first, read_file};
use model::family::{Family, NamingScheme, known, named};
use system::units::{grouped, human_bytes};

/// List, show and check model families (models/*.toml)
#[derive(clap::Args)]
pub(crate) struct Args {
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
    /// Check a family's file, its layer against the ops, and a model against it: the first mistake, with its line
    Check {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// A checkpoint of the family: its dimensions, and the names, shapes and types of its tensors
        #[arg(value_name = "MODEL")]
        model: Option<PathBuf>,
    },
}

#[derive(Serialize)]
struct Shape {
    name: &'static str,
    layers: usize,
    parameters: u64,
    bytes: u64,
}

/// A tensor, or the same tensor of all layers.
#[derive(Serialize)]
struct FamilyTensorRow {
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
pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    match args.command {
        Command::Ls => ls(output),
        Command::Show { family, shape } => show(&family, shape, output),
        Command::Check { file, model } => check(&file, model.as_deref(), output),
    }
}

fn ls(output: &Output) -> anyhow::Result<()> {
    let shapes_of = |family: &Family| NamedShape::all_of_family(family).map(Shape::from_named).collect::<Vec<Shape>>();
    let of_broken = |broken: &Broken| json!({"file": broken.path, "error": broken.error.to_string()});
    if output.is_json() {
        let of = |family: &&Family| json!({"name": family.name, "shapes": shapes_of(family)});
        let families: Vec<Value> = known().iter().map(|family| of(&&**family)).collect();
        let broken: Vec<Value> = broken().iter().map(of_broken).collect();
        return Ok(output.json(&json!({"schema": 1, "families": families, "broken": broken}))?);
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    for family in known() {
        let shapes = shapes_of(family);
        if shapes.is_empty() {
            rows.push([family.name.as_str(), "", "", "", ""].map(str::to_owned).to_vec());
        }
        rows.extend(shapes.iter().map(|shape| {
            let (name, layers) = (shape.name.to_owned(), shape.layers.to_string());
            vec![family.name.clone(), name, layers, grouped(shape.parameters), human_bytes(shape.bytes)]
        }));
    }
    for Broken { path, error, .. } in broken() {
        output.warning(&format!("{} is no family: {error}", path.display()));
    }
    let header = ["family", "model", "layers", "parameters", "size"];
    Ok(output.table(&header, &rows, &["layers", "parameters", "size"])?)
}

impl Shape {
    fn from_named(shape: NamedShape) -> Self {
        let config = shape.config(None);
        let (name, layers) = (shape.name(), config.num_hidden_layers);
        let bytes = groups(&config).iter().map(bytes_of).sum();
        Self { name, layers, parameters: parameters(&config).expect("published models fit 64 bits"), bytes }
    }
}

/// Bytes of all tensors of a group, as models are published.
fn bytes_of(group: &Group) -> u64 {
    let parts = Encoding::default().parts(group);
    let one: usize = parts.iter().map(|part| part.dtype.len_bytes(part.shape.iter().product())).sum();
    (one * group.layers.len()) as u64
}

fn show(name: &str, shape: Option<NamedShape>, output: &Output) -> anyhow::Result<()> {
    let Some(family) = named(name) else {
        let names: Vec<String> = known().iter().map(|family| format!("`{}`", family.name)).collect();
        return Err(UsageError(format!("there is no family `{name}`; there are {}", names.join(", "))).into());
    };
    let shape = match shape {
        Some(shape) if !std::ptr::eq(shape.family(), family) => {
            let of = &shape.family().name;
            return Err(UsageError(format!("`{}` is of the family `{of}`, not of `{name}`", shape.name())).into());
        }
        Some(shape) => shape,
        None => NamedShape::all_of_family(family)
            .next()
            .ok_or_else(|| UsageError(format!("the family `{name}` has no [shapes] to show")))?,
    };
    let config = shape.config(None);
    let rows: Vec<FamilyTensorRow> = groups(&config).iter().map(FamilyTensorRow::new).collect();
    let total: u64 = rows.iter().map(|row| row.parameters).sum();
    let library = Library::load(&Library::default_search(None))?;
    let checkpoint = Checkpoint::random(config.clone(), Encoding::default(), 0)?;
    let graph = graph(&checkpoint, Precision::Bf16, &Target::host(), &library)?;
    let nodes = NodeRow::all(&graph, &checkpoint);
    if output.is_json() {
        return Ok(output.json(&json!({
            "schema": 1, "family": name, "model": shape.name(), "config": config, "parameters": total, "tensors": rows,
            "nodes": nodes,
        }))?);
    }
    let bytes: u64 = rows.iter().map(|row| row.bytes).sum();
    output.line(&format!("{}: {} parameters, {}\n", shape.name(), grouped(total), human_bytes(bytes)))?;
    let cells = |row: &FamilyTensorRow| {
        let (count, shape) = (row.count.to_string(), format!("{:?}", row.shape));
        vec![row.name.clone(), count, shape, human_bytes(row.bytes), row.hf.clone(), row.gguf.clone()]
    };
    let cells: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let header = ["tensor", "count", "shape", "size", "Hugging Face", "GGUF"];
    output.table(&header, &cells, &["count", "size"])?;
    output.line("\nThe forward pass at bf16 (`templates/<op>/op.toml` describes each op):\n")?;
    let cells: Vec<Vec<String>> = nodes.iter().map(NodeRow::cells).collect();
    Ok(output.table(&["node", "count", "op", "weights", "contract"], &cells, &["count", "weights"])?)
}

impl FamilyTensorRow {
    fn new(group: &Group) -> Self {
        let stored = |format| group.tensor.names(format).join(" + ");
        let count = group.layers.len();
        Self {
            name: group.tensor.name.clone(),
            count,
            parameters: group.elements().expect("published models fit 64 bits") * count as u64,
            bytes: bytes_of(group),
            openai: stored(NamingScheme::OpenAi),
            hf: stored(NamingScheme::HuggingFace),
            gguf: stored(NamingScheme::Gguf),
            shape: group.shape.clone(),
        }
    }
}

/// A family's file by itself, then its layers in each of its models, then a checkpoint.
fn check(file: &Path, model: Option<&Path>, output: &Output) -> anyhow::Result<()> {
    let path = file.display().to_string();
    let family = put_first(read_file(file)?);
    let library = Library::load(&Library::default_search(None))?;
    let target = Target::host();
    let mut graphs = Vec::new();
    for shape in &family.shapes {
        let checkpoint = Checkpoint::random(ModelConfig::of_shape(family, shape), Encoding::default(), 0)?;
        graphs.push(graph(&checkpoint, Precision::Bf16, &target, &library)?);
    }
    if let Some(model) = model {
        let checkpoint = Checkpoint::open(model, Layout::default())?;
        let found = checkpoint.config.family;
        if !std::ptr::eq(found, family) {
            return Err(UsageError(format!("`{}` is a model of the family `{}`", model.display(), found.name)).into());
        }
        graphs.push(graph(&checkpoint, Precision::F32, &target, &library)?);
    }
    let Family { name, dims, tensors, shapes, .. } = family;
    let (n_dims, n_tensors, n_shapes) = (dims.len(), tensors.len(), shapes.len());
    if output.is_json() {
        return Ok(output.json(&json!({
            "schema": 1, "file": path, "family": name, "dims": n_dims, "tensors": n_tensors, "shapes": n_shapes,
            "graphs": graphs.len(),
        }))?);
    }
    let counts = format!("{n_dims} dimensions, {n_tensors} tensors, {n_shapes} published models");
    output.line(&format!("{path}: family `{name}`: {counts}"))?;
    if graphs.is_empty() {
        output.warning("its layer was not tried: it has no [shapes], and no MODEL was given");
    }
    Ok(())
}

/// Nodes of the forward pass that are alike but for the layer that they are in.
#[derive(Serialize)]
struct NodeRow {
    node: String,
    count: usize,
    op: String,
    dims: BTreeMap<String, u32>,
    dtypes: BTreeMap<String, String>,
    constants: BTreeMap<String, f32>,
    flags: BTreeMap<String, bool>,
    /// Of the weights of one of them.
    weight_bytes: usize,
}

impl NodeRow {
    /// All nodes, those of layers that are alike together, in the order of the first of them.
    fn all(graph: &Graph, checkpoint: &Checkpoint) -> Vec<Self> {
        let mut rows: Vec<Self> = Vec::new();
        for node in &graph.nodes {
            let inner = node.label.strip_prefix("block.").and_then(|rest| rest.split_once('.'));
            let label = inner.map_or_else(|| node.label.clone(), |(_, inner)| format!("block.*.{inner}"));
            let Problem { ops, dims, constants, flags, dtypes, .. } = &node.problem;
            let is_same = |row: &&mut Self| {
                (&row.node, &row.dims, &row.flags, &row.constants) == (&label, dims, flags, constants)
            };
            if let Some(row) = rows.iter_mut().find(is_same) {
                row.count += 1;
                continue;
            }
            let weights = node.args.values().filter_map(|&id| match &graph.tensor_of(id).storage {
                Storage::Weight(name) => Some(checkpoint.tensor(name).len_bytes()),
                _ => None,
            });
            rows.push(Self {
                weight_bytes: weights.sum(),
                node: label,
                count: 1,
                op: ops.join("+"),
                dims: dims.clone(),
                dtypes: dtypes.iter().map(|(name, dtype)| (name.clone(), dtype.to_string())).collect(),
                constants: constants.clone(),
                flags: flags.clone(),
            });
        }
        rows
    }

    fn cells(&self) -> Vec<String> {
        let dims = self.dims.iter().map(|(name, value)| format!("{name}={value}"));
        let dtypes = self.dtypes.iter().map(|(name, dtype)| format!("{name}={dtype}"));
        let constants = self.constants.iter().map(|(name, value)| format!("{name}={value}"));
        let flags = self.flags.iter().filter(|(_, is_set)| **is_set).map(|(name, _)| name.clone());
        let all: Vec<String> = dims.chain(dtypes).chain(constants).chain(flags).collect();
        let bytes = if self.weight_bytes == 0 { String::new() } else { human_bytes(self.weight_bytes as u64) };
        vec![self.node.clone(), self.count.to_string(), self.op.clone(), bytes, all.join(" ")]
    }
}
