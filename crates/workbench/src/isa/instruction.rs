//! One instruction, classified by its name in LLVM's spelling for GCN, CDNA and RDNA.

use std::sync::Arc;

/// An instruction of the disassembly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Where it is, in bytes.
    pub(crate) address: u64,
    /// As an assembler takes it.
    pub text: String,
    /// Where it branches to.
    pub(crate) target: Option<u64>,
    /// Where in the source it comes from, `kernel.hip:41`, innermost first; empty if that is not known.
    pub places: Arc<[String]>,
}

/// Memory that is not on the chip, or is addressed as if it were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// Whether it brings bytes in.
    pub(crate) is_load: bool,
    /// Bytes for each lane.
    pub(crate) bytes_per_lane: u32,
}

impl Instruction {
    /// Reads a line of the disassembly: the instruction, `//`, its address, `:`, its bytes, and for a branch
    /// `<symbol+0x1c>`. `start` is the symbol's address.
    pub(super) fn parse(line: &str, start: u64) -> Option<Self> {
        let (text, comment) = line.rsplit_once("//")?;
        let (address, rest) = comment.trim().split_once(':')?;
        let target = match rest.split_once('<').map(|(_, target)| target.trim_end().trim_end_matches('>')) {
            Some(target) => Some(start + target.rsplit_once("+0x").map_or(Some(0), |(_, offset)| hex(offset))?),
            None => None,
        };
        let text = text.trim();
        let address = hex(address)?;
        (!text.is_empty()).then(|| Self { target, ..Self::plain(address, text) })
    }

    /// Where it is, in bytes.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// One that goes nowhere else and of whose source nothing is known.
    pub(super) fn plain(address: u64, text: &str) -> Self {
        Self { address, text: text.to_owned(), target: None, places: Arc::from([]) }
    }

    /// Cycles of the vector unit by rules of thumb, in which it does all lanes of most instructions: of exponentials,
    /// roots and their kin and of whole products it does a quarter. 0 where others do it.
    pub(super) fn vector_cycles(&self) -> f64 {
        let Some(("v", rest)) = self.mnemonic().split_once('_') else { return 0.0 };
        const QUARTER: [&str; 12] = [
            "exp_",
            "log_",
            "rcp_",
            "rsq_",
            "sqrt_",
            "sin_",
            "cos_",
            "mul_lo_u32",
            "mul_hi_u32",
            "mul_hi_i32",
            "mad_u64",
            "mad_i64",
        ];
        if QUARTER.iter().any(|first| rest.starts_with(first)) { 4.0 } else { 1.0 }
    }

    /// The name: its first word.
    pub(crate) fn mnemonic(&self) -> &str {
        self.text.split_whitespace().next().unwrap_or_default()
    }

    /// Floating-point operations of a wave's matrix unit, a multiply-add being two; 0 for anything else.
    pub(crate) fn matrix_flop(&self) -> u64 {
        let name = self.mnemonic();
        if !name.starts_with("v_wmma_") && !name.starts_with("v_mfma_") {
            return 0;
        }
        // `v_wmma_f32_16x16x16_bf16`, `v_mfma_f32_16x16x16bf16_1k`: M x N x K. Forms of several small blocks, none of
        // which the templates use, count as one.
        let sizes = name.split('_').find_map(sizes).unwrap_or([0; 3]);
        2 * sizes.iter().product::<u64>()
    }

