//! Reads a compiled object's description of its kernels: arguments, registers, LDS, wave size, block size. AMD's form
//! is read here; `cubin` reads NVIDIA's.
//!
//! A code object is an ELF file with a note `AMDGPU`, whose contents are MessagePack (LLVM's AMDGPUUsage, "Code Object
//! V3 and Above Metadata"). The reader trusts nothing: damaged bytes are an error, and memory grows with the bytes
//! that are there, never by a stated length. It does not look at the machine code.

use object::LittleEndian;
use object::elf::{EM_AMDGPU, FileHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _};
use rmpv::ValueRef;

use crate::cubin::{self, EM_CUDA};
pub use crate::facts::DeviceLimits;
use crate::{ArgumentKind, ArgumentSpec, GpuError, KernelSpec};

/// `NT_AMDGPU_METADATA`, of notes whose owner is `AMDGPU`.
const METADATA_NOTE: u32 = 32;

/// The version of code objects whose ELF header states the ABI version 0 (`ELFABIVERSION_AMDGPU_HSA_V2`).
const FIRST_VERSION: u32 = 2;

/// A note longer than this describes no kernel of ours, in bytes: theirs take a few kilobytes.
const MAX_NOTE_BYTES: usize = 1 << 20;

/// Lists in lists, at most: the metadata need five.
const MAX_DEPTH: usize = 32;

/// A compiled code object, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeObject {
    /// What it was compiled for: `gfx1100`, `gfx90a:sramecc+:xnack-`.
    pub target: String,
    /// The version of its format, 4 to 6; none of NVIDIA's.
    pub version: Option<u32>,
    pub kernels: Vec<KernelFacts>,
}

/// One kernel of a code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Its name, as in the source.
    pub name: String,
    /// The arguments in the order of their offsets, those that the compiler adds included.
    pub(crate) args: Vec<KernelArg>,
    /// Size of the memory that arguments are passed in, in bytes.
    pub(crate) kernarg_bytes: u32,
    /// Vector registers of each lane; where accumulation registers are in the same file, with those. On NVIDIA all
    /// registers of a thread.
    pub vgprs: u32,
    /// Accumulation registers of each lane; 0 on chips that have none.
    pub(crate) agprs: u32,
    /// Scalar registers of each wave.
    pub sgprs: u32,
    /// Vector registers that did not fit and are kept in memory. On NVIDIA 0: a cubin does not tell them from arrays
    /// that are indexed at run time (the reduction of large angles has one), both are private memory.
    pub vgpr_spills: u32,
    /// Scalar registers that did not fit and are kept elsewhere.
    pub sgpr_spills: u32,
    /// LDS of a block, in bytes.
    pub lds_bytes: u32,
    /// Private memory ("scratch") of a thread, in bytes: spilled registers, arrays that are indexed at run time.
    pub private_bytes: u32,
    /// Lanes of a wave.
    pub wave_size: u32,
    /// Threads that a block may have.
    pub max_block_size: u32,
}

/// One argument of a compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelArg {
    /// Where it begins in the arguments' memory, in bytes.
    pub(crate) offset: u32,
    /// Its size in bytes.
    pub size: u32,
    /// `global_buffer` for a pointer, `by_value`, and `hidden_…` for what the compiler adds.
    pub(crate) value_kind: String,
}

/// What is wrong with the bytes of a code object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodeObjectError {
    /// They are no ELF file, or a damaged one.
    #[error("could not read the ELF file: {0}")]
    Elf(object::Error),
    /// They are an ELF file for something else.
    #[error(
        "expected an ELF file for AMD GPUs (machine {EM_AMDGPU}) or NVIDIA GPUs (machine {EM_CUDA}), found machine {machine}"
    )]
    Machine { machine: u16 },
    /// The file does not describe its kernels.
    #[error("expected a note AMDGPU with the kernels' metadata, found none")]
    NoMetadata,
    /// The note is longer than that of any kernel.
    #[error("expected metadata of at most {MAX_NOTE_BYTES} bytes, found {len_bytes}")]
    TooLong { len_bytes: usize },
    /// The metadata are not MessagePack.
    #[error("could not read the metadata: {0}")]
    MessagePack(String),
    /// A value is missing, or of another type.
    #[error("metadata, `{key}`: expected {expected}, found {found}")]
    Value { key: String, expected: &'static str, found: String },
}

impl From<object::Error> for CodeObjectError {
    fn from(error: object::Error) -> Self {
        Self::Elf(error)
    }
}

