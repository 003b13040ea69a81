//! The result of every scored token, and the numbers computed from all of them.

use rayon::prelude::*;
use serde::Serialize;

use super::base_file::{BaseFile, encoded};
use super::distribution::{Compared, Distribution, NotANumber};

/// A token of the text that was scored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// The negative logarithm of its probability.
    pub nll: f64,
    /// The same in a base, where there is one.
    pub compared: Option<Compared>,
}

/// What the rows of a window are compared with.
#[derive(Clone, Copy, Debug)]
pub enum Base<'a> {
    None,
    /// Logits of the same positions, as those that are scored.
    Logits(&'a [f32]),
    /// A window of a file, from this one of its scored positions on.
    File {
        file: &'a BaseFile,
        window: usize,
        first: usize,
    },
}

/// Scores tokens.
///
/// - `logits`: f32, (tokens, vocab_size), row-major
/// - `targets`: the token that comes after each row
///
/// # Errors
/// The first row, of those of the base too, that holds what is no number.
pub fn scored(logits: &[f32], base: Base<'_>, targets: &[u32]) -> Result<Vec<Scored>, (usize, NotANumber)> {
    let vocab_size = logits.len() / targets.len().max(1);
    let score = |(row, &target): (usize, &u32)| {
        let (distribution, target) = (row_of(logits, row, vocab_size)?, target as usize);
        let compared = match base {
            Base::None => None,
            Base::Logits(logits) => Some(distribution.compared_with(&row_of(logits, row, vocab_size)?, target)),
            Base::File { file, window, first } => Some(file.row(window, first + row).compare(&distribution, target)),
        };
        Ok(Scored { nll: -distribution.log_probability(target), compared })
    };
    targets.par_iter().enumerate().map(score).collect()
}

fn row_of(logits: &[f32], row: usize, vocab_size: usize) -> Result<Distribution<'_>, (usize, NotANumber)> {
    Distribution::new(&logits[row * vocab_size..][..vocab_size]).map_err(|error| (row, error))
}

/// The rows of a base file for these logits, one after the other.
///
/// # Errors
/// As [`scored`].
pub fn encoded_rows(logits: &[f32], vocab_size: usize) -> Result<Vec<u8>, (usize, NotANumber)> {
    let rows = logits.par_chunks_exact(vocab_size).enumerate();
    let coded = rows.map(|(i, row)| Distribution::new(row).map(|row| encoded(&row)).map_err(|error| (i, error)));
    Ok(coded.collect::<Result<Vec<_>, _>>()?.concat())
}

/// A mean, and its standard error where there is more than one value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    pub error: Option<f64>,
}

/// Means, errors and percentiles over all scored tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Tokens that were scored.
    pub tokens: usize,
    /// The exponential of the mean negative logarithm.
    pub perplexity: Estimate,
    /// Where there is a base.
    #[serde(rename = "against")]
    pub comparison: Option<Comparison>,
}

/// How far a model is from a base.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub base_perplexity: Estimate,
    /// By which part the perplexity is larger than the base's: 0.001 is 0.1 %.
    pub perplexity_gain: Estimate,
    /// The mean Kullback-Leibler divergence from the base, in nats, and its distribution over tokens.
    pub mean_kld: Estimate,
    pub median_kld: f64,
    pub kld_99: f64,
    pub kld_99_9: f64,
    pub max_kld: f64,
    /// The part of the tokens before which both hold the same token for the most probable.
    pub same_best: Estimate,
}

impl Summary {
    /// Of scored tokens, all of them with a base or none.
    ///
    /// # Panics
    /// There are none.
    pub fn of(tokens: &[Scored]) -> Self {
        assert!(!tokens.is_empty(), "a window has a token that is scored");
        let compared: Vec<(f64, Compared)> =
            tokens.iter().filter_map(|token| Some((token.nll, token.compared?))).collect();
        Self {
            tokens: tokens.len(),
            perplexity: Estimate::of(tokens.iter().map(|token| token.nll)).exp(),
            comparison: (!compared.is_empty()).then(|| Comparison::of(&compared)),
        }
    }
}

