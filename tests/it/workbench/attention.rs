//! Attention that is not causal: the parameter of the templates that have it, against the reference. And attention
//! whose scores grow from chunk to chunk.

use std::collections::BTreeMap;
use std::path::Path;

use format::Dtype;
use gpu::Driver;
use gpu::host::HostDriver;
use gpu::sim::SimDriver;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::CompilerOptions;
use kernel::object::store::Store;
use kernel::target::Target;
use kernel::template::library::{Layer, Library};
use kernel::template::{Params, Precision, Problem, Template};
use reference::{self, Case, Tensor};
use workbench::check::{Checker, Runner};

use crate::fixtures::program::shared_cache;

fn store() -> Store {
    let compilers = CompilerOptions::new(Path::new(env!("CARGO_BIN_EXE_gptoss-jit")).to_owned());
    Store::new(Cache::open(shared_cache(), CacheLimits::default()), compilers)
}

/// The largest error of `y` over the tolerance.
fn worst_error(got: &reference::Tensors, want: &reference::Outputs, template: &Template, precision: Precision) -> f64 {
    let (got, want, allowed) = (&got["y"], &want["y"], template.tolerance(precision));
    let got_type = got.dtype();
    let errors = got.values().iter().enumerate().map(|(i, got)| {
        let rounding = Tensor::rounding(got_type, want.values[i]);
        let most = allowed.atol + allowed.rtol * want.scale[i] + rounding;
        let error = (got - want.values[i]).abs() / most;
        if error.is_nan() { f64::INFINITY } else { error }
    });
    errors.fold(0.0, f64::max)
}

/// The largest error of `causal = 0` over the tolerance, on the tests of the contract that are picked by their numbers
/// among those that fit; and that of `causal = 1` up to the first that shows one.
fn errors(
    library: &Library,
    template: &Template,
    target: &Target,
    driver: &dyn Driver,
    precision: Precision,
    is_picked: impl Fn(usize) -> bool,
) -> [f64; 2] {
    let store = store();
    let checker =
        Checker { library, target, store: &store, runner: Some(Runner { target, driver }), compute_unit: None };
    let (mut worst, mut n_fitting) = ([0f64; 2], 0);
    for test in template.signature.tests() {
        let mut problem = Problem {
            ops: template.ops.clone(),
            dims: test.dims.clone(),
            constants: BTreeMap::new(),
            flags: test.flags.clone(),
            dtypes: template.signature.dtypes.keys().map(|name| (name.clone(), Dtype::F32)).collect(),
            precision,
            keeps: template.keeps.clone(),
        };
        template.signature.drop_absent_dtypes(&mut problem);
        if template.fits(&problem, target).is_err() {
            continue;
        }
        n_fitting += 1;
        if !is_picked(n_fitting - 1) {
            continue;
        }
        let mut flags = problem.flags.clone();
        flags.insert("causal".into(), false);
        let (dims, dtypes, inputs) = (problem.dims.clone(), problem.dtypes.clone(), test.inputs.clone());
        let scalars: BTreeMap<String, f64> =
            test.scalars.iter().map(|(name, of)| (name.clone(), of.values()[0])).collect();
        let case = Case { dims, flags, dtypes, inputs, scalars: scalars.clone(), ..Case::default() };
        let inputs = reference::inputs(&template.ops, &case, 11).expect("inputs");
        let want = reference::run(&template.ops, &case, &inputs).expect("a reference");
        let n_asked = if worst[1] > 1.0 { 1 } else { 2 };
        for (causal, worst) in [0, 1].into_iter().zip(&mut worst).take(n_asked) {
            let params = Params::from([("causal".to_owned(), causal)]);
            let got = checker.outputs(template, &problem, &params, &scalars, &inputs).expect("runs");
            *worst = worst.max(worst_error(&got, &want, template, precision));
        }
    }
    worst
}

#[test]
fn attention_that_is_not_causal_agrees_with_the_reference_on_the_host_and_on_a_gpu() {
    let library = Library::from_layers(vec![Layer::built_in()]);
    let host = Target::host();
    let gpu = Target::gpu("gfx1100").expect("known").simulated();
    let on_host = HostDriver::new(2).expect("threads");
    let on_gpu = SimDriver::new("gfx1100", gpu.wave_size, 0).expect("threads");
    // Of two precisions, one has the first test and every other one, and one has the first test and the rest.
    let (all, even, odd) = (|_| true, |n| n % 2 == 0, |n| n == 0 || n % 2 == 1);
    for (label, target, driver, precision, is_picked) in [
        ("attention/two_pass", &host, &on_host as &dyn Driver, Precision::F32, &all as &dyn Fn(usize) -> bool),
        ("attention/decode", &gpu, &on_gpu, Precision::Bf16, &even),
        ("attention/decode", &gpu, &on_gpu, Precision::F32, &odd),
    ] {
        let template = library.template(label, target.language()).expect(label);
        let [whole, causal] = errors(&library, template, target, driver, precision, is_picked);
        assert!(whole > 0.0 && whole <= 1.0, "{label} at {precision}: {whole} of the tolerance");
        assert!(causal > 1.0, "{label} at {precision}: a causal kernel must not pass for one that is not");
    }
}

