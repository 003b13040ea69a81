//! A kernel compiled for the simulator: loaded from memory, with its LDS and its lines.

use std::ffi::c_void;

use addr2line::Loader;

use super::context::{Context, Range};
use super::watch::Cell;
use crate::host::{Loaded, abi, open_from_memory};
use crate::{GpuError, KernelSpec};

/// What a kernel's text is called after the simulator's own (`#line`).
const KERNEL_FILE: &str = "kernel.hip";

/// Runs one thread of the kernel with these arguments: pointers as they are, values by address.
pub(super) type SimEntryPoint = unsafe extern "C" fn(*const *const c_void);

/// One copy of a kernel. Its LDS is static memory, so at most one block runs on it at a time.
pub(super) struct Object {
    entry: SimEntryPoint,
    bind: unsafe extern "C" fn(*mut Context),
    /// Where the image begins.
    base: usize,
    code: [usize; 2],
    lds: Vec<Lds>,
    /// A byte for each marked line of the text, which is set when it runs; empty if none is marked.
    ran: Option<(usize, usize)>,
    /// Whether its threads use atomics, be it on LDS alone.
    has_atomics: bool,
    /// Constants of the text, which may be read.
    constants: Vec<Range>,
    lines: Loader,
    _library: Loaded,
}

/// A variable in LDS: the addresses that it takes in this process.
#[derive(Clone, Debug)]
pub(super) struct Lds {
    pub(crate) begin: usize,
    pub(crate) end: usize,
    /// What the kernel's text calls it.
    variable: Option<String>,
}

impl Lds {
    pub(crate) fn name(&self) -> String {
        self.variable.as_ref().map_or_else(|| "LDS".to_owned(), |name| format!("`{name}` in LDS"))
    }
}

/// `rows` of `_ZZ6kernelE4rows`, `_ZL4rows` and `_ZZ6kernelE4rows_0`.
fn variable(mangled: &str) -> Option<String> {
    let name = |rest: &str| {
        let n_digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let len: usize = rest[..n_digits].parse().ok()?;
        let (name, behind) = rest[n_digits..].split_at_checked(len)?;
        (behind.is_empty() || behind.starts_with('_')).then(|| name.to_owned())
    };
    match mangled.strip_prefix("_ZL") {
        Some(rest) => name(rest),
        None => mangled.rmatch_indices('E').find_map(|(at, _)| name(&mangled[at + 1..])),
    }
}

// SAFETY: only `lines` keeps it from being moved to another thread: an immutable view of the object's file, whose
// caches are behind the `Mutex` that every copy is in.
unsafe impl Send for Object {}

/// The variables in LDS: what a function of the kernel's text keeps in static memory that can be written. And whether
/// there are atomics.
fn symbols_of(bytes: &[u8], base: usize) -> Result<(Vec<Lds>, bool), object::Error> {
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind, elf};
    let file = object::File::parse(bytes)?;
    let mut lds = Vec::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Data) {
        // Mangled names of statics in a function, and of those outside of all namespaces.
        let is_static = symbol.name().is_ok_and(|name| name.starts_with("_ZZ") || name.starts_with("_ZL"));
        let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
        let is_writable = section.is_some_and(|section| match section.flags() {
            object::SectionFlags::Elf { sh_flags, .. } => sh_flags.0 & elf::SHF_WRITE.0 != 0,
            _ => false,
        });
        if is_static && is_writable && symbol.size() > 0 {
            let begin = base + symbol.address() as usize;
            let variable = symbol.name().ok().and_then(variable);
            lds.push(Lds { begin, end: begin + symbol.size() as usize, variable });
        }
    }
    let has_atomics = file.symbols().any(|symbol| symbol.name().is_ok_and(|name| name.contains("atomic_access")));
    Ok((lds, has_atomics))
}

