//! References of `peak_multiply_add` and `peak_read`, which `bench` measures the machine's limits with.

use super::random::Random;
use super::{Case, Output, Outputs, ReferenceError, Tensors, named, only, tensor};
use crate::dtype::Dtype;

pub(super) fn multiply_add_inputs(_: &Case, _: &mut Random) -> Result<Tensors, ReferenceError> {
    Ok(Tensors::new())
}

/// y[b, i] after n_rounds of y = y * 0.5 + 1 from i
pub(super) fn multiply_add(case: &Case, _: &Tensors) -> Result<Outputs, ReferenceError> {
    let (n_blocks, chains) = (case.n_tokens()?, case.dim("chains")?);
    let n_rounds = case.scalar("n_rounds")?;
    let chain = |i: usize| (0..n_rounds).fold(i as f64, |y, _| y * 0.5 + 1.0);
    Ok(only("y", Output::plain((0..n_blocks * chains).map(|i| chain(i % chains)).collect())))
}

pub(super) fn read_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let len = case.n_tokens()? * case.dim("block_elements")?;
    Ok(named([("x", random.normals(Dtype::F32, len, 1.0))]))
}

/// sum[b] = the sum of x[b, :]
pub(super) fn read(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let rows = tensor(inputs, "x")?.values().chunks(case.dim("block_elements")?);
    let sum = |row: &[f64]| (row.iter().sum(), row.iter().map(|value| value.abs()).sum());
    Ok(only("sum", Output::scaled(rows.map(sum).collect())))
}
