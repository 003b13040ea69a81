//! Random weights and experts in MXFP4: the same numbers and the same tokens everywhere, and what they take.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use engine::blueprint::{ModelOptions, PrefixCache};
use engine::graph::placement::EmbeddingPlace;
use engine::plan::error::PlanError;
use engine::plan::executor::Written;
use engine::{Engine, EngineError, EngineOptions};
use format::Dtype;
use gpu::host::HostDriver;
use gpu::sim::SimDriver;
use gpu::{Buffer, BufferView, DeviceMemory, Driver, GpuError, Kernel, KernelSpec, Launch};
use hint::Hint;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::CompilerOptions;
use kernel::object::store::Store;
use kernel::pipeline::Pipeline;
use kernel::target::Target;
use kernel::template::library::{Layer, Library};
use kernel::template::{Params, Precision, Problem};
use kernel::tuning::TuningTables;
use model::checkpoint::Checkpoint;
use model::checkpoint::encoding::Encoding;
use model::checkpoint::random::RandomNumbers;
use model::config::ModelConfig;
use reference::{self, Case, Tensor, Tensors};
use workbench::check::{Checker, Runner};

use crate::fixtures::models::gpt_oss;
use crate::fixtures::program::{run, shared_cache};

fn store() -> Store {
    let worker = Path::new(env!("CARGO_BIN_EXE_gptoss-jit")).to_owned();
    Store::new(Cache::open(shared_cache(), CacheLimits::default()), CompilerOptions::new(worker))
}

fn cpu() -> (Target, Arc<dyn Driver>) {
    (Target::host(), Arc::new(HostDriver::new(2).expect("threads")))
}

fn sim(arch: &str) -> (Target, Arc<dyn Driver>) {
    let target = Target::gpu(arch).expect(arch).simulated();
    let driver = SimDriver::new(arch, target.wave_size, 2).expect("threads");
    (target, Arc::new(driver))
}

// ---- the numbers ----

/// What a device makes of a tensor's few numbers, as bytes.
fn made(dtype: Dtype, scalars: &BTreeMap<String, f64>, device: &(Target, Arc<dyn Driver>)) -> Vec<u8> {
    let (target, driver) = device;
    let (library, store) = (Library::from_layers(vec![Layer::built_in()]), store());
    let template = library.template("random_weights/chunks", target.language()).expect("built in");
    let runner = Some(Runner { target, driver: &**driver });
    let checker = Checker { library: &library, target, store: &store, runner, compute_unit: None };
    let outputs = checker.outputs(template, &problem(dtype), &Params::new(), scalars, &Tensors::new()).expect("runs");
    outputs["y"].to_bytes()
}

fn problem(dtype: Dtype) -> Problem {
    Problem {
        ops: vec!["random_weights".into()],
        dims: BTreeMap::new(),
        constants: BTreeMap::new(),
        flags: BTreeMap::new(),
        dtypes: BTreeMap::from([("value".into(), dtype)]),
        precision: Precision::F32,
        keeps: BTreeSet::new(),
    }
}

#[test]
fn the_cpu_and_gpus_make_the_same_bytes() {
    let scalars = [("n_rows", 3.0), ("row_len", 22_002.0), ("stream_low", 77.0), ("stream_high", 3e9)];
    for (dtype, centre, step) in [
        (Dtype::F32, 1.0, 0.1_f32 / 32768.0),
        (Dtype::Bf16, 0.0, 0.0186 / 32768.0),
        (Dtype::U8, 120.05, 0.5 / 32768.0),
        (Dtype::Mxfp4, 0.0, 0.0),
    ] {
        let floats = [("centre", centre), ("step", f64::from(step))];
        let scalars: BTreeMap<String, f64> =
            scalars.into_iter().chain(floats).map(|(name, value)| (name.to_owned(), value)).collect();
        let on_cpu = made(dtype, &scalars, &cpu());
        assert_eq!(on_cpu.len(), dtype.len_bytes(3 * 22_002));
        for arch in ["gfx1100", "gfx942"] {
            assert!(made(dtype, &scalars, &sim(arch)) == on_cpu, "{dtype} on {arch}");
        }
        let dtypes = problem(dtype).dtypes;
        let case = Case { scalars, dtypes, ..Case::default() };
        let reference = reference::run(&["random_weights".into()], &case, &Tensors::new()).expect("a reference");
        let reference = Tensor::rounded(dtype, reference["y"].values.clone()).to_bytes();
        assert!(reference == on_cpu, "{dtype}: the reference");

        // What `export` writes, in one go and from the middle on: the file's bytes are made without a device.
        let stream = 3_000_000_000 << 32 | 77;
        let numbers = RandomNumbers { stream, centre: centre as f32, step };
        let (mut all, half) = (vec![0; on_cpu.len()], 3 * 11_001 - 1); // a byte holds two codes
        numbers.write(dtype, 0, &mut all);
        assert!(all == on_cpu, "{dtype}: on the host");
        numbers.write(dtype, half, &mut all[dtype.len_bytes(half)..]);
        assert!(all == on_cpu, "{dtype}: its second half");
    }
}

