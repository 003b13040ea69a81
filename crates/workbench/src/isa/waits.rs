//! How long a wave of an AMD GPU that is alone waits, by the compiler's own instructions: `s_waitcnt` and its kin say
//! which loads must be complete, `s_delay_alu` which results are not ready yet.
//!
//! `llvm-mca` assumes 320 cycles for a load on every chip, does not know gfx12's waits, and serialises loads whose
//! results are written in order. So it is used for the time of instructions, not for waits.

use super::Instruction;
use super::speed::{Machine, clock_cycles};

/// Cycles until a load of LDS, a permutation of lanes or a scalar load that hits its cache is there: AMD states 64 of
/// LDS on GCN; a guess for the others.
const SHORT_LATENCY: f64 = 64.0;

/// Cycles until a vector result can be read on RDNA: LLVM's models of gfx10 to gfx12 say five.
const VECTOR_LATENCY: f64 = 5.0;

/// The same of `v_exp`, `v_rcp` and their kin.
const SPECIAL_LATENCY: f64 = 10.0;

#[cfg(test)]
pub(crate) const CONSTANTS: [f64; 3] = [SHORT_LATENCY, VECTOR_LATENCY, SPECIAL_LATENCY];

/// How long things take on a chip, in clock cycles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latencies {
    /// Of issuing an instruction of a wave: 1, where 16 lanes do a wave of 64 it is 4.
    pub(crate) issue: f64,
    /// Until a load has its bytes from memory.
    pub(crate) memory: f64,
    /// Operations of a SIMD's matrix unit in a cycle; 0 without one.
    pub(crate) matrix_flop: f64,
    /// Whether stores are counted with loads: on gfx9.
    pub(crate) counts_stores_as_loads: bool,
    /// Whether scalar loads have a counter of their own: on gfx12.
    pub(crate) counts_scalars_alone: bool,
}

impl Latencies {
    /// Those of an arch whose loads have their bytes after so many cycles.
    pub(crate) fn of(machine: Machine<'_>, memory: f64) -> Self {
        Self {
            issue: clock_cycles(machine.arch),
            memory,
            matrix_flop: f64::from(machine.product.matrix_flop_per_cycle)
                / f64::from(machine.compute_unit.simds.max(1)),
            counts_stores_as_loads: machine.arch.starts_with("gfx9"),
            counts_scalars_alone: machine.arch.starts_with("gfx12"),
        }
    }
}

/// Cycles of going through these instructions once, again and again.
pub(crate) fn alone_cycles(body: &[&Instruction], latencies: Latencies) -> f64 {
    const ROUNDS: [usize; 2] = [4, 12];
    let [few, many] = ROUNDS.map(|n| Wave::new(latencies).go(body, n));
    (many - few) / (ROUNDS[1] - ROUNDS[0]) as f64
}

/// Cycles of going through them once, from a start at which nothing is under way to an end at which all is done.
pub(crate) fn once_cycles(body: &[&Instruction], latencies: Latencies) -> f64 {
    Wave::new(latencies).go(body, 1)
}

/// When what is under way is done, in the order in which it began.
#[derive(Default)]
struct Counter(Vec<f64>);

impl Counter {
    fn begin(&mut self, done: f64) {
        self.0.push(self.0.last().map_or(done, |last| last.max(done)));
    }

    /// When no more than `left` are under way.
    fn done(&self, left: usize) -> f64 {
        self.0.len().checked_sub(left + 1).map_or(0.0, |last| self.0[last])
    }
}

/// Which counters an instruction waits for, and how many may be left under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Waits {
    loads: Option<usize>,
    stores: Option<usize>,
    /// LDS, and scalar loads where they are counted with it.
    shorts: Option<usize>,
    scalars: Option<usize>,
}

struct Wave {
    latencies: Latencies,
    now: f64,
    loads: Counter,
    stores: Counter,
    shorts: Counter,
    scalars: Counter,
    /// Whether a scalar load has brought the arguments' line.
    has_arguments: bool,
}

impl Wave {
    fn new(latencies: Latencies) -> Self {
        let [loads, stores, shorts, scalars] = [(); 4].map(|()| Counter::default());
        Self { latencies, now: 0.0, loads, stores, shorts, scalars, has_arguments: false }
    }

