//! How long the hot loops of a template's kernels take, as predicted from what the compiler made of them.

use std::collections::BTreeMap;

use super::trial::{self, Trial};
use super::{Checker, Selection, Wrong};
use crate::compute_unit::{ComputeUnit, Product};
use crate::kernel::Precision;
use crate::kernel::isa::llvm::Llvm;
use crate::kernel::isa::speed::{LoopSpeed, Machine};
use crate::kernel::isa::{Code, IsaError};
use crate::kernel::render::{Rendered, render};
use crate::kernel::template::Template;

/// One kernel of a template, and its hot loops.
#[derive(Debug)]
pub struct KernelSpeed {
    /// The ops it covers, joined by `+`.
    pub op: String,
    /// The template's name among those of the op.
    pub variant: String,
    /// At which precision.
    pub precision: Precision,
    /// The shape and types.
    pub case: String,
    /// Its hot loops, in the order of their addresses; or why there is nothing to say.
    pub loops: Result<Vec<HotLoop>, SpeedError>,
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
    /// A round of it; `None` if LLVM has no model of the processor.
    pub speed: Option<LoopSpeed>,
}

/// Why nothing is predicted of a kernel.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    /// There is no object.
    #[error(transparent)]
    Wrong(#[from] Wrong),
    /// There is no disassembly, or no answer.
    #[error(transparent)]
    Isa(#[from] IsaError),
}

impl Checker<'_> {
    /// Predicts the hot loops of the selected templates: for each precision and each choice of element types, of the
    /// kernel for the op's largest test shape.
    pub fn speeds(
        &self,
        selection: &Selection,
        llvm: &Llvm,
        unit: &ComputeUnit,
        product: &Product,
    ) -> Vec<KernelSpeed> {
        let arch = self.target.arch.split(':').next().unwrap_or_default();
        let machine = Machine { arch, wave_size: self.target.wave_size, compute_unit: unit, product };
        let mut speeds = Vec::new();
        for template in self.selected(selection) {
            for precision in template.precisions() {
                for trial in largest(trial::trials(template, precision, self.target, false)) {
                    speeds.push(KernelSpeed {
                        op: template.ops.join("+"),
                        variant: template.variant.clone(),
                        precision,
                        case: trial.to_string(),
                        loops: self.hot_loops(template, &trial, llvm, machine),
                    });
                }
            }
        }
        speeds
    }

    fn hot_loops(
        &self,
        template: &Template,
        trial: &Trial,
        llvm: &Llvm,
        machine: Machine<'_>,
    ) -> Result<Vec<HotLoop>, SpeedError> {
        let kernel: Rendered =
            render(self.library, template, &trial.problem, &trial.params, self.target).map_err(Wrong::from)?;
        let object = self.store.get_all(&[kernel.request(self.target)], &()).remove(0).map_err(Wrong::from)?;
        let code = Code::of(llvm, &object.object, &kernel.entry)?;
        let mut hot = Vec::new();
        for found in code.loops().iter().filter(|found| found.is_hot(&code)) {
            hot.push(HotLoop {
                header: found.header,
                n_instructions: found.all.len(),
                has_loops_inside: !found.is_innermost(),
                speed: found.speed(&code, llvm, machine)?,
            });
        }
        Ok(hot)
    }
}

/// For each choice of element types, the trial whose dims have the largest product.
fn largest(trials: Vec<Trial>) -> Vec<Trial> {
    let size = |trial: &Trial| trial.problem.dims.values().map(|&dim| f64::from(dim.max(1))).product::<f64>();
    let mut of_dtypes: BTreeMap<Vec<&'static str>, Trial> = BTreeMap::new();
    for trial in trials {
        let dtypes = trial.problem.dtypes.values().map(|dtype| dtype.name()).collect();
        if of_dtypes.get(&dtypes).is_none_or(|best| size(best) < size(&trial)) {
            of_dtypes.insert(dtypes, trial);
        }
    }
    of_dtypes.into_values().collect()
}
