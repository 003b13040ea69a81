//! References of ops that change or read logits, for the rows that ask for it: `change_logits`, `min_p`, `logprobs`.

use super::case::{Case, Output, Outputs, ReferenceError, Tensors, falling, named, only, tensor};
use super::random::Random;
use super::tensor::Tensor;
use format::Dtype;

/// Stands for no mask, and for no token.
const NONE: u32 = u32::MAX;

/// The rows that ask: some of `n_rows`, in any order.
fn rows(case: &Case, random: &mut Random) -> Result<Tensor, ReferenceError> {
    let (n_tokens, n_rows) = (case.n_tokens()?, case.scalar("n_rows")?);
    if n_tokens > n_rows {
        let why = format!("{n_tokens} of {n_rows} rows cannot all be others");
        return Err(ReferenceError::Contradiction { why });
    }
    let mut all: Vec<usize> = (0..n_rows).collect();
    random.shuffle(&mut all);
    Ok(Tensor::whole(all.into_iter().take(n_tokens)))
}

/// Rows of logits that are multiples of 1/64: equal or clearly different. Every fifth has but a few that are not
/// -infinity, every ninth none.
fn logits(case: &Case, random: &mut Random) -> Result<Vec<f64>, ReferenceError> {
    let (n_rows, vocab_size) = (case.scalar("n_rows")?, case.dim("vocab_size")?);
    let mut all = Vec::with_capacity(n_rows * vocab_size);
    for r in 0..n_rows {
        for _ in 0..vocab_size {
            let logit = (128.0 * random.normal()).round() / 64.0;
            let is_there = r % 9 != 8 && (r % 5 != 4 || random.below(vocab_size) < 4);
            all.push(if is_there { logit } else { f64::NEG_INFINITY });
        }
    }
    Ok(all)
}

pub(super) fn change_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (vocab_size, n_masks) = (case.dim("vocab_size")?, case.scalar("n_masks")?);
    let (n_tokens, n_biases) = (case.n_tokens()?, case.scalar("n_biases")?);
    let mut logit = logits(case, random)?;
    for largest in logit.iter_mut().step_by(7) {
        *largest = f32::MAX.into();
    }
    for infinity in logit.iter_mut().step_by(61) {
        *infinity = f64::INFINITY;
    }
    let (mut begins, mut ends, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for t in 0..n_tokens {
        let most = if t % 4 == 3 { 0 } else { (2 * n_biases / n_tokens).min(n_biases - ids.len()).min(vocab_size) };
        let mut own: Vec<usize> = (0..vocab_size).collect();
        random.shuffle(&mut own);
        begins.push(ids.len());
        ids.extend(own.into_iter().take(random.below(most + 1)));
        ends.push(ids.len());
    }
    ids.resize(n_biases, 0); // nobody's
    let bias = |i: usize| if i.is_multiple_of(11) { 3e38 } else { (128.0 * random.normal()).round() / 64.0 };
    let bias = (0..n_biases).map(bias).collect();
    let divisor = (0..n_biases).map(|i| [1.0, 1.25, 1.0, 0.5, 1.1][i % 5]).collect();
    let mask_row: Vec<f64> =
        (0..n_tokens).map(|t| if t % 3 == 2 { NONE.into() } else { (t / 2 % n_masks) as f64 }).collect();
    // The first mask lets nothing through, the second one id, the others more and more.
    let n_words = vocab_size.div_ceil(32);
    let mut mask = Vec::new();
    for m in 0..n_masks {
        let only = random.below(vocab_size);
        for word in 0..n_words {
            let drawn = match m {
                0 => 0,
                1 => u32::from(word == only / 32) << (only % 32),
                _ => (0..32).fold(0, |bits, bit| bits | u32::from(random.below(n_masks) < m) << bit),
            };
            let beyond = if (word + 1) * 32 > vocab_size { !0 << (vocab_size % 32) } else { 0 };
            mask.push(f64::from(drawn | beyond)); // bits of no id, which mean nothing
        }
    }
    Ok(named([
        ("row", rows(case, random)?),
        ("bias_begin", Tensor::whole(begins)),
        ("bias_end", Tensor::whole(ends)),
        ("bias_id", Tensor::whole(ids)),
        ("bias", Tensor::rounded(Dtype::F32, bias)),
        ("bias_divisor", Tensor::rounded(Dtype::F32, divisor)),
        ("mask_row", Tensor::rounded(Dtype::U32, mask_row)),
        ("mask", Tensor::rounded(Dtype::U32, mask)),
        ("logit", Tensor::rounded(Dtype::F32, logit)),
    ]))
}

