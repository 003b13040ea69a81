//! Compiles candidates, and reads their machine code.

use std::collections::BTreeMap;
use std::time::Instant;

use gpu::code_object::CodeObjectError;
use gpu::cubin_code;
use rayon::prelude::*;

use super::{Chip, Code, Geometry, Prediction, Round, predict};
use crate::isa::speed::{IssueModel, LoopSpeed, Machine, once};
use crate::isa::waits::{self, Latencies};
use crate::isa::{self, Instruction, IsaError, sass};
use crate::timing::Candidate;
use expression::ExpressionError;
use hint::Hint;
use kernel::object::compile::Request;
use kernel::object::resources::{ObjectError, examine};
use kernel::object::store::{Progress, Store, StoreError};
use kernel::target::compute_unit::{ComputeUnit, Product};
use kernel::target::{Platform, Target, TargetFacts};
use kernel::template::Problem;
use kernel::template::library::Library;
use kernel::template::render::{RenderError, Rendered, render};
use kernel::template::work::Work;

/// What says how long a wave that is alone takes for a body.
type AloneCycles = fn(&[&Instruction], Latencies) -> f64;

/// Compiles candidates for one chip and reads their objects.
pub struct Predictor<'a> {
    library: &'a Library,
    target: &'a Target,
    store: &'a Store,
    unit: ComputeUnit,
    product: Product,
    chip: Chip,
    /// Who says what AMD's instructions take.
    model: IssueModel,
}

/// A candidate with its object, read.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Source, arguments, geometry.
    pub rendered: Rendered,
    /// What the prediction takes.
    pub code: Code,
    chip: Chip,
}

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    /// It is no GPU, or nothing is known of its speed.
    #[error(
        "nothing is known of the speed of {arch}: its tuning table has no [target.compute_unit] or no [target.product]"
    )]
    Unknown { arch: String },
    /// Its loop does not stay in the instruction cache.
    #[error("its loop of {code_bytes} bytes is more than the instruction cache of {cache_bytes} holds: no prediction")]
    LongLoop {
        /// Bytes of its main loop, or of all of it without one.
        code_bytes: u64,
        /// What the cache holds.
        cache_bytes: u64,
    },
    /// It cannot be rendered.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// It cannot be compiled.
    #[error(transparent)]
    Compile(#[from] StoreError),
    /// Its object is not to be used.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// Its object has no code.
    #[error(transparent)]
    Code(#[from] CodeObjectError),
    /// There is no disassembly.
    #[error(transparent)]
    Isa(#[from] IsaError),
}

impl Hint for PredictError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { .. } => Some("`tuning/README.md` describes what a table may say about a chip".into()),
            Self::Render(error) => error.hint(),
            Self::Compile(error) => error.hint(),
            Self::Object(error) => error.hint(),
            Self::Isa(error) => error.hint(),
            Self::LongLoop { .. } | Self::Code(_) => None,
        }
    }
}

impl<'a> Predictor<'a> {
    /// For a real GPU's arch, which need not be here. `facts` are what the tuning tables say of it.
    ///
    /// # Errors
    /// [`PredictError::Unknown`].
    pub fn new(
        library: &'a Library,
        target: &'a Target,
        store: &'a Store,
        facts: Option<&TargetFacts>,
    ) -> Result<Self, PredictError> {
        let known = facts
            .filter(|_| target.is_real_gpu())
            .and_then(|facts| Some((facts.compute_unit?, facts.product.clone()?, Chip::for_target(target, facts)?)));
        let (unit, product, chip) = known.ok_or_else(|| PredictError::Unknown { arch: target.id() })?;
        let model = match target.platform {
            Platform::Amd => IssueModel::find(&target.arch),
            Platform::Nvidia | Platform::Host => IssueModel::Counted { why: "it is for AMD's GPUs".into() },
        };
        Ok(Self { library, target, store, unit, product, chip, model })
    }

    /// Who says what AMD's instructions take; of other chips' their code does.
    pub fn model(&self) -> Option<&IssueModel> {
        (self.target.platform == Platform::Amd).then_some(&self.model)
    }

    /// Stops reading at a time: what is read from then on is not to be kept.
    pub(crate) fn until(&mut self, until: Option<Instant>) {
        self.model.until(until);
    }

