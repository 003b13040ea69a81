//! Which trials there are.

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
        trial([7, 1], Dtype::Bf16, &[1]),
        trial([45, 33], Dtype::F32, &[1]),
        trial([2880, 131], Dtype::Bf16, &[1]),
        trial([45, 33], Dtype::Bf16, &[1, 2, 257, 17, 63]),
    ];
    most_likely_to_fail_first(&mut trials);
    let order: Vec<(u32, Dtype)> =
        trials.iter().map(|trial| (trial.problem.dims["k"], trial.problem.dtypes["weight"])).collect();
    assert_eq!(
        order,
        [(45, Dtype::Bf16), (64, Dtype::Bf16), (2880, Dtype::Bf16), (7, Dtype::Bf16), (45, Dtype::F32)],
        "of sizes that fill no tile and those that do the next one in turn, one element last"
    );
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
                assert_eq!(halves[0].union(&halves[1]).cloned().collect::<BTreeSet<_>>(), all, "{}", template.label());
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
                // Types beyond the common ones meet less: `a_thin_check_has_each_format…` says what.
                if !template.signature.dtypes["weight"][..COMMON_TYPES].contains(&problem.dtypes["weight"]) {
                    continue;
                }
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

#[test]
fn a_thin_check_has_each_format_at_the_first_shape_and_at_one_other() {
    let library = Library::from_layers(vec![Layer::built_in()]);
    let template = library.template("linear/tile", Language::Hip).expect("built in");
    let target = Target::gpu("gfx1100").expect("known").simulated();
    for half in [Some(0), Some(1)] {
        let which = Selection { half, is_thin: true, ..Selection::default() };
        let mut shapes: BTreeMap<Dtype, Vec<String>> = BTreeMap::new();
        for precision in template.precisions() {
            for Trial { problem, .. } in trials(template, precision, &target, &which) {
                shapes.entry(problem.dtypes["weight"]).or_default().push(list(&problem.dims));
            }
        }
        let allowed = &template.signature.dtypes["weight"];
        assert!(shapes.keys().copied().collect::<BTreeSet<_>>() == allowed.iter().copied().collect());
        for dtype in &allowed[COMMON_TYPES..] {
            let of = &shapes[dtype];
            assert!(of.len() == 2 && of[0] != of[1], "{dtype}: {of:?}");
            assert!(of.contains(&"in_features 45, out_features 33".to_owned()), "{dtype}: {of:?}");
        }
        assert!(allowed[..COMMON_TYPES].iter().all(|dtype| shapes[dtype].len() > 5));
        let common = Selection { common_types: true, ..which };
        let n_types = trials(template, Precision::F32, &target, &common);
        assert!(n_types.iter().all(|trial| allowed[..COMMON_TYPES].contains(&trial.problem.dtypes["weight"])));
    }
}

/// (a shape with its flags and inputs, types) of a template's trials at the common types.
fn shapes_and_types(
    template: &Template,
    target: &Target,
    which: &Selection,
) -> BTreeSet<(String, BTreeMap<String, Dtype>)> {
    let precision = template.precisions().next().expect("it has one");
    let of = |Trial { problem, inputs, .. }: Trial| {
        let Problem { dims, flags, dtypes, .. } = problem;
        (format!("{} {} {inputs:?}", list(&dims), list(&flags)), dtypes)
    };
    trials(template, precision, target, which).into_iter().map(of).collect()
}

/// `tests/it/workbench/gpu_kernels.rs` has two chips of each matrix unit.
#[test]
fn of_one_precision_each_half_has_each_shape_and_type_and_both_have_them_together() {
    let library = Library::from_layers(vec![Layer::built_in()]);
    for arch in ["gfx1100", "gfx90a"] {
        let target = Target::gpu(arch).expect("known").simulated();
        for label in
            ["attention/decode_matrix", "attention/flash", "linear/matrix", "moe_mlp1/matrix", "moe_mlp2/matrix"]
        {
            let template = library.template(label, Language::Hip).expect(label);
            assert_eq!(template.precisions().count(), 1, "{label}");
            let thin = Selection { is_thin: true, common_types: true, ..Selection::default() };
            let all = shapes_and_types(template, &target, &thin);
            let halves =
                [0, 1].map(|half| shapes_and_types(template, &target, &Selection { half: Some(half), ..thin.clone() }));
            assert_eq!(halves[0].union(&halves[1]).cloned().collect::<BTreeSet<_>>(), all, "{arch}: {label}");
            let shapes =
                |of: &BTreeSet<(String, _)>| of.iter().map(|(shape, _)| shape.clone()).collect::<BTreeSet<_>>();
            for half in &halves {
                assert!(shapes(half) == shapes(&all) && half.len() * 4 < all.len() * 3, "{arch}: {label}");
                let n_shapes = |of: &BTreeSet<(String, BTreeMap<String, Dtype>)>, (name, dtype): (&String, &Dtype)| {
                    let of_type = of.iter().filter(|(_, types)| types.get(name) == Some(dtype));
                    of_type.map(|(shape, _)| shape).collect::<BTreeSet<_>>().len()
                };
                let types: BTreeSet<_> = all.iter().flat_map(|(_, types)| types).collect();
                // Of three shapes, as many have a bias, one is enough.
                let is_rare = |entry: &(&String, &Dtype)| n_shapes(half, *entry) < n_shapes(&all, *entry).div_ceil(4);
                let rare: Vec<_> = types.into_iter().filter(is_rare).collect();
                assert!(rare.is_empty(), "{arch}: {label}: {rare:?} are at few shapes of {half:?}");
            }
        }
    }
}

/// Two templates of one text, each with the other half, as `tests/it/workbench/gpu_kernels.rs` has them.
#[test]
fn around_its_tiles_a_template_meets_every_parameter_and_two_all_of_them_at_every_shape() {
    let library = Library::from_layers(vec![Layer::built_in()]);
    let target = Target::gpu("sm_90").expect("known").simulated();
    let template = library.template("moe_mlp2/rows", Language::Hip).expect("built in");
    let tables = Some(std::sync::Arc::new(TuningTables::load(&[]).expect("right")));
    let points = |half| {
        let which = Selection { tables: tables.clone(), own_tests: true, is_thin: true, half, ..Selection::default() };
        let all = trials(template, Precision::Bf16, &target, &which).into_iter();
        all.map(|trial| (list(&trial.problem.dims), list(&trial.params))).collect::<BTreeSet<_>>()
    };
    let (all, halves) = (points(None), [0, 1].map(|half| points(Some(half))));
    assert_eq!(halves[0].union(&halves[1]).cloned().collect::<BTreeSet<_>>(), all);
    let params = |of: &BTreeSet<(String, String)>| of.iter().map(|(_, params)| params.clone()).collect::<BTreeSet<_>>();
    for half in &halves {
        assert!(params(half) == params(&all) && half.len() * 4 < all.len() * 3, "{} of {}", half.len(), all.len());
    }
}
