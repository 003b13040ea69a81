//! Predicts how long a loop takes, with LLVM's scheduling models (`llvm-mca`), or by counting instructions if no LLVM
//! knows the chip, and how long the matrix unit and memory need at least. Nothing is measured.
//!
//! What the models leave out: caches, bandwidth and congestion (a load takes a fixed time), LDS bank conflicts, and
//! other waves on the same SIMD. And on RDNA they take a matrix operation for one cycle, so the matrix unit's own time
//! comes from its published rate.

use std::time::Instant;

use serde::Deserialize;

use super::llvm::{Llvm, LlvmError};
use super::waits::{self, Latencies};
use super::{Code, Instruction, Loop};
use hint::{Hint as _, chain};
use kernel::target::compute_unit::{ComputeUnit, Product};

/// Rounds of the loop that `llvm-mca` looks at: enough that its start and end do not count.
const ITERATIONS: u32 = 200;

/// Busy cycles of a round by counting, over those by `llvm-mca`: of all hot loops of the built-in templates, for
/// gfx1100 and gfx942, 0.84 to 1.41 (2026-11-27). A test checks a sample of them, or all.
pub const COUNTED_OVER_MCA: [f64; 2] = [0.8, 1.5];

/// Cycles until a load is there where nothing else is known: what LLVM's models of RDNA say.
const LOAD_CYCLES: f64 = 320.0;

/// The source of the time of instructions.
#[derive(Clone, Debug)]
pub enum IssueModel {
    /// LLVM's model of the chip.
    Mca(Llvm),
    /// There is none: instructions are counted.
    Counted {
        /// What kept `llvm-mca` from it, and what can be done about that.
        why: String,
    },
}

impl IssueModel {
    /// The `llvm-mca` that there is, if it knows the arch: it is tried on two instructions.
    pub fn find(arch: &str) -> Self {
        let llvm = Llvm::find();
        let arch = arch.split(':').next().unwrap_or_default();
        let small = ["s_mov_b32 s0, 0", "v_mov_b32_e32 v0, 0"].map(|text| Instruction::plain(0, text));
        let why = match ask(&small.each_ref(), 1, &llvm, arch) {
            Ok(Some(_)) => return Self::Mca(llvm),
            Ok(None) => format!("{} has no model of {arch}", llvm.version()),
            Err(error) => chain(&error),
        };
        let cure = LlvmError::NotFound { tool: "llvm-mca", searched: Vec::new() }.hint().unwrap_or_default();
        Self::Counted { why: format!("{why} ({cure})") }
    }

    /// The same, until a time: from then on it counts instructions, and these results are not kept.
    pub(crate) fn until(&mut self, until: Option<Instant>) {
        if let Self::Mca(llvm) = self {
            *llvm = llvm.clone().until(until);
        }
    }

    /// The model's name, for stored predictions.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mca(_) => "llvm-mca",
            Self::Counted { .. } => "instructions counted",
        }
    }

    /// The note about counting, if there is no `llvm-mca`, with its error.
    pub fn notice(&self) -> Option<String> {
        let Self::Counted { why } = self else { return None };
        let [least, most] = COUNTED_OVER_MCA;
        Some(format!(
            "times are predicted by counting instructions, whose cycles are {least} to {most} times those of llvm-mca \
             (hot loops, gfx1100 and gfx942): {why}"
        ))
    }
}

/// One round of a loop, as one wave goes through it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopSpeed {
    /// Clock cycles from round to round of a wave that has the SIMD for itself and waits for every result, memory's
    /// too, for as long as the model says. Predicted.
    pub alone_cycles: f64,
    /// Clock cycles of a round in which nothing waits: those of issuing its instructions or those of the matrix unit,
    /// whichever are more. With enough waves a SIMD comes to this, and no further. Predicted.
    pub busy_cycles: f64,
    /// Operations of the matrix unit.
    pub matrix_flop: u64,
    /// Clock cycles that the matrix unit of one SIMD needs for them by its published rate; 0 where the rate is not
    /// known.
    pub matrix_cycles: f64,
    /// Bytes of memory that the round's vector loads and stores move, all lanes being active.
    pub memory_bytes: u64,
}

/// What a loop is predicted on.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// The arch: LLVM's name of the processor.
    pub arch: &'a str,
    /// Lanes of a wave.
    pub wave_size: u32,
    pub compute_unit: &'a ComputeUnit,
    pub product: &'a Product,
}

impl LoopSpeed {
    /// The share of the matrix unit's peak when nothing waits: at most 1. What it is in practice is below that.
    pub fn matrix_share_busy(&self) -> f64 {
        self.matrix_cycles / self.busy_cycles
    }

    /// The share of the matrix unit's peak of one wave that has the SIMD for itself.
    pub fn matrix_share_alone(&self) -> f64 {
        self.matrix_cycles / self.alone_cycles
    }

    /// Bytes of memory per cycle that a compute unit needs if nothing waits: every SIMD in this loop.
    pub fn bytes_per_cycle(&self, unit: &ComputeUnit) -> f64 {
        self.memory_bytes as f64 * f64::from(unit.simds) / self.busy_cycles
    }
}

