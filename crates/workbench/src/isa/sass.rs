//! The machine code of an NVIDIA object (sm_70 to sm_90): instructions of 16 bytes, whose upper word also says what the
//! compiler's schedule is: how long to stall, and which scoreboards to set and to wait for.
//!
//! NVIDIA documents none of it. The opcodes are those that `nvdisasm -hex` prints beside its text for our own kernels;
//! latencies and rates are of NVIDIA's programming guide (operations of an SM in a cycle) or rounded from what is
//! known. Only what a prediction of time needs is read: branches, memory, products, and the pipe of everything else.

use super::{Code, Instruction};

/// Bytes of an instruction.
const LEN: usize = 16;

/// Scoreboards of a warp.
const SCOREBOARDS: usize = 6;

/// What no scoreboard is.
const NONE: usize = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sass {
    low: u64,
    high: u64,
}

/// What issues or computes, one of each for a quarter of an SM, or a quarter's share of what all have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pipe {
    /// Nothing but the issue slot.
    None,
    /// Whole numbers, logic, comparisons.
    Alu,
    /// f32 multiply-adds.
    Fma,
    /// Conversions and special functions.
    Special,
    Lds,
    /// Loads and stores of memory.
    Memory,
    Matrix,
}

/// Loads of LDS, shuffles, special functions: cycles until the result is there.
const SHORT_LATENCY: f64 = 28.0;

/// The matrix unit's results, after the cycles that it is busy.
const MATRIX_LATENCY: f64 = 30.0;

/// f32 operations of `HMMA.16816`, and the cycles it takes: two thirds of what `HGMMA` does, measured (640 and 924
/// TFLOP/s of an H200).
const HMMA: (f64, f64) = (4096.0, 5.9);

/// Operations of a quarter's matrix unit in a cycle.
const MATRIX_FLOP_PER_CYCLE: f64 = 1024.0;

/// Reads the code of a kernel; what is after the last whole instruction is left.
pub(crate) fn decode(bytes: &[u8]) -> Vec<Sass> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    bytes.chunks_exact(LEN).map(|bytes| Sass { low: word(&bytes[..8]), high: word(&bytes[8..]) }).collect()
}

/// The same for [`Code::loops`]: branches and ends by name, of everything else the opcode.
pub(crate) fn code(name: &str, all: &[Sass]) -> Code {
    let instructions = all.iter().enumerate().map(|(i, sass)| {
        let address = (i * LEN) as u64;
        Instruction { target: sass.target(address), ..Instruction::plain(address, &sass.text()) }
    });
    Code { name: name.to_owned(), instructions: instructions.collect() }
}

impl Sass {
    fn opcode(self) -> u64 {
        self.low & 0xfff
    }

    /// The opcode without the form of its operands, for what has several.
    fn kind(self) -> u64 {
        self.low & 0x1ff
    }

    fn is_branch(self) -> bool {
        self.opcode() == 0x947
    }

    /// Whether a predicate decides, or for a branch anything else.
    fn is_conditional(self) -> bool {
        let is_plain_branch = self.high >> 23 & 0x1f == 7;
        self.low >> 12 & 0xf != 7 || (self.is_branch() && !is_plain_branch)
    }

    fn text(self) -> String {
        match (self.opcode(), self.is_conditional()) {
            (0x947, false) => "BRA".into(),
            (0x94d, false) => "EXIT".into(),
            (opcode, _) => format!("0x{opcode:03x}"),
        }
    }

    /// Where a branch goes: words of 4 bytes from the next instruction, as a signed number of 56 bits in three parts.
    fn target(self, address: u64) -> Option<u64> {
        let words = self.low >> 16 & 0xff | (self.low >> 34) << 8 | (self.high & 0x3_ffff) << 38;
        let offset = ((words << 8) as i64 >> 8) * 4;
        self.is_branch().then(|| address.wrapping_add(LEN as u64).wrapping_add_signed(offset))
    }

    /// Bytes for each lane of what loads or stores.
    fn width_bytes(self) -> f64 {
        [1.0, 1.0, 2.0, 2.0, 4.0, 8.0, 16.0, 16.0][(self.high >> 9 & 7) as usize]
    }

    /// Bytes of memory that a warp's loads and stores move: `LDG`, `STG` and `LDGSTS`.
    pub(crate) fn memory_bytes(self) -> f64 {
        match self.opcode() {
            0x381 | 0x981 | 0x386 | 0x986 | 0xfae => 32.0 * self.width_bytes(),
            _ => 0.0,
        }
    }

    /// Operations of the matrix unit for one warp: `HMMA.16816`, and a fourth of the `HGMMA` of a warpgroup.
    pub(crate) fn matrix_flop(self) -> f64 {
        match self.opcode() {
            0x23c => HMMA.0,
            0x9f0 | 0xdf0 => 2.0 * 64.0 * 8.0 * ((self.low >> 53 & 0x1f) + 1) as f64 * 16.0 / 4.0,
            _ => 0.0,
        }
    }

