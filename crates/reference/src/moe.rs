//! References of `moe_route`, `moe_sort`, `moe_mlp1` and `moe_mlp2`.

use super::case::{Case, Output, Outputs, ReferenceError, Tensors, falling, named, only, tensor};
use super::dense::dot;
use super::formats::{Sizes, random_rows, rows};
use super::random::Random;
use super::tensor::Tensor;
use format::Dtype;

pub(super) fn route_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let n_experts = case.dim("num_experts")?;
    let mut logit = Vec::new();
    for t in 0..case.n_tokens()? {
        // Every other row has a few distinct values only, so that there are ties; every seventh has one.
        logit.extend((0..n_experts).map(|_| match t {
            _ if t % 7 == 6 => 0.25,
            _ if t % 2 == 1 => (2.0 * random.normal()).round() / 2.0,
            _ => random.normal(),
        }));
    }
    Ok(named([("logit", Tensor::rounded(Dtype::F32, logit))]))
}

/// Logits of one token that are nearer to each other than this part of the scale of their sums are ordered by how these
/// are rounded: fifty times what a sum of f32 may be off.
const NARROW: f64 = 1e-5;

/// Whether for some token the last expert that is chosen and the first that is not are so near that rounding decides.
pub(super) fn is_narrow(case: &Case, logit: &Output) -> bool {
    let (Ok(n_experts), Ok(chosen)) = (case.dim("num_experts"), case.dim("experts_per_token")) else { return false };
    logit.values.chunks(n_experts).zip(logit.scale.chunks(n_experts)).any(|(row, scale)| {
        let order = falling(row);
        let (Some(&last), Some(&next)) = (chosen.checked_sub(1).and_then(|at| order.get(at)), order.get(chosen)) else {
            return false;
        };
        row[last] - row[next] <= NARROW * scale[last].max(scale[next])
    })
}

/// The experts_per_token largest logits, of equal ones the lower expert, in rising order of expert; the softmax over
/// them, or with `of_all` over all.
pub(super) fn route(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (logit, chosen) = (tensor(inputs, "logit")?, case.dim("experts_per_token")?);
    let (mut expert, mut weight) = (Vec::new(), Vec::new());
    for row in logit.values().chunks(case.dim("num_experts")?) {
        let mut order = falling(row);
        order.truncate(chosen);
        order.sort_unstable();
        let max = order.iter().map(|&e| row[e]).fold(f64::NEG_INFINITY, f64::max);
        let power = |logit: f64| (logit - max).exp();
        let total: f64 = match case.flag("of_all")? {
            true => row.iter().map(|&logit| power(logit)).sum(),
            false => order.iter().map(|&e| power(row[e])).sum(),
        };
        expert.extend(order.iter().map(|&e| e as f64));
        weight.extend(order.iter().map(|&e| power(row[e]) / total));
    }
    Ok(Outputs::from([("expert".into(), Output::plain(expert)), ("route_weight".into(), Output::plain(weight))]))
}

pub(super) fn sort_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    Ok(named([("expert", routing(case, random)?)]))
}

/// How many times as often as the least popular expert the most popular one comes first, where inputs are `uneven`: the
/// logarithms lie anywhere between. 256 rows of four layers of gpt-oss-20b's shape with random weights gave each of 32
/// experts 32 rows on average, with a standard deviation of 20 to 27, 2 to 8 at least and 70 to 94 at most; so do
/// these.
const UNEVEN: f64 = 16.0;

