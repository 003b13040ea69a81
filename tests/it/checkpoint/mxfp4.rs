//! MXFP4 decoded: all 16 codes under all 256 scales, against an implementation that is not ours, wherever something
//! here decodes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use format::Dtype;
use gpu::Driver;
use gpu::host::HostDriver;
use gpu::sim::SimDriver;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::CompilerOptions;
use kernel::object::store::Store;
use kernel::target::Target;
use kernel::template::library::{Layer, Library};
use kernel::template::{Params, Precision, Problem};
use model::checkpoint::conversion::mxfp4_numbers;
use reference::{Tensor, Tensors};
use workbench::check::{Checker, Runner};

use crate::fixtures::program::shared_cache;
use crate::fixtures::skipped;

const N_SCALES: usize = 256;
const N_CODES: usize = 16;

/// What `tests/fixtures/make_mxfp4_fixture.py` wrote: (scales, codes).
fn expected() -> Vec<f32> {
    let npy = include_bytes!("../../fixtures/mxfp4.npy");
    let array = npyz::NpyFile::new(&npy[..]).expect("an array");
    assert_eq!(array.shape(), [N_SCALES as u64, N_CODES as u64]);
    array.into_vec().expect("f32")
}

/// The same by the words of the specification (OCP Microscaling Formats 1.0, 5.3.3 and 5.4.1): a sign, two bits of
/// exponent with bias 1, one of mantissa; the scale is a power of two with bias 127, all ones NaN.
fn specified(scale: usize, code: usize) -> f32 {
    let (sign, exponent, mantissa) = (code >> 3, code >> 1 & 3, (code & 1) as f64);
    let size = if exponent == 0 { 0.5 * mantissa } else { (1.0 + 0.5 * mantissa) * (exponent as f64 - 1.0).exp2() };
    let factor = if scale == 255 { f64::NAN } else { (scale as f64 - 127.0).exp2() };
    (if sign == 1 { -size * factor } else { size * factor }) as f32
}

/// Bit for bit, but that there are many NaNs, and that a sum has no zero below zero.
#[track_caller]
fn assert_same(got: &[f32], of_sums: bool, what: &str) {
    let expected = expected();
    assert_eq!(got.len(), expected.len());
    for (i, (got, want)) in got.iter().zip(&expected).enumerate() {
        let is_same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan() || of_sums && got == want;
        assert!(is_same, "{what}: scale {}, code {}: {got:e}, expected {want:e}", i / N_CODES, i % N_CODES);
    }
}

#[test]
fn the_fixture_says_what_the_specification_says() {
    let table: Vec<f32> = (0..N_SCALES * N_CODES).map(|i| specified(i / N_CODES, i % N_CODES)).collect();
    assert_same(&table, false, "the specification");
}

#[test]
fn the_host_decodes_every_code_under_every_scale() {
    let table: Vec<f32> = (0..=255).flat_map(mxfp4_numbers).collect();
    assert_same(&table, false, "the host");
}

/// What kernels of `moe_mlp2` make of every code under every scale: each has a row of the one expert, in which all
/// others are zero, and the one token is all ones, so that a row's sum is that number.
fn by_kernels(variant: &str, precision: Precision, target: &Target, driver: &dyn Driver) -> Vec<f32> {
    sums(variant, precision, target, driver, inputs(precision))
}

/// The products of rows of weight with the one row of x, by a kernel of `moe_mlp2` with one expert.
fn sums(variant: &str, precision: Precision, target: &Target, driver: &dyn Driver, inputs: Tensors) -> Vec<f32> {
    let worker = Path::new(env!("CARGO_BIN_EXE_gptoss-jit")).to_owned();
    let store = Store::new(Cache::open(shared_cache(), CacheLimits::default()), CompilerOptions::new(worker));
    let library = Library::from_layers(vec![Layer::built_in()]);
    let template = library.template(&format!("moe_mlp2/{variant}"), target.language()).expect("built in");
    let runner = Some(Runner { target, driver });
    let checker = Checker { library: &library, target, store: &store, runner, compute_unit: None };
    let dims = [
        ("hidden_size", inputs["bias"].values().len() as u32),
        ("intermediate_size", inputs["x"].values().len() as u32),
        ("num_experts", 1),
        ("experts_per_token", 1),
    ];
    let problem = Problem {
        ops: vec!["moe_mlp2".into()],
        dims: dims.map(|(name, size)| (name.to_owned(), size)).into(),
        constants: BTreeMap::new(),
        flags: BTreeMap::from([("has_bias".into(), true)]),
        dtypes: BTreeMap::from([("weight".into(), Dtype::Mxfp4), ("bias".into(), Dtype::Bf16)]),
        precision,
        keeps: BTreeSet::new(),
    };
    let scalars = [("n_tokens".to_owned(), 1.0)].into();
    let outputs = checker.outputs(template, &problem, &Params::new(), &scalars, &inputs).expect("runs");
    outputs["y"].values().iter().map(|value| *value as f32).collect()
}