    fn go(mut self, body: &[&Instruction], n_rounds: usize) -> f64 {
        for _ in 0..n_rounds {
            body.iter().for_each(|instruction| self.step(instruction));
        }
        [&self.loads, &self.stores, &self.shorts, &self.scalars].iter().fold(self.now, |now, all| now.max(all.done(0)))
    }

    fn step(&mut self, instruction: &Instruction) {
        let Latencies { issue, memory, matrix_flop, counts_stores_as_loads, counts_scalars_alone } = self.latencies;
        let name = instruction.mnemonic();
        if let Some(waits) = waits(&instruction.text) {
            let Waits { loads, stores, shorts, scalars } = waits;
            let all = [(&self.loads, loads), (&self.stores, stores), (&self.shorts, shorts), (&self.scalars, scalars)];
            let done = all.into_iter().filter_map(|(counter, left)| left.map(|left| counter.done(left)));
            self.now = done.fold(self.now, f64::max);
        }
        let (space, rest) = name.split_once('_').unwrap_or((name, ""));
        match space {
            "global" | "buffer" | "flat" | "scratch" => {
                let is_load = rest.starts_with("load") || returns(&instruction.text, rest);
                let counter = if is_load || counts_stores_as_loads { &mut self.loads } else { &mut self.stores };
                counter.begin(self.now + memory);
            }
            "ds" => self.shorts.begin(self.now + SHORT_LATENCY),
            "s" if rest.starts_with("load") || rest.starts_with("buffer_load") => {
                // All arguments are in a line or two: the first load of a kernel brings it.
                let latency = if self.has_arguments { SHORT_LATENCY } else { memory };
                self.has_arguments = true;
                let counter = if counts_scalars_alone { &mut self.scalars } else { &mut self.shorts };
                counter.begin(self.now + latency);
            }
            _ => {}
        }
        let matrix = if matrix_flop > 0.0 { instruction.matrix_flop() as f64 / matrix_flop } else { 0.0 };
        self.now += issue.max(matrix) + delay(&instruction.text);
    }
}

/// Whether an atomic gives what was there.
fn returns(text: &str, rest: &str) -> bool {
    let words = ["th:TH_ATOMIC_RETURN", "glc", "sc0"];
    rest.starts_with("atomic") && text.split_whitespace().any(|word| words.contains(&word))
}

/// What an instruction waits for: `s_waitcnt vmcnt(2) lgkmcnt(0)`, `s_waitcnt_vscnt null, 0x0`, and of gfx12
/// `s_wait_loadcnt 0x2`, `s_wait_loadcnt_dscnt 0x201`, which has two numbers of a byte each, and the like.
fn waits(text: &str) -> Option<Waits> {
    let (name, operands) = text.split_once(' ')?;
    let number = |text: &str| {
        let text = text.trim();
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| usize::from_str_radix(hex, 16).ok())
    };
    let mut waits = Waits::default();
    match name {
        "s_waitcnt" => {
            let of = |counter: &str| {
                let (_, rest) = operands.split_once(counter)?;
                number(rest.strip_prefix('(')?.split_once(')')?.0)
            };
            (waits.loads, waits.shorts) = (of("vmcnt"), of("lgkmcnt"));
        }
        "s_waitcnt_vscnt" => waits.stores = number(operands.rsplit(',').next()?),
        _ => {
            let counters = name.strip_prefix("s_wait_")?;
            let all = number(operands)?;
            let mut put = |counter: &str, left: usize| match counter {
                "loadcnt" => waits.loads = Some(left),
                "storecnt" => waits.stores = Some(left),
                "dscnt" => waits.shorts = Some(left),
                "kmcnt" => waits.scalars = Some(left),
                _ => {}
            };
            match counters.split_once('_') {
                Some((first, second)) => {
                    put(first, all >> 8);
                    put(second, all & 0xff);
                }
                None => put(counters, all),
            }
        }
    }
    Some(waits)
}