/// (n_tokens, experts_per_token): distinct, rising experts for every token. Some experts, not always the last, get
/// none; with `same_experts` all but those of the first token; with `uneven` all may be chosen, some more often than
/// others, as models do.
fn routing(case: &Case, random: &mut Random) -> Result<Tensor, ReferenceError> {
    let (n_experts, chosen) = (case.dim("num_experts")?, case.dim("experts_per_token")?);
    if chosen > n_experts {
        return Err(ReferenceError::Contradiction { why: format!("{chosen} of {n_experts} experts") });
    }
    let mut used: Vec<usize> = (0..n_experts).collect();
    random.shuffle(&mut used);
    let (n_used, most_popular) = match case.inputs.as_deref() {
        Some("same_experts") => (chosen, 1.0),
        Some("uneven") => (n_experts, UNEVEN),
        _ => (n_experts - n_experts.div_ceil(4), 1.0),
    };
    used.truncate(chosen.max(n_used));
    let popular: Vec<f64> = used.iter().map(|_| most_popular.powf(random.uniform())).collect();
    let mut experts = Vec::new();
    for _ in 0..case.n_tokens()? {
        // Who is twice as popular is twice as often the first to come.
        let mut by_arrival: Vec<(f64, usize)> =
            popular.iter().zip(&used).map(|(popular, &e)| (-(1.0 - random.uniform()).ln() / popular, e)).collect();
        by_arrival.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut own: Vec<usize> = by_arrival[..chosen].iter().map(|&(_, e)| e).collect();
        own.sort_unstable();
        experts.extend(own);
    }
    Ok(Tensor::whole(experts))
}

/// Groups the assignments a = t * experts_per_token + k by expert, rising.
pub(super) fn sort(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let groups = grouped(case, tensor(inputs, "expert")?)?;
    let whole = |tensor: &Tensor| Output::plain(tensor.values().to_vec());
    Ok(groups.iter().map(|(name, tensor)| (name.clone(), whole(tensor))).collect())
}

/// `expert_begin`, `assignment` and `active_expert` of a routing.
fn grouped(case: &Case, expert: &Tensor) -> Result<Tensors, ReferenceError> {
    let n_experts = case.dim("num_experts")?;
    let (mut begin, mut assignment, mut active) = (vec![0], Vec::new(), Vec::new());
    for e in 0..n_experts {
        let before = assignment.len();
        assignment.extend((0..expert.values().len()).filter(|&a| expert.index(a) == e));
        begin.push(assignment.len());
        if assignment.len() > before {
            active.push(e);
        }
    }
    active.resize(n_experts, n_experts);
    Ok(named([
        ("expert_begin", Tensor::whole(begin)),
        ("assignment", Tensor::whole(assignment)),
        ("active_expert", Tensor::whole(active)),
    ]))
}

pub(super) fn mlp1_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (hidden_size, intermediate_size) = (case.dim("hidden_size")?, case.dim("intermediate_size")?);
    let (n_experts, n_tokens) = (case.dim("num_experts")?, case.n_tokens()?);
    // Outputs of size 3: some meet the clamps.
    let (n_rows, size) = (n_experts * 2 * intermediate_size, 3.0 * (hidden_size as f64).powf(-0.5));
    let mut inputs = grouped(case, &routing(case, random)?)?;
    inputs.extend(random_rows(case.dtype("weight")?, "weight", [n_rows, hidden_size], sizes(case, size), random));
    inputs.extend(named([("x", activations(case, n_tokens * hidden_size, random))]));
    add_bias(case, n_rows, random, &mut inputs)?;
    Ok(inputs)
}

fn add_bias(case: &Case, n: usize, random: &mut Random, inputs: &mut Tensors) -> Result<(), ReferenceError> {
    if case.flag("has_bias")? {
        inputs.extend(named([("bias", random.normals(case.dtype("bias")?, n, 1.0))]));
    }
    Ok(())
}

/// What is added to row `n` of all experts' rows.
fn biases<'a>(case: &Case, inputs: &'a Tensors) -> Result<impl Fn(usize) -> f64 + 'a, ReferenceError> {
    let bias = case.flag("has_bias")?.then(|| tensor(inputs, "bias")).transpose()?;
    Ok(move |n: usize| bias.map_or(0.0, |bias| bias.values()[n]))
}

/// The kind of inputs whose rows of blocks have scales of all sizes, a size each. Numbers of x are whole 32nds, exact
/// in bf16 and in templates that compute with whole numbers: beside the clamps of swiglu, what rounding does to a large
/// sum would be as large as the result.
const WIDE_SCALES: &str = "wide_scales";

/// Rows of x of mean 0 and variance 1.
fn activations(case: &Case, n: usize, random: &mut Random) -> Tensor {
    match case.inputs.as_deref() {
        Some(WIDE_SCALES) => {
            Tensor::rounded(case.activation(), (0..n).map(|_| (32.0 * random.normal()).round() / 32.0).collect())
        }
        _ => random.normals(case.activation(), n, 1.0),
    }
}

