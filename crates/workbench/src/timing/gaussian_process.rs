//! Gaussian process regression: estimates a function at some points from its values at a few others.

/// The variance of the noise of an observation; the function's own is 1 before any.
const NOISE: f64 = 1e-3;

/// A Gaussian process over a given list of points: the posterior mean and variance of each, which every observation
/// changes. The prior has mean 0, variance 1, and the exponential covariance `exp(-d)` of lengthscale 1, where `d` is
/// the sum of two points' distances along each axis: what is known of one side of a step says little of the other, and
/// times of kernels have steps (a block more or less on a compute unit). (C. E. Rasmussen and C. K. I. Williams,
/// *Gaussian Processes for Machine Learning*, 2006, section 2.2; the Cholesky factor grows by a row with each
/// observation.)
pub(crate) struct GaussianProcess<'a> {
    points: &'a [Vec<f64>],
    mean: Vec<f64>,
    variance: Vec<f64>,
    /// Rows of the Cholesky factor, one for each observation: its covariance with every point, given those before it.
    factor: Vec<Vec<f64>>,
}

impl<'a> GaussianProcess<'a> {
    /// - `points`: their coordinates in lengthscales, all of the same number of axes
    pub(crate) fn new(points: &'a [Vec<f64>]) -> Self {
        Self { points, mean: vec![0.0; points.len()], variance: vec![1.0; points.len()], factor: Vec::new() }
    }

    /// The function was observed at the point of this index, or will be (`None`): variances shrink then, means stay.
    pub(crate) fn observe(&mut self, at: usize, value: Option<f64>) {
        let deviation = (self.variance[at] + NOISE).sqrt();
        let residual = value.map_or(0.0, |value| (value - self.mean[at]) / deviation);
        let mut row: Vec<f64> = self.points.iter().map(|point| covariance(point, &self.points[at])).collect();
        for known in &self.factor {
            let own = known[at];
            row.iter_mut().zip(known).for_each(|(one, known)| *one -= known * own);
        }
        for ((one, mean), variance) in row.iter_mut().zip(&mut self.mean).zip(&mut self.variance) {
            *one /= deviation;
            *mean += *one * residual;
            *variance = (*variance - *one * *one).max(0.0);
        }
        self.factor.push(row);
    }

    /// The posterior mean at the point of this index.
    pub(crate) fn mean(&self, at: usize) -> f64 {
        self.mean[at]
    }

    /// The posterior standard deviation there.
    pub(crate) fn deviation(&self, at: usize) -> f64 {
        self.variance[at].sqrt()
    }
}

fn covariance(a: &[f64], b: &[f64]) -> f64 {
    (-a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With points on one axis and this covariance what lies between two observations depends on these alone: for an
    /// Ornstein-Uhlenbeck process the mean between them is `(a sinh(1 - t) + b sinh(t)) / sinh(1)` for a distance of 1.
    #[test]
    fn between_two_observations_lies_what_an_ornstein_uhlenbeck_process_has_there() {
        let points: Vec<Vec<f64>> = (0..=4).map(|i| vec![f64::from(i) / 4.0]).collect();
        let mut process = GaussianProcess::new(&points);
        process.observe(0, Some(2.0));
        process.observe(4, Some(-1.0));
        for (i, t) in [0.0_f64, 0.25, 0.5, 0.75, 1.0].into_iter().enumerate() {
            let mean = (2.0 * (1.0 - t).sinh() - t.sinh()) / 1f64.sinh();
            let variance =
                1.0 - ((-2.0 * t).exp() + (-2.0 * (1.0 - t)).exp() - 2.0 * (-2f64).exp()) / (1.0 - (-2f64).exp());
            assert!((process.mean(i) - mean).abs() < 4.0 * NOISE, "{t}: {} for {mean}", process.mean(i));
            let of_it = process.deviation(i).powi(2);
            assert!((of_it - variance).abs() < 4.0 * NOISE, "{t}: {of_it} for {variance}");
        }
    }

    #[test]
    fn what_will_be_seen_is_known_better_and_expected_as_before() {
        let points: Vec<Vec<f64>> = (0..9).map(|i| vec![f64::from(i % 3), f64::from(i / 3)]).collect();
        let mut process = GaussianProcess::new(&points);
        process.observe(4, Some(1.0));
        let before: Vec<f64> = (0..9).map(|i| process.mean(i)).collect();
        let corner = process.deviation(8);
        process.observe(8, None);
        assert_eq!(before, (0..9).map(|i| process.mean(i)).collect::<Vec<_>>());
        assert!(process.deviation(8) < 0.1 * corner);
    }
}
