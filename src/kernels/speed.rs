//! `kernels check --speed`: predicted times of GPU kernels at a model's shapes, compared with what runs today; for AMD
//! also the hot loops, predicted by llvm-mca or counted. No number here is measured.

use anyhow::{Context as _, anyhow};
use serde::Serialize;

use super::beside::{Beside, Choosers, Predicted as Times, ShapeArgs};
use crate::args::source::SourceArgs;
use crate::output::Output;
use hint::chain;
use kernel::target::Platform;
use kernel::target::TargetFacts;
use kernel::target::compute_unit::{ComputeUnit, Product};
use workbench::check::code::CodeError;
use workbench::check::speed::{HotLoop, KernelSpeed};
use workbench::check::{Checker, Selection};
use workbench::isa::speed::IssueModel;
use workbench::predict::{PredictError, Prediction};

/// The JSON of `kernels check --speed`.
#[derive(Serialize)]
struct Report {
    schema: u32,
    target: String,
    /// Where the numbers come from.
    predicted_by: &'static str,
    limits: ProductLimits,
    /// Templates at the model's shapes.
    times: Vec<Time>,
    kernels: Vec<KernelReport>,
}

/// A template at one of a model's shapes, beside what runs today. All of it predicted, in microseconds.
#[derive(Serialize)]
struct Time {
    op: String,
    variant: String,
    at: String,
    rows: u32,
    /// Null if there is no prediction.
    predicted_us: Option<f64>,
    /// What bounds it, or why there is no prediction.
    bound: String,
    incumbent: Option<String>,
    incumbent_us: Option<f64>,
}

/// What the fastest product of the arch can do, as its maker states it.
#[derive(Serialize)]
struct ProductLimits {
    product: String,
    matrix_tflops: f64,
    matrix_flop_per_cycle_and_cu: u32,
    memory_gbps: f64,
    memory_bytes_per_cycle_and_cu: f64,
}

#[derive(Serialize)]
struct KernelReport {
    op: String,
    variant: String,
    precision: &'static str,
    case: String,
    hot_loops: Vec<HotLoopReport>,
    error: Option<String>,
}

#[derive(Serialize)]
struct HotLoopReport {
    /// Of its first instruction.
    address: String,
    instructions: usize,
    /// Loops inside of it, whose instructions count once.
    has_loops_inside: bool,
    predicted: Predicted,
}

#[derive(Serialize)]
struct Predicted {
    cycles_alone: f64,
    cycles_busy: f64,
    matrix_flop: u64,
    /// Null where the loop has no matrix operations.
    matrix_share_of_peak_alone: Option<f64>,
    matrix_share_of_peak_busy: Option<f64>,
    memory_bytes: u64,
    memory_bytes_per_cycle_and_cu_busy: f64,
}

/// Predicts, prints, and fails if there is a kernel of which nothing could be said.
pub(super) fn run(
    checker: &Checker<'_>,
    selection: &Selection,
    facts: Option<&TargetFacts>,
    (source, shape): (&SourceArgs, &ShapeArgs),
    output: &Output,
) -> anyhow::Result<()> {
    let arch = checker.target.id();
    let known = facts.and_then(|facts| Some((facts.compute_unit?, facts.product.as_ref()?)));
    let (unit, product) = known.with_context(|| {
        format!("nothing is known of the speed of {arch}: its tuning table has no [target.compute_unit] or no [target.product]")
    })?;
    let choosers = Choosers::new(source, checker.target)?;
    let mut times = Vec::new();
    for template in checker.selected(selection) {
        // A template that fits no problem of the model has none to be held to.
        for beside in choosers.beside(template, shape)? {
            times.push(Time::new(&beside, shape, choosers.predict(&beside, checker.store)?));
        }
    }
    let mut kernels = Vec::new();
    let of_amd = checker.target.platform == Platform::Amd;
    let model = of_amd.then(|| IssueModel::find(&checker.target.arch));
    if let Some(notice) = model.as_ref().and_then(IssueModel::notice) {
        output.note(&notice);
    }
    let speeds = model.as_ref().map(|model| checker.speeds(selection, model, &unit, product));
    for speed in speeds.into_iter().flatten() {
        match speed.loops {
            // A missing tool is one error, not one for each kernel.
            Err(CodeError::Isa(error)) => return Err(error.into()),
            _ => kernels.push(KernelReport::new(speed, &unit)),
        }
    }
    let n_wrong = kernels.iter().filter(|kernel| kernel.error.is_some()).count();
    let n_kernels = kernels.len();
    let limits = ProductLimits::from_product(product);
    let predicted_by = model.as_ref().map_or("the schedule in the object", IssueModel::name);
    if output.is_json() {
        output.json(&Report { schema: 1, target: arch, predicted_by, limits, times, kernels })?;
    } else {
        print_times(&times, output)?;
        if of_amd {
            output.line("")?;
            print(&kernels, &limits, (&arch, predicted_by), output)?;
        }
    }
    if n_wrong > 0 { Err(anyhow!("{n_wrong} of {n_kernels} kernels could not be compiled")) } else { Ok(()) }
}

impl Time {
    fn new(beside: &Beside, shape: &ShapeArgs, times: Times) -> Self {
        let us = |one: &Result<Prediction, PredictError>| one.as_ref().ok().map(|one| 1e6 * one.seconds());
        let dims = beside.problem.dims.iter().map(|(name, value)| format!("{name} {value}"));
        Self {
            op: beside.problem.ops.join("+"),
            variant: beside.candidate.template.variant.clone(),
            at: format!("{} ({})", beside.label, dims.collect::<Vec<_>>().join(", ")),
            rows: shape.tokens,
            predicted_us: us(&times.candidate),
            bound: times.candidate.map_or_else(|error| chain(&error), |one| one.bound().to_string()),
            incumbent: beside.incumbent.as_ref().map(|one| one.template.variant.clone()),
            incumbent_us: times.incumbent.as_ref().and_then(us),
        }
    }