/// How large weights are: about so, or with [`WIDE_SCALES`] of any size.
fn sizes(case: &Case, size: f64) -> Sizes {
    if case.wants(WIDE_SCALES) { Sizes::ByRow(size) } else { Sizes::Alike(size) }
}

/// y[a, i] = g * sigmoid(alpha g) * (u + offset), g = min(h[2i], limit), u = clamp(h[2i + 1], -limit, limit), h =
/// weight[e] x[t] (+ bias[e]). OpenAI's gpt_oss/torch/model.py, swiglu, has 1.702 and 1; silu(g) u has 1, 0 and no
/// clamps.
pub(super) fn mlp1(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (hidden_size, intermediate_size) = (case.dim("hidden_size")?, case.dim("intermediate_size")?);
    let (limit, chosen) = (case.constant("swiglu_limit")?, case.dim("experts_per_token")?);
    let (alpha, offset) = (case.constant("swiglu_alpha")?, case.constant("swiglu_offset")?);
    let (x, weight, bias) = (tensor(inputs, "x")?, rows(inputs, "weight", hidden_size)?, biases(case, inputs)?);
    let mut y = vec![(f64::NAN, 0.0); case.n_tokens()? * chosen * intermediate_size];
    for (e, a) in assignments(inputs)? {
        let x = &x.values()[a / chosen * hidden_size..][..hidden_size];
        let h = |n: usize| {
            let row = e * 2 * intermediate_size + n;
            let (dot, size) = dot(x, &weight[row * hidden_size..][..hidden_size]);
            (dot + bias(row), size + bias(row).abs())
        };
        for i in 0..intermediate_size {
            let ((gate, gate_size), (up, up_size)) = (h(2 * i), h(2 * i + 1));
            // NaN stays NaN, as in torch.clamp; `min` would give the limit.
            let (gate, up) = (if gate > limit { limit } else { gate }, up.clamp(-limit, limit));
            let value = gate / (1.0 + (-alpha * gate).exp()) * (up + offset);
            let largest = if limit < UNREACHED { limit } else { gate.abs().max(up.abs()) };
            y[a * intermediate_size + i] = (value, (gate_size + up_size) * (largest + 1.0));
        }
    }
    Ok(only("y", Output::scaled(y)))
}

/// A limit above this clamps nothing.
const UNREACHED: f64 = 1e30;

pub(super) fn mlp2_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (hidden_size, intermediate_size) = (case.dim("hidden_size")?, case.dim("intermediate_size")?);
    let (n_experts, n_tokens) = (case.dim("num_experts")?, case.n_tokens()?);
    let chosen = case.dim("experts_per_token")?;
    let mut route_weight = Vec::new();
    for _ in 0..n_tokens {
        let sizes: Vec<f64> = (0..chosen).map(|_| random.normal().exp()).collect();
        route_weight.extend(sizes.iter().map(|size| size / sizes.iter().sum::<f64>()));
    }
    let mut inputs = grouped(case, &routing(case, random)?)?;
    inputs.extend(random_rows(
        case.dtype("weight")?,
        "weight",
        [n_experts * hidden_size, intermediate_size],
        sizes(case, 0.2),
        random,
    ));
    inputs.extend(named([
        ("x", activations(case, n_tokens * chosen * intermediate_size, random)),
        ("route_weight", Tensor::rounded(Dtype::F32, route_weight)),
        ("residual", random.normals(Dtype::F32, n_tokens * hidden_size, 1.0)),
    ]));
    add_bias(case, n_experts * hidden_size, random, &mut inputs)?;
    Ok(inputs)
}

/// y[t, c] = residual[t, c] + sum_k route_weight[t, k] * (weight[e] x[a] (+ bias[e]))[c], e the k-th expert of token
/// t, a = t * K + k.
pub(super) fn mlp2(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (hidden_size, intermediate_size) = (case.dim("hidden_size")?, case.dim("intermediate_size")?);
    let (x, weight, bias) = (tensor(inputs, "x")?, rows(inputs, "weight", intermediate_size)?, biases(case, inputs)?);
    let (route_weight, chosen) = (tensor(inputs, "route_weight")?, case.dim("experts_per_token")?);
    let mut y: Vec<(f64, f64)> = tensor(inputs, "residual")?.values().iter().map(|&r| (r, r.abs())).collect();
    for (e, a) in assignments(inputs)? {
        let x = &x.values()[a * intermediate_size..][..intermediate_size];
        for c in 0..hidden_size {
            let row = e * hidden_size + c;
            let (dot, size) = dot(x, &weight[row * intermediate_size..][..intermediate_size]);
            let at = &mut y[a / chosen * hidden_size + c];
            at.0 += route_weight.values()[a] * (dot + bias(row));
            at.1 += route_weight.values()[a] * (size + bias(row).abs());
        }
    }
    Ok(only("y", Output::scaled(y)))
}

