//! This machine's limits, measured in the same run: bytes moved per second, operations per second, and the time of an
//! empty launch.
//!
//! All of them are kernels like any other (`templates/peak_*`), launched on the device that is being measured, on data
//! that looks random: a matrix unit is faster on zeros.

use std::collections::BTreeMap;
use std::time::Duration;

use gpu::{Argument, BufferView, GpuError, Launch};
use serde_json::json;

use expression::ExpressionError;
use hint::Hint;
use kernel::pipeline::{LoadedKernel, Pipeline, PipelineError};
use kernel::target::{Platform, Target};
use kernel::template::{Params, Precision, Problem, Template};

/// The machine's limits.
#[derive(Clone, Debug)]
pub struct MachineLimits {
    /// Bytes read from memory per second, by all threads.
    pub read_bytes_per_s: f64,
    /// Bytes moved per second by a copy from memory to memory: those read and those written.
    pub copy_bytes_per_s: f64,
    /// f32 operations per second, by all threads; a multiply-add counts as two.
    pub multiply_add_flop_per_s: f64,
    /// The matrix unit's bf16 operations per second, by each template that fits, the fastest first.
    pub(crate) matrix: Vec<MatrixRate>,
    /// What one launch of many takes that are replayed as a graph and do nothing; `None` where launches are not
    /// replayed.
    pub launch: Option<Duration>,
    is_gpu: bool,
}

/// Why the limits could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum LimitsError {
    /// A kernel could not be chosen, compiled or loaded.
    #[error(transparent)]
    Kernel(#[from] PipelineError),
    #[error(transparent)]
    Device(#[from] GpuError),
    /// A launch has no size.
    #[error(transparent)]
    Size(#[from] ExpressionError),
}

impl Hint for LimitsError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Kernel(error) => error.hint(),
            Self::Device(error) => error.hint(),
            Self::Size(_) => None,
        }
    }
}

/// How carefully limits are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Where they are the point.
    Usual,
    /// Where they stand beside something else: less time, and on a processor less memory.
    Little,
}

impl Care {
    /// What the runs of one figure may take together. A large GPU's take 10 to 200 ms.
    fn budget(self) -> Duration {
        match self {
            Self::Usual => Duration::from_secs(2),
            Self::Little => Duration::from_millis(500),
        }
    }
}

/// How fast a template drives the matrix unit.
#[derive(Clone, Debug)]
pub(crate) struct MatrixRate {
    /// Operations per second; a multiply-add counts as two.
    pub(crate) flop_per_s: f64,
    pub(crate) template: String,
    /// What it says of itself: with which instruction.
    pub(crate) summary: String,
}

impl MachineLimits {
    /// For a device that was not measured: comparisons with these limits are impossible.
    pub fn unknown() -> Self {
        let [read_bytes_per_s, copy_bytes_per_s, multiply_add_flop_per_s] = [f64::NAN; 3];
        let (matrix, launch, is_gpu) = (Vec::new(), None, false);
        Self { read_bytes_per_s, copy_bytes_per_s, multiply_add_flop_per_s, matrix, launch, is_gpu }
    }

    /// Those of a run at this precision: f32 sums in index order are not what a matrix unit does.
    #[must_use]
    pub fn at(mut self, precision: Precision) -> Self {
        if precision == Precision::F32 {
            self.matrix.clear();
        }
        self
    }

    /// Whether they were measured.
    pub fn are_known(&self) -> bool {
        !self.read_bytes_per_s.is_nan()
    }

    /// Whether they are a GPU's.
    pub fn is_gpu(&self) -> bool {
        self.is_gpu
    }

    /// The limit for weights and caches: on a GPU the copy bandwidth, on a CPU, which seldom writes, the read
    /// bandwidth.
    pub fn memory_bytes_per_s(&self) -> f64 {
        if self.is_gpu { self.copy_bytes_per_s } else { self.read_bytes_per_s }
    }

