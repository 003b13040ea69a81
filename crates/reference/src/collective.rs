//! References of `all_reduce`, `all_gather` and `all_argmax`, as one rank sees them when all others have written their
//! parts.

use super::case::{Case, Output, Outputs, ReferenceError, Tensors, named, tensor};
use super::random::Random;
use super::tensor::Tensor;
use format::Dtype;

/// Parts, and the shares of the other ranks as they have summed and told them.
pub(super) fn all_reduce_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (hidden_size, ranks) = (case.dim("hidden_size")?, case.dim("ranks")?);
    let (n_elements, rank) = (case.n_tokens()? * hidden_size, case.scalar("rank")?);
    let (part_stride, sums_stride) = (case.scalar("part_stride")?, case.scalar("sums_stride")?);
    let summed_stride = case.scalar("summed_stride")?;
    let share = n_elements.div_ceil(64 * ranks) * 64;
    if share.max(n_own_rows(case)? * hidden_size) > sums_stride || sums_stride % 64 != 0 || summed_stride % ranks != 0 {
        let why = format!("{ranks} shares of {share} elements, strides {sums_stride} and {summed_stride}");
        return Err(ReferenceError::Contradiction { why });
    }
    let mut inputs = inputs(case, hidden_size, random)?;
    let part = inputs["part"].values();
    let mut sums = random.normals(Dtype::F32, ranks * sums_stride, 1.0).values().to_vec();
    let others = (0..n_elements).map(|i| (i / share, i)).filter(|(r, _)| *r != rank);
    for (r, i) in others {
        sums[r * sums_stride + i % share] = (0..ranks).map(|of| part[of * part_stride + i]).sum();
    }
    // Flags count on modulo 2^32 from one step to the next.
    let [step, n_flags, flag] =
        [inputs["step"].values()[0] as u32, case.scalar("n_flags")? as u32, case.scalar("flag")? as u32];
    let now = step.wrapping_mul(n_flags).wrapping_add(flag);
    let mut summed: Vec<f64> = (0..ranks * summed_stride).map(|_| random.below(2000) as f64).collect();
    for (i, told) in summed[rank * summed_stride..][..summed_stride].iter_mut().enumerate() {
        *told = now.wrapping_add((i % 3) as u32).into();
    }
    inputs
        .extend(named([("sums", Tensor::rounded(Dtype::F32, sums)), ("summed", Tensor::rounded(Dtype::U32, summed))]));
    Ok(inputs)
}

pub(super) fn all_gather_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    inputs(case, case.dim("part_len")?, random)
}

/// What is a candidate where a logit is a NaN or infinity.
const NO_TOKEN: u32 = u32::MAX;

/// Logits of which many are equal, and of every seventh row a part without a token.
pub(super) fn all_argmax_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (part_len, ranks, n_tokens) = (case.dim("part_len")?, case.dim("ranks")?, case.n_tokens()?);
    let stride = case.scalar("candidate_stride")?;
    if n_tokens > stride {
        return Err(ReferenceError::Contradiction { why: format!("{n_tokens} rows in a stride of {stride}") });
    }
    let mut inputs = inputs(case, part_len, random)?;
    let mut value = |_| [-1.0, -0.0, 0.0, 2.0][random.below(4)];
    let part = Tensor::rounded(Dtype::F32, (0..inputs["part"].len()).map(&mut value).collect());
    let mut candidate = random.indices(ranks * stride, part_len).values().to_vec();
    for t in (3..n_tokens).step_by(7) {
        candidate[random.below(ranks) * stride + t] = NO_TOKEN.into();
    }
    inputs.extend(named([("part", part), ("candidate", Tensor::rounded(Dtype::U32, candidate))]));
    Ok(inputs)
}

/// - `row_len`: elements of a row of one rank's part
fn inputs(case: &Case, row_len: usize, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let ranks = case.dim("ranks")?;
    let (part_stride, arrived_stride) = (case.scalar("part_stride")?, case.scalar("arrived_stride")?);
    let (n_flags, flag, rank) = (case.scalar("n_flags")?, case.scalar("flag")?, case.scalar("rank")?);
    let fits = case.n_tokens()? * row_len <= part_stride && ranks * n_flags <= arrived_stride;
    if rank >= ranks || flag >= n_flags || !fits || part_stride % 64 != 0 {
        let why =
            format!("rank {rank} of {ranks}, flag {flag} of {n_flags}, strides {part_stride} and {arrived_stride}");
        return Err(ReferenceError::Contradiction { why });
    }
    // Half of the steps are the last before the count begins anew.
    let largest = f64::from(u32::MAX);
    let step = if random.below(2) == 0 { largest } else { 1.0 + random.below(1000) as f64 };
    let mut arrived: Vec<f64> = (0..ranks * arrived_stride).map(|_| random.below(2000) as f64).collect();
    for r in 0..ranks {
        // Others are there, and some of them further; the rank itself was there in the step before.
        let there = if r == rank { step - 1.0 } else { (step + (r % 2) as f64) % (largest + 1.0) };
        arrived[rank * arrived_stride + r * n_flags + flag] = there;
    }
    Ok(named([
        ("part", random.normals(Dtype::F32, ranks * part_stride, 1.0)),
        ("arrived", Tensor::rounded(Dtype::U32, arrived)),
        ("step", Tensor::rounded(Dtype::U32, vec![step])),
    ]))
}

