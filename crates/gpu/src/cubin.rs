//! Reads the description of kernels in a compiled NVIDIA object (a cubin), in the terms of [`crate::code_object`].
//!
//! A cubin is an ELF file. Its section `.nv.info` has attributes of all kernels, `.nv.info.<kernel>` those of one: a
//! byte of format, a byte of name, and a value, or its length and then the value. NVIDIA documents none of this; the
//! names are those that `cuobjdump -elf` prints, and the results equal `cuobjdump --dump-resource-usage`. The reader
//! trusts nothing.

use object::LittleEndian;
use object::elf::{FileHeader64, SHT_NOBITS};
use object::read::elf::{FileHeader as _, SectionHeader as _, Sym as _};

use crate::code_object::{CodeObject, CodeObjectError, KernelArg, KernelFacts};

/// The ELF machine of NVIDIA GPUs.
pub(crate) const EM_CUDA: u16 = 190;

/// Lanes of a warp of every NVIDIA GPU.
const WARP_SIZE: u32 = 32;

/// Threads of a block, where the source sets no limit.
const MAX_BLOCK_SIZE: u32 = 1024;

/// Names of attributes.
mod attribute {
    pub(crate) const MAX_THREADS: u8 = 0x05;
    pub(crate) const FRAME_SIZE: u8 = 0x11;
    pub(crate) const KPARAM_INFO: u8 = 0x17;
    pub(crate) const CBANK_PARAM_SIZE: u8 = 0x19;
    pub(crate) const REGCOUNT: u8 = 0x2f;
}

/// The format of an attribute whose value has a length of its own; all others have two bytes.
const SIZED: u8 = 0x04;

/// Reads what a cubin says of its kernels.
///
/// # Errors
/// [`CodeObjectError`], whatever the bytes are.
pub(crate) fn parse(bytes: &[u8]) -> Result<CodeObject, CodeObjectError> {
    let header = FileHeader64::<LittleEndian>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let symbols = sections.symbols(endian, bytes, object::elf::SHT_SYMTAB)?;
    let (mut all, mut kernels) = (&[][..], Vec::new());
    for section in sections.iter() {
        // A section without bytes in the file has none to read.
        let is_empty = section.sh_type(endian) == SHT_NOBITS;
        let data = if is_empty { &[] } else { section.data(endian, bytes)? };
        match sections.section_name(endian, section)? {
            b".nv.info" => all = data,
            name => kernels.extend(name.strip_prefix(b".nv.info.").map(|name| (text(name), data))),
        }
    }
    let all = attributes(all)?;
    let mut facts = Vec::new();
    for (name, own) in kernels {
        let index =
            symbols.iter().position(|symbol| symbol.name(endian, symbols.strings()).ok() == Some(name.as_bytes()));
        let shared = format!(".nv.shared.{name}");
        let shared = sections.section_by_name(endian, shared.as_bytes()).map_or(0, |(_, s)| s.sh_size(endian));
        facts.push(kernel(name, &all, index, &attributes(own)?, u32::try_from(shared).unwrap_or(u32::MAX))?);
    }
    // CUDA 13 moved the chip's number to the second byte, with version 8 of the ABI: NVRTC 12.9 writes 0x5a0d5a for
    // sm_90, and version 7.
    let shift = if bytes.get(ABI_VERSION_AT).is_some_and(|abi| *abi < 8) { 0 } else { 8 };
    let target = format!("sm_{}", header.e_flags(endian).0 >> shift & 0xff);
    Ok(CodeObject { target, version: None, kernels: facts })
}

/// Where an ELF file has the version of its ABI (`EI_ABIVERSION`).
const ABI_VERSION_AT: usize = 8;

/// The machine code of a kernel of an NVIDIA object (a cubin), in instructions of 16 bytes.
///
/// # Errors
/// [`CodeObjectError`]: it is no ELF file, or has no code of this kernel.
pub fn code<'a>(bytes: &'a [u8], kernel: &str) -> Result<&'a [u8], CodeObjectError> {
    let header = FileHeader64::<LittleEndian>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    match sections.section_by_name(endian, format!(".text.{kernel}").as_bytes()) {
        Some((_, section)) => Ok(section.data(endian, bytes)?),
        None => Err(damaged(&format!(".text.{kernel}"), "no such section")),
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// A name and its value.
type Attribute<'a> = (u8, &'a [u8]);