    /// What is predicted for.
    pub fn chip(&self) -> &Chip {
        &self.chip
    }

    /// Renders, compiles (or finds) and reads candidates of one problem, many at once. How many rows there will be does
    /// not matter here.
    pub fn compile(
        &self,
        problem: &Problem,
        candidates: Vec<Candidate>,
        progress: &dyn Progress,
    ) -> Vec<(Candidate, Result<Compiled, PredictError>)> {
        let of_problem: Vec<(&Problem, &Candidate)> = candidates.iter().map(|one| (problem, one)).collect();
        let compiled = self.compile_each(&of_problem, progress);
        candidates.into_iter().zip(compiled).collect()
    }

    /// The same of candidates that each have a problem of their own.
    pub(crate) fn compile_each(
        &self,
        candidates: &[(&Problem, &Candidate)],
        progress: &dyn Progress,
    ) -> Vec<Result<Compiled, PredictError>> {
        let rendered: Vec<_> = candidates
            .iter()
            .map(|(problem, one)| render(self.library, &one.template, problem, &one.params, self.target))
            .collect();
        let requests: Vec<Request> =
            rendered.iter().flatten().map(|rendered| Request::new(rendered, self.target)).collect();
        let mut objects = self.store.get_all(&requests, progress).into_iter();
        let objects: Vec<_> = rendered
            .into_iter()
            .map(|rendered| {
                let object = rendered.as_ref().ok().and_then(|_| objects.next());
                let rendered = rendered.map_err(PredictError::from)?;
                Ok((rendered, object.expect("one for each request")?.object))
            })
            .collect();
        let read = objects
            .into_par_iter()
            .map(|both: Result<_, PredictError>| both.and_then(|(rendered, object)| self.read(rendered, &object)));
        read.collect()
    }

    /// Reads one object.
    ///
    /// # Errors
    /// [`PredictError`].
    pub(crate) fn read(&self, rendered: Rendered, object: &[u8]) -> Result<Compiled, PredictError> {
        let uses = examine(object, &rendered.spec(), &rendered.resources, self.target)?;
        let (outside, loops) = match self.target.platform {
            Platform::Nvidia => self.read_sass(cubin_code(object, &rendered.entry)?, &rendered.entry),
            Platform::Amd | Platform::Host => {
                let (compilers, arch) = (self.store.compiler(), &self.target.arch);
                self.read_gcn(&isa::Code::disassemble(compilers, object, &rendered.entry, arch)?)
            }
        };
        let code = Code {
            vgprs: uses.vgprs,
            lds_bytes: uses.lds_bytes,
            private_bytes: uses.private_bytes,
            main_loop: main_loop(&loops),
            outside,
        };
        let code_bytes = code.main_loop.unwrap_or(outside).code_bytes;
        let cache_bytes = self.chip.instruction_cache_bytes;
        match code_bytes > cache_bytes {
            true => Err(PredictError::LongLoop { code_bytes, cache_bytes }),
            false => Ok(Compiled { rendered, code, chip: self.chip }),
        }
    }

    /// What is outside of loops, and the loops, by what the model says of instructions and the code of waits.
    fn read_gcn(&self, code: &isa::Code) -> (Round, Vec<Round>) {
        let arch = self.target.arch.split(':').next().unwrap_or_default();
        let (unit, product) = (&self.unit, &self.product);
        let machine = Machine { arch, wave_size: self.target.wave_size, compute_unit: unit, product };
        let latencies = Latencies::of(machine, self.chip.latency_cycles);
        let round = |body: &[&Instruction], speed: LoopSpeed, alone: AloneCycles| {
            let lanes = f64::from(self.target.wave_size);
            let lane_flop: u64 = body.iter().map(|instruction| instruction.lane_flop()).sum();
            Round {
                address: body.first().map_or(0, |first| first.address),
                n_instructions: body.len(),
                code_bytes: span(body.iter().map(|instruction| instruction.address)),
                alone_cycles: alone(body, latencies).max(speed.busy_cycles),
                busy_cycles: speed.busy_cycles,
                flop: if speed.matrix_flop > 0 { speed.matrix_flop as f64 } else { lanes * lane_flop as f64 },
                memory_bytes: speed.memory_bytes as f64,
            }
        };
        let mut loops = Vec::new();
        let all = code.loops();
        for found in all.iter().filter(|found| found.is_hot(code)) {
            let body: Vec<&Instruction> = found.all.iter().map(|&i| &code.instructions[i]).collect();
            loops.push(round(&body, found.speed(code, &self.model, machine), waits::alone_cycles));
        }
        let pick =
            |indices: &[usize]| -> Vec<&Instruction> { indices.iter().map(|&i| &code.instructions[i]).collect() };
        let outside = code.longest_way(&outside(code, &all), &|block| waits::once_cycles(&pick(block), latencies));
        let outside = pick(&outside);
        if outside.is_empty() {
            return (Round::default(), loops);
        }
        (round(&outside, once(&outside, &self.model, machine), waits::once_cycles), loops)
    }