impl CodeObject {
    /// Reads the metadata of a code object.
    ///
    /// # Errors
    /// [`CodeObjectError`], whatever the bytes are.
    pub fn parse(bytes: &[u8]) -> Result<Self, CodeObjectError> {
        let header = FileHeader64::<LittleEndian>::parse(bytes)?;
        if header.e_machine(header.endian()?).0 == EM_CUDA {
            return cubin::parse(bytes);
        }
        let note = metadata(bytes)?;
        let root = rmpv::decode::read_value_ref_with_max_depth(&mut &note[..], MAX_DEPTH)
            .map_err(|error| CodeObjectError::MessagePack(error.to_string()))?;
        let root = Map::read("(all)", &root)?;
        let kernels = root.list("amdhsa.kernels")?;
        Ok(Self {
            target: target_of(root.text("amdhsa.target")?)?,
            version: Some(FIRST_VERSION + u32::from(header.e_ident.abi_version)),
            kernels: kernels.iter().map(KernelFacts::parse).collect::<Result<_, _>>()?,
        })
    }

    /// The same of an object that is to be loaded for a kernel.
    ///
    /// # Errors
    /// [`GpuError::NotLoadable`].
    pub(crate) fn of_kernel(bytes: &[u8], spec: &KernelSpec) -> Result<Self, GpuError> {
        Self::parse(bytes)
            .map_err(|error| GpuError::NotLoadable { entry: spec.entry.clone(), reason: error.to_string() })
    }

    /// The kernel of this name, if there is one.
    pub(crate) fn kernel(&self, name: &str) -> Option<&KernelFacts> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// Compares the kernel that `spec` names with what its contract says of the arguments and the block, and with
    /// what the device has. The arguments that the compiler adds after the contract's are not looked at.
    ///
    /// # Errors
    /// [`GpuError::NoEntry`] when there is no such kernel, [`GpuError::Abi`] for the first thing that differs.
    pub fn agrees(&self, spec: &KernelSpec, limits: DeviceLimits) -> Result<&KernelFacts, GpuError> {
        let kernel = self.kernel(&spec.entry).ok_or_else(|| GpuError::NoEntry { symbol: spec.entry.clone() })?;
        let differs =
            |expected: String, found: String| Err(GpuError::Abi { entry: spec.entry.clone(), expected, found });
        if let Some((expected, found)) = kernel.other_args(&spec.args) {
            return differs(expected, found);
        }
        if kernel.wave_size != limits.wave_size {
            return differs(format!("waves of {}", limits.wave_size), format!("waves of {}", kernel.wave_size));
        }
        if kernel.max_block_size < spec.block_size {
            let found = format!("blocks of at most {} threads", kernel.max_block_size);
            return differs(format!("blocks of {} threads", spec.block_size), found);
        }
        if kernel.lds_bytes > limits.lds_bytes {
            let found = format!("{} bytes of LDS", kernel.lds_bytes);
            return differs(format!("at most {} bytes of LDS", limits.lds_bytes), found);
        }
        Ok(kernel)
    }
}

impl KernelFacts {
    /// The arguments that the source states: all but those that the compiler adds.
    pub fn explicit_args(&self) -> impl Iterator<Item = &KernelArg> {
        self.args.iter().filter(|arg| !arg.value_kind.starts_with("hidden_"))
    }

    /// Registers that did not fit, of both kinds.
    pub fn spills(&self) -> u32 {
        self.vgpr_spills.saturating_add(self.sgpr_spills)
    }

    fn parse(value: &ValueRef<'_>) -> Result<Self, CodeObjectError> {
        let map = Map::read("amdhsa.kernels", value)?;
        // A kernel without arguments has no list of them, and a compiler that counts no spills says nothing of them.
        let args = if map.has(".args") { map.list(".args")? } else { &[] };
        let mut args: Vec<KernelArg> = args.iter().map(KernelArg::parse).collect::<Result<_, _>>()?;
        args.sort_by_key(|arg| arg.offset);
        Ok(Self {
            name: map.text(".name")?.to_owned(),
            args,
            kernarg_bytes: map.number(".kernarg_segment_size")?,
            vgprs: map.number(".vgpr_count")?,
            agprs: map.number_or_zero(".agpr_count")?,
            sgprs: map.number(".sgpr_count")?,
            vgpr_spills: map.number_or_zero(".vgpr_spill_count")?,
            sgpr_spills: map.number_or_zero(".sgpr_spill_count")?,
            lds_bytes: map.number(".group_segment_fixed_size")?,
            private_bytes: map.number(".private_segment_fixed_size")?,
            wave_size: map.number(".wavefront_size")?,
            max_block_size: map.number(".max_flat_workgroup_size")?,
        })
    }