    fn cells(&self) -> Vec<String> {
        let us = |us: Option<f64>| us.map_or("-".into(), |us| format!("{us:.1}"));
        vec![
            self.op.clone(),
            self.variant.clone(),
            self.rows.to_string(),
            us(self.predicted_us),
            self.bound.clone(),
            self.incumbent.clone().unwrap_or_else(|| "-".into()),
            us(self.incumbent_us),
            self.at.clone(),
        ]
    }
}

fn print_times(times: &[Time], output: &Output) -> anyhow::Result<()> {
    const RIGHT: [&str; 3] = ["rows", "predicted us", "its us"];
    let header = ["op", "variant", RIGHT[0], RIGHT[1], "bound by", "incumbent", RIGHT[2], "in the model"];
    let cells: Vec<Vec<String>> = times.iter().map(Time::cells).collect();
    Ok(output.table(&header, &cells, &RIGHT)?)
}

impl ProductLimits {
    fn from_product(product: &Product) -> Self {
        Self {
            product: product.name.clone(),
            matrix_tflops: product.matrix_tflops(),
            matrix_flop_per_cycle_and_cu: product.matrix_flop_per_cycle,
            memory_gbps: product.memory_gbps,
            memory_bytes_per_cycle_and_cu: product.bytes_per_cycle(),
        }
    }
}

impl KernelReport {
    fn new(speed: KernelSpeed, unit: &ComputeUnit) -> Self {
        let KernelSpeed { op, variant, precision, case, loops } = speed;
        let (hot_loops, error) = match loops {
            Ok(loops) => (loops.iter().map(|found| HotLoopReport::new(found, unit)).collect(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Self { op, variant, precision: precision.name(), case, hot_loops, error }
    }

    /// A line for each hot loop; one that says so where there is none.
    fn cells(&self) -> Vec<Vec<String>> {
        let names = [self.op.clone(), self.variant.clone(), self.precision.to_owned()];
        let with = |cells: Vec<String>| [&names[..], &cells, std::slice::from_ref(&self.case)].concat();
        if self.hot_loops.is_empty() {
            let what = if self.error.is_some() { "error" } else { "no loop" };
            return vec![with([vec![what.to_owned()], vec!["-".into(); 7]].concat())];
        }
        self.hot_loops.iter().map(|row| with(row.cells())).collect()
    }
}

impl HotLoopReport {
    fn new(found: &HotLoop, unit: &ComputeUnit) -> Self {
        let speed = found.speed;
        let share = |share: f64| Some(share).filter(|_| speed.matrix_cycles > 0.0);
        let predicted = Predicted {
            cycles_alone: speed.alone_cycles,
            cycles_busy: speed.busy_cycles,
            matrix_flop: speed.matrix_flop,
            matrix_share_of_peak_alone: share(speed.matrix_share_alone()),
            matrix_share_of_peak_busy: share(speed.matrix_share_busy()),
            memory_bytes: speed.memory_bytes,
            memory_bytes_per_cycle_and_cu_busy: speed.bytes_per_cycle(unit),
        };
        Self {
            address: format!("0x{:x}", found.header),
            instructions: found.n_instructions,
            has_loops_inside: found.has_loops_inside,
            predicted,
        }
    }

    fn cells(&self) -> Vec<String> {
        let address = if self.has_loops_inside { format!("{} outer", self.address) } else { self.address.clone() };
        let mut cells = vec![address, self.instructions.to_string()];
        let predicted = &self.predicted;
        let percent = |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.0}", 100.0 * share));
        cells.extend([
            format!("{:.0}", predicted.cycles_alone),
            format!("{:.0}", predicted.cycles_busy),
            percent(predicted.matrix_share_of_peak_alone),
            percent(predicted.matrix_share_of_peak_busy),
            predicted.memory_bytes.to_string(),
            format!("{:.1}", predicted.memory_bytes_per_cycle_and_cu_busy),
        ]);
        cells
    }
}

fn print(
    kernels: &[KernelReport],
    limits: &ProductLimits,
    (arch, predicted_by): (&str, &str),
    output: &Output,
) -> anyhow::Result<()> {
    const NUMBERS: [&str; 7] = [
        "instructions",
        "predicted cycles, alone",
        "busy",
        "predicted % of matrix peak, alone",
        "busy",
        "bytes",
        "predicted bytes/cycle/CU, busy",
    ];
    let mut header = vec!["op", "variant", "precision", "loop"];
    header.extend(NUMBERS);
    header.push("shape");
    let cells: Vec<Vec<String>> = kernels.iter().flat_map(KernelReport::cells).collect();
    output.table(&header, &cells, &NUMBERS)?;
    for kernel in kernels {
        if let Some(error) = &kernel.error {
            output.line(&format!("\n{}/{} {}: {error}", kernel.op, kernel.variant, kernel.precision))?;
        }
    }
    output.note(&format!(
        "predicted by {predicted_by} for {arch}, a round of each loop, nothing measured; limits of {}: {} FLOP/cycle/CU \
         ({:.1} TFLOPS bf16), {:.1} bytes/cycle/CU ({:.0} GB/s)",
        limits.product,
        limits.matrix_flop_per_cycle_and_cu,
        limits.matrix_tflops,
        limits.memory_bytes_per_cycle_and_cu,
        limits.memory_gbps
    ));
    Ok(())
}
