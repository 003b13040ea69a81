//! Attention that is not causal: the parameter of the templates that have it, against the reference.

use std::collections::BTreeMap;
use std::path::Path;

use gptoss_jit::dtype::Dtype;
use gptoss_jit::object::cache::{Cache, Limits};
use gptoss_jit::object::compile::CompilerOptions;
use gptoss_jit::object::store::Store;
use gptoss_jit::reference::{self, Case, Tensor};
use gptoss_jit::target::Target;
use gptoss_jit::template::library::{Layer, Library};
use gptoss_jit::template::{Params, Precision, Problem, Template};
use gptoss_jit::workbench::check::{Checker, Runner};
use gpu::Driver;
use gpu::host::HostDriver;
use gpu::sim::SimDriver;

use crate::fixtures::program::shared_cache;

/// The largest error of `causal = 0` over the tolerance, on every test of the contract; and that of `causal = 1`.
fn errors(
    library: &Library,
    template: &Template,
    target: &Target,
    driver: &dyn Driver,
    precision: Precision,
) -> [f64; 2] {
    let compilers = CompilerOptions::new(Path::new(env!("CARGO_BIN_EXE_gptoss-jit")).to_owned());
    let store = Store::new(Cache::open(shared_cache(), Limits::default()), compilers);
    let checker =
        Checker { library, target, store: &store, runner: Some(Runner { target, driver }), compute_unit: None };
    let mut worst = [0f64; 2];
    for test in template.signature.tests() {
        let problem = Problem {
            ops: template.ops.clone(),
            dims: test.dims.clone(),
            constants: BTreeMap::new(),
            flags: test.flags.clone(),
            dtypes: template.signature.dtypes.keys().map(|name| (name.clone(), Dtype::F32)).collect(),
            precision,
            keeps: template.keeps.clone(),
        };
        if template.fits(&problem, target).is_err() {
            continue;
        }
        let mut flags = problem.flags.clone();
        flags.insert("causal".into(), false);
        let (dims, dtypes, inputs) = (problem.dims.clone(), problem.dtypes.clone(), test.inputs.clone());
        let scalars: BTreeMap<String, f64> =
            test.scalars.iter().map(|(name, of)| (name.clone(), of.values()[0])).collect();
        let case = Case { dims, flags, dtypes, inputs, scalars: scalars.clone(), ..Case::default() };
        let inputs = reference::inputs(&template.ops, &case, 11).expect("inputs");
        let want = &reference::run(&template.ops, &case, &inputs).expect("a reference")["y"];
        let allowed = template.tolerance(precision);
        for (causal, worst) in [0, 1].into_iter().zip(&mut worst) {
            let params = Params::from([("causal".to_owned(), causal)]);
            let got = checker.outputs(template, &problem, &params, &scalars, &inputs).expect("runs");
            let rounding = Tensor::unit_roundoff(got["y"].dtype());
            for (i, got) in got["y"].values().iter().enumerate() {
                let most = allowed.atol + allowed.rtol * want.scale[i] + rounding * want.values[i].abs();
                let error = (got - want.values[i]).abs() / most;
                *worst = worst.max(if error.is_nan() { f64::INFINITY } else { error });
            }
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
    for (label, target, driver, precision) in [
        ("attention/two_pass", &host, &on_host as &dyn Driver, Precision::F32),
        ("attention/decode", &gpu, &on_gpu, Precision::Bf16),
        ("attention/decode", &gpu, &on_gpu, Precision::F32),
    ] {
        let template = library.template(label, target.language()).expect(label);
        let [whole, causal] = errors(&library, template, target, driver, precision);
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
