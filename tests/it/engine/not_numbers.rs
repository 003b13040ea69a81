//! Weights that are no numbers: a run ends with the node that made the first NaN.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use engine::EngineError;
use gpu::Driver;
use gpu::host::HostDriver;
use gpu::sim::SimDriver;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::CompilerOptions;
use kernel::object::store::Store;
use kernel::target::Target;
use model::checkpoint::Checkpoint;
use model::checkpoint::layout::Layout;

use super::extras;
use crate::checkpoint::kinds::{path, path_argument};
use crate::fixtures::program::{file, run, shared_cache};

/// The fixture with this in the place of a weight's first number, f32.
pub fn damaged(folder: &Path, weight: &str, value: f32) -> String {
    let whole = path("gguf/mxfp4-bf16.gguf");
    let checkpoint = Checkpoint::open(&whole, Layout::Auto).expect("a fixture");
    let offset = checkpoint.tensor(weight).file_offset.expect("as it is in the file") as usize;
    let mut bytes = fs::read(whole).expect("a fixture");
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    file(folder, "model.gguf", &bytes)
}

#[test]
fn a_nan_or_an_infinity_in_a_weight_ends_a_run_with_the_node_that_made_the_first_nan() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // A sink is one of the terms of a softmax: with an infinite one it is infinity by infinity.
    for (value, weight, node) in [
        (f32::NAN, "block.1.attn.norm.scale", "block.1.attn"),
        (-f32::NAN, "block.0.attn.norm.scale", "block.0.attn"),
        (f32::INFINITY, "block.1.attn.sinks", "block.1.attn"),
        // Some logits are infinity, the others -infinity, and none is a NaN.
        (f32::INFINITY, "norm.scale", "norm"),
    ] {
        let model = damaged(folder.path(), weight, value);
        for temperature in ["0", "1"] {
            let args = ["run", &model, "-i", "Once upon", "-n", "12", "--device", "cpu", "-T", temperature];
            let ran = run(&args);
            assert_eq!(ran.code, 1, "{value} in {weight}: {}", ran.stderr);
            let expected = format!("which `{node}");
            let is_told = ran.stderr.contains("error: a logit is not a number: the first is in `");
            assert!(is_told && ran.stderr.contains(&expected), "{value} in {weight}: {}", ran.stderr);
            assert!(ran.stderr.contains("\nhint: the weights contain NaN"), "{}", ran.stderr);
        }
    }
}

/// Where a mask, a bias, a penalty or log-probabilities come between the logits and the sampler: a mask lets half of
/// the tokens through, all of them NaN.
#[test]
fn what_is_asked_of_a_sampler_hides_no_nan() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = damaged(folder.path(), "block.1.attn.norm.scale", f32::NAN);
    let simulated = Target::gpu("gfx1100").expect("known").simulated();
    let on_sim = SimDriver::new("gfx1100", simulated.wave_size, 0).expect("threads");
    let on_cpu = HostDriver::new(2).expect("threads");
    let devices: [(Target, Arc<dyn Driver>); 2] = [(Target::host(), Arc::new(on_cpu)), (simulated, Arc::new(on_sim))];
    for (target, driver) in devices {
        let compilers = CompilerOptions::new(env!("CARGO_BIN_EXE_gptoss-jit").into());
        let store = Store::new(Cache::open(shared_cache(), CacheLimits::default()), compilers);
        let arch = target.arch.clone();
        let sizes = (2, 64, 1 << 30);
        let mut engine = extras::load_model(Path::new(&model), target, store, driver, sizes).expect("loads");
        let vocab_size = engine.config().vocab_size;
        for ask in extras::asks() {
            engine.submit(ask.request(vocab_size)).expect("right");
            let error = loop {
                if let Err(error) = engine.step() {
                    break error;
                }
                assert!(!engine.is_idle(), "{arch}: an answer for {ask:?}");
            };
            let EngineError::NotANumber { where_: Some(place) } = &error else { panic!("{arch}: {error} for {ask:?}") };
            assert!(place.contains("which `block.1.attn"), "{arch}: {place} for {ask:?}");
            engine.abort();
        }
    }
}

#[test]
fn logits_that_are_no_numbers_are_like_no_others() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let model = damaged(folder.path(), "block.1.attn.norm.scale", f32::NAN);
    let (ids, expected) = (path_argument("ids.txt"), path_argument("expected/mxfp4/logits.npy"));
    let args = ["logits", &model, "--ids", &ids, "--expect", &expected, "--json", "--device", "cpu"];
    let ran = run(&args);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let report: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    assert_eq!((&report["beyond"], &report["largest_difference"]), (&report["values"], &serde_json::Value::Null));
}
