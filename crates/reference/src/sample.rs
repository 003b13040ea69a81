//! References of `take_token` and of `sample`: the seeds' sampler, with ties decided.
//!
//! Which token is drawn depends on comparisons of sums that every kernel rounds in its own way. So the inputs are
//! chosen such that no comparison is close: logits are multiples of 1/64 (equal or clearly different), and a row whose
//! coin, top_p or cutoff is within a margin of an edge is made again.

use super::case::{Case, Output, Outputs, ReferenceError, Tensors, falling, named, only, tensor};
use super::random::Random;
use super::tensor::Tensor;
use format::Dtype;

/// How far from every edge a draw stays: ten times what sequential f32 sums of a few thousand probabilities are off by.
/// Edges lie 1 / vocab_size apart, so a large vocabulary must do with less.
fn least_margin(vocab_size: usize) -> f64 {
    f64::min(1e-5, 0.05 / vocab_size as f64)
}

/// Inputs whose probability a few tokens have: of any number of tokens, sums that are rounded draw the same one.
pub(super) const STEEP: &str = "steep";

/// How far from every edge such a draw stays: f32 sums of 10^5 numbers in their order are off by 2^-24 * 10^5 = 6e-3 at
/// worst.
const STEEP_MARGIN: f64 = 1e-2;

/// One row of the op's inputs.
struct SampleRow<'a> {
    logit: &'a [f64],
    temperature: f64,
    top_k: usize,
    top_p: f64,
    coin: f64,
}

/// The token of a row, and how far the nearest comparison was from going the other way.
struct Draw {
    token: usize,
    margin: f64,
}

/// The first token is the last of those sampled, the second an id; then as it comes.
pub(super) fn take_inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let n_sampled = case.scalar("n_sampled")?;
    let from = (0..case.n_tokens()?).map(|t| match t {
        0 => FROM_SAMPLED + n_sampled - 1,
        1 => FROM_SAMPLED - 1,
        _ if random.below(2) == 0 => random.below(FROM_SAMPLED),
        _ => FROM_SAMPLED + random.below(n_sampled),
    });
    let from = Tensor::whole(from.collect::<Vec<_>>());
    let ids = random.indices(n_sampled, 201_088);
    let sampled = ids.values().iter().enumerate().map(|(i, &id)| if i % 4 == 0 { f64::from(NO_TOKEN) } else { id });
    Ok(named([("from", from), ("sampled", Tensor::rounded(Dtype::U32, sampled.collect()))]))
}

/// What is sampled where a logit is a NaN or infinity.
const NO_TOKEN: u32 = u32::MAX;

/// What is not an id is this plus a place among those sampled.
const FROM_SAMPLED: usize = 1 << 31;

/// token[t] = sampled[from[t] - 2^31] where from[t] is 2^31 or more, else from[t]; 0 for 2^32 - 1
pub(super) fn take(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let (from, sampled) = (tensor(inputs, "from")?, tensor(inputs, "sampled")?);
    let token = (0..case.n_tokens()?).map(|t| match from.index(t).checked_sub(FROM_SAMPLED) {
        Some(place) => sampled.values()[place],
        None => from.values()[t],
    });
    let token = token.map(|token| if token == f64::from(NO_TOKEN) { 0.0 } else { token });
    Ok(only("token", Output::plain(token.collect())))
}

pub(super) fn inputs(case: &Case, random: &mut Random) -> Result<Tensors, ReferenceError> {
    let vocab_size = case.dim("vocab_size")?;
    let is_steep = case.inputs.as_deref() == Some(STEEP);
    let least_margin = if is_steep { STEEP_MARGIN } else { least_margin(vocab_size) };
    let [mut logits, mut temperature, mut top_k, mut top_p, mut coin] = [const { Vec::<f64>::new() }; 5];
    for t in 0..case.n_tokens()? {
        let (mut logit, row_coin) = loop {
            let spread = match t % 5 {
                _ if is_steep => 8.0,
                4 => 0.01, // all but a few are equal
                _ => 2.0,
            };
            let mut logit: Vec<f64> =
                (0..vocab_size).map(|_| (64.0 * spread * random.normal()).round() / 64.0).collect();
            if t % 11 >= 9 {
                forbid(&mut logit, t, random);
            }
            let coin = random.uniform();
            let row = SampleRow { logit: &logit, coin, ..settings(t) };
            if row.draw().margin > least_margin {
                break (logit, coin);
            }
        };
        if t % 7 == 6 {
            logit[31 * t % vocab_size] = [f64::NAN, -f64::NAN, f64::INFINITY][t / 7 % 3];
        }
        logits.extend(logit);
        let settings = settings(t);
        temperature.push(settings.temperature);
        top_k.push(settings.top_k as f64);
        top_p.push(settings.top_p);
        coin.push(row_coin);
    }
    Ok(named([
        ("logit", Tensor::rounded(Dtype::F32, logits)),
        ("temperature", Tensor::rounded(Dtype::F32, temperature)),
        ("top_k", Tensor::rounded(Dtype::U32, top_k)),
        ("top_p", Tensor::rounded(Dtype::F32, top_p)),
        ("coin", Tensor::rounded(Dtype::F32, coin)),
    ]))
}