fn attributes(mut bytes: &[u8]) -> Result<Vec<Attribute<'_>>, CodeObjectError> {
    let mut attributes = Vec::new();
    while let [format, name, low, high, rest @ ..] = bytes {
        let len = if *format == SIZED { usize::from(u16::from_le_bytes([*low, *high])) } else { 0 };
        let value = if *format == SIZED { rest.get(..len) } else { bytes.get(2..4) };
        attributes.push((*name, value.ok_or_else(|| damaged("its attributes", "end"))?));
        bytes = &rest[len..];
    }
    if bytes.is_empty() { Ok(attributes) } else { Err(damaged("an attribute", "part of one")) }
}

fn kernel(
    name: String,
    all: &[Attribute<'_>],
    index: Option<usize>,
    own: &[Attribute<'_>],
    lds_bytes: u32,
) -> Result<KernelFacts, CodeObjectError> {
    // Of all kernels' attributes those whose first word is this one's symbol.
    let of_all = |wanted: u8| {
        let own = all.iter().filter(|(name, _)| *name == wanted);
        own.filter(|(_, value)| index.is_some_and(|index| word(value, 0) == Some(index as u32)))
            .find_map(|(_, value)| word(value, 1))
    };
    let find = |wanted: u8| own.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
    let registers = of_all(attribute::REGCOUNT).ok_or_else(|| damaged("EIATTR_REGCOUNT", "nothing"))?;
    let frame_bytes = of_all(attribute::FRAME_SIZE).unwrap_or(0);
    let threads =
        find(attribute::MAX_THREADS).map(|value| (0..3).filter_map(|i| word(value, i)).fold(1u32, u32::saturating_mul));
    let params = own.iter().filter(|(name, _)| *name == attribute::KPARAM_INFO);
    let mut args = params.map(|(_, value)| argument(value)).collect::<Result<Vec<_>, _>>()?;
    args.sort_by_key(|arg| arg.offset);
    let kernarg_bytes = find(attribute::CBANK_PARAM_SIZE).map_or(0, |value| half(value, 0).map_or(0, u32::from));
    Ok(KernelFacts {
        name,
        args,
        kernarg_bytes,
        vgprs: registers,
        agprs: 0,
        sgprs: 0,
        vgpr_spills: 0, // not told from arrays that are indexed at run time
        sgpr_spills: 0,
        lds_bytes,
        private_bytes: frame_bytes,
        wave_size: WARP_SIZE,
        max_block_size: threads.unwrap_or(MAX_BLOCK_SIZE),
    })
}

/// A word of nothing we need, ordinal and offset, and flags with the size in the upper bits. A cubin does not say what
/// is a pointer: what has the size of one counts as one.
fn argument(value: &[u8]) -> Result<KernelArg, CodeObjectError> {
    let fields = half(value, 3).zip(word(value, 2));
    let (offset, flags) = fields.ok_or_else(|| damaged("EIATTR_KPARAM_INFO", "part of one"))?;
    let size = flags >> 18;
    let value_kind = if size == 8 { "global_buffer" } else { "by_value" };
    Ok(KernelArg { offset: offset.into(), size, value_kind: value_kind.to_owned() })
}

fn word(value: &[u8], i: usize) -> Option<u32> {
    Some(u32::from_le_bytes(value.get(4 * i..4 * i + 4)?.try_into().ok()?))
}

fn half(value: &[u8], i: usize) -> Option<u16> {
    Some(u16::from_le_bytes(value.get(2 * i..2 * i + 2)?.try_into().ok()?))
}

fn damaged(key: &str, found: &str) -> CodeObjectError {
    CodeObjectError::Value { key: key.to_owned(), expected: "a whole attribute of a cubin", found: found.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code_object::DeviceLimits;
    use crate::{ArgumentKind, ArgumentSpec, KernelSpec};

    /// `rmsnorm/row` for sm_90; `tests/fixtures/README.md` has what `cuobjdump` says of both.
    const ROW: &[u8] = include_bytes!("../../../tests/fixtures/objects/rmsnorm_row.sm_90.cubin");
    /// `linear/gemv` in f32 precision for sm_90: an array that is indexed at run time.
    const GEMV: &[u8] = include_bytes!("../../../tests/fixtures/objects/linear_gemv.sm_90.cubin");

    fn spec() -> KernelSpec {
        let kinds = [ArgumentKind::Read, ArgumentKind::Read, ArgumentKind::Write, ArgumentKind::U32];
        let args = kinds.map(|kind| ArgumentSpec::new("a", kind)).to_vec();
        KernelSpec { entry: "rmsnorm_row".into(), args, block_size: 256, ..KernelSpec::default() }
    }

    #[test]
    fn a_kernels_code_is_whole_instructions_and_ends_in_a_branch_to_itself() {
        let text = code(ROW, "rmsnorm_row").expect("its code");
        assert!(!text.is_empty() && text.len().is_multiple_of(16), "{}", text.len());
        let opcodes: Vec<u16> =
            text.chunks_exact(16).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]) & 0xfff).collect();
        assert!(opcodes.contains(&0x94d) && opcodes.contains(&0x947), "EXIT and BRA: {opcodes:x?}");
        assert!(code(ROW, "other").is_err());
    }

    #[test]
    fn a_cubin_tells_what_cuobjdump_tells_of_it() {
        let row = CodeObject::parse(ROW).expect("a real object");
        let kernel = row.kernel("rmsnorm_row").expect("its kernel");
        assert_eq!((row.target.as_str(), kernel.vgprs, kernel.private_bytes, kernel.lds_bytes), ("sm_90", 20, 0, 1056));
        assert_eq!((kernel.max_block_size, kernel.kernarg_bytes, kernel.spills()), (256, 28, 0));
        let args: Vec<(u32, u32)> = kernel.args.iter().map(|arg| (arg.offset, arg.size)).collect();
        assert_eq!(args, [(0, 8), (8, 8), (16, 8), (24, 4)]);
        let gemv = CodeObject::parse(GEMV).expect("a real object");
        let kernel = gemv.kernel("linear_gemv").expect("its kernel");
        assert_eq!((kernel.vgprs, kernel.private_bytes, kernel.spills(), kernel.lds_bytes), (18, 16, 0, 0));
    }

    /// The head of what NVRTC 12.9 makes of a kernel for sm_90, before the rest of an object of 13.0.
    #[test]
    fn a_cubin_of_cuda_12_tells_its_chip_too() {
        let mut older = ROW.to_vec();
        assert_eq!(older[ABI_VERSION_AT], 8);
        older[ABI_VERSION_AT] = 7;
        older[48..52].copy_from_slice(&0x5a_0d5a_u32.to_le_bytes());
        assert_eq!(CodeObject::parse(&older).expect("an object").target, "sm_90");
    }

    #[test]
    fn a_cubin_agrees_with_its_contract_alone() {
        let limits = DeviceLimits { wave_size: 32, lds_bytes: 1056 };
        let object = CodeObject::parse(ROW).expect("a real object");
        object.agrees(&spec(), limits).expect("it is the same");
        let larger = KernelSpec { block_size: 512, ..spec() };
        let fewer = KernelSpec { args: spec().args[..3].to_vec(), ..spec() };
        for (spec, limits) in [(larger, limits), (fewer, limits), (spec(), DeviceLimits { lds_bytes: 1055, ..limits })]
        {
            object.agrees(&spec, limits).expect_err("it differs");
        }
    }

    #[test]
    fn half_a_cubin_is_an_error_wherever_it_ends() {
        for len in (0..GEMV.len()).step_by(61) {
            let _ = CodeObject::parse(&GEMV[..len]); // whatever it is, no panic
        }
        CodeObject::parse(&GEMV[..GEMV.len() / 2]).expect_err("it is cut");
        let mut damaged = GEMV.to_vec();
        for i in 0x500..0x600 {
            damaged[i] = 0xff;
            let _ = CodeObject::parse(&damaged);
        }
    }
}
