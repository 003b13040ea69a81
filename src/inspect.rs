//! `gptoss-jit inspect`: shows a checkpoint's contents.

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use super::output::Output;
use crate::args::{ModelArgs, Placement, PlacementArgs};
use crate::usage::UsageError;
use engine::device::Device;
use format::Dtype;
use model::checkpoint::Tensor;
use model::checkpoint::bin::HEADER;
use model::checkpoint::layout::LayoutFinding;
use model::checkpoint::quantized::Gain;
use model::config::ModelConfig;
use model::family::known::gpt_oss;
use system::units::{grouped, human_bytes};

/// Show a checkpoint's dimensions, tensors and problems
///
/// Many files of gpt-oss-amd's exporters have the embedding and the unembedding swapped, which cannot be detected. If
/// the model's output is noise, try `--layout swapped`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// List the tensors of every layer instead of one line for all layers
    #[arg(long)]
    all: bool,

    /// Show which parts of the model this device and the processor would compute, and an upper bound of the speed from
    /// the measured bandwidth of both memories
    #[arg(long, value_name = "D")]
    device: Option<Device>,

    #[command(flatten)]
    placement: PlacementArgs,
}

/// The one object that `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    path: String,
    file_bytes: u64,
    parameters: u64,
    /// Of all tensors, as they are in memory.
    tensor_bytes: u64,
    /// Bytes of weights that a step for one token reads.
    bytes_per_token: u64,
    /// What `--quantize` would save; null where nothing.
    gain: Option<Gain>,
    dtypes: Vec<Dtype>,
    family: &'static str,
    config: &'a ModelConfig,
    findings: Vec<FindingReport<'a>>,
    tensors: Vec<StoredTensorRow>,
    /// Who computes what; null without `--device`.
    placement: Option<Placement>,
}

#[derive(Serialize)]
struct FindingReport<'a> {
    #[serde(flatten)]
    finding: &'a LayoutFinding,
    message: String,
}

/// One tensor, or the same tensor of all layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct StoredTensorRow {
    name: String,
    count: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Of the first of them.
    offset: Option<u64>,
    bytes: u64,
}

/// Runs the command.
///
/// # Errors
/// The file cannot be read, or is no checkpoint.
pub(crate) fn run(args: Args, output: &Output) -> anyhow::Result<()> {
    let checkpoint = args.model.checkpoint()?;
    let mut dtypes: Vec<Dtype> = checkpoint.tensors.values().map(|tensor| tensor.dtype).collect();
    dtypes.sort_unstable();
    dtypes.dedup();
    let PlacementArgs { n_cpu_moe, embedding, memory, .. } = &args.placement;
    if args.device.is_none() && (n_cpu_moe.is_some() || embedding.is_some() || memory.is_some()) {
        let text = "`--n-cpu-moe`, `--embedding` and `--memory` of `inspect` need `--device`";
        return Err(UsageError(text.into()).into());
    }
    let report = Report {
        schema: 1,
        path: args.model.name(),
        file_bytes: checkpoint.origin.total_bytes,
        parameters: checkpoint.parameters(),
        tensor_bytes: checkpoint.tensor_bytes(),
        bytes_per_token: checkpoint.bytes_per_token(),
        gain: checkpoint.gain(),
        dtypes,
        family: &checkpoint.config.family.name,
        config: &checkpoint.config,
        findings: checkpoint.findings.iter().map(FindingReport::new).collect(),
        tensors: rows(checkpoint.tensors.values(), args.all),
        placement: args
            .device
            .as_ref()
            .map(|device| Placement::new(&checkpoint, device, &args.placement))
            .transpose()?,
    };
    if output.is_json() { Ok(output.json(&report)?) } else { print(&report, output) }
}

impl<'a> FindingReport<'a> {
    fn new(finding: &'a LayoutFinding) -> Self {
        Self { finding, message: finding.to_string() }
    }
}

