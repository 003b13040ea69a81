//! Which parameters are tried: all of a small grid; of a large one those that Bayesian optimisation chooses.

use std::collections::{BTreeMap, BTreeSet};

use super::gaussian_process::GaussianProcess;
use kernel::template::Params;

/// How many are timed at a time.
const BATCH: usize = 8;

/// A search with a budget of this many has so many others all over the grid in its initial design. These numbers and
/// those below did best among a few on the times of a dozen problems that an H200 has measured.
const LARGE_BUDGET: usize = 40;
const N_SPREAD: usize = 16;

/// After so many rounds without an improvement a search ends, and by what part a time has to be less to be one.
const PATIENCE: u32 = 5;
const MIN_IMPROVEMENT: f64 = 0.005;

/// Times that differ by less than this part, as a standard deviation, are taken for noise.
const MIN_DEVIATION: f64 = 0.02;

/// A search through the legal parameters of one template, that says what is to be timed next: first its initial design,
/// such as [`initial_design`] gives; then all of them if the budget allows, else some more all over the grid and those
/// with the best acquisition: the lower confidence bound, one standard deviation below the mean, of a Gaussian process
/// over the logarithms of the times; at the end the neighbours of the fastest, again and again.
pub(crate) struct Search<'a> {
    legal: &'a [Params],
    initial_design: Option<Vec<Params>>,
    budget: usize,
    /// The coordinates of each of `legal`, and how long a step is along each axis.
    points: Vec<Vec<f64>>,
    steps: Vec<f64>,
    /// What was observed: times in microseconds.
    tried: BTreeMap<Params, Option<f64>>,
    n_rounds: u32,
    n_rounds_since_improvement: u32,
}

impl<'a> Search<'a> {
    /// - `budget`: parameters that are tried, at most
    pub(crate) fn new(legal: &'a [Params], initial_design: Vec<Params>, budget: usize) -> Self {
        let budget = budget.max(initial_design.len());
        let (points, steps) = points(legal);
        Self {
            legal,
            initial_design: Some(initial_design),
            budget,
            points,
            steps,
            tried: BTreeMap::new(),
            n_rounds: 0,
            n_rounds_since_improvement: 0,
        }
    }

    /// What is to be timed next; nothing at the end.
    ///
    /// - `incumbent_us`: the best time of any other way, in microseconds. A template that is twice as slow after the
    ///   initial design is left, and later one that is still slower by half, by a third, by a quarter
    pub(crate) fn next(&mut self, incumbent_us: f64) -> Vec<Params> {
        if let Some(initial_design) = self.initial_design.take() {
            return initial_design;
        }
        self.n_rounds += 1;
        if self.best_us() > incumbent_us * (1.0 + 1.0 / f64::from(self.n_rounds)) {
            return Vec::new();
        }
        if self.legal.len() <= self.budget {
            return self.legal.iter().filter(|params| !self.tried.contains_key(*params)).cloned().collect();
        }
        if self.n_rounds == 1 && self.budget >= LARGE_BUDGET {
            // Not where the rest of the initial design lies.
            let step = self.legal.len() / N_SPREAD;
            let spread = self.legal.iter().skip(step / 2).step_by(step);
            return spread.filter(|params| !self.tried.contains_key(*params)).cloned().collect();
        }
        let left = self.budget.saturating_sub(self.tried.len());
        let mut neighbours = self.neighbours_of_the_fastest();
        if self.n_rounds_since_improvement >= PATIENCE || left <= neighbours.len() {
            neighbours.truncate(left);
            return neighbours;
        }
        self.best_by_acquisition(left.min(BATCH))
    }

    /// Takes the results of candidates from [`Search::next`]: their times in microseconds, `None` for those that cannot
    /// be used.
    pub(crate) fn tell(&mut self, params: Vec<Params>, times_us: Vec<Option<f64>>) {
        let best_us = times_us.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let is_improvement = best_us < self.best_us() * (1.0 - MIN_IMPROVEMENT);
        self.n_rounds_since_improvement = if is_improvement { 0 } else { self.n_rounds_since_improvement + 1 };
        self.tried.extend(params.into_iter().zip(times_us));
    }

    /// How many were tried.
    pub(crate) fn n_tried(&self) -> usize {
        self.tried.len()
    }