/// logit[row[t], n]: see the contract.
pub(super) fn change(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let [row, begin, end, id] = ["row", "bias_begin", "bias_end", "bias_id"].map(|name| tensor(inputs, name));
    let [bias, mask_row, mask, logit] = ["bias", "mask_row", "mask", "logit"].map(|name| tensor(inputs, name));
    let (row, begin, end, id, mask_row) = (row?, begin?, end?, id?, mask_row?);
    let (bias, mask, vocab_size) = (bias?.values(), mask?, case.dim("vocab_size")?);
    let divisor = tensor(inputs, "bias_divisor")?.values();
    let mut logits = logit?.values().to_vec();
    let mut sizes: Vec<f64> = logits.iter().map(|logit| logit.abs()).collect();
    let largest = f64::from(f32::MAX);
    let clamped = |v: f64| v.clamp(-largest, largest);
    // A value, and what its roundings are measured by: a quotient and a bias may nearly cancel each other.
    let finite = |v: f64, divisor: f64, bias: f64| match v {
        f64::INFINITY => (v, 0.0),
        v => {
            let divided = clamped(if v > 0.0 { v / divisor } else { v * divisor });
            (clamped(divided + bias), divided.abs() + bias.abs())
        }
    };
    for t in 0..case.n_tokens()? {
        let own = &mut logits[row.index(t) * vocab_size..][..vocab_size];
        let own_sizes = &mut sizes[row.index(t) * vocab_size..][..vocab_size];
        for i in begin.index(t)..end.index(t) {
            let n = id.index(i);
            (own[n], own_sizes[n]) = finite(own[n], divisor[i], bias[i]);
        }
        if mask_row.values()[t] == f64::from(NONE) {
            continue;
        }
        let first_word = mask_row.index(t) * vocab_size.div_ceil(32);
        for (n, logit) in own.iter_mut().enumerate() {
            let may_come = mask.index(first_word + n / 32) >> (n % 32) & 1 == 1;
            *logit = if may_come { finite(*logit, 1.0, 0.0).0 } else { f64::NEG_INFINITY };
        }
    }
    Ok(only("logit", with_infinities(logits.into_iter().zip(sizes))))
}

pub(super) fn min_p_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let n_rows = case.scalar("n_rows")?;
    let temperature = (0..n_rows).map(|r| [0.7, 1.0, 0.0, 1.3][r % 4]).collect();
    let min_p = (0..case.n_tokens()?).map(|t| [0.05, 1.0, 0.001, 0.0, 0.5, 1.5, -0.1][t % 7]).collect();
    Ok(named([
        ("row", rows(case, random)?),
        ("min_p", Tensor::rounded(Dtype::F32, min_p)),
        ("logit", Tensor::rounded(Dtype::F32, logits(case, random)?)),
        ("temperature", Tensor::rounded(Dtype::F32, temperature)),
        ("top_k", Tensor::whole((0..n_rows).map(|r| [0, 1, 5, 1000, 0][r % 5]))),
    ]))
}

/// top_k[row[t]]: see the contract. No logarithm comes near a multiple of 1/64, and that of 1 is 0.
pub(super) fn min_p(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let [row, min_p, logit] = ["row", "min_p", "logit"].map(|name| tensor(inputs, name));
    let (row, min_p, logit, vocab_size) = (row?, min_p?.values(), logit?.values(), case.dim("vocab_size")?);
    let temperature = tensor(inputs, "temperature")?.values();
    let mut top_k = tensor(inputs, "top_k")?.values().to_vec();
    for (t, &min_p) in min_p.iter().enumerate().take(case.n_tokens()?) {
        let r = row.index(t);
        if min_p <= 0.0 || temperature[r] == 0.0 {
            continue;
        }
        let own = &logit[r * vocab_size..][..vocab_size];
        let largest = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let kept = own.iter().filter(|&logit| logit - largest >= temperature[r] * min_p.ln()).count();
        let kept = kept.max(1) as f64;
        top_k[r] = if top_k[r] == 0.0 { kept } else { top_k[r].min(kept) };
    }
    Ok(only("top_k", Output::plain(top_k)))
}

pub(super) fn logprobs_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let (n_rows, vocab_size) = (case.scalar("n_rows")?, case.dim("vocab_size")?);
    let token = |r: usize| if r % 6 == 5 { NONE.into() } else { random.below(vocab_size) as f64 };
    let token = (0..n_rows).map(token).collect();
    Ok(named([
        ("row", rows(case, random)?),
        ("logit", Tensor::rounded(Dtype::F32, logits(case, random)?)),
        ("token", Tensor::rounded(Dtype::U32, token)),
    ]))
}