// ---- models made of them ----

/// The dimensions of `examples/tiny`, whose kernels other tests use too.
fn config() -> ModelConfig {
    gpt_oss(&[
        ("vocab_size", 768.0),
        ("hidden_size", 128.0),
        ("num_experts", 8.0),
        ("experts_per_token", 2.0),
        ("intermediate_size", 96.0),
        ("num_hidden_layers", 4.0),
        ("head_dim", 32.0),
        ("num_attention_heads", 4.0),
        ("num_key_value_heads", 2.0),
        ("max_seq_len", 1024.0),
        ("initial_context_length", 4096.0),
        ("rope_theta", 150_000.0),
        ("rope_scaling_factor", 32.0),
        ("sliding_window", 32.0),
        ("swiglu_limit", 7.0),
    ])
}

fn random(encoding: Encoding, seed: u64) -> Checkpoint {
    Checkpoint::random(config(), encoding, seed).expect("a model")
}

fn load(checkpoint: &Checkpoint, device: (Target, Arc<dyn Driver>)) -> Result<Engine, Box<EngineError>> {
    let (target, driver) = device;
    let library = Library::load(&[]).expect("the built-in templates");
    let tables = TuningTables::load(&[]).expect("the built-in tables");
    let pipeline = Pipeline::new(library, tables, target, store(), driver).expect("tables that are right");
    let model = ModelOptions {
        precision: Precision::Bf16,
        kv_dtype: Dtype::Bf16,
        n_slots: 1,
        capacity_tokens: 256,
        max_rows: 32,
        max_logit_rows: 32,
        odd_window: None,
        kv_budget_bytes: 1 << 30,
        max_prompt_rows: None,
        prefix_cache: PrefixCache::OFF,
        drafts: None,
        embedding: EmbeddingPlace::Device,
    };
    Engine::load(checkpoint, EngineOptions { pipeline, peers: Vec::new(), host: None, model, watchdog: None }, &())
        .map_err(Box::new)
}

/// Logits after each of a few tokens.
fn logits(checkpoint: &Checkpoint, device: (Target, Arc<dyn Driver>)) -> Vec<f32> {
    let ids: Vec<u32> = (0..24).map(|i| i * 97 % 768).collect();
    load(checkpoint, device).expect("loads").teacher_force(&ids, None).expect("runs")
}

/// |a - b| / |b|
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |v: f32| f64::from(v).powi(2);
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (difference / b.iter().copied().map(square).sum::<f64>()).sqrt()
}

#[test]
fn one_seed_is_one_model_on_the_cpu_and_on_a_gpu_and_another_seed_is_another() {
    let on_cpu = logits(&random(Encoding::Mxfp4, 1), cpu());
    let on_gpu = logits(&random(Encoding::Mxfp4, 1), sim("gfx942"));
    let rows = on_gpu.chunks(768).zip(on_cpu.chunks(768)).map(|(gpu, cpu)| distance(gpu, cpu));
    let far: Vec<f64> = rows.filter(|distance| *distance >= 0.01).collect();
    // Of two experts that a router finds nearly alike, each device may choose another.
    assert!(far.len() <= 2 && far.iter().all(|distance| *distance < 0.5), "{far:?}");
    let of_other = distance(&logits(&random(Encoding::Mxfp4, 2), cpu()), &on_cpu);
    assert!(of_other > 1.0, "{of_other}");
}

#[test]
fn experts_in_mxfp4_keep_activations_the_size_that_bf16_gives_them() {
    let norm = |encoding| {
        let mut engine = load(&random(encoding, 1), cpu()).expect("loads");
        let mut squares = 0.0;
        let mut observe = |written: &Written<'_>| {
            if written.tensor.ends_with("mlp.mlp1.y") {
                squares += written.values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
            }
        };
        let ids: Vec<u32> = (0..64).map(|i| i * 97 % 768).collect();
        engine.teacher_force(&ids, Some(&mut observe)).expect("runs");
        squares.sqrt()
    };
    let (mxfp4, bf16) = (norm(Encoding::Mxfp4), norm(Encoding::Bf16));
    assert!((mxfp4 / bf16 - 1.0).abs() < 0.1, "{mxfp4} and {bf16}");
}