/// All (expert, assignment), from what moe_sort gives.
fn assignments(inputs: &Tensors) -> Result<Vec<(usize, usize)>, ReferenceError> {
    let (begin, assignment) = (tensor(inputs, "expert_begin")?, tensor(inputs, "assignment")?);
    let of = |e: usize| (begin.index(e)..begin.index(e + 1)).map(move |i| (e, assignment.index(i)));
    Ok((0..begin.values().len() - 1).flat_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_tokens_can_be_sent_to_the_same_experts() {
        let names = |pairs: &[(&str, u32)]| pairs.iter().map(|&(name, n)| (name.to_owned(), n)).collect();
        let case = |inputs: Option<&str>| Case {
            dims: names(&[("num_experts", 32), ("experts_per_token", 4)]),
            scalars: [("n_tokens".to_owned(), 50.0)].into(),
            inputs: inputs.map(str::to_owned),
            ..Case::default()
        };
        let n_active = |case: &Case| {
            let sorted = grouped(case, &routing(case, &mut Random::new(3)).unwrap()).unwrap();
            sorted["active_expert"].values().iter().filter(|e| **e < 32.0).count()
        };
        assert_eq!(n_active(&case(Some("same_experts"))), 4);
        assert_eq!(n_active(&case(None)), 24, "a quarter gets none");
    }

    #[test]
    fn a_run_does_not_choose_experts_so_narrowly_that_rounding_decides() {
        let dims = [("num_experts", 32), ("experts_per_token", 4), ("in_features", 8), ("out_features", 32)];
        let case = Case {
            dims: dims.map(|(name, n)| (name.to_owned(), n)).into(),
            scalars: [("n_tokens".to_owned(), 512.0)].into(),
            dtypes: [("weight".to_owned(), Dtype::F32)].into(),
            flags: [("has_bias".to_owned(), false), ("has_residual".to_owned(), false)].into(),
            ..Case::default()
        };
        let ops = ["linear", "moe_route"].map(str::to_owned);
        let logit = |inputs: &Tensors| crate::run(&ops[..1], &case, inputs).unwrap().remove("y").unwrap();
        let narrow = |seed: &u64| is_narrow(&case, &logit(&crate::draw(&ops, &case, *seed).unwrap()));
        let seed = (0..200).find(narrow).expect("one of 512 tokens in 200 draws");
        assert!(!is_narrow(&case, &logit(&crate::inputs(&ops, &case, seed).unwrap())));
    }

    /// The numbers are those of a model (see [`UNEVEN`]).
    #[test]
    fn uneven_experts_are_as_uneven_as_those_of_a_model() {
        let dims = [("num_experts", 32), ("experts_per_token", 4)].map(|(name, n)| (name.to_owned(), n)).into();
        let scalars = [("n_tokens".to_owned(), 256.0)].into();
        let case = Case { dims, scalars, inputs: Some("uneven".to_owned()), ..Case::default() };
        let (mut squares, mut most) = (0.0, 0.0);
        for seed in 0..20 {
            let sorted = grouped(&case, &routing(&case, &mut Random::new(seed)).unwrap()).unwrap();
            let rows: Vec<f64> = sorted["expert_begin"].values().windows(2).map(|pair| pair[1] - pair[0]).collect();
            squares += rows.iter().map(|rows| (rows - 32.0).powi(2)).sum::<f64>() / 32.0;
            most += rows.iter().copied().fold(0.0, f64::max);
        }
        let (deviation, most) = ((squares / 20.0).sqrt(), most / 20.0);
        assert!((20.0..27.0).contains(&deviation) && (70.0..94.0).contains(&most), "{deviation} {most}");
    }
}
