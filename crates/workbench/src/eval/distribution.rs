//! Logits as probabilities of the next token, in f64, and how far two such distributions are apart.

/// What a model says comes next.
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    /// (vocab_size)  f32
    logits: &'a [f32],
    /// The largest logit, of those that are as large the first.
    best: usize,
    smallest: f32,
    /// The logarithm of the sum of all `exp(logit)`.
    log_sum: f64,
}

/// A logit that is a NaN or infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotANumber {
    /// The token id whose logit it is.
    pub id: usize,
}

/// What a token of the text is like in one distribution, and in another that that is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The negative logarithm of the token's probability in the base.
    pub base_nll: f64,
    /// The Kullback-Leibler divergence of the distribution from the base, in nats.
    pub divergence: f64,
    /// Whether the most probable token is the same.
    pub is_same_best: bool,
}

impl<'a> Distribution<'a> {
    /// The softmax of logits.
    ///
    /// - `logits`: (vocab_size) f32, at least one
    ///
    /// # Errors
    /// The first logit that is a NaN or infinite.
    pub fn new(logits: &'a [f32]) -> Result<Self, NotANumber> {
        if let Some(id) = logits.iter().position(|logit| !logit.is_finite()) {
            return Err(NotANumber { id });
        }
        let (mut best, mut smallest) = (0, logits[0]);
        for (id, &logit) in logits.iter().enumerate() {
            best = if logit > logits[best] { id } else { best };
            smallest = smallest.min(logit);
        }
        let largest = f64::from(logits[best]);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
        Ok(Self { logits, best, smallest, log_sum: largest + sum.ln() })
    }

    /// The logarithm of a token's probability.
    pub fn log_probability(&self, id: usize) -> f64 {
        f64::from(self.logits[id]) - self.log_sum
    }

    /// The most probable token; of those that are as probable the first.
    pub fn best(&self) -> usize {
        self.best
    }

    /// (vocab_size)  f32
    pub fn logits(&self) -> &'a [f32] {
        self.logits
    }

    /// The largest and the smallest logit.
    pub(super) fn range(&self) -> (f32, f32) {
        (self.logits[self.best], self.smallest)
    }

    /// The logarithm of the sum of all `exp(logit)`.
    pub(super) fn log_sum(&self) -> f64 {
        self.log_sum
    }

    /// Compares it with another one, over all tokens: the sum of `p * ln(p / q)`, where p is of the base.
    ///
    /// # Panics
    /// The vocabularies have other sizes.
    pub fn compared_with(&self, base: &Distribution<'_>, target: usize) -> Compared {
        assert_eq!(self.logits.len(), base.logits.len(), "one vocabulary");
        // Differences of logits first: equal ones cancel, and those of two good models nearly do.
        let shift = self.log_sum - base.log_sum;
        let divergence = self.logits.iter().zip(base.logits).map(|(&own, &of_base)| {
            let of_base = f64::from(of_base);
            (of_base - base.log_sum).exp() * (of_base - f64::from(own) + shift)
        });
        Compared {
            base_nll: -base.log_probability(target),
            divergence: divergence.sum(),
            is_same_best: self.best == base.best,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits whose softmax are these numbers, moved by a constant, which changes what f32 rounds: by 2e-6 at 40.
    fn logits(probabilities: &[f64], moved: f64) -> Vec<f32> {
        probabilities.iter().map(|p| (p.ln() + moved) as f32).collect()
    }

    #[test]
    fn the_divergence_of_two_small_distributions_is_what_a_hand_computes() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): 1/2 ln 2 + 1/4 ln 1 + 1/4 ln (1/2) = 1/4 ln 2.
        let (p, q) = (logits(&[0.5, 0.25, 0.25], 3.0), logits(&[0.25, 0.25, 0.5], -40.0));
        let (p, q) = (Distribution::new(&p).expect("numbers"), Distribution::new(&q).expect("numbers"));
        let compared = q.compared_with(&p, 2);
        assert!((compared.divergence - 0.25 * 2f64.ln()).abs() < 1e-5, "{compared:?}");
        assert!((compared.base_nll - 4f64.ln()).abs() < 1e-6, "{compared:?}");
        assert!((q.log_probability(2) + 2f64.ln()).abs() < 1e-5);
        assert!(!compared.is_same_best && (p.best(), q.best()) == (0, 2));

        // Not symmetric: r = (9/10, 1/20, 1/20) from p is 1/2 ln (5/9) + 1/2 ln 5 = ln 5 - ln 3, p from r is
        // 9/10 ln (9/5) + 1/10 ln (1/5).
        let r = logits(&[0.9, 0.05, 0.05], 0.0);
        let r = Distribution::new(&r).expect("numbers");
        assert!((r.compared_with(&p, 0).divergence - (5f64 / 3.0).ln()).abs() < 1e-6);
        let back = 0.9 * 1.8f64.ln() - 0.1 * 5f64.ln();
        assert!((p.compared_with(&r, 0).divergence - back).abs() < 1e-6);
        assert!(r.compared_with(&p, 0).is_same_best);
    }

    #[test]
    fn a_distribution_is_at_no_distance_from_itself() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1013) as f32 * 0.037 - 20.0).collect();
        let distribution = Distribution::new(&logits).expect("numbers");
        assert_eq!(distribution.compared_with(&distribution, 3).divergence, 0.0);
        let sum: f64 = (0..1000).map(|id| distribution.log_probability(id).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        // Large logits, of which no power is finite in f32.
        let large = [1000.0, 1000.0, -1000.0];
        let large = Distribution::new(&large).expect("numbers");
        assert!(
            (large.log_probability(1) + 2f64.ln()).abs() < 1e-12 && large.log_probability(2) == -2000.0 - 2f64.ln()
        );
        assert_eq!(large.best(), 0, "the first of those that are as probable");
    }

    #[test]
    fn what_is_no_number_is_named() {
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(Distribution::new(&[1.0, wrong, wrong]).expect_err("no number"), NotANumber { id: 1 });
        }
    }
}