fn inputs(precision: Precision) -> Tensors {
    let n_rows = N_SCALES * N_CODES;
    let mut codes = vec![0u8; 16 * n_rows];
    for row in 0..n_rows {
        let at = (row + row / N_CODES) % 32; // every code is at every place of a block, under one scale or another
        codes[16 * row + at / 2] = ((row % N_CODES) << (at % 2 * 4)) as u8;
    }
    let scales: Vec<u8> = (0..n_rows).map(|row| (row / N_CODES) as u8).collect();
    inputs_of(Tensor::rounded(precision.activation(), vec![1.0; 32]), &codes, &scales, n_rows)
}

/// One token, sent to the one expert with weight 1, whose rows have these codes and scales.
fn inputs_of(x: Tensor, codes: &[u8], scales: &[u8], n_rows: usize) -> Tensors {
    let whole = |value: u32| Tensor::from_bytes(Dtype::U32, &value.to_le_bytes());
    let floats = |value: f64, n: usize| Tensor::rounded(Dtype::F32, vec![value; n]);
    let inputs = [
        ("x", x),
        ("weight", Tensor::from_bytes(Dtype::Mxfp4, codes)),
        ("scale", Tensor::from_bytes(Dtype::U8, scales)),
        ("bias", Tensor::rounded(Dtype::Bf16, vec![0.0; n_rows])),
        ("route_weight", floats(1.0, 1)),
        ("expert_begin", Tensor::from_bytes(Dtype::U32, &[0, 0, 0, 0, 1, 0, 0, 0])),
        ("assignment", whole(0)),
        ("active_expert", whole(0)),
        ("residual", floats(0.0, n_rows)),
    ];
    inputs.map(|(name, tensor)| (name.to_owned(), tensor)).into()
}

/// Kernels with AVX2 multiply integers, to which each block of x is rounded once; others take x as it is. Beyond that
/// products are exact, and sums those of f32. That an element is no number is told by all sums that it is in.
#[test]
fn kernels_of_the_cpu_take_elements_of_x_of_all_sizes() {
    const K: usize = 160; // five blocks: the last of three steps begins within the one before
    let driver = HostDriver::new(2).expect("threads");
    let host = Target::host();
    let lower = ["x86-64-v3", "x86-64-v2"].map(|level| Target::named(level).ok()).into_iter().flatten();
    let targets: Vec<Target> = [host.clone()].into_iter().chain(lower.filter(|lower| lower.arch < host.arch)).collect();
    let n_rows = 48;
    let mut state = 4_u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407); // Knuth's
        (state >> 33) % n
    };
    let codes: Vec<u8> = (0..n_rows * K / 2).map(|_| below(256) as u8).collect();
    let scales: Vec<u8> = (0..n_rows * K / 32).map(|_| 100 + below(40) as u8).collect();
    for spread in [0, 6, 20, 60] {
        let mut one =
            |_| (below(1 << 20) as f64 / 524_288.0 - 1.0) * (below(2 * spread + 1) as f64 - spread as f64).exp2();
        let x = Tensor::rounded(Dtype::Bf16, (0..K).map(&mut one).collect());
        for target in &targets {
            let inputs = inputs_of(x.clone(), &codes, &scales, n_rows);
            let got = sums("grouped", Precision::Bf16, target, &driver, inputs);
            for (row, got) in got.iter().enumerate() {
                let (mut want, mut size) = (0.0, 0.0);
                for block in 0..K / 32 {
                    let x = &x.values()[32 * block..][..32];
                    let largest = x.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
                    let unit = (largest.log2().floor() - 14.0).exp2();
                    for (k, x) in x.iter().enumerate() {
                        let at = row * K + 32 * block + k;
                        let code = codes[at / 2] >> (at % 2 * 4) & 15;
                        let w = f64::from(specified(scales[at / 32].into(), code.into()));
                        let x = if target.arch == "x86-64-v3" { (x / unit).round_ties_even() * unit } else { *x };
                        want += w * x;
                        size += (w * x).abs();
                    }
                }
                let (difference, tolerance) = ((f64::from(*got) - want).abs(), size * K as f64 * 0.5_f64.powi(24));
                assert!(difference <= tolerance, "{}, {spread}: {got:e}, expected {want:e}", target.arch);
            }
        }
    }
    for odd in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        let x: Vec<f64> = (0..K).map(|k| if k == 77 { odd } else { 1.0 }).collect();
        for target in &targets {
            let inputs =
                inputs_of(Tensor::rounded(Dtype::Bf16, x.clone()), &vec![0x22; n_rows * K / 2], &scales, n_rows);
            let got = sums("grouped", Precision::Bf16, target, &driver, inputs);
            assert!(got.iter().all(|sum| !sum.is_finite()), "{}, {odd}: {got:?}", target.arch);
        }
    }
}

