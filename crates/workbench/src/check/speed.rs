//! Predicts how long the hot loops of a template's kernels take, from their machine code.

use super::code::{CodeError, KernelCode};
use super::{Checker, Selection};
use crate::isa::Code;
use crate::isa::speed::{IssueModel, LoopSpeed, Machine};
use kernel::target::compute_unit::{ComputeUnit, Product};
use kernel::template::Precision;

/// One kernel of a template, and its hot loops.
#[derive(Debug)]
pub struct KernelSpeed {
    /// The ops it covers, joined by `+`.
    pub op: String,
    /// The template's name among those of the op.
    pub variant: String,
    pub precision: Precision,
    /// The shape and types.
    pub case: String,
    /// Its hot loops, in the order of their addresses; or why there is nothing to say.
    pub loops: Result<Vec<HotLoop>, CodeError>,
}

/// A loop in which time is spent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotLoop {
    /// Address of its first instruction.
    pub header: u64,
    /// Instructions of a round.
    pub n_instructions: usize,
    /// Whether there are loops inside of it, whose instructions count once.
    pub has_loops_inside: bool,
    /// A round of it.
    pub speed: LoopSpeed,
}

impl Checker<'_> {
    /// Predicts the hot loops of the selected templates' kernels: those of [`Checker::codes`].
    pub fn speeds(
        &self,
        selection: &Selection,
        model: &IssueModel,
        unit: &ComputeUnit,
        product: &Product,
    ) -> Vec<KernelSpeed> {
        let arch = self.target.arch.split(':').next().unwrap_or_default();
        let machine = Machine { arch, wave_size: self.target.wave_size, compute_unit: unit, product };
        let predicted = self.codes(selection, None).into_iter().map(|kernel| {
            let KernelCode { op, variant, precision, case, made } = kernel;
            let loops = made.map(|(_, code)| hot_loops(&code, model, machine));
            KernelSpeed { op, variant, precision, case, loops }
        });
        predicted.collect()
    }
}

fn hot_loops(code: &Code, model: &IssueModel, machine: Machine<'_>) -> Vec<HotLoop> {
    let loops = code.loops();
    let hot = loops.iter().filter(|found| found.is_hot(code)).map(|found| HotLoop {
        header: found.header,
        n_instructions: found.all.len(),
        has_loops_inside: !found.is_innermost(),
        speed: found.speed(code, model, machine),
    });
    hot.collect()
}