    /// The name of the memory limit: copy or read.
    pub fn memory_name(&self) -> &'static str {
        if self.is_gpu { "copy" } else { "read" }
    }

    /// The limit for multiplications: the matrix unit if one was measured, else f32 multiply-adds.
    pub fn flop_per_s(&self) -> f64 {
        self.matrix.first().map_or(self.multiply_add_flop_per_s, |matrix| matrix.flop_per_s)
    }

    /// The name of the limit of operations: matrix unit or multiply-adds.
    pub fn flop_name(&self) -> &'static str {
        if self.matrix.is_empty() { "f32" } else { "matrix" }
    }

    /// Operations per second for people: a unit that suits the limit, and what it is.
    pub fn flop_unit(&self) -> (f64, &'static str) {
        if self.flop_per_s() >= 1e13 { (1e12, "TFLOP/s") } else { (1e9, "GFLOP/s") }
    }

    /// All of it, for people.
    pub fn lines(&self) -> Vec<String> {
        let gbps = |bytes_per_s: f64| format!("{:.1} GB/s", bytes_per_s / 1e9);
        let (unit, name) = self.flop_unit();
        let rate = |flop_per_s: f64| format!("{:.1} {name}", flop_per_s / unit);
        let mut lines = vec![format!(
            "limits measured now: copy {} (read and written), read {}, f32 multiply-add {}",
            gbps(self.copy_bytes_per_s),
            gbps(self.read_bytes_per_s),
            rate(self.multiply_add_flop_per_s)
        )];
        for matrix in &self.matrix {
            lines.push(format!("bf16 matrix {} by {}: {}", rate(matrix.flop_per_s), matrix.template, matrix.summary));
        }
        if let Some(launch) = self.launch {
            lines.push(format!("a launch in a graph that does nothing takes {:.2} us", 1e6 * launch.as_secs_f64()));
        }
        lines
    }

    /// All of it, for programs.
    pub fn json(&self) -> serde_json::Value {
        let rate = |matrix: &MatrixRate| json!({ "tflops": matrix.flop_per_s / 1e12, "template": matrix.template, "summary": matrix.summary });
        json!({
            "read_gbps": self.read_bytes_per_s / 1e9,
            "copy_gbps": self.copy_bytes_per_s / 1e9,
            "f32_tflops": self.multiply_add_flop_per_s / 1e12,
            "bf16_matrix": self.matrix.iter().map(rate).collect::<Vec<_>>(),
            "launch_us": self.launch.map(|launch| 1e6 * launch.as_secs_f64()),
            "held_against": { "memory": self.memory_name(), "operations": self.flop_name() },
        })
    }
}

/// How much is done for each figure: enough for a chip, and little enough for a simulator, whose figures mean nothing.
struct LimitsEffort {
    /// Bytes that are read; half as many are copied. Far more than any cache holds.
    memory_bytes: usize,
    /// What one block reads or copies, in elements: each is tried, and the fastest counts.
    block_elements: &'static [usize],
    /// A kernel that only computes runs so long.
    target: Duration,
    /// The best of this many runs each is taken, since other work can only slow them down.
    repeats: usize,
    /// No further run once they took so long together. A device on which they would reads less memory at a time.
    budget: Duration,
}

impl LimitsEffort {
    fn new(target: &Target, care: Care) -> Self {
        let (block_elements, budget) = (if target.is_real_gpu() { &ALL_SIZES[..] } else { &LARGE }, care.budget());
        let of = |memory_bytes, ms, repeats| Self {
            memory_bytes,
            block_elements,
            target: Duration::from_millis(ms),
            repeats,
            budget,
        };
        match target.platform {
            _ if target.is_simulated => of(1 << 21, 0, 1),
            Platform::Host if care == Care::Little => of(1 << 28, 20, 3),
            // In a few milliseconds, the system may not have spread the threads over the cores yet.
            Platform::Host => of(1 << 30, 30, 10),
            _ => of(4 << 30, 20, 10),
        }
    }
}