impl Loop {
    /// Whether the time is spent here: it multiplies matrices, or it is innermost and moves memory or multiplies.
    pub fn is_hot(&self, code: &Code) -> bool {
        let has = |what: &dyn Fn(&Instruction) -> bool| self.own.iter().any(|&i| what(&code.instructions[i]));
        let multiplies = |instruction: &Instruction| {
            let name = instruction.mnemonic();
            ["v_fma", "v_mac", "v_mul_f", "v_pk_fma", "v_pk_mul", "v_dot", "v_dual_fma", "v_dual_mul"]
                .iter()
                .any(|first| name.starts_with(first))
        };
        has(&Instruction::is_matrix) || (self.is_innermost() && (has(&|i| i.transfer().is_some()) || has(&multiplies)))
    }

    /// Predicts a round of it; the instructions of loops inside count once.
    pub fn speed(&self, code: &Code, model: &IssueModel, machine: Machine<'_>) -> LoopSpeed {
        let body: Vec<&Instruction> = self.all.iter().map(|&i| &code.instructions[i]).collect();
        predict(&body, ITERATIONS, model, machine)
    }
}

/// Predicts going through instructions once, without those that were before: from a start at which nothing is under way
/// to an end at which all is done.
pub(crate) fn once(body: &[&Instruction], model: &IssueModel, machine: Machine<'_>) -> LoopSpeed {
    predict(body, 1, model, machine)
}

fn predict(body: &[&Instruction], iterations: u32, model: &IssueModel, machine: Machine<'_>) -> LoopSpeed {
    let asked = match model {
        IssueModel::Mca(llvm) => ask(body, iterations, llvm, machine.arch),
        IssueModel::Counted { .. } => Ok(None),
    };
    let answer = match asked {
        Ok(Some(answer)) => answer,
        Ok(None) | Err(LlvmError::TimeIsOver { .. }) => counted(body, iterations, machine),
        Err(error) => {
            tracing::warn!(
                "the instructions of a loop are counted, of which llvm-mca does not say what they take: {}",
                chain(&error)
            );
            counted(body, iterations, machine)
        }
    };
    let scale = clock_cycles(machine.arch);
    let matrix_flop = body.iter().map(|instruction| instruction.matrix_flop()).sum();
    let rate = f64::from(machine.product.matrix_flop_per_cycle) / f64::from(machine.compute_unit.simds.max(1));
    let matrix_cycles = if rate > 0.0 { matrix_flop as f64 / rate } else { 0.0 };
    let issue_cycles = answer.throughput * scale;
    let lanes = u64::from(machine.wave_size);
    LoopSpeed {
        alone_cycles: (answer.cycles / f64::from(iterations) * scale).max(matrix_cycles),
        busy_cycles: issue_cycles.max(matrix_cycles),
        matrix_flop,
        matrix_cycles,
        memory_bytes: body.iter().filter_map(|i| i.transfer()).map(|t| u64::from(t.bytes_per_lane) * lanes).sum(),
    }
}

/// What instructions take by rules of thumb, in the cycles that `llvm-mca` counts in: one to issue each, four on the
/// vector unit of those that a quarter of its lanes can do; and what waits say of a wave that is alone.
fn counted(body: &[&Instruction], iterations: u32, machine: Machine<'_>) -> McaReport {
    let of_vector: f64 = body.iter().map(|instruction| instruction.vector_cycles()).sum();
    let throughput = of_vector.max(body.len() as f64);
    let latencies = Latencies::of(machine, LOAD_CYCLES);
    let alone = if iterations > 1 { waits::alone_cycles } else { waits::once_cycles };
    McaReport { cycles: f64::from(iterations) * alone(body, latencies) / latencies.issue, throughput }
}

/// Clock cycles of a cycle of LLVM's model. On GCN and CDNA the model counts what a wave of 64 needs to issue one
/// instruction on 16 lanes: four clock cycles. (So a load takes 80 of them there and 320 on RDNA.)
pub(super) fn clock_cycles(arch: &str) -> f64 {
    if arch.starts_with("gfx9") { 4.0 } else { 1.0 }
}