/// The most rows of a step that are a rank's own.
fn n_own_rows(case: &Case) -> Result<usize, ReferenceError> {
    Ok(case.n_tokens()?.div_ceil(case.dim("ranks")?))
}

/// What the other ranks hand on in a run with `rmsnorm`, which is of bf16 precision: not sums but what `y` has in their
/// rows, two numbers of bf16 in the place of one of f32.
///
/// - `y`: (n_tokens, hidden_size), normalised
pub(super) fn hand_on_normed(case: &Case, inputs: &mut Tensors, y: &Output) -> Result<(), ReferenceError> {
    let (hidden_size, rank) = (case.dim("hidden_size")?, case.scalar("rank")?);
    let (n_own, sums_stride) = (n_own_rows(case)? * hidden_size, case.scalar("sums_stride")?);
    let normed = Tensor::rounded(Dtype::Bf16, y.values.clone());
    let bits = |value: f64| (value as f32).to_bits() >> 16;
    let mut sums = tensor(inputs, "sums")?.values().to_vec();
    for (r, rows) in normed.values().chunks(n_own).enumerate().filter(|(r, _)| *r != rank) {
        for (i, pair) in rows.chunks(2).enumerate() {
            let odd = pair.get(1).map_or(0, |&value| bits(value) << 16);
            sums[r * sums_stride + i] = f32::from_bits(bits(pair[0]) | odd).into();
        }
    }
    inputs.insert("sums".into(), Tensor::rounded(Dtype::F32, sums));
    Ok(())
}

/// y[t, c] = sum over r of part[r, t, c], own the same in the rank's rows and 0 elsewhere;
/// arrived[r, rank, flag] = step; of shares and their flags nothing is said
pub(super) fn all_reduce(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (part, arrived, step) = (tensor(inputs, "part")?, tensor(inputs, "arrived")?, tensor(inputs, "step")?);
    let (hidden_size, ranks) = (case.dim("hidden_size")?, case.dim("ranks")?);
    let part_stride = case.scalar("part_stride")?;
    let parts = |i: usize| (0..ranks).map(move |r| part.values()[r * part_stride + i]);
    let sum = |i: usize| (parts(i).sum(), parts(i).map(f64::abs).sum());
    let y: Vec<_> = (0..case.n_tokens()? * hidden_size).map(sum).collect();
    let (n_own, rank) = (n_own_rows(case)? * hidden_size, case.scalar("rank")?);
    let own = y.iter().enumerate().map(|(i, &sum)| if i / n_own == rank { sum } else { (0.0, 0.0) }).collect();
    let own = case.flag("has_own")?.then(|| ("own", Output::scaled(own)));
    let anything = |len| Output { values: vec![0.0; len], scale: vec![f64::INFINITY; len] };
    let outputs = [
        ("y", Output::scaled(y)),
        ("arrived", told(case, arrived, step)?),
        ("sums", anything(ranks * case.scalar("sums_stride")?)),
        ("summed", anything(ranks * case.scalar("summed_stride")?)),
    ];
    Ok(outputs.into_iter().chain(own).map(|(name, output)| (name.to_owned(), output)).collect())
}

/// y[t, r * part_len + c] = part[r, t, c]; arrived[r, rank, flag] = step
pub(super) fn all_gather(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (part, arrived, step) = (tensor(inputs, "part")?, tensor(inputs, "arrived")?, tensor(inputs, "step")?);
    let (part_len, ranks, part_stride) = (case.dim("part_len")?, case.dim("ranks")?, case.scalar("part_stride")?);
    let row =
        |t: usize| (0..ranks).flat_map(move |r| &part.values()[r * part_stride + t * part_len..][..part_len]).copied();
    let y = (0..case.n_tokens()?).flat_map(row).collect();
    Ok([("y".to_owned(), Output::plain(y)), ("arrived".to_owned(), told(case, arrived, step)?)].into())
}

/// token[t] = the id of the largest of part[r, t, candidate[r, t]]; arrived[r, rank, flag] = step
pub(super) fn all_argmax(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (part, candidate) = (tensor(inputs, "part")?, tensor(inputs, "candidate")?);
    let (arrived, step) = (tensor(inputs, "arrived")?, tensor(inputs, "step")?);
    let (part_len, ranks, part_stride) = (case.dim("part_len")?, case.dim("ranks")?, case.scalar("part_stride")?);
    let candidate_stride = case.scalar("candidate_stride")?;
    let token = |t: usize| {
        let mut best = (f64::NEG_INFINITY, 0);
        for r in 0..ranks {
            let own = candidate.values()[r * candidate_stride + t];
            if own == f64::from(NO_TOKEN) {
                return own;
            }
            let logit = part.values()[r * part_stride + t * part_len + own as usize];
            if r == 0 || logit > best.0 {
                best = (logit, r * part_len + own as usize);
            }
        }
        best.1 as f64
    };
    let tokens = (0..case.n_tokens()?).map(token).collect();
    Ok([("token".to_owned(), Output::plain(tokens)), ("arrived".to_owned(), told(case, arrived, step)?)].into())
}

/// The flags when the rank has told every other one.
fn told(case: &Case, arrived: &Tensor, step: &Tensor) -> Result<Output, ReferenceError> {
    let mut after = arrived.values().to_vec();
    let flag_of_rank = case.scalar("rank")? * case.scalar("n_flags")? + case.scalar("flag")?;
    for r in 0..case.dim("ranks")? {
        after[r * case.scalar("arrived_stride")? + flag_of_rank] = step.values()[0];
    }
    Ok(Output::plain(after))
}