    /// What is expected and found, if the explicit arguments are not these.
    fn other_args(&self, specs: &[ArgumentSpec]) -> Option<(String, String)> {
        let explicit: Vec<&KernelArg> = self.explicit_args().collect();
        if explicit.len() != specs.len() {
            return Some((format!("{} arguments", specs.len()), format!("{} arguments", explicit.len())));
        }
        let mut end = 0u32;
        for (arg, spec) in explicit.into_iter().zip(specs) {
            let (value_kind, size) = match spec.kind {
                ArgumentKind::Read | ArgumentKind::Write => ("global_buffer", 8),
                ArgumentKind::U32 | ArgumentKind::I32 | ArgumentKind::F32 => ("by_value", 4),
            };
            // Each lies at the next offset that its size divides: that is how a launch places it.
            let offset = end.next_multiple_of(size);
            if (arg.offset, arg.size, arg.value_kind.as_str()) != (offset, size, value_kind) {
                let describe = |kind: &str, size: u32, offset: u32| format!("{kind} of {size} bytes at {offset}");
                return Some((
                    format!("`{}`: {}", spec.name, describe(value_kind, size, offset)),
                    describe(&arg.value_kind, arg.size, arg.offset),
                ));
            }
            end = offset + size;
        }
        (self.kernarg_bytes < end)
            .then(|| (format!("at least {end} bytes of arguments"), format!("{} bytes", self.kernarg_bytes)))
    }
}

impl KernelArg {
    fn parse(value: &ValueRef<'_>) -> Result<Self, CodeObjectError> {
        let map = Map::read(".args", value)?;
        Ok(Self {
            offset: map.number(".offset")?,
            size: map.number(".size")?,
            value_kind: map.text(".value_kind")?.to_owned(),
        })
    }
}

/// The bytes of the note with the metadata.
fn metadata(bytes: &[u8]) -> Result<&[u8], CodeObjectError> {
    let header = FileHeader64::<LittleEndian>::parse(bytes)?;
    let endian = header.endian()?;
    let machine = header.e_machine(endian);
    if machine != EM_AMDGPU {
        return Err(CodeObjectError::Machine { machine: machine.0 });
    }
    for section in header.section_headers(endian, bytes)? {
        let Some(mut notes) = section.notes(endian, bytes)? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == b"AMDGPU" && note.n_type(endian).0 == METADATA_NOTE {
                let len_bytes = note.desc().len();
                let fits = len_bytes <= MAX_NOTE_BYTES;
                return if fits { Ok(note.desc()) } else { Err(CodeObjectError::TooLong { len_bytes }) };
            }
        }
    }
    Err(CodeObjectError::NoMetadata)
}

/// `gfx90a:xnack-` of `amdgcn-amd-amdhsa--gfx90a:xnack-`.
fn target_of(triple: &str) -> Result<String, CodeObjectError> {
    let at = triple.starts_with("amdgcn-").then(|| triple.find("-gfx")).flatten();
    let at = at.ok_or_else(|| CodeObjectError::Value {
        key: "amdhsa.target".into(),
        expected: "amdgcn-amd-amdhsa--gfx…",
        found: format!("`{triple}`"),
    })?;
    Ok(triple[at + 1..].to_owned())
}

/// A map of the metadata, whose keys are text.
struct Map<'a>(&'a [(ValueRef<'a>, ValueRef<'a>)]);

impl<'a> Map<'a> {
    fn read(key: &str, value: &'a ValueRef<'a>) -> Result<Self, CodeObjectError> {
        match value {
            ValueRef::Map(entries) => Ok(Self(entries)),
            other => Err(wrong(key, "a map", Some(other))),
        }
    }

    fn get(&self, key: &str) -> Option<&'a ValueRef<'a>> {
        self.0.iter().find(|(name, _)| is_text(name, key)).map(|(_, value)| value)
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    fn list(&self, key: &str) -> Result<&'a [ValueRef<'a>], CodeObjectError> {
        match self.get(key) {
            Some(ValueRef::Array(values)) => Ok(values),
            other => Err(wrong(key, "a list", other)),
        }
    }