/// What the router does with random tokens, of all layers: the busiest expert's share of the rows, the least busy
/// one's, and the distinct experts of 32 rows, on average.
fn routing(config: ModelConfig, n_tokens: u32) -> (f64, f64, f64) {
    let (n_experts, chosen) = (config.dim("num_experts"), config.dim("experts_per_token"));
    let (vocab_size, n_layers) = (config.vocab_size as u32, config.num_hidden_layers);
    let checkpoint = Checkpoint::random(config, Encoding::Mxfp4, 1).expect("a model");
    let mut engine = load(&checkpoint, cpu()).expect("loads");
    let mut rows: Vec<Vec<Vec<usize>>> = vec![Vec::new(); n_layers];
    let mut observe = |written: &Written<'_>| {
        let Some(l) = (0..n_layers).find(|l| written.tensor == format!("block.{l}.mlp.gate.y")) else { return };
        for logits in written.values.chunks(n_experts) {
            let mut order: Vec<usize> = (0..n_experts).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            rows[l].push(order[..chosen].to_vec());
        }
    };
    for first in (0..n_tokens).step_by(256) {
        let ids: Vec<u32> =
            (first..n_tokens.min(first + 256)).map(|i| i.wrapping_mul(2_654_435_761) % vocab_size).collect();
        engine.teacher_force(&ids, Some(&mut observe)).expect("runs");
    }
    let mut shares: Vec<f64> = Vec::new();
    let mut distinct = Vec::new();
    for rows in &rows {
        let share = |e| rows.iter().filter(|row| row.contains(&e)).count() as f64 / rows.len() as f64;
        shares.extend((0..n_experts).map(share));
        distinct.extend(
            rows.chunks_exact(32)
                .map(|rows| (0..n_experts).filter(|e| rows.iter().any(|row| row.contains(e))).count() as f64),
        );
    }
    let busiest = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    let busiest = shares.chunks(n_experts).map(busiest).sum::<f64>() / n_layers as f64;
    let least = shares.iter().copied().fold(1.0, f64::min);
    (busiest, least, distinct.iter().sum::<f64>() / distinct.len() as f64)
}

/// With every expert as likely as any other, 32 rows of 4 out of 32 experts meet 31.6 of them, and each gets an eighth
/// of the rows. With biases of -0.75 to 0.75 and normal logits, a simulation gives 28.7, and 29 % and 2 % for the
/// busiest and the least busy one.
#[test]
fn the_router_prefers_some_experts_and_starves_none() {
    let shape = config().with("num_experts", 32).with("experts_per_token", 4);
    let (busiest, least, distinct) = routing(shape, 768);
    assert!((0.2..0.4).contains(&busiest) && (0.001..0.06).contains(&least), "{busiest} {least}");
    assert!((26.0..30.5).contains(&distinct), "{distinct}");
}

// ---- memory ----

/// A device that says how much memory it has, and of which nothing may be taken.
struct Full(HostDriver, usize);

impl Driver for Full {
    fn describe(&self) -> String {
        "a full device".into()
    }

    fn parallelism(&self) -> usize {
        self.0.parallelism()
    }

    fn memory(&self) -> Result<Option<DeviceMemory>, GpuError> {
        Ok(Some(DeviceMemory { free_bytes: self.1, total_bytes: 1 << 30 }))
    }

    fn allocate(&self, len_bytes: usize) -> Result<Buffer, GpuError> {
        panic!("{len_bytes} bytes were allocated before it was known that all fits")
    }

    fn upload(&self, bytes: Bytes) -> Result<Buffer, GpuError> {
        panic!("{} bytes were copied before it was known that all fits", bytes.len())
    }

    fn load(&self, object: &[u8], spec: KernelSpec) -> Result<Kernel, GpuError> {
        self.0.load(object, spec)
    }

    fn launch(&self, _: &Kernel, _: &Launch<'_>) -> Result<(), GpuError> {
        panic!("nothing is launched")
    }

    fn write(&self, _: &BufferView, _: &[u8]) -> Result<(), GpuError> {
        panic!("nothing is written")
    }

    fn read(&self, _: &BufferView, _: &mut [u8]) -> Result<(), GpuError> {
        panic!("nothing is read")
    }

    fn enter(&self, work: &mut (dyn FnMut() + Send)) {
        self.0.enter(work);
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused_before_anything_is_allocated() {
    let checkpoint = random(Encoding::Mxfp4, 1);
    let plan = load(&checkpoint, cpu()).expect("loads").executor().memory_plan().clone();
    let weights: usize = checkpoint.tensors.values().map(|tensor| tensor.len_bytes()).sum();
    assert_eq!((plan.weights, plan.weights_in_place), (weights, 0));
    let full = |free_bytes| (Target::host(), Arc::new(Full(HostDriver::new(1).expect("threads"), free_bytes)) as _);
    let refused = load(&checkpoint, full(plan.needed_bytes() - 1)).err().expect("one byte is missing");
    let EngineError::Plan(PlanError::Memory(error)) = &*refused else { panic!("{refused}") };
    assert_eq!(error.plan.needed_bytes(), plan.needed_bytes());
    let said = refused.to_string();
    assert!(said.starts_with("could not fit the model into the memory of a full device: weights 0.00"), "{said}");
    assert!(refused.hint().expect("a hint").contains("--kv-memory"));
}

// ---- the command line ----

#[test]
fn shapes_and_checkpoints_exclude_each_other() {
    for args in [
        &["run", "model.bin", "--shape", "gpt-oss-20b", "-i", "a"][..],
        &["bench", "--layers", "2"],
        &["logits", "--weights", "f16", "--shape", "gpt-oss-20b", "--ids", "x", "--trace"],
        &["run", "--shape", "gpt-oss-21b", "-i", "a"],
    ] {
        run(args).fails(2);
    }
}