    /// The same by the schedule that NVIDIA's code has in it.
    fn read_sass(&self, bytes: &[u8], entry: &str) -> (Round, Vec<Round>) {
        let all = sass::decode(bytes);
        let code = sass::code(entry, &all);
        let latency = self.chip.latency_cycles;
        let round = |indices: &[usize], is_loop: bool| {
            let body: Vec<sass::Sass> = indices.iter().map(|&i| all[i]).collect();
            let matrix_flop: f64 = body.iter().map(|sass| sass.matrix_flop()).sum();
            let lane_flop: f64 = body.iter().map(|sass| sass.lane_flop()).sum();
            let alone = if is_loop { sass::alone_cycles } else { sass::once_cycles };
            Round {
                address: indices.first().map_or(0, |&i| code.instructions[i].address),
                n_instructions: body.len(),
                code_bytes: span(indices.iter().map(|&i| code.instructions[i].address)),
                alone_cycles: alone(&body, latency),
                busy_cycles: sass::busy_cycles(&body),
                flop: if matrix_flop > 0.0 { matrix_flop } else { lane_flop },
                memory_bytes: body.iter().map(|sass| sass.memory_bytes()).sum(),
            }
        };
        let found = code.loops();
        let loops = found.iter().map(|found| round(&found.all, true)).collect();
        let cycles = |block: &[usize]| {
            let block: Vec<sass::Sass> = block.iter().map(|&i| all[i]).collect();
            sass::once_cycles(&block, latency)
        };
        (round(&code.longest_way(&outside(&code, &found), &cycles), false), loops)
    }
}

/// Bytes from the first address to the last.
fn span(addresses: impl Iterator<Item = u64>) -> u64 {
    let (first, last) = addresses.fold((u64::MAX, 0), |(first, last), one| (first.min(one), last.max(one)));
    last.saturating_sub(first)
}

/// Instructions that are in no loop.
fn outside(code: &isa::Code, loops: &[isa::Loop]) -> Vec<usize> {
    let mut is_inside = vec![false; code.instructions.len()];
    loops.iter().flat_map(|found| &found.all).for_each(|&i| is_inside[i] = true);
    (0..is_inside.len()).filter(|&i| !is_inside[i]).collect()
}

/// The loop in which the work is done: of those with the most operations in a round the shortest; where none has any,
/// the same of bytes.
fn main_loop(loops: &[Round]) -> Option<Round> {
    let most = |what: fn(&Round) -> f64| {
        let most = loops.iter().map(what).fold(0.0, f64::max);
        let of_most = loops.iter().filter(|round| most > 0.0 && what(round) >= most);
        of_most.min_by_key(|round| round.n_instructions).copied()
    };
    most(|round| round.flop).or_else(|| most(|round| round.memory_bytes))
}

impl Compiled {
    /// The time of a launch for these scalars.
    ///
    /// # Errors
    /// If the grid does not come to a number.
    pub fn predict(&self, scalars: &BTreeMap<String, u64>, work: &Work) -> Result<Prediction, ExpressionError> {
        let n_blocks = self.rendered.launch.grid(scalars)?.into_iter().map(u64::from).product();
        let padded = self.rendered.launch.padded(scalars, &work.inputs)?;
        let n_blocks = padded.blocks.map_or(n_blocks, |blocks| blocks.min(n_blocks));
        let geometry = Geometry { n_blocks, block_size: self.rendered.launch.block_size() };
        Ok(predict(&self.code, geometry, padded.flop.or(work.flop), work.total_bytes(), &self.chip))
    }
}