    /// Operations of other units for a warp, a multiply-add being two: `FFMA`, `FADD`, `FMUL`, packed halves, and
    /// `IDP`, which is four.
    pub(crate) fn lane_flop(self) -> f64 {
        32.0 * match self.kind() {
            0x023 => 2.0,
            0x021 | 0x020 => 1.0,
            0x031 | 0x035 => 4.0,
            0x030 | 0x032 => 2.0,
            0x026 => 8.0,
            _ => 0.0,
        }
    }

    fn is_matrix(self) -> bool {
        self.matrix_flop() > 0.0
    }

    /// The pipe it goes to, and the cycles it takes there.
    fn pipe(self) -> (Pipe, f64) {
        match (self.opcode(), self.kind()) {
            (0x23c, _) => (Pipe::Matrix, HMMA.1),
            (0x9f0 | 0xdf0, _) => (Pipe::Matrix, self.matrix_flop() / MATRIX_FLOP_PER_CYCLE),
            (0x381 | 0x981 | 0x386 | 0x986 | 0xfae | 0x9a8, _) => (Pipe::Memory, 2.0 * self.width_bytes().max(4.0)),
            (0x984 | 0x388 | 0x988 | 0x83b, _) => (Pipe::Lds, self.width_bytes().max(4.0)),
            (_, 0x189) => (Pipe::Lds, 4.0),                             // SHFL
            (_, 0x108 | 0x105 | 0x106 | 0x110) => (Pipe::Special, 8.0), // MUFU, F2I, I2F, F2F
            (_, 0x020..=0x023 | 0x030..=0x035) => (Pipe::Fma, 1.0),
            (_, 0x024..=0x027) => (Pipe::Fma, 2.0), // IMAD, IDP
            (opcode, 0x000..=0x01f | 0x036..=0x050) if opcode != 0x802 => (Pipe::Alu, 2.0),
            _ => (Pipe::None, 1.0),
        }
    }

    /// Cycles until what waits for its scoreboard goes on.
    fn latency(self, memory_cycles: f64) -> f64 {
        match self.opcode() {
            0x381 | 0x981 | 0x9a8 => memory_cycles,
            0x23c => MATRIX_LATENCY,
            _ => SHORT_LATENCY,
        }
    }
}

/// Cycles that a quarter of an SM is busy with these instructions of a warp: issuing them, or its busiest pipe.
pub(crate) fn busy_cycles<'a>(body: impl IntoIterator<Item = &'a Sass>) -> f64 {
    let mut busy = [0.0; 7];
    for sass in body {
        let (pipe, cycles) = sass.pipe();
        busy[pipe as usize] += cycles;
        if pipe != Pipe::None {
            busy[Pipe::None as usize] += 1.0;
        }
    }
    busy.into_iter().fold(0.0, f64::max)
}

/// Cycles of repeating these instructions, for a warp that is alone: it stalls as the schedule says, and waits for
/// scoreboards, for its copies to LDS and for the matrix unit.
pub(crate) fn alone_cycles(body: &[Sass], memory_cycles: f64) -> f64 {
    const ROUNDS: [usize; 2] = [4, 12];
    let [few, many] = ROUNDS.map(|n| Warp::default().go(body, n, memory_cycles));
    (many - few) / (ROUNDS[1] - ROUNDS[0]) as f64
}

/// The same of going through them once, from a start at which nothing is under way to an end at which all is done.
pub(crate) fn once_cycles(body: &[Sass], memory_cycles: f64) -> f64 {
    Warp::default().go(body, 1, memory_cycles)
}

/// What a warp that is alone waits for.
#[derive(Default)]
struct Warp {
    now: f64,
    scoreboards: [f64; SCOREBOARDS],
    matrix: f64,
    /// When the copies to LDS since the last group was closed are there, and those of the closed ones.
    copies: f64,
    groups: Vec<f64>,
}

impl Warp {
    fn go(mut self, body: &[Sass], n_rounds: usize, memory_cycles: f64) -> f64 {
        for _ in 0..n_rounds {
            body.iter().for_each(|sass| self.step(*sass, memory_cycles));
        }
        self.scoreboards.into_iter().fold(self.now.max(self.matrix), f64::max)
    }