fn print(report: &Report, output: &Output) -> anyhow::Result<()> {
    let dtypes: Vec<&str> = report.dtypes.iter().map(|dtype| dtype.name()).collect();
    let size = match report.file_bytes {
        0 => "no file".to_owned(),
        file_bytes => human_bytes(file_bytes),
    };
    let (path, parameters) = (&report.path, grouped(report.parameters));
    output.line(&format!("{path}: {parameters} parameters, {}, {size}\n", dtypes.join(" and ")))?;

    let config = serde_json::to_value(report.config).context("could not list the dimensions")?;
    let config = config.as_object().context("the dimensions are no map")?;
    output.line(&format!("family {}\n", report.family))?;
    // gpt-oss-amd's names are those of `.bin` files, which hold models of one family.
    let is_of_bin = report.family == gpt_oss().name;
    let seeds = |name: &String| HEADER.iter().find(|(ours, _)| ours == name).map_or("", |(_, seeds)| seeds).to_owned();
    let cells = |(name, value): (&String, &Value)| {
        let own = is_of_bin.then(|| seeds(name));
        [Some(name.clone()), own, Some(value.to_string())].into_iter().flatten().collect()
    };
    let fields: Vec<Vec<String>> = config.iter().map(cells).collect();
    let header: &[&str] = if is_of_bin { &["dimension", "gpt-oss-amd", "value"] } else { &["dimension", "value"] };
    output.table(header, &fields, &["value"])?;
    output.line("")?;

    let rows: Vec<Vec<String>> = report.tensors.iter().map(StoredTensorRow::cells).collect();
    let header = ["tensor", "count", "dtype", "shape", "offset B", "size"];
    output.table(&header, &rows, &["count", "offset B", "size"])?;
    let count: usize = report.tensors.iter().map(|row| row.count).sum();
    let (total, per_token) = (human_bytes(report.tensor_bytes), human_bytes(report.bytes_per_token));
    output.line(&format!("\n{count} tensors, {total}; a step for one token reads {per_token} of them"))?;
    report.gain.as_ref().map_or(Ok(()), |gain| output.line(&gain.to_string()))?;
    report.placement.iter().flat_map(Placement::lines).try_for_each(|line| output.line(&line))?;
    for finding in &report.findings {
        output.line(&format!("\nfound: {}", finding.message))?;
    }
    Ok(())
}

/// The tensors in the order of the file; without `all`, layers are folded into one row.
fn rows<'a>(tensors: impl Iterator<Item = &'a Tensor>, all: bool) -> Vec<StoredTensorRow> {
    let mut tensors: Vec<&Tensor> = tensors.collect();
    tensors.sort_by_key(|tensor| tensor.file_offset);
    let mut rows: Vec<StoredTensorRow> = Vec::new();
    for tensor in tensors {
        let name = if all { tensor.name.clone() } else { folded(&tensor.name) };
        let bytes = tensor.len_bytes() as u64;
        match rows.iter_mut().find(|row| (&row.name, row.dtype, &row.shape) == (&name, tensor.dtype, &tensor.shape)) {
            Some(row) => {
                row.count += 1;
                row.bytes += bytes;
            }
            None => rows.push(StoredTensorRow {
                name,
                count: 1,
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                offset: tensor.file_offset,
                bytes,
            }),
        }
    }
    rows
}

/// `block.17.attn.sinks` as `block.*.attn.sinks`.
fn folded(name: &str) -> String {
    match name.strip_prefix("block.").and_then(|rest| rest.split_once('.')) {
        Some((_, rest)) => format!("block.*.{rest}"),
        None => name.to_owned(),
    }
}

impl StoredTensorRow {
    fn cells(&self) -> Vec<String> {
        let shape: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        vec![
            self.name.clone(),
            self.count.to_string(),
            self.dtype.to_string(),
            format!("({})", shape.join(", ")),
            self.offset.map_or_else(|| "-".into(), grouped),
            human_bytes(self.bytes),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::checkpoint::Elements;

    #[test]
    fn layers_fold_into_one_row() {
        let tensor = |name: &str, offset| Tensor {
            name: name.into(),
            dtype: Dtype::Bf16,
            shape: vec![3],
            elements: Elements::Bytes(bytes::Bytes::from_static(&[0; 6])),
            file_offset: Some(offset),
        };
        let tensors = [tensor("block.10.attn.sinks", 72), tensor("norm.scale", 60), tensor("block.2.attn.sinks", 66)];
        let folded = rows(tensors.iter(), false);
        assert_eq!(folded.len(), 2);
        assert_eq!((folded[1].name.as_str(), folded[1].count), ("block.*.attn.sinks", 2));
        assert_eq!((folded[1].offset, folded[1].bytes), (Some(66), 12));
        assert_eq!(rows(tensors.iter(), true).len(), 3);
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(20_914_757_184), "20,914,757,184");
        assert_eq!(grouped(100_000), "100,000");
    }
}
