//! The machine code of a template's kernels for the op's largest test shape: one for each precision and each choice of
//! element types.

use std::collections::BTreeSet;

use super::trial::{self, Trial};
use super::{Checker, Selection, Wrong};
use crate::isa::{Code, IsaError};
use kernel::object::compile::Request;
use kernel::template::render::{Rendered, render};
use kernel::template::{Precision, Template};

/// One kernel of a template, disassembled.
#[derive(Debug)]
pub struct KernelCode {
    /// The ops it covers, joined by `+`.
    pub op: String,
    /// The template's name among those of the op.
    pub variant: String,
    pub precision: Precision,
    /// The shape and types.
    pub case: String,
    /// Its source and code, or why there is none.
    pub made: Result<(Rendered, Code), CodeError>,
}

/// Why a kernel has no code to look at.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    /// There is no object, or it is not to be used.
    #[error(transparent)]
    Wrong(#[from] Wrong),
    /// There is no disassembly.
    #[error(transparent)]
    Isa(#[from] IsaError),
}

impl Checker<'_> {
    /// Compiles and disassembles kernels of the selected templates, for a GPU. With a share `[nth, of]`, a template of
    /// two precisions has only the nth part of its cases, in turn, and at least one. A template of one precision, as
    /// those for a matrix unit, has every other case; the next such template and the next share have the others. Of
    /// types beyond the common ones it has those that a thin check has at that shape.
    pub fn codes(&self, selection: &Selection, share: Option<[usize; 2]>) -> Vec<KernelCode> {
        let (mut codes, mut n_of_one) = (Vec::new(), 0);
        for template in self.selected(selection) {
            let precisions: Vec<Precision> = template.precisions().collect();
            let of_precision = |&precision: &Precision| {
                let which = Selection { is_thin: share.is_some(), ..Selection::default() };
                let trials = largest(trial::trials(template, precision, self.target, &which));
                trials.into_iter().map(move |trial| (precision, trial))
            };
            let mut all: Vec<(Precision, Trial)> = precisions.iter().flat_map(of_precision).collect();
            if let Some([nth, of]) = share {
                let is_of_one = precisions.len() == 1;
                let (nth, of) = if is_of_one { (nth + n_of_one, 2) } else { (nth, of) };
                n_of_one += usize::from(is_of_one);
                let of = of.min(all.len().max(1));
                all = all.into_iter().skip(nth % of).step_by(of).collect();
            }
            for (precision, trial) in all {
                codes.push(KernelCode {
                    op: template.ops.join("+"),
                    variant: template.variant.clone(),
                    precision,
                    case: trial.to_string(),
                    made: self.code(template, &trial),
                });
            }
        }
        codes
    }

    fn code(&self, template: &Template, trial: &Trial) -> Result<(Rendered, Code), CodeError> {
        let kernel = render(self.library, template, &trial.problem, &trial.params, self.target).map_err(Wrong::from)?;
        let object =
            self.store.get_all(&[Request::new(&kernel, self.target)], &()).remove(0).map_err(Wrong::compile)?;
        self.examine(&kernel, &object.object)?;
        let code = Code::disassemble(self.store.compiler(), &object.object, &kernel.entry, &self.target.arch)?;
        Ok((kernel, code))
    }
}

/// The trials of the shape whose dims have the largest product: it has every element type, if not every choice of them.
fn largest(mut trials: Vec<Trial>) -> Vec<Trial> {
    let size = |trial: &Trial| trial.problem.dims.values().map(|&dim| f64::from(dim.max(1))).product::<f64>();
    let most = trials.iter().map(size).fold(0.0, f64::max);
    let shape = trials.iter().find(|trial| size(trial) == most).map(|trial| trial.problem.dims.clone());
    trials.retain(|trial| Some(&trial.problem.dims) == shape.as_ref());
    let mut seen = BTreeSet::new();
    trials.retain(|trial| seen.insert(trial.problem.dtypes.clone()));
    trials
}