/// Cycles that `s_delay_alu` says are left until results can be read: `instid0(VALU_DEP_1)`, the result of the vector
/// instruction before.
fn delay(text: &str) -> f64 {
    if !text.starts_with("s_delay_alu") {
        return 0.0;
    }
    let of = |part: &str| -> Option<f64> {
        let (_, what) = part.split_once("instid")?;
        let (what, _) = what.split_once('(')?.1.split_once(')')?;
        let (kind, n) = what.rsplit_once('_')?;
        let n: f64 = n.parse().ok()?;
        match kind {
            "VALU_DEP" => Some(VECTOR_LATENCY - n),
            "TRANS32_DEP" => Some(SPECIAL_LATENCY - n),
            "SALU_CYCLE" => Some(n),
            _ => None,
        }
    };
    text.split('|').filter_map(of).map(|cycles| cycles.max(0.0)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RDNA3: Latencies = Latencies {
        issue: 1.0,
        memory: 1000.0,
        matrix_flop: 256.0,
        counts_stores_as_loads: false,
        counts_scalars_alone: false,
    };
    const RDNA4: Latencies = Latencies { counts_scalars_alone: true, ..RDNA3 };

    fn code(lines: &[&str]) -> Vec<Instruction> {
        lines.iter().map(|line| Instruction::plain(0, line)).collect()
    }

    fn once(lines: &[&str], latencies: Latencies) -> f64 {
        once_cycles(&code(lines).iter().collect::<Vec<_>>(), latencies)
    }

    #[test]
    fn loads_under_way_together_are_waited_for_once() {
        let load = "global_load_b128 v[0:3], v[4:5], off";
        let in_turn = [load, "s_waitcnt vmcnt(0)", "v_add_f32_e32 v0, v1, v2"];
        assert_eq!(once(&[load, load, "s_waitcnt vmcnt(0)"], RDNA3), 1002.0);
        assert_eq!(once(&[in_turn, in_turn].concat(), RDNA3), 2.0 * 1002.0);
        // Of two loads the first is waited for, and what follows runs beside the second.
        let first = [load, load, "s_wait_loadcnt 0x1", load, "s_wait_loadcnt 0x0"];
        assert_eq!(once(&first, RDNA4), 2002.0);
    }

    #[test]
    fn each_counter_is_waited_for_by_its_own_name() {
        let some = |loads, stores, shorts, scalars| Some(Waits { loads, stores, shorts, scalars });
        for (text, found) in [
            ("s_waitcnt vmcnt(3) lgkmcnt(0)", some(Some(3), None, Some(0), None)),
            ("s_waitcnt lgkmcnt(12)", some(None, None, Some(12), None)),
            ("s_waitcnt_vscnt null, 0x0", some(None, Some(0), None, None)),
            ("s_wait_loadcnt 0x1f", some(Some(31), None, None, None)),
            ("s_wait_loadcnt_dscnt 0x201", some(Some(2), None, Some(1), None)),
            ("s_wait_storecnt_dscnt 0x0", some(None, Some(0), Some(0), None)),
            ("s_wait_kmcnt 0x0", some(None, None, None, Some(0))),
            ("s_wait_alu 0xfffd", some(None, None, None, None)),
            ("s_nop 0", None),
        ] {
            assert_eq!(waits(text), found, "{text}");
        }
        // A store is no load, but on gfx9.
        let store = ["global_store_dword v[0:1], v2, off", "s_waitcnt vmcnt(0)", "s_nop 0"];
        assert_eq!(once(&store, Latencies { counts_stores_as_loads: true, ..RDNA3 }), 1002.0);
        let atomic = |how| ["global_atomic_add_u32 v3, v3, v4, s[4:5]", how].concat();
        assert!(returns(&atomic(" th:TH_ATOMIC_RETURN scope:SCOPE_DEV"), "atomic_add_u32"));
        assert!(!returns(&atomic(" scope:SCOPE_DEV"), "atomic_add_u32"));
    }

    #[test]
    fn products_results_and_loops_take_their_time() {
        assert_eq!(once(&["v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7]"], RDNA3), 32.0);
        assert_eq!(delay("s_delay_alu instid0(VALU_DEP_1) | instskip(NEXT) | instid1(VALU_DEP_2)"), 4.0 + 3.0);
        assert_eq!(delay("s_delay_alu instid0(SALU_CYCLE_1)"), 1.0);
        assert_eq!(delay("s_delay_alu instid0(TRANS32_DEP_1)"), 9.0);
        // The arguments' line comes once.
        let arguments = ["s_load_b64 s[0:1], s[2:3], null", "s_waitcnt lgkmcnt(0)"];
        assert_eq!(once(&[arguments, arguments].concat(), RDNA3), 1000.0 + 1.0 + 64.0 + 1.0);
        let body = code(&["global_load_b32 v0, v1, s[0:1]", "s_waitcnt vmcnt(0)", "v_add_u32_e32 v1, v0, v1"]);
        assert_eq!(alone_cycles(&body.iter().collect::<Vec<_>>(), RDNA3), 1002.0);
    }
}
