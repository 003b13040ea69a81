//! Which parameters are tried: all of a small grid; of a large one those that may be the fastest by what is known.

use std::collections::{BTreeMap, BTreeSet};

use super::gaussian_process::GaussianProcess;
use kernel::template::Params;

/// How many are asked for at a time.
const ROUND: usize = 8;

/// A search that may try so many looks wider around before it trusts what it knows, at so many others all over the
/// grid. These numbers and those below did best among a few on the times of a dozen problems that an H200 has measured.
const MANY: usize = 40;
const WIDER: usize = 16;

/// After so many rounds of which none found anything faster a search ends, and by what part a time has to be less to be
/// called faster.
const PATIENCE: u32 = 5;
const FASTER: f64 = 0.005;

/// Times that differ by less than this part, as a standard deviation, are taken for noise.
const LEAST_SPREAD: f64 = 0.02;

/// A search through the legal parameters of one template, that says what is to be timed next: first those that it is
/// given, such as [`look_around`] does; then all of them if they are not too many, else some more all over the grid and
/// those that a Gaussian process over the logarithms of the times believes to be the fastest, less one standard
/// deviation of what it does not know; at the end those that are one step from the fastest, again and again.
pub(crate) struct Search<'a> {
    legal: &'a [Params],
    first: Option<Vec<Params>>,
    most: usize,
    /// Where each of `legal` lies, and how long a step is along each axis.
    places: Vec<Vec<f64>>,
    steps: Vec<f64>,
    tried: BTreeMap<Params, Option<f64>>,
    /// How many rounds there were, and how many of them since something faster was found.
    n_rounds: u32,
    n_vain: u32,
}

impl<'a> Search<'a> {
    /// - `most`: parameters that are tried, at most
    pub(crate) fn new(legal: &'a [Params], first: Vec<Params>, most: usize) -> Self {
        let most = most.max(first.len());
        let (places, steps) = places(legal);
        let tried = BTreeMap::new();
        Self { legal, first: Some(first), most, places, steps, tried, n_rounds: 0, n_vain: 0 }
    }

    /// What is to be timed next; nothing at the end.
    ///
    /// - `rival_us`: the best time of any other way, in microseconds. Who is twice as slow after a first look around is
    ///   left, and later who is still slower by half, by a third, by a quarter
    pub(crate) fn next(&mut self, rival_us: f64) -> Vec<Params> {
        if let Some(first) = self.first.take() {
            return first;
        }
        self.n_rounds += 1;
        if self.best_us() > rival_us * (1.0 + 1.0 / f64::from(self.n_rounds)) {
            return Vec::new();
        }
        if self.legal.len() <= self.most {
            return self.legal.iter().filter(|params| !self.tried.contains_key(*params)).cloned().collect();
        }
        if self.n_rounds == 1 && self.most >= MANY {
            // Not where the first look fell.
            let step = self.legal.len() / WIDER;
            let wider = self.legal.iter().skip(step / 2).step_by(step);
            return wider.filter(|params| !self.tried.contains_key(*params)).cloned().collect();
        }
        let left = self.most.saturating_sub(self.tried.len());
        let mut near = self.near_the_fastest();
        if self.n_vain >= PATIENCE || left <= near.len() {
            near.truncate(left);
            return near;
        }
        self.promising(left.min(ROUND))
    }

