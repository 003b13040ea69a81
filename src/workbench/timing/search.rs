//! Which parameters are tried: all of a small grid, of a large one a walk downhill.

use std::collections::{BTreeMap, BTreeSet};

use crate::template::Params;

/// Times parameters; `None` for those that are not to be used.
pub type Measure<'m> = &'m mut dyn FnMut(Vec<Params>) -> Vec<Option<f64>>;

/// How far a search goes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most parameters that are tried.
    pub most: usize,
    /// The search ends after its first look around if nothing is faster than this, in microseconds.
    pub hopeless_us: f64,
}

/// How many a first look around takes in.
const LOOK_AROUND: usize = 8;

/// Tries legal parameters: `first`, such as [`look_around`] gives; then all of them if they are not too many, else
/// those that differ in one parameter from the best so far, by a step and then by more, again and again, and where none
/// of these is better those that differ in two. Gives all that were tried.
pub fn search(
    legal: &[Params],
    first: Vec<Params>,
    limits: Limits,
    measure: Measure<'_>,
) -> BTreeMap<Params, Option<f64>> {
    let most = limits.most;
    let mut tried = BTreeMap::new();
    let Some(start) = first.first().cloned() else { return tried };
    try_all(first, &mut tried, measure);
    let fastest = tried.values().flatten().copied().fold(f64::INFINITY, f64::min);
    if fastest > limits.hopeless_us {
        return tried;
    }
    if legal.len() <= most {
        let rest = legal.iter().filter(|params| !tried.contains_key(*params)).cloned().collect();
        try_all(rest, &mut tried, measure);
        return tried;
    }
    let grid = Grid::of(legal);
    loop {
        let before = best(&tried).unwrap_or(&start).clone();
        let mut is_better = false;
        for (n_changes, most_steps) in [(1, 1), (1, usize::MAX), (2, 1), (2, usize::MAX)] {
            let is_near = |params: &&Params| {
                let (changes, steps) = grid.distance(params, &before);
                changes == n_changes && steps <= most_steps && !tried.contains_key(*params)
            };
            let left = most.saturating_sub(tried.len());
            let near: Vec<Params> = legal.iter().filter(is_near).take(left).cloned().collect();
            try_all(near, &mut tried, measure);
            is_better = best(&tried).is_some_and(|best| *best != before);
            if is_better {
                break;
            }
        }
        if !is_better || tried.len() >= most {
            return tried;
        }
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

fn try_all(params: Vec<Params>, tried: &mut BTreeMap<Params, Option<f64>>, measure: Measure<'_>) {
    if !params.is_empty() {
        let times = measure(params.clone());
        tried.extend(params.into_iter().zip(times));
    }
}

fn best(tried: &BTreeMap<Params, Option<f64>>) -> Option<&Params> {
    let timed = tried.iter().filter_map(|(params, time)| Some((params, (*time)?)));
    timed.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(params, _)| params)
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

    fn at_most(most: usize) -> Limits {
        Limits { most, hopeless_us: f64::INFINITY }
    }

    fn around(legal: &[Params], start: &Params, limits: Limits) -> Vec<Params> {
        look_around(legal, start, limits.most)
    }

    /// Least at a = 5, b = 2, c = 6.
    fn bowl(params: &Params) -> f64 {
        let distance = |name: &str, at: f64| (f64::from(params[name]) - at).powi(2);
        1.0 + distance("a", 5.0) + distance("b", 2.0) + distance("c", 6.0)
    }

    #[test]
    fn a_walk_finds_the_bottom_with_few_of_many() {
        let legal = grid();
        let mut n_measured = 0;
        let tried = search(&legal, around(&legal, &legal[0], at_most(120)), at_most(120), &mut |params| {
            n_measured += params.len();
            params.iter().map(|params| Some(bowl(params))).collect()
        });
        assert_eq!(best(&tried).map(|params| params.values().copied().collect::<Vec<_>>()), Some(vec![5, 2, 6]));
        assert!(n_measured == tried.len() && n_measured <= 120, "{n_measured}");
    }

    #[test]
    fn a_small_grid_is_tried_whole_and_once() {
        let legal = &grid()[..20];
        let tried = search(legal, around(legal, &legal[3], at_most(20)), at_most(20), &mut |params| {
            vec![Some(1.0); params.len()]
        });
        assert_eq!(tried.len(), 20);
    }

    #[test]
    fn a_template_that_is_far_behind_is_left_after_a_look_around() {
        let legal = grid();
        let limits = Limits { most: 200, hopeless_us: 0.5 };
        let tried =
            search(&legal, around(&legal, &legal[0], limits), limits, &mut |params| vec![Some(1.0); params.len()]);
        assert!((2..=LOOK_AROUND).contains(&tried.len()), "{}", tried.len());
    }

    #[test]
    fn what_cannot_be_used_is_walked_around() {
        let legal = grid();
        // Nothing with a = 1 or 2 works: from a = 0 the bottom is beyond.
        let tried = search(&legal, around(&legal, &legal[0], at_most(200)), at_most(200), &mut |params| {
            params.iter().map(|params| (!matches!(params["a"], 1 | 2)).then(|| bowl(params))).collect()
        });
        assert_eq!(best(&tried).map(|params| params["a"]), Some(5));
    }
}