#[test]
fn nothing_chooses_attention_that_is_not_causal() {
    let library = Library::from_layers(vec![Layer::built_in()]);
    let target = Target::host();
    let template = library.template("attention/two_pass", target.language()).expect("built in");
    let test = template.signature.tests().remove(0);
    let problem = Problem {
        ops: template.ops.clone(),
        dims: test.dims,
        constants: BTreeMap::new(),
        flags: test.flags,
        dtypes: template.signature.dtypes.keys().map(|name| (name.clone(), Dtype::F32)).collect(),
        precision: Precision::F32,
        keeps: template.keeps.clone(),
    };
    assert_eq!(template.params["causal"].values, [1, 0]);
    let all: Vec<u32> = template.legal_params(&problem, &target).map(|params| params["causal"]).collect();
    assert_eq!(all, [1]);
}

/// What rows subtract of their scores on Hopper has to grow with them: here by 46 powers of 2 in each chunk of 64 keys,
/// so that weights become infinite in the fourth where it does not.
#[test]
fn scores_that_grow_from_chunk_to_chunk_weigh_what_they_should() {
    const HEADS: usize = 8;
    const HEAD_DIM: usize = 64;
    let library = Library::from_layers(vec![Layer::built_in()]);
    let target = Target::gpu("sm_90").expect("known").simulated();
    let driver = SimDriver::new("sm_90", target.wave_size, 0)
        .expect("threads")
        .with_lds([target.lds_bytes, target.lds_bytes_at_launch()]);
    let store = store();
    let runner = Some(Runner { target: &target, driver: &driver });
    let checker = Checker { library: &library, target: &target, store: &store, runner, compute_unit: None };
    let template = library.template("attention/wgmma", target.language()).expect("built in");
    for window in [0, 128] {
        let dims = [
            ("num_attention_heads", HEADS as u32),
            ("num_key_value_heads", 1),
            ("half_head_dim", HEAD_DIM as u32 / 2),
            ("window", window),
            ("block_tokens", 64),
        ];
        let problem = Problem {
            ops: template.ops.clone(),
            dims: dims.map(|(name, n)| (name.to_owned(), n)).into(),
            constants: BTreeMap::new(),
            flags: ["has_sinks", "matrix_layout"].map(|name| (name.to_owned(), true)).into(),
            dtypes: [("kv".to_owned(), Dtype::Bf16), ("sinks".to_owned(), Dtype::F32)].into(),
            precision: Precision::Bf16,
            keeps: template.keeps.clone(),
        };
        let scalars = [("n_tokens", 20.0), ("n_slots", 2.0), ("table_blocks", 5.0), ("n_blocks", 10.0)];
        let scalars: BTreeMap<String, f64> = scalars.map(|(name, n)| (name.to_owned(), n)).into();
        let case = Case {
            dims: problem.dims.clone(),
            flags: problem.flags.clone(),
            dtypes: problem.dtypes.clone(),
            inputs: Some("end".to_owned()), // the last positions of a slot
            scalars: scalars.clone(),
            ..Case::default()
        };
        let mut inputs = reference::inputs(&template.ops, &case, 3).expect("inputs");
        // The first channel of each query is 8, that of the key at position p is p / 2, as is its part of the score.
        let mut qkv = inputs["qkv"].values().to_vec();
        for row in qkv.chunks_mut((HEADS + 2) * HEAD_DIM) {
            row[..HEADS * HEAD_DIM].iter_mut().step_by(HEAD_DIM).for_each(|q| *q = 8.0);
        }
        let mut keys = inputs["k_cache"].values().to_vec();
        let last = inputs["position"].values().iter().fold(0.0, |one: f64, &other| one.max(other)) as usize;
        for p in (last + 1).saturating_sub(5 * 64)..=last {
            let block = inputs["block_table"].values()[p / 64 % 5] as usize;
            keys[(block * 64 + p % 64) * HEAD_DIM] = p as f64 / 2.0;
        }
        inputs.insert("qkv".to_owned(), Tensor::rounded(Dtype::F32, qkv));
        inputs.insert("k_cache".to_owned(), Tensor::rounded(Dtype::Bf16, keys));
        let want = reference::run(&template.ops, &case, &inputs).expect("a reference");
        let params = Params::from([("groups", 1), ("blocks", 2), ("ring", 2)].map(|(name, n)| (name.to_owned(), n)));
        let got = checker.outputs(template, &problem, &params, &scalars, &inputs).expect("runs");
        let error = worst_error(&got, &want, template, problem.precision);
        assert!(error <= 1.0, "window {window}: {error} of the tolerance");
    }
}
