//! Selects the cases: every test shape at every legal dtype, with its parameters and scalars.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Selection;
use format::Dtype;
use kernel::target::Target;
use kernel::template::contract::{Access, Arg, ArgDtype, TestShape};
use kernel::template::{Params, Precision, Problem, Template};
use kernel::tuning::TuningTables;
use reference::{self, Case, Outputs, ReferenceError, Tensors};
use system::units::counted;

/// A grid of parameters up to this many points is run whole.
pub(crate) const MAX_POINTS: usize = 32;

/// The scalar that counts rows.
const ROWS: &str = "n_tokens";

/// Scalar arguments of a launch by name.
pub(super) type Scalars = BTreeMap<String, f64>;

/// One kernel to render, and the scalars that it is run with.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub(crate) problem: Problem,
    pub(crate) params: Params,
    pub(crate) scalars: Vec<Scalars>,
    /// The type of the activations that it reads; none if it reads none.
    activation: Option<Dtype>,
    /// The kind of random inputs that the test asks for.
    inputs: Option<String>,
    /// Whether the parameters are not the ones taken by default.
    is_varied: bool,
    /// Whether only at the first and the last of the scalars tensors lie otherwise and workspace is used again.
    pub is_thin: bool,
    /// Whether each of the scalars is launched once, over a fresh workspace.
    pub is_once: bool,
    seed: u64,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { dims, constants, flags, dtypes, .. } = &self.problem;
        let lists = [list(dims), list(constants), list(flags), list(dtypes)];
        let lists: Vec<String> = lists.into_iter().filter(|list| !list.is_empty()).collect();
        write!(f, "{}", lists.join(", "))?;
        if let Some(kind) = &self.inputs {
            write!(f, ", inputs {kind}")?;
        }
        if self.is_varied { write!(f, " ({})", list(&self.params)) } else { Ok(()) }
    }
}

