//! References of `embedding`, `multiply`, `narrow`, `rmsnorm`, `norm_and_add`, `head_norm`, `linear`, `silu_and_mul`
//! and `gelu_and_mul`.

use super::case::{Case, Output, Outputs, ReferenceError, Tensors, named, only, tensor};
use super::formats::{Sizes, random_rows, row, rows};
use super::random::Random;
use super::tensor::Tensor;
use format::Dtype;

pub(super) fn embedding_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (n_rows, hidden_size) = (case.scalar("n_rows")?, case.dim("hidden_size")?);
    let mut inputs = random_rows(case.dtype("table")?, "table", [n_rows, hidden_size], Sizes::Alike(1.0), random);
    inputs.insert("row".into(), random.indices(case.n_tokens()?, n_rows));
    Ok(inputs)
}

/// y[t, c] = table[row[t], c]
pub(super) fn embedding(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (index, hidden_size) = (tensor(inputs, "row")?, case.dim("hidden_size")?);
    let mut y = Vec::new();
    for t in 0..case.n_tokens()? {
        y.extend(row(inputs, "table", hidden_size, index.index(t))?);
    }
    Ok(only("y", Output::plain(y)))
}

pub(super) fn multiply_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let n = case.n_tokens()? * case.dim("hidden_size")?;
    Ok(named([("x", random.normals(Dtype::F32, n, 1.0))]))
}

/// y[t, c] = x[t, c] * factor
pub(super) fn multiply(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (x, factor) = (tensor(inputs, "x")?, case.constant("factor")?);
    Ok(only("y", Output::scaled(x.values().iter().map(|x| (x * factor, (x * factor).abs())).collect())))
}

/// y[t, c] = x[t, c]
pub(super) fn narrow(_: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    Ok(only("y", Output::plain(tensor(inputs, "x")?.values().to_vec())))
}

pub(super) fn concat_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (n_tokens, first, second) = (case.n_tokens()?, case.dim("first_len")?, case.dim("second_len")?);
    let mut rows = |len: usize| random.normals(Dtype::F32, n_tokens * len, 1.0);
    Ok(named([("first", rows(first)), ("second", rows(second))]))
}

/// y[t, :] = the elements of first[t, :], then those of second[t, :]
pub(super) fn concat(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let rows = |name, len: &str| Ok(tensor(inputs, name)?.values().chunks(case.dim(len)?));
    let rows = rows("first", "first_len")?.zip(rows("second", "second_len")?);
    Ok(only("y", Output::plain(rows.flat_map(|(first, second)| [first, second].concat()).collect())))
}

pub(super) fn rmsnorm_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (n_tokens, hidden_size) = (case.n_tokens()?, case.dim("hidden_size")?);
    let mut x = Vec::new();
    for t in 0..n_tokens {
        // Rows of very different sizes; in the smallest eps weighs as much as the mean.
        let size = [1.0, 3e-3, 40.0][t % 3];
        x.extend((0..hidden_size).map(|_| size * random.normal()));
    }
    let scale = (0..hidden_size).map(|_| 1.0 + 0.3 * random.normal()).collect();
    let scale = Tensor::rounded(case.dtype("scale")?, scale);
    Ok(named([("x", Tensor::rounded(Dtype::F32, x)), ("scale", scale)]))
}

/// y[t, c] = x[t, c] / sqrt(mean(x[t, :]^2) + eps) * scale[c]
pub(super) fn rmsnorm(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (x, scale) = (tensor(inputs, "x")?, tensor(inputs, "scale")?.values());
    let (hidden_size, eps) = (case.dim("hidden_size")?, case.constant("eps")?);
    let mut y = Vec::new();
    for row in x.values().chunks(hidden_size) {
        y.extend(normed(row, scale, eps).map(|value| (value, value.abs())));
    }
    Ok(only("y", Output::scaled(y)))
}