impl Comparison {
    fn of(tokens: &[(f64, Compared)]) -> Self {
        let mut klds: Vec<f64> = tokens.iter().map(|(_, compared)| compared.divergence).collect();
        klds.sort_by(f64::total_cmp);
        // Of differences token by token: the two perplexities go up and down together.
        let ratio = Estimate::of(tokens.iter().map(|(nll, compared)| nll - compared.base_nll)).exp();
        Self {
            base_perplexity: Estimate::of(tokens.iter().map(|(_, compared)| compared.base_nll)).exp(),
            perplexity_gain: Estimate { value: ratio.value - 1.0, ..ratio },
            mean_kld: Estimate::of(klds.iter().copied()),
            median_kld: percentile(&klds, 0.5),
            kld_99: percentile(&klds, 0.99),
            kld_99_9: percentile(&klds, 0.999),
            max_kld: percentile(&klds, 1.0),
            same_best: Estimate::of(tokens.iter().map(|(_, compared)| f64::from(u8::from(compared.is_same_best)))),
        }
    }
}

impl Estimate {
    fn of(values: impl ExactSizeIterator<Item = f64> + Clone) -> Self {
        let n = values.len() as f64;
        let mean = values.clone().sum::<f64>() / n;
        let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / n;
        Self { value: mean, error: (n > 1.0).then(|| (variance / (n - 1.0)).sqrt()) }
    }

    /// Of the exponential, to first order.
    fn exp(self) -> Self {
        let value = self.value.exp();
        Self { value, error: self.error.map(|error| value * error) }
    }
}

/// The value below which this part of sorted values is, between two of them in proportion.
pub fn percentile(sorted: &[f64], part: f64) -> f64 {
    let at = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + at.fract() * (above - below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(p: f64, base_p: f64, divergence: f64, is_same_best: bool) -> Scored {
        Scored { nll: -p.ln(), compared: Some(Compared { base_nll: -base_p.ln(), divergence, is_same_best }) }
    }

    #[test]
    fn the_perplexity_is_the_inverse_of_the_geometric_mean() {
        let tokens = [0.5, 0.125].map(|p: f64| Scored { nll: -p.ln(), compared: None });
        let summary = Summary::of(&tokens);
        assert_eq!((summary.tokens, &summary.comparison), (2, &None));
        // 1 / sqrt(1/2 * 1/8) = 4. The logarithms are ln 2 and ln 8, both ln 2 from their mean: the variance is ln 2
        // squared, over n - 1 = 1.
        assert!((summary.perplexity.value - 4.0).abs() < 1e-12);
        assert!((summary.perplexity.error.expect("two values") - 4.0 * 2f64.ln()).abs() < 1e-12);
        assert_eq!(Summary::of(&tokens[..1]).perplexity.error, None);
    }

    #[test]
    fn a_comparison_is_of_differences_token_by_token() {
        let tokens = [token(0.25, 0.5, 0.3, true), token(0.125, 0.25, 0.1, false), token(0.5, 1.0, 0.2, true)];
        let comparison = Summary::of(&tokens).comparison.expect("a base");
        // Every token is half as probable as in the base: twice the perplexity, with no doubt about it.
        let gain = comparison.perplexity_gain;
        assert!((gain.value - 1.0).abs() < 1e-12 && gain.error.expect("three values") < 1e-12, "{gain:?}");
        assert!((comparison.base_perplexity.value - 2.0).abs() < 1e-12);
        assert!((comparison.mean_kld.value - 0.2).abs() < 1e-12 && comparison.max_kld == 0.3);
        assert!((comparison.median_kld - 0.2).abs() < 1e-12 && (comparison.kld_99 - 0.298).abs() < 1e-12);
        // 2 of 3, and sqrt(2/3 * 1/3 / 2) = 1/3.
        assert!((comparison.same_best.value - 2.0 / 3.0).abs() < 1e-12);
        assert!((comparison.same_best.error.expect("three values") - 1.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn percentiles_lie_between_values_in_proportion() {
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|part| percentile(&values, part)), [0.0, 50.0, 99.0, 100.0]);
        assert!((percentile(&values, 0.999) - 99.9).abs() < 1e-9 && percentile(&[7.0], 0.999) == 7.0);
    }
}