    fn text(&self, key: &str) -> Result<&'a str, CodeObjectError> {
        match self.get(key) {
            Some(ValueRef::String(text)) => text.as_str().ok_or_else(|| wrong(key, "text", self.get(key))),
            other => Err(wrong(key, "text", other)),
        }
    }

    fn number(&self, key: &str) -> Result<u32, CodeObjectError> {
        let value = self.get(key);
        let number = value.and_then(ValueRef::as_u64).and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| wrong(key, "a whole number of 32 bits", value))
    }

    fn number_or_zero(&self, key: &str) -> Result<u32, CodeObjectError> {
        if self.has(key) { self.number(key) } else { Ok(0) }
    }
}

/// A value that is not as it should be. Its kind is reported, not its text, which could be anything.
fn wrong(key: &str, expected: &'static str, found: Option<&ValueRef<'_>>) -> CodeObjectError {
    let found = match found {
        None | Some(ValueRef::Nil) => "nothing".into(),
        Some(ValueRef::Boolean(value)) => value.to_string(),
        Some(ValueRef::Integer(value)) => value.to_string(),
        Some(ValueRef::F32(_) | ValueRef::F64(_)) => "a float".into(),
        Some(ValueRef::String(_)) => "text".into(),
        Some(ValueRef::Binary(_) | ValueRef::Ext(..)) => "bytes".into(),
        Some(ValueRef::Array(_)) => "a list".into(),
        Some(ValueRef::Map(_)) => "a map".into(),
    };
    CodeObjectError::Value { key: key.to_owned(), expected, found }
}

