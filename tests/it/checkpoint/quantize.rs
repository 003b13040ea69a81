//! `--quantize`: what becomes of a model's matrices, and that kernels compute with just that.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use format::Dtype;
use gpu::Driver;
use gpu::host::HostDriver;
use gpu::sim::SimDriver;
use half::f16;
use kernel::target::Target;
use model::checkpoint::layout::Layout;
use model::checkpoint::quantized::Quantization;
use model::checkpoint::{Checkpoint, Elements, Tensor};
use std::path::Path;

use crate::fixtures::models::Fixture;
use crate::fixtures::program::run;
use crate::graph::families::logits;

fn f32s(tensor: &Tensor) -> Vec<f32> {
    let bytes = tensor.read().expect("memory").expect("bytes");
    match tensor.dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&number| f32::from_le_bytes(number)).collect(),
        _ => bytes.as_chunks().0.iter().map(|&number| half::bf16::from_le_bytes(number).to_f32()).collect(),
    }
}

/// The model with its quantised matrices as plain numbers again, and how many there are.
fn widened(whole: &Checkpoint, quantized: &Checkpoint) -> (Checkpoint, usize) {
    let mut tensors: BTreeMap<String, Tensor> = whole.tensors.clone();
    let mut n = 0;
    for codes in quantized.tensors.values().filter(|tensor| tensor.dtype == Dtype::Q8_0) {
        let own = tensors.get_mut(&codes.name).expect("it has the matrix's name");
        let (rows, k) = (own.shape[0], own.shape[1]);
        let blocks = k.div_ceil(32);
        let read = |tensor: &Tensor| tensor.read().expect("memory").expect("bytes");
        let scales = read(&quantized.tensors[&codes.name.replace("weight", "scale")]);
        let scales: Vec<f32> = scales.as_chunks().0.iter().map(|&scale| f16::from_le_bytes(scale).to_f32()).collect();
        let (codes, before) = (read(codes), f32s(own));
        let mut numbers = Vec::new();
        for row in 0..rows {
            for i in 0..k {
                let scale = scales[row * blocks + i / 32];
                let number = scale * f32::from(codes[row * blocks * 32 + i] as i8);
                // Half a step; the scale itself is off by 2^-11 of itself, which 127 steps add up to.
                let most = scale * (0.5 + 127.0 / 2048.0);
                let error = (number - before[row * k + i]).abs();
                assert!(error <= most, "{}, row {row}, {i}: {error}, expected at most {most}", own.name);
                numbers.extend(number.to_le_bytes());
            }
        }
        own.dtype = Dtype::F32;
        own.elements = Elements::Bytes(Bytes::from(numbers));
        n += 1;
    }
    (Checkpoint { tensors, ..whole.clone() }, n)
}

#[test]
fn quantised_matrices_are_near_the_models_and_kernels_compute_with_just_these() {
    let fixture = Fixture::open("gqa8");
    let whole = Checkpoint::open(Path::new(&fixture.path("model.bin")), Layout::Auto).expect("a fixture");
    let quantized = whole.quantized(Quantization::Q8_0);
    let (numbers, n) = widened(&whole, &quantized);
    let layers = whole.config.num_hidden_layers;
    assert_eq!(n, 2 + 2 * layers, "the embedding, the vocabulary's, and of each layer qkv and out: no router");
    let sim = SimDriver::new("gfx1100", 32, 2).expect("threads");
    let gfx1100 = Target::gpu("gfx1100").expect("known").simulated();
    let devices: [(Target, Arc<dyn Driver>); 2] =
        [(Target::host(), Arc::new(HostDriver::new(1).expect("threads"))), (gfx1100, Arc::new(sim))];
    let ids = &fixture.prompts[0];
    for (target, driver) in devices {
        let found = logits(&quantized, target.clone(), driver.clone(), ids);
        let expected = logits(&numbers, target, driver, ids);
        let most = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most < 5e-5, "{most}");
        let plain = logits(&whole, Target::host(), Arc::new(HostDriver::new(1).expect("threads")), ids);
        let moved = found.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(moved > 1e-4, "something was quantised: {moved}");
    }
}

#[test]
fn the_program_quantises_and_says_where_it_cannot() {
    let plain = run(&["run", "-i", "Once upon a time", "-n", "24"]).ok();
    let quantized = run(&["run", "-i", "Once upon a time", "-n", "24", "--quantize", "q8_0"]).ok();
    assert_eq!(quantized.text(), plain.text(), "a story so simple is the same");
    let listed = run(&["inspect", "--quantize", "q8_0"]).ok();
    assert!(
        listed.text().lines().any(|line| line.contains("attn.qkv.weight") && line.contains("q8_0")),
        "{}",
        listed.text()
    );
    assert!(
        listed.text().lines().any(|line| line.contains("mlp.gate.weight") && line.contains("bf16")),
        "{}",
        listed.text()
    );
    run(&["run", "--quantize", "q9_9"]).fails(2);
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.bin");
    let args = ["export", "--shape", "gpt-oss-20b", "--layers", "1", "--quantize", "q8_0", &out.to_string_lossy()];
    let refused = run(&args).fails(2);
    assert!(refused.contains("leave `--quantize` out"), "{refused}");
}