impl Object {
    pub(crate) fn load(bytes: &[u8], spec: &KernelSpec) -> Result<Self, GpuError> {
        let refused = |reason: String| GpuError::NotLoadable { entry: spec.entry.clone(), reason };
        let loaded = open_from_memory(bytes).map_err(refused)?;
        let found = abi(&loaded.library, &format!("{}_abi", spec.entry))?;
        if found != spec.abi {
            return Err(GpuError::Abi { entry: spec.entry.clone(), expected: spec.abi.clone(), found });
        }
        let lines = Loader::new(loaded.path()).map_err(|error| refused(error.to_string()))?;
        let symbol = |suffix: &str| format!("{}{suffix}", spec.entry);
        let missing = |symbol: String| GpuError::NoEntry { symbol };
        // SAFETY: the ABI string says that this object was rendered by us, and every rendered object for the simulator
        // exports these symbols with these types.
        let (entry, bind, image) = unsafe {
            let entry = loaded.library.get::<SimEntryPoint>(symbol("_thread").as_bytes());
            let bind = loaded.library.get::<unsafe extern "C" fn(*mut Context)>(symbol("_bind").as_bytes());
            let image = loaded.library.get::<unsafe extern "C" fn() -> usize>(symbol("_image").as_bytes());
            let entry = *entry.map_err(|_| missing(symbol("_thread")))?;
            let bind = *bind.map_err(|_| missing(symbol("_bind")))?;
            (entry, bind, *image.map_err(|_| missing(symbol("_image")))?)
        };
        // SAFETY: it takes nothing and returns the address of the image's first byte.
        let base = unsafe { image() };
        let section = |name: &str| {
            let range = lines.get_section_range(name.as_bytes())?;
            Some((base + range.begin as usize, base + range.end as usize))
        };
        let (lds, has_atomics) = symbols_of(bytes, base).map_err(|error| refused(error.to_string()))?;
        // SAFETY: as above; it takes nothing, and gives where a static array begins and ends.
        let ran = unsafe {
            let ran = loaded.library.get::<unsafe extern "C" fn(u32) -> usize>(symbol("_ran").as_bytes());
            ran.ok().map(|ran| (ran(0), ran(1)))
        };
        let constants = [".rodata", ".data.rel.ro"].iter().filter_map(|name| section(name));
        let constants = constants.map(|(begin, end)| Range::unwatched(begin, end, false)).collect();
        let code = section(".text").map_or([0; 2], |(begin, end)| [begin, end]);
        Ok(Self { entry, bind, base, code, lds, ran, has_atomics, constants, lines, _library: loaded })
    }

    /// Where its code begins and ends.
    pub(crate) fn code(&self) -> [usize; 2] {
        self.code
    }

    pub(crate) fn entry(&self) -> SimEntryPoint {
        self.entry
    }

    /// Says where the object finds the running thread.
    pub(crate) fn bind(&self, context: *mut Context) {
        // SAFETY: it stores the pointer, which the object uses while `block::run` runs its threads, and then no more.
        unsafe { (self.bind)(context) };
    }

    /// Makes LDS what it is when a block starts: undefined, here NaN.
    pub(crate) fn forget_lds(&self) {
        for &Lds { begin, end, .. } in &self.lds {
            // SAFETY: the range is a writable section of this object's image, and no thread of a block runs on it:
            // every copy is behind a `Mutex`.
            unsafe { std::ptr::write_bytes(begin as *mut u8, super::UNWRITTEN, end - begin) };
        }
    }

    /// Where every thread may read, and in LDS write: LDS is watched in these cells, of which there are `n_cells`.
    pub(crate) fn ranges(&self, cells: &mut [Cell]) -> Vec<Range> {
        let mut left = cells;
        let mut lds = Vec::new();
        for &Lds { begin, end, .. } in &self.lds {
            let (own, others) = left.split_at_mut((end - begin).div_ceil(4));
            lds.push(Range::lds(begin, end, own.as_ptr()));
            left = others;
        }
        lds.extend_from_slice(&self.constants);
        lds
    }

    /// The variables in LDS.
    pub(crate) fn lds(&self) -> impl Iterator<Item = &Lds> {
        self.lds.iter()
    }

    /// Of the marked lines of its text, in their order, which ran on this copy.
    pub(crate) fn ran(&self) -> Vec<bool> {
        let bytes = |(begin, end): (usize, usize)| {
            // SAFETY: the object says that it has a static array there, and no thread of it runs: every copy is behind
            // a `Mutex`.
            let ran = unsafe { std::slice::from_raw_parts(begin as *const u8, end - begin) };
            ran.iter().map(|byte| *byte != 0).collect()
        };
        self.ran.map_or_else(Vec::new, bytes)
    }