/// Leaves a few logits that are not -infinity, or none.
fn forbid(logit: &mut [f64], t: usize, random: &mut Random) {
    let n_left = if t % 11 == 10 { 0 } else { 3 };
    let left: Vec<usize> = (0..n_left).map(|_| random.below(logit.len())).collect();
    logit.iter_mut().enumerate().filter(|(n, _)| !left.contains(n)).for_each(|(_, logit)| *logit = f64::NEG_INFINITY);
}

/// Temperature, top_k and top_p of row t: within 60 rows every combination occurs. All are f32 numbers.
fn settings(t: usize) -> SampleRow<'static> {
    let f32 = |value: f32| f64::from(value);
    SampleRow {
        logit: &[],
        temperature: f32([0.7, 1.0, 0.0, 1.3, 0.1][t % 5]),
        top_k: [0, 1, 5][t % 3],
        top_p: f32([0.9, 1.0, 0.5, 0.0][t % 4]),
        coin: 0.0,
    }
}

/// token[t]: see the contract.
pub(super) fn sample(case: &Case, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
    let [temperature, top_k, top_p, coin] = ["temperature", "top_k", "top_p", "coin"].map(|name| tensor(inputs, name));
    let (temperature, top_k, top_p, coin) = (temperature?, top_k?, top_p?, coin?);
    let rows = tensor(inputs, "logit")?.values().chunks(case.dim("vocab_size")?);
    let token = rows.enumerate().map(|(t, logit)| {
        let row = SampleRow {
            logit,
            temperature: temperature.values()[t],
            top_k: top_k.index(t),
            top_p: top_p.values()[t],
            coin: coin.values()[t],
        };
        let is_none = |logit: &f64| logit.is_nan() || *logit == f64::INFINITY;
        if logit.iter().any(is_none) { f64::from(NO_TOKEN) } else { row.draw().token as f64 }
    });
    Ok(only("token", Output::plain(token.collect())))
}

impl SampleRow<'_> {
    fn draw(&self) -> Draw {
        let mut order = falling(self.logit);
        if self.temperature == 0.0 || self.logit[order[0]] == f64::NEG_INFINITY {
            return Draw { token: order[0], margin: f64::INFINITY };
        }
        let probability = self.softmax(self.logit[order[0]]);
        let has_top_p = self.top_p > 0.0 && self.top_p < 1.0;
        if self.top_k == 0 && !has_top_p {
            order.sort_unstable();
            return draw_from(&order, &probability, self.coin);
        }
        let mut margin = f64::INFINITY;
        if has_top_p {
            margin = self.keep_top_p(&mut order, &probability);
        } else {
            order.truncate(self.top_k);
        }
        if order.is_empty() {
            order.extend(0..probability.len()); // a vocabulary of one: the cutoff is infinite
        }
        let draw = draw_from(&order, &probability, self.coin);
        Draw { margin: margin.min(draw.margin), ..draw }
    }

    fn softmax(&self, max: f64) -> Vec<f64> {
        let exponentials: Vec<f64> = self.logit.iter().map(|logit| ((logit - max) / self.temperature).exp()).collect();
        let total: f64 = exponentials.iter().sum();
        exponentials.iter().map(|exponential| exponential / total).collect()
    }

    /// Cuts the sorted ids to top_k, the cutoff and top_p; gives the margin of the two latter.
    fn keep_top_p(&self, order: &mut Vec<usize>, probability: &[f64]) -> f64 {
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let cutoff = (1.0 - self.top_p) / (probability.len() - 1) as f64;
        let mut margin = order.iter().map(|&n| (probability[n] / cutoff - 1.0).abs()).fold(f64::INFINITY, f64::min);
        order.retain(|&n| probability[n] >= cutoff);
        let mut sum = 0.0;
        let mut kept = 0;
        while kept < order.len() && sum <= self.top_p {
            sum += probability[order[kept]];
            margin = margin.min((sum - self.top_p).abs());
            kept += 1;
        }
        order.truncate(kept);
        margin
    }
}

/// The first id at which the sum of probabilities exceeds the coin's share of the whole.
fn draw_from(order: &[usize], probability: &[f64], coin: f64) -> Draw {
    let total: f64 = order.iter().map(|&n| probability[n]).sum();
    let mut margin = f64::INFINITY;
    let mut token = None;
    let mut sum = 0.0;
    for &n in order {
        sum += probability[n];
        margin = margin.min((coin * total - sum).abs());
        if token.is_none() && coin * total < sum {
            token = Some(n);
        }
    }
    Draw { token: token.unwrap_or(order[order.len() - 1]), margin }
}
