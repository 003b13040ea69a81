//! Captures one launch of a step with everything that it reads and writes, to replay it elsewhere.

use std::collections::BTreeMap;

use bytes::Bytes;
use gpu::{Argument, BufferView, Driver, GpuError};

use super::segment::{PlannedLaunch, PreparedLaunch, scalars};
use format::Dtype;
use kernel::step::StepKind;
use kernel::template::contract::Access;
use kernel::template::launch::ArgSpec;
use kernel::template::{Params, Problem};

/// The launch to capture, and the receiver of the capture.
pub struct Capture {
    node: String,
    /// Launches of the node that are still to come before it.
    n_before: usize,
    take: Box<dyn FnOnce(CapturedLaunch) + Send>,
}

/// A launch of a step with everything that it read and wrote.
#[derive(Clone, Debug)]
pub struct CapturedLaunch {
    /// The node, or the fused nodes joined by ` + `.
    pub label: String,
    pub template: String,
    pub params: Params,
    pub problem: Problem,
    /// Scalar arguments, and those that shapes use.
    pub scalars: BTreeMap<String, u64>,
    /// The kind of step that it was of.
    pub step: StepKind,
    /// What the kernel was compiled for.
    pub target: String,
    /// The contract's arguments in memory, in order.
    pub args: Vec<CapturedArg>,
}

/// One argument of a captured launch, with its bytes before and after.
#[derive(Clone, Debug)]
pub struct CapturedArg {
    pub name: String,
    pub dtype: Dtype,
    /// What the kernel read; none of what it only writes.
    pub before: Option<Bytes>,
    /// What it left; none of what it only reads.
    pub after: Option<Bytes>,
}

impl CapturedLaunch {
    /// Its `n_tokens`; 1 for a kernel that takes none.
    pub fn n_rows(&self) -> usize {
        self.scalars.get("n_tokens").copied().unwrap_or(1) as usize
    }
}

impl Capture {
    /// The `nth` launch of a node, from 1, whichever kernel does it.
    pub fn new(node: &str, nth: usize, take: Box<dyn FnOnce(CapturedLaunch) + Send>) -> Self {
        Self { node: node.to_owned(), n_before: nth.saturating_sub(1), take }
    }

    /// Hears of a launch that is to come; whether it is the one.
    pub(super) fn is_it(&mut self, label: &str) -> bool {
        if label != self.node && !label.split(" + ").any(|node| node == self.node) {
            return false;
        }
        let is_it = self.n_before == 0;
        self.n_before = self.n_before.saturating_sub(1);
        is_it
    }

    pub(super) fn take(self, launch: CapturedLaunch) {
        (self.take)(launch);
    }
}

/// Makes a launch, and reads what it is given and what it leaves.
pub(super) fn captured(
    driver: &dyn Driver,
    planned: &PlannedLaunch,
    prepared: &PreparedLaunch,
    step: StepKind,
    (n_rows, target): (usize, String),
) -> Result<CapturedLaunch, GpuError> {
    let rendered = &planned.kernel.rendered;
    // Workspace, which comes after the contract's own, is nobody's between launches.
    let in_memory = rendered.args.iter().zip(&prepared.args);
    let in_memory: Vec<(&ArgSpec, &BufferView, usize)> = in_memory
        .filter_map(|(spec, arg)| match arg {
            Argument::Memory { view, required_bytes } => Some((spec, view, *required_bytes)),
            _ => None,
        })
        .collect();
    let read = |view: &BufferView, len_bytes: usize| {
        let mut bytes = vec![0; len_bytes];
        driver.read(view, &mut bytes).map(|()| Bytes::from(bytes))
    };
    let mut args = Vec::new();
    for &(spec, view, len_bytes) in &in_memory {
        let before = (spec.access != Access::Write).then(|| read(view, len_bytes)).transpose()?;
        args.push(CapturedArg { name: spec.name.clone(), dtype: spec.dtype, before, after: None });
    }
    driver.launch(planned.kernel(), &prepared.launch())?;
    for (arg, &(spec, view, len_bytes)) in args.iter_mut().zip(&in_memory) {
        arg.after = (spec.access != Access::Read).then(|| read(view, len_bytes)).transpose()?;
    }
    Ok(CapturedLaunch {
        label: planned.label.clone(),
        template: rendered.label.clone(),
        params: rendered.params.clone(),
        problem: planned.problem.clone(),
        scalars: scalars(n_rows, &planned.scalars),
        step,
        target,
        args,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_alone_and_in_a_run_and_the_first_launches_are_passed_over() {
        let found = |node: &str, nth| {
            let mut capture = Capture::new(node, nth, Box::new(|_| {}));
            ["a", "b + c", "a + b", "b", "bc"].map(|label| capture.is_it(label))
        };
        assert_eq!(found("b", 1), [false, true, true, true, false]);
        assert_eq!(found("b", 2), [false, false, true, true, false]);
        assert_eq!(found("c", 1), [false, true, false, false, false]);
        assert_eq!(found("a + b", 1), [false, false, true, false, false]);
    }
}
