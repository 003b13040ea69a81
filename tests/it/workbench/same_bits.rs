//! Templates of the host give the same bits, however the work is cut: by threads, and by the rows beside a row.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use format::Dtype;
use gpu::host::HostDriver;
use kernel::target::{Language, Target};
use kernel::template::library::Library;
use kernel::template::{Params, Precision, Problem, Template};
use reference::{self, Case, Tensor, Tensors};
use workbench::check::{Checker, Runner};

use super::kernels::{built_in, store};
use crate::fixtures::skipped;

/// A template's problem and inputs at one of its tests, with the most tokens.
struct Setting {
    template: Arc<Template>,
    problem: Problem,
    scalars: BTreeMap<String, f64>,
    inputs: Tensors,
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.template.label(), self.problem, self.scalars)
    }
}

/// Every host template at each of its precisions and dtypes, on its first test.
fn settings(library: &Library) -> Vec<Setting> {
    let host = Target::host();
    let mut settings = Vec::new();
    for template in library.templates().filter(|template| template.language == Language::C) {
        let test = template.signature.tests().remove(0);
        for precision in [Precision::F32, Precision::Bf16] {
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let problem = problem_of(template, &test.dims, precision, |_| dtype);
                let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
                let scalars = test.scalars.iter().map(|(name, values)| (name.clone(), most(values.values()))).collect();
                if template.fits(&problem, &host).is_ok() {
                    let inputs = reference::inputs(&problem.ops, &case(&problem, &scalars), 7).unwrap();
                    settings.push(Setting { template: Arc::clone(template), problem, scalars, inputs });
                }
            }
        }
    }
    settings
}

/// Its first test with these dims, and the type of each argument that has a choice.
fn problem_of(
    template: &Template,
    dims: &BTreeMap<String, u32>,
    precision: Precision,
    dtype_of: impl Fn(&str) -> Dtype,
) -> Problem {
    let test = template.signature.tests().remove(0);
    Problem {
        ops: template.ops.clone(),
        dims: dims.clone(),
        constants: test.constants,
        flags: test.flags,
        dtypes: template.signature.dtypes.keys().map(|name| (name.clone(), dtype_of(name))).collect(),
        precision,
        keeps: template.keeps.clone(),
    }
}

fn case(problem: &Problem, scalars: &BTreeMap<String, f64>) -> Case {
    Case {
        dims: problem.dims.clone(),
        constants: problem.constants.clone(),
        flags: problem.flags.clone(),
        dtypes: problem.dtypes.clone(),
        activation: Some(problem.precision.activation()),
        inputs: None,
        scalars: scalars.clone(),
    }
}

fn outputs(library: &Library, n_threads: usize, setting: &Setting) -> Tensors {
    let (store, driver, target) = (store(), HostDriver::new(n_threads).unwrap(), Target::host());
    let runner = Some(Runner { target: &target, driver: &driver });
    let checker = Checker { library, target: &target, store: &store, runner, compute_unit: None };
    let Setting { template, problem, scalars, inputs } = setting;
    checker.outputs(template, problem, &Params::new(), scalars, inputs).unwrap()
}

fn bits(outputs: &Tensors) -> Vec<Vec<u8>> {
    outputs.values().map(Tensor::to_bytes).collect()
}

#[test]
fn one_thread_and_two_give_the_same_bits() {
    let library = built_in();
    for setting in settings(&library) {
        let (one, two) = (outputs(&library, 1, &setting), outputs(&library, 2, &setting));
        assert!(!one.is_empty() && bits(&one) == bits(&two), "{} {:?}", setting.template.label(), setting.problem);
    }
}

#[test]
fn a_row_gives_the_same_bits_alone_and_among_others() {
    let library = built_in();
    let mut ops = Vec::new();
    for setting in settings(&library) {
        let op = setting.problem.ops.join("+");
        if !["linear", "rmsnorm+linear", "attention", "moe_mlp1", "moe_mlp2", "rmsnorm"].contains(&op.as_str()) {
            continue;
        }
        let n_tokens = setting.scalars["n_tokens"] as usize;
        assert_the_same_alone(&library, &setting, 0..n_tokens);
        ops.push(op);
    }
    ops.dedup();
    assert_eq!(ops, ["attention", "linear", "moe_mlp1", "moe_mlp2", "rmsnorm+linear", "rmsnorm"]);
}