    fn fastest(&self) -> Option<(&Params, f64)> {
        let timed = self.tried.iter().filter_map(|(params, time)| Some((params, (*time)?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn best_us(&self) -> f64 {
        self.fastest().map_or(f64::INFINITY, |(_, time)| time)
    }

    /// Those that differ from the fastest by one step of one parameter, and were not tried.
    fn neighbours_of_the_fastest(&self) -> Vec<Params> {
        let Some((fastest, _)) = self.fastest() else { return Vec::new() };
        let Some(at) = self.legal.iter().position(|params| params == fastest) else { return Vec::new() };
        let is_near = |point: &[f64]| {
            let mut steps = point.iter().zip(&self.points[at]).zip(&self.steps).filter(|((a, b), _)| a != b);
            match (steps.next(), steps.next()) {
                (Some(((a, b), step)), None) => (a - b).abs() < 1.5 * step,
                _ => false,
            }
        };
        let near = self.legal.iter().zip(&self.points).filter(|(_, point)| is_near(point));
        near.map(|(params, _)| params.clone()).filter(|params| !self.tried.contains_key(params)).collect()
    }

    /// Those with the least lower confidence bound, among those that were not tried. What cannot be used counts as the
    /// slowest of those that can, so that what is like it comes late.
    fn best_by_acquisition(&self, n: usize) -> Vec<Params> {
        let logs: Vec<f64> = self.tried.values().flatten().map(|us| us.ln()).collect();
        let n_logs = logs.len().max(1) as f64;
        let mean = logs.iter().sum::<f64>() / n_logs;
        let deviation = (logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / n_logs).sqrt().max(MIN_DEVIATION);
        let slowest = logs.iter().copied().fold(mean, f64::max);

        let mut posterior = GaussianProcess::new(&self.points);
        let mut open: Vec<usize> = Vec::new();
        for (i, params) in self.legal.iter().enumerate() {
            match self.tried.get(params) {
                Some(time) => posterior.observe(i, Some((time.map_or(slowest, f64::ln) - mean) / deviation)),
                None => open.push(i),
            }
        }
        let mut found = Vec::new();
        while found.len() < n && !open.is_empty() {
            let acquisition = |i: usize| posterior.mean(i) - posterior.deviation(i);
            let by_acquisition = |&a: &usize, &b: &usize| acquisition(open[a]).total_cmp(&acquisition(open[b]));
            let at = (0..open.len()).min_by(by_acquisition).unwrap_or(0);
            let i = open.remove(at);
            // The next one of this batch should tell something else.
            posterior.observe(i, None);
            found.push(self.legal[i].clone());
        }
        found
    }
}

/// What is tried before anything is known: the start, and others at equal distances in the list, at most so many.
pub(crate) fn initial_design(legal: &[Params], start: &Params, most: usize) -> Vec<Params> {
    let n = most.min(BATCH);
    let mut found = vec![start.clone()];
    for i in 0..n.saturating_sub(1) {
        let params = &legal[i * legal.len() / n];
        if !found.contains(params) {
            found.push(params.clone());
        }
    }
    found
}

/// The coordinates of each in the grid of all, by the ranks of its values among those that its parameters take: 0 is
/// the least and 1 the one that would follow the greatest, so that parameters with few values and with many have one
/// lengthscale. And how long a step is along each axis.
fn points(legal: &[Params]) -> (Vec<Vec<f64>>, Vec<f64>) {
    let mut values: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (name, value) in legal.iter().flatten() {
        values.entry(name).or_default().insert(*value);
    }
    let coordinate = |(name, value): (&String, &u32)| {
        let known = &values[name.as_str()];
        known.range(..value).count() as f64 / known.len() as f64
    };
    let points = legal.iter().map(|params| params.iter().map(coordinate).collect()).collect();
    (points, values.values().map(|known| 1.0 / known.len() as f64).collect())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn grid() -> Vec<Params> {
        let mut all = Vec::new();
        for a in 0..8 {
            for b in 0..8 {
                for c in 0..8 {
                    all.push([("a", a), ("b", b), ("c", c)].map(|(name, value)| (name.to_owned(), value)).into());
                }
            }
        }
        all
    }

    /// Times all that is asked for, until nothing is.
    fn search<'a>(
        legal: &'a [Params],
        start: &Params,
        budget: usize,
        incumbent_us: f64,
        time: impl Fn(&Params) -> Option<f64>,
    ) -> Search<'a> {
        let mut search = Search::new(legal, initial_design(legal, start, budget), budget);
        loop {
            let next = search.next(incumbent_us);
            if next.is_empty() {
                return search;
            }
            assert!(next.iter().all(|params| !search.tried.contains_key(params)), "each is timed once");
            let times = next.iter().map(&time).collect();
            search.tell(next, times);
        }
    }

    fn best<'a>(search: &'a Search<'_>) -> Option<&'a Params> {
        search.fastest().map(|(params, _)| params)
    }

    /// Least at a = 5, b = 2, c = 6.
    fn bowl(params: &Params) -> f64 {
        let distance = |name: &str, at: f64| (f64::from(params[name]) - at).powi(2);
        1.0 + distance("a", 5.0) + distance("b", 2.0) + distance("c", 6.0)
    }

    #[test]
    fn the_bottom_is_found_with_few_of_many() {
        let legal = grid();
        let found = search(&legal, &legal[0], 120, f64::INFINITY, |params| Some(bowl(params)));
        assert_eq!(best(&found).map(|params| params.values().copied().collect::<Vec<_>>()), Some(vec![5, 2, 6]));
        assert!(found.n_tried() <= 120, "{}", found.n_tried());
    }

    #[test]
    fn a_small_grid_is_tried_whole_and_once() {
        let legal = &grid()[..20];
        assert_eq!(search(legal, &legal[3], 20, f64::INFINITY, |_| Some(1.0)).n_tried(), 20);
    }

    #[test]
    fn a_template_that_is_far_behind_is_left_after_the_initial_design_and_one_a_little_behind_later() {
        let legal = grid();
        // It gets a little faster with every one that is tried.
        let n_tried = |incumbent_us| {
            let n = Cell::new(0);
            let time = |_: &Params| {
                n.set(n.get() + 1);
                Some(0.999_f64.powi(n.get()))
            };
            search(&legal, &legal[0], 200, incumbent_us, time).n_tried()
        };
        assert!((2..=BATCH).contains(&n_tried(0.49)), "{}", n_tried(0.49));
        let [behind, close] = [n_tried(0.6), n_tried(0.9)];
        assert!(BATCH < behind && behind < close, "{behind} {close}");
    }

    #[test]
    fn what_cannot_be_used_is_walked_around() {
        let legal = grid();
        // Nothing with a = 1 or 2 works: from a = 0 the bottom is beyond.
        let time = |params: &Params| (!matches!(params["a"], 1 | 2)).then(|| bowl(params));
        let found = search(&legal, &legal[0], 200, f64::INFINITY, time);
        assert_eq!(best(&found).map(|params| params["a"]), Some(5));
    }

    /// One that is good at one place only, beside the best of a bowl, where all that is seen of that side is bad.
    #[test]
    fn the_neighbours_of_the_fastest_are_tried_at_the_end() {
        let legal = grid();
        let time = |params: &Params| {
            let (a, b, c) = (f64::from(params["a"]), f64::from(params["b"]), f64::from(params["c"]));
            let bowl = 1.0 + (a - 5.0).powi(2) + (b - 2.0).powi(2);
            Some(if (a, b, c) == (5.0, 2.0, 1.0) { 0.8 } else { bowl * (1.0 + 1000.0 * c) })
        };
        let found = search(&legal, &legal[0], 100, f64::INFINITY, time);
        assert_eq!(best(&found).map(time), Some(Some(0.8)));
    }

    #[test]
    fn it_ends_where_nothing_can_be_used_and_where_all_are_alike() {
        let legal = grid();
        for time in [None, Some(1.0)] {
            let found = search(&legal, &legal[100], 400, f64::INFINITY, |_| time);
            assert!((2 * BATCH..=10 * BATCH).contains(&found.n_tried()), "{}", found.n_tried());
        }
    }

    /// Two parameters that are good only together, far from the start: where each alone is worse, a step downhill leads
    /// nowhere.
    #[test]
    fn what_is_good_only_together_is_found() {
        let legal = grid();
        let time = |params: &Params| {
            let [a, b, c] = ["a", "b", "c"].map(|name| f64::from(params[name]));
            Some(20.0 + (a - b).abs() - a - b + 0.5 * (c - 3.0).abs())
        };
        let found = search(&legal, &legal[0], 100, f64::INFINITY, time);
        let best = best(&found).expect("something was timed");
        assert!(time(best).is_some_and(|us| us <= 6.5), "{best:?}");
    }
}
