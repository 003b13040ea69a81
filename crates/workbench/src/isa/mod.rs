//! The machine code of an AMD GPU object, as comgr, which hipRTC brings, disassembles it: instructions, basic blocks,
//! loops.
//!
//! [`instruction`] says what an instruction is to us (a matrix operation, a load of this many bytes), [`speed`] asks
//! `llvm-mca` how long a loop takes, or counts, [`waits`] what a wave waits for, [`llvm`] finds and runs LLVM's tools;
//! [`sass`] reads NVIDIA's code by itself. Nothing here is needed to run a model: it is how `kernels check` and the
//! tests look at what the compiler made of a template.

pub(crate) mod instruction;
pub mod llvm;
pub(crate) mod sass;
pub mod speed;
pub(crate) mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use instruction::Instruction;
use kernel::object::compile::{CompileError, Compilers};

/// The code of one kernel.
#[derive(Clone, Debug)]
pub struct Code {
    /// The symbol it begins at.
    pub(crate) name: String,
    /// Its instructions, by rising address.
    pub instructions: Vec<Instruction>,
}

/// A loop: all blocks from which its header is reached again without leaving it (a natural loop), but for those that
/// some rounds do not go through and where waves meet: what is done once, while the first loads are under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// Address of the first instruction of the header.
    pub(crate) header: u64,
    /// Its instructions, as indices into those of the code, rising; with those of the loops inside of it.
    pub all: Vec<usize>,
    /// Those that are in no loop inside of it.
    pub(crate) own: Vec<usize>,
}

/// A run of instructions that is entered at its first and left after its last one.
struct Block {
    first: usize,
    last: usize,
    successors: Vec<usize>,
}

/// Why code could not be had.
#[derive(Debug, thiserror::Error)]
pub enum IsaError {
    /// hipRTC is missing, or its comgr fails.
    #[error(transparent)]
    Disassembly(#[from] CompileError),
    /// The text is not a disassembly.
    #[error("line {line} of the disassembly: expected an instruction and its address, found `{text}`")]
    Line {
        /// Counted from 1.
        line: usize,
        text: String,
    },
    /// The object has no code of this kernel.
    #[error("the disassembly has no code of `{entry}`")]
    NoCode { entry: String },
}

impl hint::Hint for IsaError {
    fn hint(&self) -> Option<String> {
        if let Self::Disassembly(error) = self { error.hint() } else { None }
    }
}

impl Code {
    /// Disassembles a kernel of a code object.
    ///
    /// - `target`: what it is for: `gfx1100`
    ///
    /// # Errors
    /// [`IsaError`]: comgr is missing or refuses the object, or the object has no such kernel.
    pub fn disassemble(compilers: &Compilers, object: &[u8], entry: &str, target: &str) -> Result<Self, IsaError> {
        Self::read(&compilers.disassemble(object, entry, target, false)?, entry)
    }

    /// The same with the places in the source that instructions come from; the object has to have been compiled with
    /// `-gline-tables-only`.
    ///
    /// # Errors
    /// As [`Self::disassemble`].
    pub fn with_lines(compilers: &Compilers, object: &[u8], entry: &str, target: &str) -> Result<Self, IsaError> {
        Self::read(&compilers.disassemble(object, entry, target, true)?, entry)
    }

    fn read(text: &str, entry: &str) -> Result<Self, IsaError> {
        let code = Self::parse(text)?.into_iter().find(|code| code.name == entry);
        code.ok_or_else(|| IsaError::NoCode { entry: entry.to_owned() })
    }

    /// Reads a disassembly, as [`Compilers::disassemble`] and `llvm-objdump -d` write it: a line
    /// `0000000000001700 <name>:`, then a line per instruction, whose comment has its address and, for a branch, where
    /// it goes; before it perhaps a line `; ` with the places in the source.
    ///
    /// # Errors
    /// [`IsaError::Line`], for the first line that is neither.
    pub fn parse(text: &str) -> Result<Vec<Self>, IsaError> {
        let mut all: Vec<Self> = Vec::new();
        let (mut start, mut places) = (0, Arc::from([]));
        for (line, text) in text.lines().enumerate() {
            let wrong = || IsaError::Line { line: line + 1, text: text.trim().to_owned() };
            if let Some((address, name)) = symbol(text) {
                (start, places) = (address, Arc::from([]));
                all.push(Self { name: name.to_owned(), instructions: Vec::new() });
            } else if let Some(of_next) = text.strip_prefix("; ") {
                places = of_next.split(' ').map(str::to_owned).collect();
            } else if text.starts_with('\t') {
                let instruction = Instruction::parse(text, start).ok_or_else(wrong)?;
                let instruction = Instruction { places: Arc::clone(&places), ..instruction };
                all.last_mut().ok_or_else(wrong)?.instructions.push(instruction);
            }
        }
        Ok(all)
    }