#[test]
fn kernels_of_the_cpu_decode_every_code_under_every_scale() {
    let driver = HostDriver::new(2).expect("threads");
    let host = Target::host();
    let lower = ["x86-64-v3", "x86-64-v2"].map(|level| Target::named(level).ok()).into_iter().flatten();
    for target in [host.clone()].into_iter().chain(lower.filter(|lower| lower.arch < host.arch)) {
        for precision in [Precision::F32, Precision::Bf16] {
            let got = by_kernels("grouped", precision, &target, &driver);
            assert_same(&got, true, &format!("{} at {precision}", target.arch));
        }
    }
}

#[test]
fn kernels_of_the_matrix_unit_decode_every_code_under_every_scale() {
    let host = Target::host();
    if !host.features.contains("amx_bf16") {
        return skipped("no AMX with bf16 that this process may use");
    }
    let got = by_kernels("amx", Precision::Bf16, &host, &HostDriver::new(2).expect("threads"));
    assert_same(&got, true, "AMX");
}

/// Each row has its one scale that is no number in another block, behind the blocks that a wave of either size takes
/// first, too; the last row has none.
#[test]
fn a_scale_that_is_no_number_is_seen_behind_the_first_blocks_of_a_wave() {
    const N_BLOCKS: usize = 70;
    const ODD: [usize; 7] = [0, 31, 32, 63, 64, 68, 69];
    let n_rows = ODD.len() + 1;
    let mut scales = vec![127u8; n_rows * N_BLOCKS];
    ODD.iter().enumerate().for_each(|(row, block)| scales[row * N_BLOCKS + block] = 255);
    let codes = vec![0x22; 16 * scales.len()]; // each is 1
    let x = Tensor::rounded(Dtype::Bf16, vec![1.0; 32 * N_BLOCKS]);
    let check = |variant: &str, target: &Target, driver: &dyn Driver| {
        let got = sums(variant, Precision::Bf16, target, driver, inputs_of(x.clone(), &codes, &scales, n_rows));
        let numbers: Vec<usize> = (0..n_rows).filter(|row| !got[*row].is_nan()).collect();
        assert_eq!(numbers, [ODD.len()], "{variant} on {}: rows that are numbers", target.arch);
        assert_eq!(got[ODD.len()], 32.0 * N_BLOCKS as f32, "{variant} on {}", target.arch);
    };
    for arch in ["gfx1100", "gfx942"] {
        let target = Target::gpu(arch).expect(arch).simulated();
        check("dot4", &target, &SimDriver::new(arch, target.wave_size, 2).expect("threads"));
    }
    check("grouped", &Target::host(), &HostDriver::new(2).expect("threads"));
}

#[test]
fn kernels_of_gpus_decode_every_code_under_every_scale() {
    for arch in ["gfx1100", "gfx942"] {
        let target = Target::gpu(arch).expect(arch).simulated();
        let driver: Arc<dyn Driver> = Arc::new(SimDriver::new(arch, target.wave_size, 2).expect("threads"));
        // Not those with matrix instructions, which take numbers below 2^-126 for zeros.
        for (variant, precision) in [("gemv", Precision::Bf16), ("tile", Precision::F32)] {
            let got = by_kernels(variant, precision, &target, &*driver);
            assert_same(&got, true, &format!("{variant} on {arch} at {precision}"));
        }
    }
}