fn normed(row: &[f64], scale: &[f64], eps: f64) -> impl Iterator<Item = f64> {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    let root = (mean + eps).sqrt();
    row.iter().zip(scale).map(move |(x, scale)| x / root * scale)
}

pub(super) fn norm_and_add_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let n = case.n_tokens()? * case.dim("hidden_size")?;
    let mut inputs = rmsnorm_inputs(case, random)?;
    inputs.insert("residual".into(), random.normals(Dtype::F32, n, 1.0));
    Ok(inputs)
}

/// y[t, c] = residual[t, c] + x[t, c] / sqrt(mean(x[t, :]^2) + eps) * scale[c]
pub(super) fn norm_and_add(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let [x, scale, residual] = ["x", "scale", "residual"].map(|name| tensor(inputs, name));
    let (x, scale, residual) = (x?, scale?.values(), residual?);
    let (hidden_size, eps) = (case.dim("hidden_size")?, case.constant("eps")?);
    let mut y = Vec::new();
    for (row, added) in x.values().chunks(hidden_size).zip(residual.values().chunks(hidden_size)) {
        y.extend(normed(row, scale, eps).zip(added).map(|(value, added)| (value + added, value.abs() + added.abs())));
    }
    Ok(only("y", Output::scaled(y)))
}

pub(super) fn head_norm_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (n_heads, n_kv_heads) = (case.dim("num_attention_heads")?, case.dim("num_key_value_heads")?);
    let (n_tokens, head_dim) = (case.n_tokens()?, case.dim("head_dim")?);
    let mut qkv = Vec::new();
    for head in 0..n_tokens * (n_heads + 2 * n_kv_heads) {
        // Heads of very different sizes; in the smallest eps weighs as much as the mean.
        let size = [1.0, 1e-3, 40.0][head % 3];
        qkv.extend((0..head_dim).map(|_| size * random.normal()));
    }
    let of_all_heads = case.flag("of_all_heads")?;
    let mut scale = |heads: usize| {
        let n = if of_all_heads { heads * head_dim } else { head_dim };
        let scale = (0..n).map(|_| 1.0 + 0.3 * random.normal()).collect();
        Ok(Tensor::rounded(case.dtype("scale")?, scale))
    };
    let (q_scale, k_scale) = (scale(n_heads)?, scale(n_kv_heads)?);
    Ok(named([("qkv", Tensor::rounded(Dtype::F32, qkv)), ("q_scale", q_scale), ("k_scale", k_scale)]))
}

/// x[c] / sqrt(mean(x[:]^2) + eps) * scale[c] of each head x of q, times q_factor, and of k, or of all of them
/// together; those of v stay.
pub(super) fn head_norm(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (n_heads, n_kv_heads) = (case.dim("num_attention_heads")?, case.dim("num_key_value_heads")?);
    let (qkv, eps, q_factor) = (tensor(inputs, "qkv")?, case.constant("eps")?, case.constant("q_factor")?);
    let (q_scale, k_scale) = (tensor(inputs, "q_scale")?.values(), tensor(inputs, "k_scale")?.values());
    let (head_dim, of_all_heads) = (case.dim("head_dim")?, case.flag("of_all_heads")?);
    let mut y = Vec::new();
    for row in qkv.values().chunks((n_heads + 2 * n_kv_heads) * head_dim) {
        let (q, rest) = row.split_at(n_heads * head_dim);
        let (k, v) = rest.split_at(n_kv_heads * head_dim);
        for (heads, scale, factor) in [(q, q_scale, q_factor), (k, k_scale, 1.0)] {
            for x in heads.chunks(if of_all_heads { heads.len() } else { head_dim }) {
                let values = normed(x, scale, eps).map(|value| value * factor);
                y.extend(values.map(|value| (value, value.abs())));
            }
        }
        y.extend(v.iter().map(|&x| (x, 0.0)));
    }
    Ok(only("qkv", Output::scaled(y)))
}

