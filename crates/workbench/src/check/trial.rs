//! What is run: every test shape at every legal dtype, with its parameters and scalars.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::Selection;
use format::Dtype;
use kernel::target::Target;
use kernel::template::contract::{Access, Arg, ArgDtype, TestShape};
use kernel::template::{Params, Precision, Problem, Template};
use kernel::tuning::TuningTables;
use reference::{self, Case, Outputs, ReferenceError, Tensors};

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
    /// The type of the activations that it reads; none where it reads none.
    activation: Option<Dtype>,
    /// The kind of random inputs that the test asks for.
    inputs: Option<String>,
    /// Whether the parameters are not the ones taken by default.
    is_varied: bool,
    /// Whether only at the first and the last of the scalars tensors lie otherwise and workspace is used again.
    pub is_thin: bool,
    /// Whether each of the scalars is launched once, over workspace that nobody used.
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

/// Everything that a template is run on at a precision. Empty if no test fits it. The first shape that fits is run with
/// every combination of dtypes, the others with as few as have every dtype. A template that has shapes of its own is
/// run there with the parameters that tables can choose, another one everywhere.
pub(super) fn trials(template: &Template, precision: Precision, target: &Target, which: &Selection) -> Vec<Trial> {
    let mut trials = Vec::new();
    let is_activation = |arg: &Arg| arg.dtype == ArgDtype::Activation && arg.access != Access::Write;
    let activation = template.signature.args.iter().any(is_activation).then(|| precision.activation());
    let of_ops = template.signature.tests();
    let of_ops = if which.own_tests { &[][..] } else { &of_ops };
    for (i, test) in of_ops.iter().chain(&template.tests).enumerate() {
        let is_for_tables = template.tests.is_empty() || i >= of_ops.len();
        let tables = which.tables.as_deref().filter(|_| is_for_tables);
        let all = with_all_dtypes(template, test, precision).into_iter();
        let fitting: Vec<Problem> = all.filter(|problem| template.fits(problem, target).is_ok()).collect();
        if which.first_shape && !trials.is_empty() {
            break;
        }
        let is_first = trials.is_empty();
        let mut problems = if is_first { fitting } else { with_every_dtype(fitting) };
        let mut half = which.half.filter(|_| problems.len() > 1).map(|half| half + nth_precision(template, precision));
        if let Some(kept) = half.filter(|_| trials.is_empty()).and_then(|half| every_other_choice(&problems, half)) {
            (problems, half) = (kept, None); // each of them at all of its rows
        }
        // So it is at other shapes of a thin trial: types go in turn to precisions, of which the first shape has both.
        let goes_by_types = which.is_thin && !is_first && problems.len() > 1 && template.precisions().count() > 1;
        if let Some(skipped) = half.take_if(|_| goes_by_types) {
            problems = problems.into_iter().skip((skipped + i) % 2).step_by(2).collect();
        }
        for (k, problem) in problems.into_iter().enumerate() {
            // Around its tiles, other types are no other tiles.
            let tables = tables.filter(|_| k == 0 || template.tests.is_empty());
            for (n, params) in points(template, &problem, target, which.all_params, tables).into_iter().enumerate() {
                let (problem, mut scalars, inputs) = (problem.clone(), all_scalars(test), test.inputs.clone());
                if which.more_rows && trials.is_empty() {
                    scalars.extend(with_more_rows(&scalars, template));
                }
                if let Some(half) = half {
                    scalars = every_other(scalars, half + k);
                }
                let (is_varied, is_thin, seed) = (n > 0, which.is_thin, i as u64);
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

/// Puts trials into an order in which mistakes are found soon: types of released models first, dims that fill no tile
/// before those that do, the small before the large; and within each the cases of several tiles before those of one
/// row, and those of very many last.
pub(super) fn most_likely_to_fail_first(trials: &mut [Trial]) {
    trials.sort_by_cached_key(|trial| {
        let Problem { dims, dtypes, .. } = &trial.problem;
        let of_f32 = dtypes.values().filter(|dtype| **dtype == Dtype::F32).count();
        let is_even = dims.values().all(|dim| dim.is_multiple_of(8));
        let size: u64 = dims.values().fold(1, |size: u64, &dim| size.saturating_mul(dim.max(1).into()));
        (trial.is_varied, of_f32, is_even, size)
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
    all_params: bool,
    tables: Option<&TuningTables>,
) -> Vec<Params> {
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

/// Whether it is the first or the second of the template's precisions.
fn nth_precision(template: &Template, precision: Precision) -> usize {
    template.precisions().position(|one| one == precision).unwrap_or_default()
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

    /// What should come out if activations were not rounded; none where they are not, or it reads none.
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
mod tests {
    use super::*;
    use kernel::target::Language;
    use kernel::template::library::{Layer, Library};

    #[test]
    fn a_check_in_a_hurry_begins_with_what_fills_no_tile() {
        let trial = |dims: [u32; 2], weight, rows: &[u32]| Trial {
            problem: Problem {
                ops: vec!["op".into()],
                dims: BTreeMap::from([("k".to_owned(), dims[0]), ("n".to_owned(), dims[1])]),
                constants: BTreeMap::new(),
                flags: BTreeMap::new(),
                dtypes: BTreeMap::from([("weight".into(), weight)]),
                precision: Precision::Bf16,
                keeps: BTreeSet::new(),
            },
            params: Params::new(),
            scalars: rows.iter().map(|&rows| Scalars::from([(ROWS.to_owned(), f64::from(rows))])).collect(),
            activation: None,
            inputs: None,
            is_varied: false,
            is_thin: false,
            is_once: false,
            seed: 0,
        };
        let mut trials = [
            trial([64, 64], Dtype::Bf16, &[1]),
            trial([45, 33], Dtype::F32, &[1]),
            trial([2880, 131], Dtype::Bf16, &[1]),
            trial([45, 33], Dtype::Bf16, &[1, 2, 257, 17, 63]),
        ];
        most_likely_to_fail_first(&mut trials);
        let order: Vec<(u32, Dtype)> =
            trials.iter().map(|trial| (trial.problem.dims["k"], trial.problem.dtypes["weight"])).collect();
        assert_eq!(order, [(45, Dtype::Bf16), (2880, Dtype::Bf16), (64, Dtype::Bf16), (45, Dtype::F32)]);
        let rows: Vec<f64> = trials[0].scalars.iter().map(|scalars| scalars[ROWS]).collect();
        assert_eq!(rows, [17.0, 2.0, 1.0, 63.0, 257.0]);
    }

    #[test]
    fn halves_are_everything_together_and_in_each_any_two_of_rows_types_and_precision_meet() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let template = library.template("linear/gemv", Language::Hip).expect("built in");
        let target = Target::gpu("gfx1100").expect("known").simulated();
        // (shape, types, precision, rows)
        let cases = |half| {
            let which = Selection { half, ..Selection::default() };
            let of = |precision| {
                let trials = trials(template, precision, &target, &which).into_iter();
                trials.flat_map(move |Trial { problem, scalars, .. }| {
                    let dims: Vec<u32> = problem.dims.values().copied().collect();
                    let case = move |one: &Scalars| {
                        let rows = one[ROWS] as u64;
                        (dims.clone(), list(&problem.dtypes), precision.name(), rows)
                    };
                    scalars.iter().map(case).collect::<Vec<_>>()
                })
            };
            template.precisions().flat_map(of).collect::<BTreeSet<_>>()
        };
        let (all, even, odd) = (cases(None), cases(Some(0)), cases(Some(1)));
        assert!(even.is_disjoint(&odd) && all.len() > 80);
        assert_eq!(even.union(&odd).cloned().collect::<BTreeSet<_>>(), all);
        for half in [even, odd] {
            let met = |cases: &BTreeSet<_>| {
                let pairs = |(dims, dtypes, precision, rows): &(Vec<u32>, String, &str, u64)| {
                    let (rows, precision) = (rows.to_string(), precision.to_string());
                    let with = |dtype: &str| {
                        let dtype = dtype.to_owned();
                        [(dtype.clone(), precision.clone()), (dtype, rows.clone()), (precision.clone(), rows.clone())]
                    };
                    let of_weight = dtypes.split(", ").find(|dtype| dtype.starts_with("weight ")).expect("it has one");
                    with(of_weight).map(|(one, other)| (dims.clone(), one, other))
                };
                cases.iter().flat_map(pairs).collect::<BTreeSet<_>>()
            };
            assert_eq!(met(&half), met(&all));
        }
    }

    #[test]
    fn of_two_halves_each_has_every_type_and_both_have_every_combination_at_the_first_shape() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let mut n_thinned = 0;
        // As `tests/it/workbench/gpu_kernels.rs` shares a template's combinations: with its second chip.
        for arch in ["gfx1100", "gfx90a"] {
            let target = Target::gpu(arch).expect("known").simulated();
            for template in library.templates().filter(|template| template.fits_target(&target).is_ok()) {
                for precision in template.precisions() {
                    let first = |half| {
                        let which = Selection { half, first_shape: true, ..Selection::default() };
                        let trials = trials(template, precision, &target, &which);
                        trials.into_iter().map(|trial| trial.problem.dtypes).collect::<BTreeSet<_>>()
                    };
                    let (all, halves) = (first(None), [0, 1].map(|half| first(Some(half))));
                    assert_eq!(
                        halves[0].union(&halves[1]).cloned().collect::<BTreeSet<_>>(),
                        all,
                        "{}",
                        template.label()
                    );
                    let types = |of: &BTreeSet<BTreeMap<_, _>>| of.iter().flatten().map(owned).collect::<BTreeSet<_>>();
                    assert!(halves.iter().all(|half| types(half) == types(&all)), "{}", template.label());
                    n_thinned += usize::from(halves[0].len() < all.len());
                }
            }
        }
        assert!(n_thinned > 10, "{n_thinned}");
    }

    #[test]
    fn thinned_out_any_two_of_rows_types_and_precision_meet_and_the_first_two_at_every_shape() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let template = library.template("linear/gemv", Language::Hip).expect("built in");
        let target = Target::gpu("gfx1100").expect("known").simulated();
        let met = |which: &Selection| {
            let mut met = BTreeSet::new();
            let mut n_trials = 0;
            for precision in template.precisions() {
                for Trial { problem, scalars, .. } in trials(template, precision, &target, which) {
                    let (dims, weight) = (list(&problem.dims), problem.dtypes["weight"].to_string());
                    met.insert((weight.clone(), precision.name().to_owned(), String::new()));
                    for rows in scalars.iter().map(|one| one[ROWS].to_string()) {
                        met.insert((dims.clone(), weight.clone(), rows.clone()));
                        met.insert((dims.clone(), precision.name().to_owned(), rows));
                    }
                    n_trials += 1;
                }
            }
            (met, n_trials)
        };
        let (all, n_all) = met(&Selection::default());
        for half in [Some(0), Some(1)] {
            let (thin, n_thin) = met(&Selection { half, is_thin: true, ..Selection::default() });
            assert_eq!(thin, all);
            assert!(n_thin * 3 < n_all * 2, "{n_thin} of {n_all} kernels");
        }
    }

    #[test]
    fn each_shape_and_each_type_is_launched_over_what_was_used_before() {
        let library = Library::from_layers(vec![Layer::built_in()]);
        let target = Target::gpu("gfx1100").expect("known").simulated();
        let (mut n_once, mut n_all) = (0, 0);
        for template in library.templates().filter(|template| template.fits_target(&target).is_ok()) {
            for precision in template.precisions() {
                let which = Selection { half: Some(0), is_thin: true, ..Selection::default() };
                let all = trials(template, precision, &target, &which);
                let again: Vec<&Trial> = all.iter().filter(|trial| !trial.is_once).collect();
                for trial in &all {
                    let Problem { dims, flags, dtypes, .. } = &trial.problem;
                    let is_of_shape = |other: &&Trial| {
                        (&other.problem.dims, &other.problem.flags, &other.inputs) == (dims, flags, &trial.inputs)
                    };
                    assert!(again.iter().any(is_of_shape), "{}: {trial}", template.label());
                    let has = |(name, dtype)| again.iter().any(|other| other.problem.dtypes.get(name) == Some(dtype));
                    assert!(dtypes.iter().all(has), "{}: {trial}", template.label());
                }
                (n_once, n_all) = (n_once + all.len() - again.len(), n_all + all.len());
            }
        }
        assert!(n_once * 5 > n_all, "{n_once} of {n_all} are launched once");
    }

    #[test]
    fn few_problems_have_every_dtype() {
        let problem = |weight, bias| Problem {
            ops: vec!["op".into()],
            dims: BTreeMap::new(),
            constants: BTreeMap::new(),
            flags: BTreeMap::new(),
            dtypes: BTreeMap::from([("weight".into(), weight), ("bias".into(), bias)]),
            precision: Precision::Bf16,
            keeps: BTreeSet::new(),
        };
        let weights = [Dtype::F32, Dtype::Bf16, Dtype::Mxfp4];
        let all = weights.into_iter().flat_map(|w| [Dtype::F32, Dtype::Bf16].map(|b| problem(w, b))).collect();
        let kept = with_every_dtype(all);
        assert_eq!(kept.len(), 3, "{kept:?}");
        let has = |name: &str, dtype| kept.iter().any(|problem| problem.dtypes[name] == dtype);
        assert!(weights.into_iter().all(|dtype| has("weight", dtype)));
        assert!(has("bias", Dtype::F32) && has("bias", Dtype::Bf16));
        assert!(with_every_dtype(Vec::new()).is_empty());
    }
}