    /// Bytes of LDS that a block has.
    pub(crate) fn lds_bytes(&self) -> u64 {
        self.lds.iter().map(|lds| (lds.end - lds.begin) as u64).sum()
    }

    /// Whether its threads use atomics, be it on LDS alone: on other memory they may hear of other blocks.
    pub(crate) fn has_atomics(&self) -> bool {
        self.has_atomics
    }

    /// Cells that LDS is watched in.
    pub(crate) fn n_cells(&self) -> usize {
        self.lds.iter().map(|lds| (lds.end - lds.begin).div_ceil(4)).sum()
    }

    /// The lines of the kernel's text that a place in the code comes from: its own, then those of the calls that the
    /// compiler put it in the place of, from the inside out. Empty if it is the simulator's.
    pub(crate) fn lines(&self, pc: usize) -> Vec<u32> {
        let probe = (pc - self.base) as u64 - 1; // the return address is behind the call
        let mut lines = Vec::new();
        if let Ok(mut frames) = self.lines.find_frames(probe) {
            while let Ok(Some(frame)) = frames.next() {
                let Some(location) = frame.location else { continue };
                let is_own = location.file.is_some_and(|file| file.ends_with(KERNEL_FILE));
                lines.extend(location.line.filter(|line| is_own && *line > 0));
            }
        }
        lines.dedup();
        lines
    }

    /// The same for a thread's places, the innermost first: for the first place that has lines, then for its callers. A
    /// stack also has words that are not return addresses, so a caller must contain a call of the function.
    pub(crate) fn lines_of(&self, places: impl IntoIterator<Item = usize>) -> Vec<u32> {
        let mut places = places.into_iter().take_while(|place| *place > 0);
        let found = places.by_ref().map(|place| (place, self.lines(place))).find(|(_, lines)| !lines.is_empty());
        let Some((mut inner, mut lines)) = found else { return Vec::new() };
        for place in places {
            let called = called_from(self.code, place).and_then(|called| self.function(called));
            if called.is_some() && called == self.function(inner - 1) {
                lines.extend(self.lines(place));
                inner = place;
            }
        }
        lines.dedup();
        lines
    }

    /// The function that an address of the code is in, as it is called in the text: the one that is called, not what
    /// the compiler put into it.
    fn function(&self, address: usize) -> Option<String> {
        let mut frames = self.lines.find_frames((address - self.base) as u64).ok()?;
        let mut outermost = None;
        while let Ok(Some(frame)) = frames.next() {
            outermost = frame.function.and_then(|function| Some(function.raw_name().ok()?.into_owned()));
        }
        outermost
    }
}

/// What the call that returns to a place calls, if it names that.
fn called_from(code: [usize; 2], place: usize) -> Option<usize> {
    const LEN_BYTES: usize = if cfg!(target_arch = "x86_64") { 5 } else { 4 };
    if !(code[0] + LEN_BYTES..code[1]).contains(&place) {
        return None;
    }
    // SAFETY: the bytes are of the object's code, which may be read.
    let call = unsafe { std::slice::from_raw_parts((place - LEN_BYTES) as *const u8, LEN_BYTES) };
    let [first, second, third, fourth] = *call.last_chunk()?;
    let called = if cfg!(target_arch = "x86_64") {
        let by = i32::from_le_bytes([first, second, third, fourth]);
        (call[0] == 0xe8).then(|| place.wrapping_add_signed(by as isize))
    } else if cfg!(target_arch = "aarch64") {
        let word = u32::from_le_bytes([first, second, third, fourth]);
        let by = ((word << 6) as i32 >> 6) as isize * 4; // in instructions
        (word >> 26 == 0b100101).then(|| (place - LEN_BYTES).wrapping_add_signed(by))
    } else {
        None
    };
    called.filter(|called| (code[0]..code[1]).contains(called))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_the_names_of_the_text() {
        for (mangled, name) in [
            ("_ZZ11linear_gemvE4rows", "rows"),
            ("_ZZ4sumEPKfE6shared", "shared"),
            ("_ZZL3fooILj4EEvvE5EdgesE3sum_0", "sum"),
            ("_ZL10ring_cells", "ring_cells"),
        ] {
            assert_eq!(variable(mangled).as_deref(), Some(name), "{mangled}");
        }
        assert_eq!(variable("_ZZE"), None);
    }
}