    /// The loops, by rising header. Two that share a header are one.
    pub fn loops(&self) -> Vec<Loop> {
        let blocks = self.blocks();
        let dominators = dominators(&blocks);
        let mut bodies: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (from, block) in blocks.iter().enumerate() {
            for &header in block.successors.iter().filter(|to| dominators[from].contains(to)) {
                bodies.entry(header).or_default().extend(natural_loop(&blocks, header, from));
            }
        }
        let has_barrier =
            |block: usize| (blocks[block].first..=blocks[block].last).any(|i| self.instructions[i].is_barrier());
        for (&header, body) in &mut bodies {
            let latches = body.iter().filter(|&&block| blocks[block].successors.contains(&header));
            let always = latches.map(|&latch| &dominators[latch]).fold(body.clone(), |always, of| &always & of);
            let is_left_out = |&block: &usize| {
                let above = dominators[block].iter().filter(|above| body.contains(above) && !always.contains(above));
                above.copied().any(|first| body.iter().any(|&b| has_barrier(b) && dominators[b].contains(&first)))
            };
            let left_out: BTreeSet<usize> = body.iter().filter(|block| is_left_out(block)).copied().collect();
            body.retain(|block| !left_out.contains(block));
        }
        let inside = |header: usize, body: &BTreeSet<usize>| -> BTreeSet<usize> {
            let nested = bodies.iter().filter(|(other, _)| **other != header && body.contains(other));
            nested.flat_map(|(_, blocks)| blocks.iter().copied()).collect()
        };
        let of_blocks = |keep: &dyn Fn(usize) -> bool, body: &BTreeSet<usize>| -> Vec<usize> {
            body.iter().filter(|&&block| keep(block)).flat_map(|&i| blocks[i].first..=blocks[i].last).collect()
        };
        let all = bodies.iter().map(|(&header, body)| {
            let nested = inside(header, body);
            Loop {
                header: self.instructions[blocks[header].first].address,
                all: of_blocks(&|_| true, body),
                own: of_blocks(&|block| !nested.contains(&block), body),
            }
        });
        all.collect()
    }

    /// Of the instructions `which`, those on the way from the first block to an end that takes longest, rising: of the
    /// two sides of a branch a wave goes through one. Loops are gone through once.
    ///
    /// - `cycles`: what instructions of a block take
    pub(crate) fn longest_way(&self, which: &[usize], cycles: &dyn Fn(&[usize]) -> f64) -> Vec<usize> {
        let blocks = self.blocks();
        let dominators = dominators(&blocks);
        let of_block = |block: &Block| -> Vec<usize> {
            let [first, last] = [block.first, block.last + 1].map(|i| which.partition_point(|&one| one < i));
            which[first..last].to_vec()
        };
        let ahead = |from: usize| {
            let above = &dominators[from];
            blocks[from].successors.iter().copied().filter(move |to| !above.contains(to))
        };
        // The way to the end from each block, and where it goes; a block is looked at after those that it leads to.
        let mut longest: Vec<Option<(f64, Option<usize>)>> = vec![None; blocks.len()];
        let mut open = vec![(0, false)];
        let mut is_begun = vec![false; blocks.len()];
        while let Some((block, is_done)) = open.pop() {
            if is_done {
                let next = ahead(block).filter_map(|to| Some((longest[to]?.0, to)));
                let next = next.max_by(|a, b| a.0.total_cmp(&b.0));
                let own = cycles(&of_block(&blocks[block]));
                longest[block] = Some((own + next.map_or(0.0, |(cycles, _)| cycles), next.map(|(_, to)| to)));
            } else if !is_begun[block] {
                is_begun[block] = true;
                open.push((block, true));
                open.extend(ahead(block).filter(|&to| !is_begun[to]).map(|to| (to, false)));
            }
        }
        let way = std::iter::successors((!blocks.is_empty()).then_some(0), |&block| longest[block]?.1);
        let mut found: Vec<usize> = way.flat_map(|block| of_block(&blocks[block])).collect();
        found.sort_unstable();
        found
    }

