//! What is believed of a function at some places after it was seen at a few of them.

/// The part of a variance that is noise of the measurement.
const NOISE: f64 = 1e-3;

/// A Gaussian process over a given list of places: a mean and a variance for each, which every observation changes.
/// Before the first the means are 0 and the variances 1. Two places are as much alike as `exp(-d)` says, where `d` is
/// the sum of their distances along each axis: what is known of one side of a step says little of the other, and times
/// of kernels have steps (a block more or less on a compute unit). (C. E. Rasmussen and C. K. I. Williams, *Gaussian
/// Processes for Machine Learning*, 2006, section 2.2; the Cholesky factor grows by a row with each observation.)
pub(crate) struct GaussianProcess<'a> {
    places: &'a [Vec<f64>],
    mean: Vec<f64>,
    variance: Vec<f64>,
    /// For each observation, how much every place moves with it: rows of the factor, one value a place.
    rows: Vec<Vec<f64>>,
}

impl<'a> GaussianProcess<'a> {
    /// - `places`: their coordinates, all of the same number of axes
    pub(crate) fn new(places: &'a [Vec<f64>]) -> Self {
        Self { places, mean: vec![0.0; places.len()], variance: vec![1.0; places.len()], rows: Vec::new() }
    }

    /// The function was seen at the place of this index, or will be (`None`): then what is not known there shrinks, and
    /// means stay.
    pub(crate) fn observe(&mut self, at: usize, value: Option<f64>) {
        let deviation = (self.variance[at] + NOISE).sqrt();
        let surprise = value.map_or(0.0, |value| (value - self.mean[at]) / deviation);
        let mut row: Vec<f64> = self.places.iter().map(|place| likeness(place, &self.places[at])).collect();
        for known in &self.rows {
            let own = known[at];
            row.iter_mut().zip(known).for_each(|(one, known)| *one -= known * own);
        }
        for ((one, mean), variance) in row.iter_mut().zip(&mut self.mean).zip(&mut self.variance) {
            *one /= deviation;
            *mean += *one * surprise;
            *variance = (*variance - *one * *one).max(0.0);
        }
        self.rows.push(row);
    }

    /// The value that is expected at the place of this index.
    pub(crate) fn mean(&self, at: usize) -> f64 {
        self.mean[at]
    }

    /// How far from it the value may well be.
    pub(crate) fn deviation(&self, at: usize) -> f64 {
        self.variance[at].sqrt()
    }
}

fn likeness(a: &[f64], b: &[f64]) -> f64 {
    (-a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With places on one axis and this likeness what lies between two observations depends on these two alone: for an
    /// Ornstein-Uhlenbeck process the mean between them is `(a sinh(1 - t) + b sinh(t)) / sinh(1)` for a distance of 1.
    #[test]
    fn between_two_observations_lies_what_an_ornstein_uhlenbeck_process_has_there() {
        let places: Vec<Vec<f64>> = (0..=4).map(|i| vec![f64::from(i) / 4.0]).collect();
        let mut process = GaussianProcess::new(&places);
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
        let places: Vec<Vec<f64>> = (0..9).map(|i| vec![f64::from(i % 3), f64::from(i / 3)]).collect();
        let mut process = GaussianProcess::new(&places);
        process.observe(4, Some(1.0));
        let before: Vec<f64> = (0..9).map(|i| process.mean(i)).collect();
        let corner = process.deviation(8);
        process.observe(8, None);
        assert_eq!(before, (0..9).map(|i| process.mean(i)).collect::<Vec<_>>());
        assert!(process.deviation(8) < 0.1 * corner);
    }
}