/// `a 1, b 2`.
pub(super) fn list<T: fmt::Display>(values: &BTreeMap<String, T>) -> String {
    values.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

/// The scalars that shapes may use.
pub(crate) fn whole(scalars: &Scalars) -> BTreeMap<String, u64> {
    scalars.iter().map(|(name, &value)| (name.clone(), value as u64)).collect()
}

/// Types of a name beyond so many are formats whose numbers kernels read by the same text as those of formats before
/// them, but for a function of a few lines.
const COMMON_TYPES: usize = 4;

/// Everything that a template is run on at a precision. Empty if no test fits it. The first shape that fits is run with
/// every combination of dtypes, the others with as few as have every dtype. A template that has shapes of its own is
/// run there with the parameters that tables can choose, another one everywhere.
pub(super) fn trials(template: &Template, precision: Precision, target: &Target, which: &Selection) -> Vec<Trial> {
    let mut trials = Vec::new();
    let is_activation = |arg: &Arg| arg.dtype == ArgDtype::Activation && arg.access != Access::Write;
    let activation = template.signature.args.iter().any(is_activation).then(|| precision.activation());
    let of_ops = template.signature.tests();
    let of_ops = if which.own_tests { &[][..] } else { &of_ops };
    let mut n_shapes: usize = 0; // that fit
    for (i, test) in of_ops.iter().chain(&template.tests).enumerate() {
        let is_for_tables = template.tests.is_empty() || i >= of_ops.len();
        let tables = which.tables.as_deref().filter(|_| is_for_tables);
        let all = with_all_dtypes(template, test, precision).into_iter();
        let mut fitting: Vec<Problem> = all.filter(|problem| template.fits(problem, target).is_ok()).collect();
        if which.first_shape && !trials.is_empty() {
            break;
        }
        let is_first = trials.is_empty();
        let nth_shape = if is_first { None } else { Some([i, of_ops.len() + template.tests.len() - 1]) };
        let further =
            if which.is_thin { take_further(&mut fitting, template, precision, which, nth_shape) } else { vec![] };
        let mut problems = if is_first { fitting } else { with_every_dtype(fitting) };
        let of_types = which.half.filter(|_| problems.len() > 1 && !which.own_tests);
        let mut half = of_types.map(|half| half + nth_precision(precision));
        if let Some(kept) = half.filter(|_| trials.is_empty()).and_then(|half| every_other_choice(&problems, half)) {
            (problems, half) = (kept, None); // each of them at all of its rows
        }
        // So it is at other shapes of a thin trial: types go in turn to precisions, of which the first shape has both,
        // or, of one precision, to the halves.
        let goes_by_types = which.is_thin && !is_first && problems.len() > 1;
        // By two shapes: those of which every other one has a bias have all of its types, too.
        let turn = n_shapes.div_ceil(2);
        if let Some(skipped) = half.take_if(|_| goes_by_types) {
            problems = problems.into_iter().skip((skipped + turn) % 2).step_by(2).collect();
        }
        n_shapes += usize::from(!problems.is_empty());
        let n_common = problems.len();
        for (k, problem) in problems.into_iter().chain(further).enumerate() {
            // Around its tiles, other types are no other tiles.
            let tables = tables.filter(|_| k == 0 || template.tests.is_empty() && k < n_common);
            let half = if k < n_common { half } else { Some(i) };
            let points = points(template, &problem, target, which, tables).into_iter().enumerate();
            // Around its tiles, of half of the cases, tables' parameters go in turn to shapes.
            let half_of_tables = which.half.filter(|_| which.own_tests);
            let is_run = |n: usize| n == 0 || half_of_tables.is_none_or(|half| (n + half + turn).is_multiple_of(2));
            for (n, params) in points.filter(|(n, _)| is_run(*n)) {
                let (problem, mut scalars, inputs) = (problem.clone(), all_scalars(test), test.inputs.clone());
                if which.more_rows && trials.is_empty() {
                    scalars.extend(with_more_rows(&scalars, template));
                }
                if let Some(half) = half {
                    scalars = every_other(scalars, half + k);
                }
                let (is_varied, is_thin, seed) = (n > 0 || !which.params.is_empty(), which.is_thin, i as u64);
                let is_new = |(name, dtype): (&String, &Dtype)| {
                    !trials.iter().any(|trial: &Trial| !trial.is_once && trial.problem.dtypes.get(name) == Some(dtype))
                };
                let is_once = is_thin && !is_first && (k > 0 || is_varied) && !problem.dtypes.iter().any(is_new);
                trials.push(Trial { problem, params, scalars, activation, inputs, is_varied, is_thin, is_once, seed });
            }
        }
    }
    trials
}

/// Rows of a case that has several tiles of most kernels, the last one not full, and is cheap: of a shape's cases those
/// with the most rows up to these come first.
const TELLING_ROWS: f64 = 40.0;

/// Puts trials into an order in which mistakes are found soon: types of released models first, the small before the
/// large, those with an axis of one element last, dims that fill no tile and those that do in turn; and within each the
/// cases of several tiles before those of one row, and those of very many last.
pub(super) fn most_likely_to_fail_first(trials: &mut [Trial]) {
    trials.sort_by_cached_key(|trial| {
        let Problem { dims, dtypes, .. } = &trial.problem;
        let of_f32 = dtypes.values().filter(|dtype| **dtype == Dtype::F32).count();
        let size: u64 = dims.values().fold(1, |size: u64, &dim| size.saturating_mul(dim.max(1).into()));
        (trial.is_varied, of_f32, dims.values().any(|dim| *dim == 1), size)
    });
    let is_even = |trial: &Trial| trial.problem.dims.values().all(|dim| dim.is_multiple_of(8));
    let mut n: BTreeMap<(bool, usize, bool), usize> = BTreeMap::new();
    trials.sort_by_cached_key(|trial| {
        let of_f32 = trial.problem.dtypes.values().filter(|dtype| **dtype == Dtype::F32).count();
        let nth = n.entry((trial.is_varied, of_f32, is_even(trial))).or_default();
        *nth += 1;
        (trial.is_varied, of_f32, *nth, is_even(trial))
    });
    for trial in trials {
        trial.scalars.sort_by_key(|scalars| {
            let rows = scalars.get(ROWS).copied().unwrap_or_default();
            (rows > TELLING_ROWS, if rows > TELLING_ROWS { rows as i64 } else { -(rows as i64) })
        });
    }
}

/// The parameters taken by default; those that tables can choose, where tables are given; and where all are asked for
/// the others.
fn points(
    template: &Template,
    problem: &Problem,
    target: &Target,
    which: &Selection,
    tables: Option<&TuningTables>,
) -> Vec<Params> {
    if !which.params.is_empty() {
        return template.resolve_params(&which.params, problem, target).into_iter().collect();
    }
    let all_params = which.all_params;
    let all = template.legal_params(problem, target);
    let legal: Vec<Params> = all.take(if all_params { usize::MAX } else { 1 }).collect();
    let Some(first) = legal.first().cloned() else { return Vec::new() };
    let n_changes = |params: &Params| params.iter().filter(|(name, value)| first[*name] != **value).count();
    let most = match all_params {
        false => 0,
        true if legal.len() <= MAX_POINTS => usize::MAX,
        true => 1,
    };
    let mut points: Vec<Params> = legal.iter().filter(|params| n_changes(params) <= most).cloned().collect();
    for params in tables.iter().flat_map(|tables| tables.params_of(&template.label(), &problem.query(), target)) {
        // What a table says and a constraint forbids here is not chosen here.
        let Ok(params) = template.resolve_params(params, problem, target) else { continue };
        if !points.contains(&params) {
            points.push(params);
        }
    }
    points
}

/// At how many of its shapes default parameters are not allowed, why, and what ran in their place.
pub(super) fn passed_over(template: &Template, trials: &[Trial], target: &Target, which: &Selection) -> Option<String> {
    if !which.params.is_empty() {
        return None;
    }
    let (mut shapes, mut refusing) = (BTreeSet::new(), BTreeSet::new());
    let (mut why, mut ran) = (None, Vec::new());
    for trial in trials.iter().filter(|trial| !trial.is_varied) {
        shapes.insert(trial.seed); // each test has its own
        if let Err(refused) = template.resolve_params(&Params::new(), &trial.problem, target) {
            refusing.insert(trial.seed);
            why.get_or_insert(refused);
            let params = list(&trial.params);
            if !ran.contains(&params) {
                ran.push(params);
            }
        }
    }
    let (why, ran) = (why?, ran.join(" or "));
    let (at, there) = match (refusing.len(), shapes.len()) {
        (some, all) if some < all => (format!(" at {some} of {}", counted(all, "shape")), " there"),
        _ => Default::default(),
    };
    Some(format!("the default parameters are passed over{at}: {why}; ran{there} with {ran}"))
}

/// A test with every combination of the dtypes that the contract allows its arguments.
fn with_all_dtypes(template: &Template, test: &TestShape, precision: Precision) -> Vec<Problem> {
    let mut all = vec![BTreeMap::new()];
    for (name, allowed) in &template.signature.dtypes {
        let with = |dtype: &Dtype| all.iter().map(|one| with_value(one, name, *dtype)).collect::<Vec<_>>();
        all = allowed.iter().flat_map(with).collect();
    }
    let mut problems: Vec<Problem> = Vec::new();
    for dtypes in all {
        let mut problem = Problem {
            ops: template.ops.clone(),
            dims: test.dims.clone(),
            constants: test.constants.clone(),
            flags: test.flags.clone(),
            dtypes,
            precision,
            keeps: template.keeps.clone(),
        };
        template.signature.drop_absent_dtypes(&mut problem);
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    problems
}

/// Takes the problems with types beyond the common ones out, and gives those that are run nevertheless: each such type
/// with one of the choices of the others, at the first shape, `None`, and one of the others, `[nth, of]`; of two
/// precisions at one, and in the other half at the other one.
fn take_further(
    problems: &mut Vec<Problem>,
    template: &Template,
    precision: Precision,
    which: &Selection,
    nth_shape: Option<[usize; 2]>,
) -> Vec<Problem> {
    let nth = |problem: &Problem| {
        let places = problem.dtypes.iter().filter_map(|(name, dtype)| {
            let allowed = template.signature.dtypes.get(name)?;
            allowed.iter().position(|one| one == dtype).filter(|place| *place >= COMMON_TYPES)
        });
        places.max()
    };
    let (further, common): (Vec<Problem>, Vec<Problem>) = problems.drain(..).partition(|one| nth(one).is_some());
    *problems = common;
    if problems.is_empty() {
        return further; // it takes no others
    }
    // A fused kernel reads them as the op's own does.
    if which.own_tests || which.common_types || nth_shape.is_some() && template.ops.len() > 1 {
        return Vec::new();
    }
    let mut by_type: BTreeMap<usize, Vec<Problem>> = BTreeMap::new();
    further.into_iter().for_each(|one| by_type.entry(nth(&one).unwrap_or_default()).or_default().push(one));
    let n_precisions = template.precisions().count().max(1);
    let turn = nth_precision(precision) + which.half.unwrap_or_default();
    by_type.retain(|place, _| {
        let is_at_shape = nth_shape.is_none_or(|[i, of]| place % of.max(1) == i % of.max(1));
        is_at_shape && (place + turn).is_multiple_of(n_precisions)
    });
    by_type.into_iter().map(|(place, mut choices)| choices.swap_remove(place / 2 % choices.len())).collect()
}

/// As few of these problems as have every dtype that any of them has.
fn with_every_dtype(mut problems: Vec<Problem>) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    let mut kept = Vec::new();
    loop {
        let n_new = |problem: &Problem| problem.dtypes.iter().filter(|entry| !seen.contains(&owned(*entry))).count();
        // Of equally many the first.
        let best = (0..problems.len()).rev().max_by_key(|&i| n_new(&problems[i]));
        match best.filter(|&i| kept.is_empty() || n_new(&problems[i]) > 0) {
            None => return kept,
            Some(i) => {
                let problem = problems.remove(i);
                seen.extend(problem.dtypes.iter().map(owned));
                kept.push(problem);
            }
        }
    }
}

/// Of every combination of dtypes the even ones or the odd ones, as the fields of a chessboard are light or dark: each
/// dtype of one name is still there with each of another at one of two `n`. `None` where only one name has several, or
/// where a dtype would be left out.
fn every_other_choice(problems: &[Problem], n: usize) -> Option<Vec<Problem>> {
    let mut seen: BTreeMap<&str, Vec<Dtype>> = BTreeMap::new();
    for (name, dtype) in problems.iter().flat_map(|problem| &problem.dtypes) {
        let dtypes = seen.entry(name).or_default();
        if !dtypes.contains(dtype) {
            dtypes.push(*dtype);
        }
    }
    if seen.values().filter(|dtypes| dtypes.len() > 1).count() < 2 {
        return None;
    }
    let place = |(name, dtype): (&String, &Dtype)| seen[name.as_str()].iter().position(|one| one == dtype);
    let is_kept = |problem: &&Problem| (problem.dtypes.iter().filter_map(place).sum::<usize>() + n).is_multiple_of(2);
    let kept: Vec<Problem> = problems.iter().filter(is_kept).cloned().collect();
    let entries =
        |problems: &[Problem]| problems.iter().flat_map(|one| &one.dtypes).map(owned).collect::<BTreeSet<_>>();
    (entries(&kept) == entries(problems)).then_some(kept)
}

fn owned((name, dtype): (&String, &Dtype)) -> (String, Dtype) {
    (name.clone(), *dtype)
}

fn all_scalars(test: &TestShape) -> Vec<Scalars> {
    let mut all = vec![Scalars::new()];
    for (name, values) in &test.scalars {
        let with = |value: &f64| all.iter().map(|one| with_value(one, name, *value)).collect::<Vec<_>>();
        all = values.values().iter().flat_map(with).collect();
    }
    all
}

/// Whether it is the first or the second precision: of one template, or of two of one op that have one each.
fn nth_precision(precision: Precision) -> usize {
    usize::from(precision == Precision::Bf16)
}

/// The even ones or the odd ones; a single one always.
fn every_other(scalars: Vec<Scalars>, n: usize) -> Vec<Scalars> {
    let skipped = if scalars.len() > 1 { n % 2 } else { 0 };
    scalars.into_iter().skip(skipped).step_by(2).collect()
}

/// Scalars with more rows than the test has, by up to half of them and eight: drawn, and for a template always the
/// same.
fn with_more_rows(scalars: &[Scalars], template: &Template) -> Option<Scalars> {
    let with_rows = scalars.iter().filter_map(|scalars| Some((scalars, *scalars.get(ROWS)?)));
    let (most, n_rows) = with_rows.max_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let n_rows = n_rows as u64;
    let mixed = |mixed: u64, byte: u8| (mixed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3); // FNV-1a
    let drawn = template.label().bytes().fold(0xcbf2_9ce4_8422_2325, mixed) >> 32;
    Some(with_value(most, ROWS, n_rows.saturating_add(1 + drawn % (n_rows / 2 + 8)) as f64))
}

fn with_value<T: Clone>(one: &BTreeMap<String, T>, name: &str, value: T) -> BTreeMap<String, T> {
    let mut one = one.clone();
    one.insert(name.to_owned(), value);
    one
}

impl Trial {
    /// Inputs for these scalars, and what should come out.
    pub(crate) fn prepare(&self, scalars: &Scalars) -> Result<(Tensors, Outputs), ReferenceError> {
        let (ops, case) = (&self.problem.ops, self.case(scalars));
        let seed =
            scalars.values().fold(self.seed, |seed, value| seed.wrapping_mul(1_000_003).wrapping_add(*value as u64));
        let inputs = reference::inputs(ops, &case, seed)?;
        let want = reference::run(ops, &case, &inputs)?;
        Ok((inputs, want))
    }

    /// What should come out if activations were not rounded; none if they are not, or it reads none.
    pub(crate) fn of_unrounded(&self, scalars: &Scalars) -> Option<Result<Outputs, ReferenceError>> {
        self.activation.filter(|dtype| *dtype != Dtype::F32)?;
        let unrounded = Self { activation: Some(Dtype::F32), ..self.clone() };
        Some(unrounded.prepare(scalars).map(|(_, want)| want))
    }

    /// What should come out of these inputs.
    pub(crate) fn reference(&self, scalars: &Scalars, inputs: &Tensors) -> Result<Outputs, ReferenceError> {
        reference::run(&self.problem.ops, &self.case(scalars), inputs)
    }

    /// All that inputs and reference depend on: neither template nor chip, parameters or, but for the type of
    /// activations, precision.
    pub(crate) fn problem_key(&self, scalars: &Scalars) -> String {
        format!("{:?} {:?} {}", self.problem.ops, self.case(scalars), self.seed)
    }

    fn case(&self, scalars: &Scalars) -> Case {
        let Problem { dims, constants, flags, dtypes, .. } = &self.problem;
        Case {
            dims: dims.clone(),
            constants: constants.clone(),
            flags: flags.clone(),
            dtypes: dtypes.clone(),
            activation: self.activation,
            inputs: self.inputs.clone(),
            scalars: scalars.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
