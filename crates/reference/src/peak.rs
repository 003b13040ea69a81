//! References of the `peak_*` ops, which `bench` measures the machine's limits with, and of `fill_lds`.

use super::case::{Case, Output, Outputs, ReferenceError, Tensors, named, only, tensor};
use super::dense::dot;
use super::random::Random;
use format::Dtype;

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

pub(super) fn fill_inputs(_: &Case, _: &mut Random) -> Result<Tensors, ReferenceError> {
    Ok(Tensors::new())
}

/// y[b] = b
pub(super) fn fill(case: &Case, _: &Tensors) -> Result<Outputs, ReferenceError> {
    Ok(only("y", Output::plain((0..case.scalar("n_blocks")?).map(|b| b as f64).collect())))
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

/// y[b, i] = x[b, i]
pub(super) fn copy(_: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    Ok(only("y", Output::plain(tensor(inputs, "x")?.values().to_vec())))
}

pub(super) fn matrix_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (rows, columns, depth) = (case.dim("rows")?, case.dim("columns")?, case.dim("depth")?);
    let (a, c) = (random.normals(Dtype::Bf16, rows * depth, 1.0), random.normals(Dtype::Bf16, columns * depth, 1.0));
    Ok(named([("a", a), ("c", c)]))
}

/// y[b, i, j] = n_rounds * sum_k a[i, k] * c[j, k]
pub(super) fn matrix(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (depth, n_rounds) = (case.dim("depth")?, case.scalar("n_rounds")? as f64);
    let (a, c) = (tensor(inputs, "a")?, tensor(inputs, "c")?);
    let row = |a| c.values().chunks(depth).map(move |c| dot(a, c)).map(|(dot, size)| (n_rounds * dot, n_rounds * size));
    let block: Vec<(f64, f64)> = a.values().chunks(depth).flat_map(row).collect();
    Ok(only("y", Output::scaled(block.repeat(case.n_tokens()?))))
}
