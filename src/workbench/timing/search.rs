//! Which parameters are tried: all of a small grid, of a large one a walk downhill.

use std::collections::{BTreeMap, BTreeSet};

use crate::template::Params;

/// How many a first look around takes in.
const LOOK_AROUND: usize = 8;

/// Which part of all that is tried a wider look around takes in, by those that are not left after the first.
const WIDER: usize = 6;

/// Those that are tried about the best so far, until one of them is better: in how many parameters they differ from it,
/// and by how many steps at most.
const NEAR: [(usize, usize); 4] = [(1, 1), (1, usize::MAX), (2, 1), (2, usize::MAX)];

/// A search through the legal parameters of one template, that says what is to be timed next: first those that it is
/// given, such as [`look_around`] does; then all of them if they are not too many, else some more all over the grid.
/// Then those that differ in one parameter from the best so far, by a step and then by more, again and again, and where
/// none of these is better those that differ in two.
pub struct Search<'a> {
    legal: &'a [Params],
    first: Option<Vec<Params>>,
    most: usize,
    grid: Grid<'a>,
    tried: BTreeMap<Params, Option<f64>>,
    /// What it looks about at present, and what of [`NEAR`] is tried next.
    around: (Option<Params>, usize),
    n_rounds: u32,
}

impl<'a> Search<'a> {
    /// - `most`: parameters that are tried, at most
    pub fn new(legal: &'a [Params], first: Vec<Params>, most: usize) -> Self {
        let most = most.max(first.len());
        let grid = Grid::of(legal);
        Self { legal, first: Some(first), most, grid, tried: BTreeMap::new(), around: (None, 0), n_rounds: 0 }
    }

    /// What is to be timed next; nothing at the end.
    ///
    /// - `rival_us`: the best time of any other way, in microseconds. Who is twice as slow after a first look around is
    ///   left, and later who is still slower by half, by a third, by a quarter
    pub fn next(&mut self, rival_us: f64) -> Vec<Params> {
        if let Some(first) = self.first.take() {
            return first;
        }
        let (best, best_us) = match self.best() {
            Some((params, time)) => (Some(params.clone()), time),
            None => (None, f64::INFINITY),
        };
        self.n_rounds += 1;
        if best_us > rival_us * (1.0 + 1.0 / f64::from(self.n_rounds)) {
            return Vec::new();
        }
        if self.legal.len() <= self.most {
            return self.legal.iter().filter(|params| !self.tried.contains_key(*params)).cloned().collect();
        }
        if self.n_rounds == 1 && self.most / WIDER > LOOK_AROUND {
            let step = self.legal.len() / (self.most / WIDER);
            // Not where the first look fell.
            let wider = self.legal.iter().skip(step / 2).step_by(step.max(1));
            let wider: Vec<Params> = wider.filter(|params| !self.tried.contains_key(*params)).cloned().collect();
            if !wider.is_empty() {
                return wider;
            }
        }
        // Where nothing is any good it looks about where it began.
        let Some(best) = best.or_else(|| self.around.0.clone()).or_else(|| self.legal.first().cloned()) else {
            return Vec::new();
        };
        if self.around.0.as_ref() != Some(&best) {
            self.around = (Some(best.clone()), 0);
        }
        let left = self.most.saturating_sub(self.tried.len());
        while let Some(&(n_changes, most_steps)) = NEAR.get(self.around.1) {
            self.around.1 += 1;
            let is_near = |params: &&Params| {
                let (changes, steps) = self.grid.distance(params, &best);
                changes == n_changes && steps <= most_steps && !self.tried.contains_key(*params)
            };
            let near: Vec<Params> = self.legal.iter().filter(is_near).take(left).cloned().collect();
            if !near.is_empty() {
                return near;
            }
        }
        Vec::new()
    }

    /// What came of those that [`Search::next`] gave: their times in microseconds, `None` for those that are not to be
    /// used.
    pub fn tell(&mut self, params: Vec<Params>, times_us: Vec<Option<f64>>) {
        if self.around.0.is_none() {
            self.around.0 = params.first().cloned();
        }
        self.tried.extend(params.into_iter().zip(times_us));
    }

    /// How many were tried.
    pub fn n_tried(&self) -> usize {
        self.tried.len()
    }

    fn best(&self) -> Option<(&Params, f64)> {
        let timed = self.tried.iter().filter_map(|(params, time)| Some((params, (*time)?)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// What is tried before anything is known: the start, and others at equal distances in the list, at most so many.
pub fn look_around(legal: &[Params], start: &Params, most: usize) -> Vec<Params> {
    let n = most.min(LOOK_AROUND);
    let mut found = vec![start.clone()];
    for i in 0..n.saturating_sub(1) {
        let params = &legal[i * legal.len() / n];
        if !found.contains(params) {
            found.push(params.clone());
        }
    }
    found
}

/// The values of each parameter, rising.
struct Grid<'a>(BTreeMap<&'a str, BTreeSet<u32>>);

impl<'a> Grid<'a> {
    fn of(legal: &'a [Params]) -> Self {
        let mut values: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for (name, value) in legal.iter().flatten() {
            values.entry(name).or_default().insert(*value);
        }
        Self(values)
    }

    /// In how many parameters two differ, and by how many steps in that in which they differ most.
    fn distance(&self, a: &Params, b: &Params) -> (usize, usize) {
        let pairs = a.iter().filter_map(|(name, value)| Some((name, *value, *b.get(name)?)));
        let steps = pairs.filter(|(_, a, b)| a != b).map(|(name, a, b)| {
            let between = self.0.get(name.as_str()).map(|values| values.range(a.min(b)..a.max(b)).count());
            between.unwrap_or(usize::MAX)
        });
        steps.fold((0, 0), |(n, most), steps| (n + 1, most.max(steps)))
    }
}

#[cfg(test)]
mod tests {
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

    /// Least at a = 5, b = 2, c = 6.
    fn bowl(params: &Params) -> f64 {
        let distance = |name: &str, at: f64| (f64::from(params[name]) - at).powi(2);
        1.0 + distance("a", 5.0) + distance("b", 2.0) + distance("c", 6.0)
    }

    #[test]
    fn a_walk_finds_the_bottom_with_few_of_many() {
        let legal = grid();
        let found = search(&legal, &legal[0], 120, f64::INFINITY, |params| Some(bowl(params)));
        assert_eq!(found.best().map(|(params, _)| params.values().copied().collect::<Vec<_>>()), Some(vec![5, 2, 6]));
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
        let n_tried = |rival_us| search(&legal, &legal[0], 200, rival_us, |_| Some(1.0)).n_tried();
        assert!((2..=LOOK_AROUND).contains(&n_tried(0.49)), "{}", n_tried(0.49));
        let [behind, close] = [n_tried(0.6), n_tried(0.9)];
        assert!(LOOK_AROUND < behind && behind < close, "{behind} {close}");
    }

    #[test]
    fn what_cannot_be_used_is_walked_around() {
        let legal = grid();
        // Nothing with a = 1 or 2 works: from a = 0 the bottom is beyond.
        let time = |params: &Params| (!matches!(params["a"], 1 | 2)).then(|| bowl(params));
        let found = search(&legal, &legal[0], 200, f64::INFINITY, time);
        assert_eq!(found.best().map(|(params, _)| params["a"]), Some(5));
    }

    #[test]
    fn where_nothing_can_be_used_the_neighbours_of_the_start_are_tried() {
        let legal = grid();
        let found = search(&legal, &legal[100], 60, f64::INFINITY, |_| None);
        assert!((30..=60).contains(&found.n_tried()), "{}", found.n_tried());
    }
}