/// What is read before anything else, to see how fast that is. A device that takes long for it has smaller caches.
const FIRST_BYTES: usize = 64 << 20;

/// 512 KiB, like a few dozen rows of weights.
const LARGE: [usize; 1] = [128 * 1024];

/// On a GPU also what one block moves at once: its blocks then go through memory side by side.
const ALL_SIZES: [usize; 3] = [4 * 1024, 16 * 1024, 128 * 1024];

/// Independent multiply-adds of a block.
const CHAINS: usize = 256;

/// What a block multiplies: rows of one matrix, rows of the other, and their length.
const TILE: [usize; 3] = [128, 256, 32];

/// Rounds of a kernel that only computes, at most: where a clock stands still, too.
const MAX_ROUNDS: u32 = 100_000_000;

/// Launches of the graph that does nothing.
const EMPTY_LAUNCHES: usize = 200;

/// Measures all of them.
///
/// # Errors
/// If a kernel cannot be had, or the device refuses it.
pub fn measure(pipeline: &Pipeline, care: Care) -> Result<MachineLimits, LimitsError> {
    let bench = Bench { pipeline, effort: LimitsEffort::new(pipeline.target(), care) };
    let (read_bytes_per_s, copy_bytes_per_s) = bench.bandwidths()?;
    Ok(MachineLimits {
        read_bytes_per_s,
        copy_bytes_per_s,
        multiply_add_flop_per_s: bench.multiply_add()?,
        matrix: bench.matrix()?,
        launch: bench.empty_launch()?,
        is_gpu: pipeline.target().is_gpu(),
    })
}

struct Bench<'a> {
    pipeline: &'a Pipeline,
    effort: LimitsEffort,
}