    /// The basic blocks, by rising address.
    fn blocks(&self) -> Vec<Block> {
        let index: BTreeMap<u64, usize> =
            self.instructions.iter().enumerate().map(|(i, instruction)| (instruction.address, i)).collect();
        let target = |i: usize| self.instructions[i].target.and_then(|target| index.get(&target).copied());
        let mut starts: BTreeSet<usize> = BTreeSet::from([0]);
        for (i, instruction) in self.instructions.iter().enumerate() {
            starts.extend(target(i));
            if instruction.ends_block() {
                starts.insert(i + 1);
            }
        }
        let starts: Vec<usize> = starts.into_iter().filter(|&start| start < self.instructions.len()).collect();
        let block_at = |i: usize| starts.binary_search(&i).ok();
        let ends = starts.iter().skip(1).copied().chain([self.instructions.len()]);
        let blocks = starts.iter().zip(ends).map(|(&first, end)| {
            let last = end - 1;
            let next = self.instructions[last].falls_through().then_some(end).and_then(block_at);
            Block { first, last, successors: target(last).and_then(block_at).into_iter().chain(next).collect() }
        });
        blocks.collect()
    }
}

impl Loop {
    /// The address of its first instruction.
    pub fn header(&self) -> u64 {
        self.header
    }

    /// Whether there is no loop inside of it.
    pub fn is_innermost(&self) -> bool {
        self.own.len() == self.all.len()
    }
}

/// `0000000000001700 <name>:`.
fn symbol(line: &str) -> Option<(u64, &str)> {
    let (address, rest) = line.split_once(" <")?;
    Some((u64::from_str_radix(address, 16).ok()?, rest.strip_suffix(">:")?))
}

/// For each block, those through which every way from the first block to it leads, itself included. None for a block
/// that is never reached.
fn dominators(blocks: &[Block]) -> Vec<BTreeSet<usize>> {
    let mut found: Vec<Option<BTreeSet<usize>>> = vec![None; blocks.len()];
    if let Some(entry) = found.first_mut() {
        *entry = Some(BTreeSet::from([0]));
    }
    let mut changes = true;
    while changes {
        changes = false;
        for (from, block) in blocks.iter().enumerate() {
            let Some(above) = found[from].clone() else { continue };
            for &to in &block.successors {
                let mut meet: BTreeSet<usize> = match &found[to] {
                    Some(before) => before.intersection(&above).copied().collect(),
                    None => above.clone(),
                };
                meet.insert(to);
                if found[to].as_ref() != Some(&meet) {
                    found[to] = Some(meet);
                    changes = true;
                }
            }
        }
    }
    found.into_iter().map(Option::unwrap_or_default).collect()
}

/// The blocks from which `from` is reached without passing `header`, and both.
fn natural_loop(blocks: &[Block], header: usize, from: usize) -> BTreeSet<usize> {
    let mut body = BTreeSet::from([header, from]);
    let mut open = if from == header { Vec::new() } else { vec![from] };
    while let Some(block) = open.pop() {
        let before = (0..blocks.len()).filter(|&other| blocks[other].successors.contains(&block));
        open.extend(before.filter(|&other| body.insert(other)));
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `# address text -> target`, in steps of 4 from 0x100, as `llvm-objdump` prints it.
    fn code(lines: &[&str]) -> Code {
        let mut text = String::from("\nk:\tfile format elf64-amdgpu\n\nDisassembly of section .text:\n\n");
        text += "0000000000000100 <k>:\n";
        for (i, line) in lines.iter().enumerate() {
            let (line, target) = line.split_once(" -> ").unwrap_or((line, ""));
            let target = if target.is_empty() { String::new() } else { format!(" <k+0x{:x}>", index(target) * 4) };
            text += &format!("\t{line:<40}// {:012X}: BF820000{target}\n", 0x100 + 4 * i);
        }
        let mut all = Code::parse(&text).expect("a disassembly");
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    fn index(text: &str) -> usize {
        text.parse().expect("the number of a line")
    }

    fn loops(code: &Code) -> Vec<(u64, Vec<usize>, Vec<usize>)> {
        code.loops().into_iter().map(|found| ((found.header - 0x100) / 4, found.all, found.own)).collect()
    }

    #[test]
    fn straight_code_has_no_loop() {
        let code = code(&["v_mov_b32 v0, 0", "s_cbranch_execz 1 -> 3", "v_mov_b32 v1, 0", "s_endpgm"]);
        assert_eq!(code.loops(), []);
        assert_eq!(code.instructions[1].target, Some(0x10c));
    }

    #[test]
    fn a_loop_is_from_its_header_to_its_branch() {
        let code = code(&["s_mov_b32 s0, 0", "v_fma_f32 v0, v1, v2, v0", "s_cbranch_scc1 65534 -> 1", "s_endpgm"]);
        assert_eq!(loops(&code), [(1, vec![1, 2], vec![1, 2])]);
        assert!(code.loops()[0].is_innermost());
    }

    #[test]
    fn loops_inside_are_not_the_outer_ones_own() {
        let code = code(&[
            "s_mov_b32 s0, 0",
            "s_mov_b32 s1, 0",
            "global_load_b128 v[0:3], v[4:5], off",
            "s_cbranch_scc1 0 -> 2",
            "v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7]",
            "s_cbranch_scc1 0 -> 1",
            "s_endpgm",
        ]);
        assert_eq!(loops(&code), [(1, vec![1, 2, 3, 4, 5], vec![1, 4, 5]), (2, vec![2, 3], vec![2, 3])]);
        assert!(!code.loops()[0].is_innermost());
    }

    #[test]
    fn a_loop_that_is_entered_in_its_middle_is_one_loop() {
        // As LLVM places a loop with `continue`: the latch first, jumped over on the way in; two branches back.
        let code = code(&[
            "s_branch 3 -> 4",
            "s_or_b64 exec, exec, s[0:1]",
            "v_add_u32 v0, v0, v1",
            "s_cbranch_execz 9 -> 9",
            "v_cmp_gt_u32 vcc, v0, v1",
            "s_cbranch_execz 0 -> 2",
            "global_load_dword v0, v[2:3], off",
            "s_nop 0",
            "s_branch 0 -> 1",
            "s_endpgm",
        ]);
        assert_eq!(loops(&code), [(4, (1..=8).collect(), (1..=8).collect())]);
    }

    #[test]
    fn what_is_behind_a_branch_and_has_a_barrier_is_no_part_of_a_round() {
        let code = code(&[
            "global_load_b64 v[0:1], v2, s[0:1]",
            "s_cbranch_vccnz 0 -> 6",
            "global_load_b128 v[4:7], v3, s[2:3]",
            "s_cbranch_scc1 0 -> 2",
            "s_barrier_signal -1",
            "s_barrier_wait 0xffff",
            "v_fmac_f32 v8, v0, v4",
            "s_cbranch_scc1 0 -> 0",
            "s_endpgm",
        ]);
        assert_eq!(loops(&code), [(0, vec![0, 1, 6, 7], vec![0, 1, 6, 7]), (2, vec![2, 3], vec![2, 3])]);
        // One that every round comes to is part of each.
        let mut meets = code.clone();
        meets.instructions[1].target = None;
        meets.instructions[1].text = "s_nop 0".to_owned();
        assert_eq!(loops(&meets)[0].1, (0..=7).collect::<Vec<usize>>());
    }

    #[test]
    fn a_wave_goes_through_one_side_of_a_branch() {
        let code = code(&[
            "s_mov_b32 s0, 0",
            "s_cbranch_scc1 0 -> 4",
            "v_mov_b32 v0, 0",
            "s_branch 0 -> 6",
            "v_mov_b32 v0, 1",
            "v_mov_b32 v1, 1",
            "v_fma_f32 v0, v1, v2, v0",
            "s_cbranch_scc1 0 -> 6",
            "s_endpgm",
            "s_code_end",
        ]);
        // Instruction 4 takes ten cycles, each other one.
        let cycles = |block: &[usize]| block.iter().map(|&i| if i == 4 { 10.0 } else { 1.0 }).sum();
        let way = |which: &[usize]| code.longest_way(which, &cycles);
        assert_eq!(way(&(0..10).collect::<Vec<_>>()), [0, 1, 4, 5, 6, 7, 8]);
        assert_eq!(way(&[0, 1, 2, 3, 5, 8, 9]), [0, 1, 2, 3, 8], "without some of them");
    }

    #[test]
    fn what_follows_the_end_is_no_part_of_it() {
        let code = code(&["s_endpgm", "s_code_end", "s_branch 0 -> 1"]);
        assert_eq!(code.loops(), []);
    }

    #[test]
    fn a_line_that_is_no_instruction_is_named() {
        let error =
            Code::parse("0000000000000100 <k>:\n\tv_mov_b32 v0, 0\n").expect_err("it has no address").to_string();
        assert_eq!(
            error,
            "line 2 of the disassembly: expected an instruction and its address, found `v_mov_b32 v0, 0`"
        );
        assert!(Code::parse("\ts_endpgm // 000000000100: BF810000\n").is_err(), "no symbol before it");
        assert!(Code::parse("").expect("nothing").is_empty());
    }
}