pub(super) fn silu_and_mul_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (n_tokens, n) = (case.n_tokens()?, case.dim("intermediate_size")?);
    let mut h = random.normals(Dtype::F32, n_tokens * 2 * n, 2.0).values().to_vec();
    // Gates for which e^-g is beyond f32, or nothing beside 1.
    for (t, row) in h.chunks_mut(2 * n).enumerate() {
        row[t % n] = [-3e38, -1e4, -100.0, -88.5, -20.0, 0.0, 20.0, 88.5, 1e4][t % 9];
    }
    Ok(named([("h", Tensor::rounded(Dtype::F32, h))]))
}

/// The steepest that g / (1 + e^-g) is, at 2.4.
const STEEPEST_SILU: f64 = 1.1;

/// y[t, i] = silu(h[t, i]) * h[t, n + i], silu(g) = g / (1 + e^-g)
pub(super) fn silu_and_mul(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (h, n) = (tensor(inputs, "h")?, case.dim("intermediate_size")?);
    let mut y = Vec::new();
    for (t, row) in h.values().chunks(2 * n).enumerate() {
        let (gates, ups) = row.split_at(n);
        for (i, (gate, up)) in gates.iter().zip(ups).enumerate() {
            let silu = gate / (1.0 + (-gate).exp());
            // An exponential is off by roundings of its argument; so is the product by those of what was handed on.
            let [gate_size, up_size] = [i, n + i].map(|i| h.size(t * 2 * n + i));
            let size = (silu * up).abs() * (1.0 + gate.abs());
            y.push((silu * up, size + STEEPEST_SILU * up.abs() * gate_size + silu.abs() * up_size));
        }
    }
    Ok(only("y", Output::scaled(y)))
}

/// y[t, i] = gelu(h[t, i]) * h[t, n + i], gelu(g) = g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3)))
pub(super) fn gelu_and_mul(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (h, n) = (tensor(inputs, "h")?, case.dim("intermediate_size")?);
    let mut y = Vec::new();
    for row in h.values().chunks(2 * n) {
        let (gates, ups) = row.split_at(n);
        for (gate, up) in gates.iter().zip(ups) {
            let two_t = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
            // 1 + tanh(t) is 2 / (1 + e^-2t), which keeps its digits far below zero.
            let value = gate / (1.0 + (-two_t).exp()) * up;
            y.push((value, value.abs() * (1.0 + two_t.abs() / (1.0 + two_t.exp()))));
        }
    }
    Ok(only("y", Output::scaled(y)))
}

pub(super) fn linear_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let n_tokens = case.n_tokens()?;
    let (in_features, out_features) = (case.dim("in_features")?, case.dim("out_features")?);
    let mut inputs = named([("x", random.normals(case.activation(), n_tokens * in_features, 1.0))]);
    let size = Sizes::Alike((in_features as f64).powf(-0.5));
    inputs.extend(random_rows(case.dtype("weight")?, "weight", [out_features, in_features], size, random));
    if case.flag("has_bias")? {
        inputs.insert("bias".into(), random.normals(case.dtype("bias")?, out_features, 1.0));
    }
    if case.flag("has_residual")? {
        inputs.insert("residual".into(), random.normals(Dtype::F32, n_tokens * out_features, 1.0));
    }
    Ok(inputs)
}

/// y[t, n] = sum_k x[t, k] * weight[n, k] (+ bias[n]) (+ residual[t, n])
pub(super) fn linear(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let bias = case.flag("has_bias")?.then(|| tensor(inputs, "bias")).transpose()?;
    let residual = case.flag("has_residual")?.then(|| tensor(inputs, "residual")).transpose()?;
    let (in_features, out_features) = (case.dim("in_features")?, case.dim("out_features")?);
    let (x, weight) = (tensor(inputs, "x")?, rows(inputs, "weight", in_features)?);
    let mut y = Vec::new();
    for (t, x) in x.values().chunks(in_features).enumerate() {
        for (n, weight) in weight.chunks(in_features).enumerate() {
            let (dot, size) = dot(x, weight);
            let bias = bias.map_or(0.0, |bias| bias.values()[n]);
            let residual = residual.map_or(0.0, |residual| residual.values()[t * out_features + n]);
            y.push((dot + bias + residual, size + bias.abs() + residual.abs()));
        }
    }
    Ok(only("y", Output::scaled(y)))
}