    /// Operations of each lane, a multiply-add being two: multiply-adds, additions and products of f32, packed pairs,
    /// and dot products of several numbers.
    pub(crate) fn lane_flop(&self) -> u64 {
        let name = self.mnemonic();
        let has = |part: &str| name.contains(part);
        match name.split_once('_') {
            Some(("v", rest)) => match rest {
                _ if rest.starts_with("dot8") => 16,
                _ if rest.starts_with("dot4") => 8,
                _ if rest.starts_with("dot2") || rest.starts_with("pk_fma") => 4,
                // Two instructions in one: `v_dual_fmac_f32 … :: v_dual_mul_f32 …`.
                _ if rest.starts_with("dual_") => {
                    let each = |part: &str| if part.contains("_fma") { 2 } else { u64::from(part.contains("_f32")) };
                    self.text.split("::").map(|half| each(half.split_whitespace().next().unwrap_or_default())).sum()
                }
                _ if rest.starts_with("fma")
                    || rest.starts_with("mac_f")
                    || rest.starts_with("pk_mul_f")
                    || has("pk_add_f") =>
                {
                    2
                }
                _ if rest.starts_with("mul_f") || rest.starts_with("add_f") || rest.starts_with("sub_f") => 1,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// Whether the matrix unit does it.
    pub fn is_matrix(&self) -> bool {
        self.matrix_flop() > 0
    }

    /// Vector loads and stores of memory: `global_`, `buffer_` and `flat_`. Scalar loads and LDS are none.
    pub(crate) fn transfer(&self) -> Option<Transfer> {
        let (space, rest) = self.mnemonic().split_once('_')?;
        if !matches!(space, "global" | "buffer" | "flat") {
            return None;
        }
        let (verb, width) = rest.split_once('_')?;
        let is_load = match verb {
            "load" => true,
            "store" => false,
            _ => return None,
        };
        Some(Transfer { is_load, bytes_per_lane: width_bytes(width)? })
    }

    /// Whether it is a load of 16 bytes for each lane.
    pub fn is_wide_load(&self) -> bool {
        self.transfer() == Some(Transfer { is_load: true, bytes_per_lane: 16 })
    }

    /// Whether it uses a thread's private memory by name. On gfx90a such accesses are `buffer_` ones: there the
    /// object's metadata tell (`KernelFacts::private_bytes`).
    pub fn is_scratch(&self) -> bool {
        self.mnemonic().starts_with("scratch_")
    }

    /// Whether the waves of a block meet at it. In SASS its name is the opcode of `BAR`.
    pub(super) fn is_barrier(&self) -> bool {
        self.mnemonic().starts_with("s_barrier") || self.mnemonic() == "0xb1d"
    }

    /// Whether a block ends with it.
    pub(super) fn ends_block(&self) -> bool {
        self.target.is_some() || !self.falls_through()
    }

    /// Whether the next instruction may follow it.
    pub(super) fn falls_through(&self) -> bool {
        !matches!(self.mnemonic(), "s_branch" | "s_endpgm" | "s_setpc_b64" | "BRA" | "EXIT")
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// `16x16x16` or `16x16x16bf16`.
fn sizes(part: &str) -> Option<[u64; 3]> {
    let mut axes = part.splitn(3, 'x');
    let (m, n, rest) = (axes.next()?, axes.next()?, axes.next()?);
    let k = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some([m.parse().ok()?, n.parse().ok()?, k.parse().ok()?])
}

/// Bytes of `b128`, `dwordx4`, `u16`, `short_d16_hi`, …
fn width_bytes(width: &str) -> Option<u32> {
    let parts: Vec<&str> = width.split('_').collect();
    let bytes = |part: &&str| match *part {
        "b128" | "dwordx4" => Some(16),
        "b96" | "dwordx3" => Some(12),
        "b64" | "dwordx2" => Some(8),
        "b32" | "dword" => Some(4),
        "b16" | "u16" | "i16" | "ushort" | "sshort" | "short" => Some(2),
        "b8" | "u8" | "i8" | "ubyte" | "sbyte" | "byte" => Some(1),
        _ => None,
    };
    // `load_d16_b16`, `load_short_d16`: the width is one of the words.
    parts.iter().find_map(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(text: &str) -> Instruction {
        Instruction::plain(0, text)
    }

    #[test]
    fn a_line_has_text_address_and_target() {
        let line = "\ts_cbranch_scc1 65420                                       // 000000001A98: BF85FF8C <linear_tile+0x1cc>";
        let found = Instruction::parse(line, 0x1700).expect("an instruction");
        assert_eq!((found.address, found.text.as_str(), found.target), (0x1a98, "s_cbranch_scc1 65420", Some(0x18cc)));
        let first = Instruction::parse("\ts_branch 0 // 000000001704: BF820000 <k>", 0x1700).expect("an instruction");
        assert_eq!(first.target, Some(0x1700));
        let joined =
            "\ts_delay_alu instid0(VALU_DEP_1) | instskip(NEXT) | instid1(VALU_DEP_1)// 000000001708: BF870091";
        assert_eq!(Instruction::parse(joined, 0).expect("an instruction").mnemonic(), "s_delay_alu");
        assert_eq!(Instruction::parse("\tv_nop", 0), None);
        assert_eq!(Instruction::parse("\tv_nop // zz: 00", 0), None);
    }

    #[test]
    fn matrix_operations_are_counted_by_their_sizes() {
        for (text, flop) in [
            ("v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7]", 8192),
            ("v_mfma_f32_16x16x16bf16_1k a[0:3], v[0:1], v[2:3], a[0:3]", 8192),
            ("v_mfma_f32_16x16x32_bf16 a[0:3], v[0:3], v[4:7], a[0:3]", 16_384),
            ("v_mfma_f32_32x32x8bf16_1k a[0:15], v[0:1], v[2:3], a[0:15]", 16_384),
            ("v_fma_f32 v0, v1, v2, v0", 0),
            ("v_dot2_f32_bf16 v0, v1, v2, v0", 0),
        ] {
            assert_eq!(instruction(text).matrix_flop(), flop, "{text}");
        }
    }

    #[test]
    fn operations_of_a_lane_are_counted() {
        for (text, flop) in [
            ("v_fma_f32 v0, v1, v2, v0", 2),
            ("v_fmac_f32_e32 v0, v1, v2", 2),
            ("v_dual_fmac_f32 v0, v1, v2 :: v_dual_mul_f32 v3, v4, v5", 3),
            ("v_dual_fmac_f32 v0, v1, v2 :: v_dual_mov_b32 v3, v4", 2),
            ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[0:1]", 4),
            ("v_dot4_i32_i8 v0, v1, v2, v0", 8),
            ("v_dot2_f32_bf16 v0, v1, v2, v0", 4),
            ("v_add_f32_e32 v0, v1, v2", 1),
            ("v_add_u32_e32 v0, v1, v2", 0),
            ("v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7]", 0),
            ("s_add_u32 s0, s1, s2", 0),
        ] {
            assert_eq!(instruction(text).lane_flop(), flop, "{text}");
        }
    }

    #[test]
    fn transfers_are_told_by_space_and_width() {
        let of = |text: &str| instruction(text).transfer().map(|transfer| (transfer.is_load, transfer.bytes_per_lane));
        assert_eq!(of("global_load_b128 v[0:3], v[4:5], off"), Some((true, 16)));
        assert_eq!(of("global_load_dwordx4 v[0:3], v[4:5], off"), Some((true, 16)));
        assert_eq!(of("buffer_load_dwordx2 v[0:1], v4, s[0:3], 0 offen"), Some((true, 8)));
        assert_eq!(of("global_load_u16 v1, v1, s[10:11]"), Some((true, 2)));
        assert_eq!(of("global_load_short_d16_hi v1, v1, s[10:11]"), Some((true, 2)));
        assert_eq!(of("global_load_d16_hi_b16 v1, v1, s[10:11]"), Some((true, 2)));
        assert_eq!(of("flat_store_b32 v[0:1], v2"), Some((false, 4)));
        for other in
            ["s_load_b128 s[0:3], s[4:5], null", "ds_load_b128 v[0:3], v4", "global_atomic_add_u32 v0, v1, off"]
        {
            assert_eq!(of(other), None, "{other}");
        }
        assert!(instruction("global_load_b128 v[0:3], v[4:5], off").is_wide_load());
        assert!(!instruction("global_store_b128 v[4:5], v[0:3], off").is_wide_load());
        assert!(instruction("scratch_store_b32 off, v0, s32").is_scratch());
    }
}
