//! Kernels that are launched before the kernel before them has ended.

use kernel::target::Language;
use kernel::template::library::{Layer, Library};
use kernel::template::render::Rendered;
use kernel::template::{Params, Precision};

use super::{Problem, gpu, rendered};
use crate::rendering::{BTreeMap, BTreeSet, Dtype};

fn linear() -> Problem {
    Problem {
        dims: BTreeMap::from([("in_features".into(), 64), ("out_features".into(), 48)]),
        flags: BTreeMap::from([("has_bias".into(), true), ("has_residual".into(), true)]),
        keeps: BTreeSet::new(),
        dtypes: ["weight", "bias"].map(|name| (name.into(), Dtype::Bf16)).into(),
        ..super::linear()
    }
}

fn rope() -> Problem {
    let dims = [("num_attention_heads", 8), ("num_key_value_heads", 2), ("half_head_dim", 32), ("block_tokens", 32)];
    Problem {
        ops: vec!["rope_kv".into()],
        dims: dims.map(|(name, value)| (name.to_owned(), value)).into(),
        flags: BTreeMap::from([("matrix_layout".into(), true)]),
        dtypes: BTreeMap::from([("kv".into(), Dtype::Bf16)]),
        ..super::linear()
    }
}

fn built_in(label: &str, problem: &Problem, params: &Params, arch: &str) -> Result<Rendered, String> {
    let library = Library::from_layers(vec![Layer::built_in()]);
    assert_eq!(problem.precision, Precision::Bf16);
    rendered(&library, label, problem, params, &gpu(arch)).map_err(|error| error.to_string())
}

/// The line that declares an argument.
fn declared<'a>(kernel: &'a Rendered, name: &str) -> &'a str {
    let end = |line: &&str| line.split([',', ' ', ')']).any(|word| word == name) && line.contains('*');
    let head = kernel.source.split("extern \"C\" __global__").nth(1).expect("a kernel");
    head.lines().find(end).unwrap_or_else(|| panic!("no `{name}` in {head}"))
}

#[test]
fn what_others_write_while_an_early_kernel_waits_is_not_restrict() {
    let kernel = built_in("linear/gemv", &linear(), &Params::new(), "sm_90").expect("renders");
    assert!(kernel.is_early && kernel.spec().is_early);
    // NVIDIA's compiler takes what is const and restrict for memory that nobody writes while the kernel runs, and moves
    // loads of it above the wait.
    assert!(!declared(&kernel, "x").contains("__restrict__"));
    assert!(declared(&kernel, "weight").contains("__restrict__") && declared(&kernel, "bias").contains("__restrict__"));
    let (wait, next) = (kernel.source.rfind("wait_for_previous_kernel();"), kernel.source.find("begin_next_kernel();"));
    assert!(wait < next, "whoever begins the next kernel has waited: {wait:?} {next:?}");

    let elsewhere = built_in("linear/gemv", &linear(), &Params::new(), "gfx1100").expect("renders");
    assert!(!elsewhere.is_early && declared(&elsewhere, "x").contains("__restrict__"));
    assert!(!elsewhere.source.contains("griddepcontrol"));
}

#[test]
fn a_kernel_that_is_launched_early_waits_and_no_other_does() {
    let library = Library::from_layers(vec![Layer::built_in()]);
    let mut n_early = 0;
    for template in library.templates_where(|_, language| language == Language::Hip) {
        let waits = template.file.text.contains("wait_for_previous_kernel();");
        assert_eq!(template.launch.early.is_some(), waits, "{template}");
        n_early += usize::from(waits);
    }
    assert!(n_early > 8, "{n_early}");
}

#[test]
fn a_row_says_whether_a_kernel_is_early_where_the_gpu_can() {
    let early = Params::from([("early".to_owned(), 1)]);
    let kernel = built_in("rope_kv/block", &rope(), &early, "sm_90").expect("renders");
    assert!(kernel.spec().is_early && kernel.source.contains("griddepcontrol.wait"));
    let usual = built_in("rope_kv/block", &rope(), &Params::new(), "sm_90").expect("renders");
    assert!(!usual.spec().is_early && !usual.source.contains("griddepcontrol"));
    let refused = built_in("rope_kv/block", &rope(), &early, "gfx1100").expect_err("no such launches");
    assert!(refused.contains("the GPU launches kernels early"), "{refused}");
}