/// A dot product, and the sum of the sizes of its terms.
pub(super) fn dot(a: &[f64], b: &[f64]) -> (f64, f64) {
    let terms = a.iter().zip(b).map(|(a, b)| a * b);
    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::{case, close, f32s};
    use super::*;
    use crate::run;

    #[test]
    fn rmsnorm_divides_by_the_root_of_the_mean_square() {
        let case = Case { constants: BTreeMap::from([("eps".into(), 0.5)]), ..case(&[("hidden_size", 2)], 1) };
        let inputs = named([("x", f32s(&[3.0, 4.0])), ("scale", f32s(&[1.0, -2.0]))]);
        let root = 13f64.sqrt(); // (9 + 16) / 2 + 0.5
        let y = &run(&["rmsnorm".into()], &case, &inputs).unwrap()["y"];
        close(&y.values, &[3.0 / root, -8.0 / root]);
        close(&y.scale, &[3.0 / root, 8.0 / root]);
    }

    #[test]
    fn norm_and_add_is_what_is_added_to_the_stream() {
        let case = Case { constants: BTreeMap::from([("eps".into(), 0.5)]), ..case(&[("hidden_size", 2)], 1) };
        let residual = f32s(&[10.0, -20.0]);
        let inputs = named([("x", f32s(&[3.0, 4.0])), ("scale", f32s(&[1.0, -2.0])), ("residual", residual)]);
        let root = 13f64.sqrt(); // (9 + 16) / 2 + 0.5
        let y = &run(&["norm_and_add".into()], &case, &inputs).unwrap()["y"];
        close(&y.values, &[10.0 + 3.0 / root, -20.0 - 8.0 / root]);
        close(&y.scale, &[10.0 + 3.0 / root, 20.0 + 8.0 / root]);
    }

    #[test]
    fn concat_has_the_elements_of_both_rows() {
        let case = case(&[("first_len", 2), ("second_len", 1)], 2);
        let inputs = named([("first", f32s(&[1.0, 2.0, 3.0, 4.0])), ("second", f32s(&[-1.0, -2.0]))]);
        let y = &run(&["concat".into()], &case, &inputs).unwrap()["y"];
        close(&y.values, &[1.0, 2.0, -1.0, 3.0, 4.0, -2.0]);
    }

    #[test]
    fn multiply_is_a_product() {
        let case = Case { constants: BTreeMap::from([("factor".into(), 1.5)]), ..case(&[("hidden_size", 2)], 1) };
        let y = &run(&["multiply".into()], &case, &named([("x", f32s(&[3.0, -4.0]))])).unwrap()["y"];
        close(&y.values, &[4.5, -6.0]);
    }

    #[test]
    fn head_norm_takes_each_head_of_q_and_k_for_itself_or_all_as_one() {
        let dims = [("num_attention_heads", 2), ("num_key_value_heads", 1), ("head_dim", 2)];
        let constants = BTreeMap::from([("eps".into(), 0.5), ("q_factor".into(), 1.0)]);
        let mut case = Case { constants, ..case(&dims, 1) };
        case.flags.insert("of_all_heads".into(), false);
        let inputs = named([
            ("qkv", f32s(&[3.0, 4.0, 0.0, 1.0, 3.0, 4.0, 5.0, 6.0])),
            ("q_scale", f32s(&[1.0, -2.0])),
            ("k_scale", f32s(&[10.0, 1.0])),
        ]);
        let qkv = &run(&["head_norm".into()], &case, &inputs).unwrap()["qkv"];
        let root = 13f64.sqrt(); // (9 + 16) / 2 + 0.5
        close(&qkv.values, &[3.0 / root, -8.0 / root, 0.0, -2.0, 30.0 / root, 4.0 / root, 5.0, 6.0]);
        close(&qkv.scale[6..], &[0.0, 0.0]);
        case.flags.insert("of_all_heads".into(), true);
        case.constants.insert("q_factor".into(), 0.5);
        let inputs = named([
            ("qkv", f32s(&[3.0, 4.0, 0.0, 1.0, 3.0, 4.0, 5.0, 6.0])),
            ("q_scale", f32s(&[1.0, -2.0, 3.0, 4.0])),
            ("k_scale", f32s(&[10.0, 1.0])),
        ]);
        let qkv = &run(&["head_norm".into()], &case, &inputs).unwrap()["qkv"];
        let q_root = 7f64.sqrt(); // (9 + 16 + 1) / 4 + 0.5
        close(&qkv.values, &[1.5 / q_root, -4.0 / q_root, 0.0, 2.0 / q_root, 30.0 / root, 4.0 / root, 5.0, 6.0]);
    }

    #[test]
    fn silu_and_mul_gates_what_is_behind_the_gates() {
        let inputs = named([("h", f32s(&[0.0, 1.0, -1e4, 5.0, 2.0, 3.0]))]);
        let y = &run(&["silu_and_mul".into()], &case(&[("intermediate_size", 3)], 1), &inputs).unwrap()["y"];
        close(&y.values, &[0.0, 2.0 / (1.0 + (-1f64).exp()), 0.0]);
    }

    /// Values of torch's `gelu(x, approximate="tanh")` in float64.
    #[test]
    fn gelu_and_mul_gates_what_is_behind_the_gates() {
        let inputs = named([("h", f32s(&[0.0, 1.0, -1e4, -2.5, 5.0, 2.0, 3.0, 10.0]))]);
        let y = &run(&["gelu_and_mul".into()], &case(&[("intermediate_size", 4)], 1), &inputs).unwrap()["y"];
        close(&y.values, &[0.0, 2.0 * 0.8411919906082768, 0.0, -0.15084266089998577]);
    }

    #[test]
    fn linear_is_a_row_of_weight_for_each_output() {
        let flags = BTreeMap::from([("has_bias".into(), true), ("has_residual".into(), true)]);
        let case = Case { flags, ..case(&[("in_features", 2), ("out_features", 3)], 1) };
        let inputs = named([
            ("x", f32s(&[1.0, 10.0])),
            ("weight", f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, -6.0])),
            ("bias", f32s(&[100.0, 200.0, 300.0])),
            ("residual", f32s(&[0.5, 0.25, 0.125])),
        ]);
        let output = run(&["linear".into()], &case, &inputs).unwrap().remove("y").unwrap();
        close(&output.values, &[121.5, 243.25, 245.125]);
        close(&output.scale, &[121.5, 243.25, 365.125]);
    }

    #[test]
    fn a_product_of_what_a_run_handed_on_is_measured_by_its_roundings_too() {
        let mut case = case(&[("in_features", 2), ("out_features", 2), ("intermediate_size", 1)], 1);
        case.flags.extend([("has_bias", false), ("has_residual", false)].map(|(name, flag)| (name.into(), flag)));
        case.dtypes.insert("weight".into(), Dtype::F32);
        let inputs = named([("x", f32s(&[1.0, -1.0])), ("weight", f32s(&[2.0, 2.0, 3.0, 0.0]))]);
        let ops = ["linear", "silu_and_mul"].map(str::to_owned);
        let y = run(&ops, &case, &inputs).unwrap().remove("y").unwrap();
        // A gate of 2 - 2, whose terms sum to 4, and an up of 3: silu(0) * 3, off by silu's slope times 3 and 4.
        close(&y.values, &[0.0]);
        close(&y.scale, &[STEEPEST_SILU * 3.0 * 4.0]);
    }
}