fn is_text(value: &ValueRef<'_>, text: &str) -> bool {
    matches!(value, ValueRef::String(value) if value.as_str() == Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `linear/tile` as hipRTC compiles it for gfx90a: three pointers and a scalar, 8320 bytes of LDS, blocks of 256.
    const TILE: &[u8] = include_bytes!("../../../tests/fixtures/objects/linear_tile.gfx90a.co");
    /// `linear/gemv` for gfx1100: the same arguments, no LDS.
    const GEMV: &[u8] = include_bytes!("../../../tests/fixtures/objects/linear_gemv.gfx1100.co");

    const CDNA: DeviceLimits = DeviceLimits { wave_size: 64, lds_bytes: 65_536 };

    fn spec(kinds: &[ArgumentKind]) -> KernelSpec {
        let name = |i: usize| format!("a{i}");
        let args = kinds.iter().enumerate().map(|(i, &kind)| ArgumentSpec::new(name(i), kind)).collect();
        KernelSpec { entry: "linear_tile".into(), args, block_size: 256, ..KernelSpec::default() }
    }

    fn tile_spec() -> KernelSpec {
        spec(&[ArgumentKind::Read, ArgumentKind::Read, ArgumentKind::Write, ArgumentKind::U32])
    }

    #[test]
    fn real_objects_say_what_readobj_says() {
        // `llvm-readobj --notes` prints the same of these files.
        let tile = CodeObject::parse(TILE).expect("a real object");
        assert_eq!(tile.target, "gfx90a");
        let [kernel] = tile.kernels.as_slice() else { panic!("{:?}", tile.kernels) };
        assert_eq!(kernel.name, "linear_tile");
        assert_eq!((kernel.vgprs, kernel.agprs, kernel.sgprs, kernel.spills()), (54, 0, 20, 0));
        assert_eq!((kernel.lds_bytes, kernel.private_bytes, kernel.kernarg_bytes), (8320, 0, 28));
        assert_eq!((kernel.wave_size, kernel.max_block_size), (64, 256));
        let args: Vec<_> = kernel.args.iter().map(|arg| (arg.offset, arg.size, arg.value_kind.as_str())).collect();
        let pointer = "global_buffer";
        assert_eq!(args, [(0, 8, pointer), (8, 8, pointer), (16, 8, pointer), (24, 4, "by_value")]);

        let gemv = CodeObject::parse(GEMV).expect("a real object");
        let kernel = gemv.kernel("linear_gemv").expect("its kernel");
        assert_eq!((gemv.target.as_str(), kernel.wave_size, kernel.vgprs, kernel.sgprs), ("gfx1100", 32, 5, 18));
    }

    #[test]
    fn an_object_agrees_with_its_contract_alone() {
        use ArgumentKind::{F32, Read, U32, Write};
        let object = CodeObject::parse(TILE).expect("a real object");
        object.agrees(&tile_spec(), CDNA).expect("it is the same");
        let other_entry = KernelSpec { entry: "linear_gemv".into(), ..tile_spec() };
        assert!(matches!(object.agrees(&other_entry, CDNA), Err(GpuError::NoEntry { .. })));
        for (spec, limits, says) in [
            (spec(&[Read, Read, Write]), CDNA, "expected: 3 arguments\n  found:    4 arguments"),
            (spec(&[Read, Read, Write, Write]), CDNA, "expected: `a3`: global_buffer of 8 bytes at 24"),
            (spec(&[Read, Read, F32, U32]), CDNA, "found:    global_buffer of 8 bytes at 16"),
            (KernelSpec { block_size: 257, ..tile_spec() }, CDNA, "found:    blocks of at most 256 threads"),
            (tile_spec(), DeviceLimits { wave_size: 32, ..CDNA }, "expected: waves of 32"),
            (tile_spec(), DeviceLimits { lds_bytes: 8319, ..CDNA }, "found:    8320 bytes of LDS"),
        ] {
            let error = object.agrees(&spec, limits).expect_err(says).to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn arguments_that_the_compiler_adds_are_not_the_contracts() {
        let mut object = CodeObject::parse(TILE).expect("a real object");
        let hidden = KernelArg { offset: 32, size: 4, value_kind: "hidden_block_count_x".into() };
        object.kernels[0].args.push(hidden);
        object.agrees(&tile_spec(), CDNA).expect("it is the same");
        object.kernels[0].kernarg_bytes = 24;
        let error = object.agrees(&tile_spec(), CDNA).expect_err("no room for the last").to_string();
        assert!(error.contains("expected: at least 28 bytes of arguments"), "{error}");
    }

    #[test]
    fn every_cut_is_an_error() {
        for len in 0..TILE.len() {
            // The section headers are at the file's end, so that each cut takes some of them.
            CodeObject::parse(&TILE[..len]).expect_err("it is cut");
        }
    }

    #[test]
    fn no_flipped_bit_is_a_panic_and_most_of_the_metadata_are_seen() {
        let whole = CodeObject::parse(TILE).expect("a real object");
        let (mut n_seen, mut n_other) = (0, 0);
        for bit in 0..TILE.len() * 8 {
            let mut damaged = TILE.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match CodeObject::parse(&damaged) {
                Err(_) => n_seen += 1,
                Ok(object) if object != whole => n_other += 1,
                Ok(_) => {}
            }
        }
        // What describes the kernel is some 750 bytes; what is elsewhere (code, names of symbols) is not looked at.
        assert!(n_seen > 1000 && n_other > 100, "{n_seen} errors, {n_other} other facts");
    }

    #[test]
    fn lengths_that_are_only_stated_are_not_allocated() {
        // A map of one key whose value is a list of 2^32 - 1 values that are not there.
        let mut note = vec![0x81, 0xae];
        note.extend(b"amdhsa.kernels");
        note.extend([0xdd, 0xff, 0xff, 0xff, 0xff]);
        let error = CodeObject::parse(&with_note(&note)).expect_err("it is cut short").to_string();
        assert!(error.starts_with("could not read the metadata"), "{error}");
        // Lists in lists, as deep as the note is long.
        let error = CodeObject::parse(&with_note(&[0x91; 700])).expect_err("too deep").to_string();
        assert!(error.starts_with("could not read the metadata"), "{error}");
    }

    #[test]
    fn what_is_missing_or_of_another_type_is_named() {
        for (note, says) in [
            (&b"\x80"[..], "metadata, `amdhsa.kernels`: expected a list, found nothing"),
            (b"\x81\xaeamdhsa.kernels\x07", "metadata, `amdhsa.kernels`: expected a list, found 7"),
            (b"\x93\x01\x02\x03", "metadata, `(all)`: expected a map, found a list"),
        ] {
            assert_eq!(CodeObject::parse(&with_note(note)).expect_err(says).to_string(), says);
        }
        let mut host = TILE.to_vec();
        host[18] = 62; // e_machine: x86-64
        let error = CodeObject::parse(&host).expect_err("not for a GPU").to_string();
        assert_eq!(
            error,
            "expected an ELF file for AMD GPUs (machine 224) or NVIDIA GPUs (machine 190), found machine 62"
        );
        assert!(CodeObject::parse(b"").expect_err("nothing").to_string().starts_with("could not read the ELF file"));
    }

    /// The object with other metadata, no longer than its own.
    fn with_note(metadata: &[u8]) -> Vec<u8> {
        let start = TILE.windows(8).position(|window| window == b"AMDGPU\0\0").expect("the note's owner") + 8;
        let mut object = TILE.to_vec();
        let length: [u8; 4] = object[start - 16..start - 12].try_into().expect("four bytes");
        object[start..start + u32::from_le_bytes(length) as usize].fill(0xc0);
        object[start..start + metadata.len()].copy_from_slice(metadata);
        object
    }
}