/// What `llvm-mca` says of a body, in cycles of its model.
struct McaReport {
    cycles: f64,
    /// One round, if only its units limited it.
    throughput: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Json {
    code_regions: Vec<Region>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Region {
    summary_view: Summary,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Summary {
    total_cycles: f64,
    #[serde(rename = "BlockRThroughput")]
    block_throughput: f64,
}

/// What `llvm-mca` says; `None` if it has no model of the processor.
fn ask(body: &[&Instruction], iterations: u32, llvm: &Llvm, arch: &str) -> Result<Option<McaReport>, LlvmError> {
    let is_mfma = arch.starts_with("gfx9") && body.iter().any(|instruction| instruction.is_matrix());
    let text = |instruction: &&Instruction| match is_mfma.then(|| without_carry(&instruction.text)).flatten() {
        Some(text) => text + "\n",
        None => format!("{}\n", instruction.text),
    };
    let text: String = body.iter().map(text).collect();
    let (cpu, iterations) = (format!("-mcpu={arch}"), format!("-iterations={iterations}"));
    let args = ["-mtriple=amdgcn-amd-amdhsa", &cpu, &iterations, "--json"];
    let said = match llvm.run("llvm-mca", &args, text.as_bytes()) {
        Err(LlvmError::Failed { said, .. }) if has_no_model(&said) => return Ok(None),
        other => other?,
    };
    let unreadable = |what| LlvmError::Failed { tool: "llvm-mca", said: format!("could not read its answer: {what}") };
    // Before the JSON there may be remarks.
    let json = said.find('{').map_or("", |start| &said[start..]);
    let answer: Json = serde_json::from_str(json).map_err(|error| unreadable(error.to_string()))?;
    let summary = answer.code_regions.first().map(|region| &region.summary_view);
    let summary = summary.ok_or_else(|| unreadable("it has no region".into()))?;
    Ok(Some(McaReport { cycles: summary.total_cycles, throughput: summary.block_throughput }))
}

/// An addition or subtraction that carries, as one that does not: `llvm-mca` (22) never ends with some bodies that have
/// both carries and MFMA. What waits for a carry alone is then not waited for.
fn without_carry(text: &str) -> Option<String> {
    let (name, operands) = text.split_once(' ')?;
    let (name, width) = name.split_at(name.find("_e32").or_else(|| name.find("_e64")).unwrap_or(name.len()));
    let mut operands: Vec<&str> = operands.split(',').map(str::trim).collect();
    match name {
        "v_add_co_u32" | "v_sub_co_u32" | "v_subrev_co_u32" if operands.len() == 4 => {}
        "v_addc_co_u32" | "v_subb_co_u32" | "v_subbrev_co_u32" if operands.len() == 5 => drop(operands.pop()),
        _ => return None,
    }
    operands.remove(1);
    Some(format!("v_add_u32{width} {}", operands.join(", ")))
}

/// Whether a refusal means that LLVM knows the processor and cannot predict it, or does not know it.
fn has_no_model(said: &str) -> bool {
    said.contains("unable to find instruction-level scheduling information")
        || said.contains("is not a recognized processor")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn additions_lose_their_carry_and_nothing_else() {
        let plain = |text| without_carry(text);
        assert_eq!(plain("v_add_co_u32_e32 v16, vcc, 0x80, v16").unwrap(), "v_add_u32_e32 v16, 0x80, v16");
        assert_eq!(plain("v_addc_co_u32_e32 v17, vcc, 0, v17, vcc").unwrap(), "v_add_u32_e32 v17, 0, v17");
        assert_eq!(plain("v_subb_co_u32_e64 v1, s[4:5], v2, v3, vcc").unwrap(), "v_add_u32_e64 v1, v2, v3");
        for other in ["v_add_u32_e32 v1, v2, v3", "v_cmp_gt_u32_e32 vcc, v1, v2", "s_endpgm"] {
            assert_eq!(plain(other), None);
        }
    }

    /// What was left of a loop of `moe_mlp1/matrix` for gfx90a with which `llvm-mca` 22 never ends.
    #[test]
    fn a_body_with_carries_and_products_has_a_speed() {
        let llvm = Llvm::find();
        let texts = [
            "ds_read_b128 v[36:39], v36 offset:2560",
            "ds_read_b128 v[44:47], v35 offset:1280",
            "v_add_co_u32_e32 v16, vcc, 0x80, v16",
            "v_addc_co_u32_e32 v17, vcc, 0, v17, vcc",
            "v_mfma_f32_16x16x16bf16_1k v[4:7], v[36:37], v[40:41], v[4:7]",
        ];
        let one = |text: &&str| Instruction::plain(0, text);
        let body: Vec<Instruction> = texts.iter().map(one).collect();
        let body: Vec<&Instruction> = body.iter().collect();
        match ask(&body, ITERATIONS, &llvm, "gfx90a") {
            Err(LlvmError::NotFound { .. }) => {
                writeln!(std::io::stderr(), "skipped: there is no llvm-mca").unwrap();
            }
            said => assert!(said.unwrap().unwrap().cycles >= f64::from(ITERATIONS)),
        }
    }

    #[test]
    fn shares_are_of_the_units_own_time() {
        let speed = LoopSpeed {
            alone_cycles: 400.0,
            busy_cycles: 100.0,
            matrix_flop: 16_384,
            matrix_cycles: 64.0,
            memory_bytes: 1024,
        };
        assert_eq!((speed.matrix_share_busy(), speed.matrix_share_alone()), (0.64, 0.16));
        let unit = ComputeUnit { simds: 2, waves_per_simd: 16, vgprs: 1536, vgpr_granule: 24, lds_bytes: 65_536 };
        assert_eq!(speed.bytes_per_cycle(&unit), 20.48);
    }
}