    /// What came of those that [`Search::next`] gave: their times in microseconds, `None` for those that are not to be
    /// used.
    pub(crate) fn tell(&mut self, params: Vec<Params>, times_us: Vec<Option<f64>>) {
        let best_us = times_us.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        self.n_vain = if best_us < self.best_us() * (1.0 - FASTER) { 0 } else { self.n_vain + 1 };
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
    fn near_the_fastest(&self) -> Vec<Params> {
        let Some((fastest, _)) = self.fastest() else { return Vec::new() };
        let Some(at) = self.legal.iter().position(|params| params == fastest) else { return Vec::new() };
        let is_near = |place: &[f64]| {
            let mut steps = place.iter().zip(&self.places[at]).zip(&self.steps).filter(|((a, b), _)| a != b);
            match (steps.next(), steps.next()) {
                (Some(((a, b), step)), None) => (a - b).abs() < 1.5 * step,
                _ => false,
            }
        };
        let near = self.legal.iter().zip(&self.places).filter(|(_, place)| is_near(place));
        near.map(|(params, _)| params.clone()).filter(|params| !self.tried.contains_key(params)).collect()
    }

    /// Those of which most is hoped, among those that were not tried. What cannot be used counts as the slowest of
    /// those that can, so that what is like it comes late.
    fn promising(&self, n: usize) -> Vec<Params> {
        let logs: Vec<f64> = self.tried.values().flatten().map(|us| us.ln()).collect();
        let n_logs = logs.len().max(1) as f64;
        let mean = logs.iter().sum::<f64>() / n_logs;
        let spread = (logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / n_logs).sqrt().max(LEAST_SPREAD);
        let slowest = logs.iter().copied().fold(mean, f64::max);

        let mut belief = GaussianProcess::new(&self.places);
        let mut open: Vec<usize> = Vec::new();
        for (i, params) in self.legal.iter().enumerate() {
            match self.tried.get(params) {
                Some(time) => belief.observe(i, Some((time.map_or(slowest, f64::ln) - mean) / spread)),
                None => open.push(i),
            }
        }
        let mut found = Vec::new();
        while found.len() < n && !open.is_empty() {
            let hope = |i: usize| belief.mean(i) - belief.deviation(i);
            let at = (0..open.len()).min_by(|&a, &b| hope(open[a]).total_cmp(&hope(open[b]))).unwrap_or(0);
            let i = open.remove(at);
            // The next one of this round should tell something else.
            belief.observe(i, None);
            found.push(self.legal[i].clone());
        }
        found
    }
}

/// What is tried before anything is known: the start, and others at equal distances in the list, at most so many.
pub(crate) fn look_around(legal: &[Params], start: &Params, most: usize) -> Vec<Params> {
    let n = most.min(ROUND);
    let mut found = vec![start.clone()];
    for i in 0..n.saturating_sub(1) {
        let params = &legal[i * legal.len() / n];
        if !found.contains(params) {
            found.push(params.clone());
        }
    }
    found
}

/// Where each lies in the grid of all, by the places of its values among those that its parameters take: 0 is the least
/// and 1 the one that would follow the greatest, so that parameters with few values and with many count alike. And how
/// long a step is along each axis.
fn places(legal: &[Params]) -> (Vec<Vec<f64>>, Vec<f64>) {
    let mut values: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (name, value) in legal.iter().flatten() {
        values.entry(name).or_default().insert(*value);
    }
    let place = |(name, value): (&String, &u32)| {
        let known = &values[name.as_str()];
        known.range(..value).count() as f64 / known.len() as f64
    };
    let places = legal.iter().map(|params| params.iter().map(place).collect()).collect();
    (places, values.values().map(|known| 1.0 / known.len() as f64).collect())
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
        most: usize,
        rival_us: f64,
        time: impl Fn(&Params) -> Option<f64>,
    ) -> Search<'a> {
        let mut search = Search::new(legal, look_around(legal, start, most), most);
        loop {
            let next = search.next(rival_us);
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
    fn a_template_that_is_far_behind_is_left_after_a_look_around_and_one_a_little_behind_later() {
        let legal = grid();
        // It gets a little faster with every one that is tried.
        let n_tried = |rival_us| {
            let n = Cell::new(0);
            let time = |_: &Params| {
                n.set(n.get() + 1);
                Some(0.999_f64.powi(n.get()))
            };
            search(&legal, &legal[0], 200, rival_us, time).n_tried()
        };
        assert!((2..=ROUND).contains(&n_tried(0.49)), "{}", n_tried(0.49));
        let [behind, close] = [n_tried(0.6), n_tried(0.9)];
        assert!(ROUND < behind && behind < close, "{behind} {close}");
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
            assert!((2 * ROUND..=10 * ROUND).contains(&found.n_tried()), "{}", found.n_tried());
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