/// Rows `tokens` have the bits that each has as the only one.
fn assert_the_same_alone(library: &Library, setting: &Setting, tokens: impl IntoIterator<Item = usize>) {
    let together = bits(&outputs(library, 2, setting)).remove(0);
    let row_bytes = together.len() / setting.scalars["n_tokens"] as usize;
    for t in tokens {
        let alone = bits(&outputs(library, 2, &alone(setting, t))).remove(0);
        assert!(alone == together[t * row_bytes..][..row_bytes], "row {t} of {setting:?}");
    }
}

/// Sizes at which those of the matrix unit have full bands and others, several panels, and tiles of all kinds.
#[test]
fn a_row_gives_the_same_bits_on_the_matrix_unit_alone_and_among_70() {
    let host = Target::host();
    if !host.features.contains("amx_bf16") {
        return skipped("no AMX with bf16 that this process may use");
    }
    let library = built_in();
    let experts = [("hidden_size", 320), ("intermediate_size", 352), ("num_experts", 2), ("experts_per_token", 2)];
    let cases = [
        ("linear/amx", Dtype::Bf16, &[("in_features", 320), ("out_features", 144)][..]),
        ("linear/amx", Dtype::Bf16, &[("in_features", 300), ("out_features", 70)]),
        ("moe_mlp1/amx", Dtype::Mxfp4, &experts),
        ("moe_mlp2/amx", Dtype::Mxfp4, &experts),
        ("moe_mlp1/amx", Dtype::Bf16, &experts),
    ];
    for (name, dtype, dims) in cases {
        let template = library.template(name, Language::C).expect("built in");
        let dims = dims.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
        let of = |name: &str| if name == "weight" { dtype } else { Dtype::Bf16 };
        let problem = problem_of(template, &dims, Precision::Bf16, of);
        for n_tokens in [3_usize, 16, 30, 70] {
            let scalars = BTreeMap::from([("n_tokens".to_owned(), n_tokens as f64)]);
            let inputs = reference::inputs(&problem.ops, &case(&problem, &scalars), 7).unwrap();
            let setting = Setting { template: Arc::clone(template), problem: problem.clone(), scalars, inputs };
            assert_the_same_alone(&library, &setting, [0, n_tokens / 2, n_tokens - 1]);
        }
    }
}

/// The setting with row t as its only row.
fn alone(setting: &Setting, t: usize) -> Setting {
    let n_tokens = setting.scalars["n_tokens"] as usize;
    let mut inputs = setting.inputs.clone();
    for name in ["x", "residual", "qkv", "slot", "position", "route_weight"] {
        if let Some(tensor) = inputs.get_mut(name) {
            let len = tensor.values().len() / n_tokens;
            *tensor = Tensor::rounded(tensor.dtype(), tensor.values()[t * len..][..len].to_vec());
        }
    }
    let mut scalars = setting.scalars.clone();
    scalars.insert("n_tokens".to_owned(), 1.0);
    if let Some(experts) = experts_of(setting, t) {
        let of_one = Tensors::from([("expert".to_owned(), Tensor::rounded(Dtype::U32, experts))]);
        let sorted = reference::run(&["moe_sort".into()], &case(&setting.problem, &scalars), &of_one).unwrap();
        inputs.extend(sorted.into_iter().map(|(name, output)| (name, Tensor::rounded(Dtype::U32, output.values))));
    }
    Setting { template: Arc::clone(&setting.template), problem: setting.problem.clone(), scalars, inputs }
}

/// The experts that token t is sent to, read back from how the assignments are grouped.
fn experts_of(setting: &Setting, t: usize) -> Option<Vec<f64>> {
    let begin = setting.inputs.get("expert_begin")?.values();
    let per_token = setting.problem.dims["experts_per_token"] as usize;
    let assignment = setting.inputs["assignment"].values();
    let has = |e: &usize| (begin[*e] as usize..begin[e + 1] as usize).any(|i| assignment[i] as usize / per_token == t);
    Some((0..begin.len() - 1).filter(has).map(|e| e as f64).collect())
}