impl Bench<'_> {
    /// Bytes per second of a read, and of a copy.
    fn bandwidths(&self) -> Result<(f64, f64), LimitsError> {
        let wanted = self.bytes_in_time()?;
        // A quarter where that is not to be had.
        let memory = self.filled(wanted).or_else(|_| self.filled(wanted / 4))?;
        let (mut read_s, mut copy_s) = (f64::INFINITY, f64::INFINITY);
        for &block_elements in self.effort.block_elements {
            read_s = read_s.min(self.read_time(&memory, block_elements)?);
            copy_s = copy_s.min(self.copy_time(&memory, block_elements)?);
        }
        let n_bytes = memory.len_bytes() as f64;
        Ok((n_bytes / read_s, n_bytes / copy_s))
    }

    /// Bytes to read: all that are wanted, or as many as this device reads in its time.
    fn bytes_in_time(&self) -> Result<usize, LimitsError> {
        let LimitsEffort { memory_bytes, block_elements, repeats, budget, .. } = self.effort;
        if memory_bytes <= FIRST_BYTES {
            return Ok(memory_bytes);
        }
        let first_s = self.read_time(&self.filled(FIRST_BYTES)?, block_elements[0])?;
        let times = budget.as_secs_f64() / repeats as f64 / first_s;
        Ok(memory_bytes.min(FIRST_BYTES * times.clamp(1.0, 1e3) as usize))
    }

    fn read_time(&self, memory: &BufferView, block_elements: usize) -> Result<f64, LimitsError> {
        let n_blocks = memory.len_bytes() / (4 * block_elements);
        let sum = self.allocate(4 * n_blocks)?;
        let kernel = self.load(&problem("peak_read", &[("block_elements", block_elements)]))?;
        self.best_time(&kernel, n_blocks, &[all_of(memory), all_of(&sum), Argument::U32(n_blocks as u32)])
    }

    /// Of a copy from the first half to the second.
    fn copy_time(&self, memory: &BufferView, block_elements: usize) -> Result<f64, LimitsError> {
        let half_bytes = memory.len_bytes() / 2;
        let n_blocks = half_bytes / (4 * block_elements);
        let [from, to] = [0, half_bytes].map(|offset| all_of(&memory.slice(offset, half_bytes).expect("inside")));
        let kernel = self.load(&problem("peak_copy", &[("block_elements", block_elements)]))?;
        self.best_time(&kernel, n_blocks, &[from, to, Argument::U32(n_blocks as u32)])
    }

    /// Memory of which every page is written: untouched ones could all be the same zero page.
    fn filled(&self, n_bytes: usize) -> Result<BufferView, LimitsError> {
        let view = self.allocate(n_bytes)?;
        let chunk: Vec<u8> =
            random_f32(n_bytes.min(16 << 20) / 4).iter().flat_map(|value| value.to_le_bytes()).collect();
        for offset in (0..n_bytes).step_by(chunk.len()) {
            self.pipeline.driver().write(&view.slice(offset, chunk.len()).expect("inside"), &chunk)?;
        }
        Ok(view)
    }

    fn multiply_add(&self) -> Result<f64, LimitsError> {
        let n_blocks = self.n_blocks();
        let kernel = self.load(&problem("peak_multiply_add", &[("chains", CHAINS)]))?;
        let y = self.allocate(4 * n_blocks * CHAINS)?;
        let args = |n_rounds| [all_of(&y), Argument::U32(n_rounds), Argument::U32(n_blocks as u32)];
        let per_round_s = self.time_per_round(&kernel, n_blocks, args)?;
        Ok((2 * n_blocks * CHAINS) as f64 / per_round_s)
    }

    /// Every template that fits, the fastest first; none on a chip without a matrix unit.
    fn matrix(&self) -> Result<Vec<MatrixRate>, LimitsError> {
        let [rows, columns, depth] = TILE;
        let problem = problem("peak_matrix", &[("rows", rows), ("columns", columns), ("depth", depth)]);
        let candidates =
            self.pipeline.library().candidates(&problem, self.pipeline.target()).map_err(PipelineError::from)?;
        let mut rates = candidates.iter().map(|t| self.matrix_rate(t, &problem)).collect::<Result<Vec<_>, _>>()?;
        rates.sort_by(|a, b| b.flop_per_s.total_cmp(&a.flop_per_s));
        Ok(rates)
    }

    fn matrix_rate(&self, template: &Template, problem: &Problem) -> Result<MatrixRate, LimitsError> {
        let [rows, columns, depth] = TILE;
        let n_blocks = self.n_blocks();
        let kernel = self.load_template(template, problem)?;
        let (a, c) = (self.random_bf16(rows * depth)?, self.random_bf16(columns * depth)?);
        let y = self.allocate(4 * n_blocks * rows * columns)?;
        let args =
            |n_rounds| [all_of(&a), all_of(&c), all_of(&y), Argument::U32(n_rounds), Argument::U32(n_blocks as u32)];
        let per_round_s = self.time_per_round(&kernel, n_blocks, args)?;
        let flop = (2 * n_blocks * rows * columns * depth) as f64;
        Ok(MatrixRate { flop_per_s: flop / per_round_s, template: template.label(), summary: template.summary.clone() })
    }

    /// Launches that follow each other in a graph, one block for each compute unit, without any rounds to do.
    fn empty_launch(&self) -> Result<Option<Duration>, LimitsError> {
        let driver = self.pipeline.driver();
        let n_blocks = driver.parallelism();
        let kernel = self.load(&problem("peak_multiply_add", &[("chains", CHAINS)]))?;
        let y = self.allocate(4 * n_blocks * CHAINS)?;
        let args = [all_of(&y), Argument::U32(0), Argument::U32(n_blocks as u32)];
        let launches = vec![(&kernel.kernel, launch(n_blocks, &args)); EMPTY_LAUNCHES];
        let Some(graph) = driver.capture(&launches)? else { return Ok(None) };
        let best = self.best_of(|| driver.replay_timed(&graph))?;
        Ok(Some(best / EMPTY_LAUNCHES as u32))
    }

    /// Blocks of a kernel that only computes: some for each compute unit.
    fn n_blocks(&self) -> usize {
        self.pipeline.driver().parallelism() * if self.effort.target.is_zero() { 1 } else { 8 }
    }

    /// Seconds for one of many rounds: as many as take the time that is to be spent, or half of it.
    fn time_per_round<const N: usize>(
        &self,
        kernel: &LoadedKernel,
        n_blocks: usize,
        args: impl Fn(u32) -> [Argument; N],
    ) -> Result<f64, LimitsError> {
        let target_s = self.effort.target.as_secs_f64();
        let mut n_rounds = 1;
        loop {
            let seconds = self.best_time(kernel, n_blocks, &args(n_rounds))?;
            if seconds >= target_s / 2.0 || n_rounds == MAX_ROUNDS {
                return Ok(seconds / f64::from(n_rounds));
            }
            // A launch takes time of its own, so that this is too few rather than too many.
            n_rounds = (f64::from(n_rounds) * target_s / seconds.max(1e-6)).min(f64::from(MAX_ROUNDS)) as u32;
        }
    }

    fn best_time(&self, kernel: &LoadedKernel, n_blocks: usize, args: &[Argument]) -> Result<f64, LimitsError> {
        let run = || self.pipeline.driver().launch_timed(&kernel.kernel, &launch(n_blocks, args));
        Ok(self.best_of(run)?.as_secs_f64())
    }

    fn best_of(&self, mut run: impl FnMut() -> Result<Duration, GpuError>) -> Result<Duration, LimitsError> {
        let (mut best, mut spent) = (Duration::MAX, Duration::ZERO);
        for _ in 0..self.effort.repeats {
            let time = run()?;
            (best, spent) = (best.min(time), spent + time);
            if spent >= self.effort.budget {
                break;
            }
        }
        Ok(best)
    }

    /// The first template that fits.
    fn load(&self, problem: &Problem) -> Result<LoadedKernel, LimitsError> {
        let (library, target) = (self.pipeline.library(), self.pipeline.target());
        let candidates = library.candidates(problem, target).map_err(PipelineError::from)?;
        let first = candidates.first().ok_or_else(|| PipelineError::from(library.none_fits(problem, target)))?;
        self.load_template(first, problem)
    }

    fn load_template(&self, template: &Template, problem: &Problem) -> Result<LoadedKernel, LimitsError> {
        let rendered =
            self.pipeline.render_with(&template.label(), problem, &Params::new()).map_err(PipelineError::from)?;
        let request = self.pipeline.request(&rendered);
        let object = self.pipeline.store().get_all(&[request], &()).remove(0).map_err(PipelineError::from)?;
        Ok(self.pipeline.load(rendered, &object.object, object.origin)?)
    }

    fn allocate(&self, len_bytes: usize) -> Result<BufferView, LimitsError> {
        Ok(self.pipeline.driver().allocate(len_bytes)?.view())
    }

    fn random_bf16(&self, len: usize) -> Result<BufferView, LimitsError> {
        let bytes: Vec<u8> =
            random_f32(len).iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect();
        Ok(self.pipeline.driver().upload(bytes.into())?.view())
    }
}

fn problem(op: &str, dims: &[(&str, usize)]) -> Problem {
    Problem {
        ops: vec![op.to_string()],
        dims: dims.iter().map(|(name, value)| ((*name).to_string(), *value as u32)).collect(),
        constants: BTreeMap::new(),
        flags: BTreeMap::new(),
        dtypes: BTreeMap::new(),
        keeps: Default::default(),
        precision: Precision::Bf16,
    }
}

fn launch(n_blocks: usize, args: &[Argument]) -> Launch<'_> {
    Launch { grid: [n_blocks as u32, 1, 1], scratch_bytes: 0, args }
}

fn all_of(view: &BufferView) -> Argument {
    Argument::Memory { view: view.clone(), required_bytes: view.len_bytes() }
}

/// Numbers in [-1, 1) that look random: those of a multiplicative generator (Knuth's MMIX).
fn random_f32(len: usize) -> Vec<f32> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}