    fn step(&mut self, sass: Sass, memory_cycles: f64) {
        let (stall, wait) = (sass.high >> 41 & 0xf, sass.high >> 52 & 0x3f);
        let (set_when_written, set_when_read) = ((sass.high >> 46 & 7) as usize, (sass.high >> 49 & 7) as usize);
        for board in (0..SCOREBOARDS).filter(|board| wait >> board & 1 == 1) {
            self.now = self.now.max(self.scoreboards[board]);
        }
        match sass.opcode() {
            0x9c5 => self.now = self.now.max(self.matrix),
            0xfae => self.copies = self.now + memory_cycles,
            0x9af => self.groups.push(self.copies),
            // DEPBAR.LE SB0, n: all groups but the last n.
            0x91a => {
                let left = (sass.low >> 38 & 0x3f) as usize;
                let done = self.groups.len().saturating_sub(left);
                self.now = self.groups[..done].iter().copied().fold(self.now, f64::max);
            }
            _ => {}
        }
        let (_, cycles) = sass.pipe();
        if sass.is_matrix() {
            self.matrix = self.matrix.max(self.now) + cycles;
        }
        let done = if sass.is_matrix() { self.matrix + MATRIX_LATENCY } else { self.now + sass.latency(memory_cycles) };
        let set = [(set_when_written, done), (set_when_read, self.now + SHORT_LATENCY)];
        for (board, time) in set.into_iter().filter(|(board, _)| *board != NONE) {
            if let Some(scoreboard) = self.scoreboards.get_mut(board) {
                *scoreboard = scoreboard.max(time);
            }
        }
        self.now += stall.max(1) as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `nvdisasm -hex` prints them, the lower word first.
    fn sass(low: u64, high: u64) -> Sass {
        Sass { low, high }
    }

    #[test]
    fn what_nvdisasm_says_of_our_kernels_is_read() {
        // LDG.E.128, LDG.E.U16.CONSTANT, LDGSTS.E.BYPASS.LTC256B.128
        assert_eq!(sass(0x30000c14047981, 0xf68000c1e1d00).memory_bytes(), 512.0);
        assert_eq!(sass(0x2140e047981, 0xee2000c1e9500).memory_bytes(), 64.0);
        assert_eq!(sass(0x161f7fae, 0xfe20008101dce).memory_bytes(), 512.0);
        // HGMMA.64x64x16, HGMMA.64x8x16, HMMA.16816
        assert_eq!(sass(0xe0000460387df0, 0xfe20008001838).matrix_flop(), 2.0 * 64.0 * 64.0 * 16.0 / 4.0);
        assert_eq!(sass(0x1420187df0, 0xfe20008701818).matrix_flop(), 2.0 * 64.0 * 8.0 * 16.0 / 4.0);
        assert_eq!(sass(0x45450723c, 0x2fe60000041850).matrix_flop(), 4096.0);
    }

    #[test]
    fn branches_go_where_nvdisasm_says() {
        // @P3 BRA.U.ANY at 2608, BRA at 25200, BRA.DIV at 9344: as the labels of 2,376 branches say, none differing.
        let back = sass(0xfffffffd00e43947, 0xfea000393ffff);
        assert_eq!((back.text().as_str(), back.target(2608)), ("0x947", Some(2608 + 16 - 112)));
        let on = sass(0x147947, 0xfec0003800000);
        assert_eq!((on.text().as_str(), on.target(25_200)), ("BRA", Some(25_200 + 16 + 80)));
        assert_eq!(sass(0x3604807947, 0xfec000b800000).text(), "0x947");
    }

    #[test]
    fn a_real_kernel_loads_what_nvdisasm_says_and_waits_for_it() {
        // linear/gemv in f32 precision: LDG.E.U16.CONSTANT, LDG.E.CONSTANT, a store, and at its end a branch to itself.
        let object = include_bytes!("../../../../tests/fixtures/objects/linear_gemv.sm_90.cubin");
        let all = decode(gpu::cubin_code(object, "linear_gemv").expect("its code"));
        let loaded: Vec<f64> = all.iter().map(|sass| sass.memory_bytes()).filter(|bytes| *bytes > 0.0).collect();
        assert_eq!(loaded[..2], [64.0, 128.0]);
        let code = code("linear_gemv", &all);
        assert!(code.instructions.iter().any(|one| one.target == Some(one.address) && one.address == 0x3d0));
        assert!(all.iter().all(|sass| sass.matrix_flop() == 0.0));
        let [near, far] = [480.0, 960.0].map(|latency| once_cycles(&all, latency));
        assert!(near > 480.0 && near < 2000.0 && far >= near + 480.0, "{near} {far}");
    }

    #[test]
    fn a_warp_alone_waits_for_its_loads() {
        // A load that sets scoreboard 0, and an addition that waits for it.
        let load = sass(0x381, 4 << 9 | 2 << 41 | 7 << 49);
        let add = sass(0x221, 4 << 41 | 7 << 46 | 7 << 49 | 1 << 52);
        assert_eq!(alone_cycles(&[load, add], 500.0), 504.0);
        assert_eq!(alone_cycles(&[add], 500.0), 4.0);
        assert_eq!(busy_cycles(&[load, add]), 8.0);
    }
}