/// logprob and top_token: see the contract.
pub(super) fn logprobs(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (row, token, logit) = (tensor(inputs, "row")?, tensor(inputs, "token")?, tensor(inputs, "logit")?.values());
    let (vocab_size, n_top) = (case.dim("vocab_size")?, case.dim("n_top")?);
    let (mut logprob, mut top_token) = (Vec::new(), Vec::new());
    for t in 0..case.n_tokens()? {
        let own = &logit[row.index(t) * vocab_size..][..vocab_size];
        let order = falling(own);
        let largest = own[order[0]];
        let log_sum = match largest {
            f64::NEG_INFINITY => 0.0,
            _ => largest + own.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln(),
        };
        logprob.push(own[token.index(row.index(t)).min(vocab_size - 1)] - log_sum);
        for i in 0..n_top {
            logprob.push(order.get(i).map_or(f64::NEG_INFINITY, |&n| own[n] - log_sum));
            top_token.push(order.get(i).map_or(f64::from(NONE), |&n| n as f64));
        }
    }
    let outputs = [
        ("logprob", with_infinities(logprob.into_iter().map(|value| (value, value.abs())))),
        ("top_token", Output::plain(top_token)),
    ];
    Ok(outputs.map(|(name, output)| (name.to_owned(), output)).into())
}

/// Values, each with its scale, of which the infinite ones are meant: none of them is left open.
fn with_infinities(pairs: impl Iterator<Item = (f64, f64)>) -> Output {
    Output::scaled(pairs.map(|(value, scale)| (value, if value.is_infinite() { 0.0 } else { scale })).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{case, close, f32s, run_one, u32s};
    use super::*;

    /// Three rows of four logits, of which the last and the first ask.
    fn asked(case: &mut Case) -> Tensors {
        case.scalars.extend([("n_rows", 3.0), ("n_biases", 3.0), ("n_masks", 1.0)].map(|(name, n)| (name.into(), n)));
        let logits = [1.0, 2.0, 3.0, 4.0, 9.0, 9.0, 9.0, 9.0, 0.0, 0.0, 0.0, 7.0];
        named([("row", u32s(&[2, 0])), ("logit", f32s(&logits))])
    }

    #[test]
    fn biases_are_added_and_what_the_mask_forbids_goes() {
        let mut case = case(&[("vocab_size", 4)], 2);
        let mut inputs = asked(&mut case);
        inputs.extend(named([
            ("bias_begin", u32s(&[0, 2])),
            ("bias_end", u32s(&[2, 3])),
            ("bias_id", u32s(&[1, 3, 0])),
            ("bias", f32s(&[0.5, -8.0, 100.0])),
            ("bias_divisor", f32s(&[1.25, 3.5, 2.0])),
            ("mask_row", u32s(&[u32::MAX as usize, 0])),
            ("mask", u32s(&[0b0101])),
        ]));
        let got = run_one("change_logits", &case, inputs, "logit");
        assert_eq!(got[..4], [100.5, f64::NEG_INFINITY, 3.0, f64::NEG_INFINITY]);
        close(&got[4..], &[9.0, 9.0, 9.0, 9.0, 0.0, 0.5, 0.0, -6.0]);
    }

    #[test]
    fn min_p_counts_what_is_probable_enough() {
        let mut case = case(&[("vocab_size", 4)], 2);
        let mut inputs = asked(&mut case);
        inputs.extend(named([
            ("min_p", f32s(&[0.5, 0.13])), // e^-2 is 0.135
            ("temperature", f32s(&[1.0, 1.0, 1.0])),
            ("top_k", u32s(&[0, 0, 3])),
        ]));
        assert_eq!(run_one("min_p", &case, inputs.clone(), "top_k"), [3.0, 0.0, 1.0]);
        inputs.extend(named([("temperature", f32s(&[0.5, 1.0, 0.0]))])); // e^-4 at the next one; greedy
        assert_eq!(run_one("min_p", &case, inputs, "top_k"), [2.0, 0.0, 3.0]);
    }

    #[test]
    fn the_most_probable_come_with_their_logarithms() {
        let mut case = case(&[("vocab_size", 4), ("n_top", 3)], 2);
        let mut inputs = asked(&mut case);
        inputs.extend(named([("token", u32s(&[1, 0, 2]))]));
        let outputs = super::super::run(&["logprobs".into()], &case, &inputs).unwrap();
        let (seven, four) = ((3.0 + 7f64.exp()).ln(), (1..5).map(|n| f64::from(n).exp()).sum::<f64>().ln());
        close(&outputs["logprob"].values[..4], &[-seven, 7.0 - seven, -seven, -seven]);
        close(&outputs["logprob"].values[4..], &[2.0 - four, 4.0 - four, 3.0 - four, 2.0 - four]);
        assert_eq!(outputs["top_token"].values, [3.0, 0.0, 1.0, 3.0, 2.0, 1.0]);
    }
}
