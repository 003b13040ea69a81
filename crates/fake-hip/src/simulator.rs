//! Runs launches in the simulator. The program's cache keeps the text beside every object, and under another key the
//! same text compiled for the simulator, which runs here.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpu::code_object::{CodeObject, KernelFacts};
use gpu::sim::SimDriver;
use gpu::{ArgumentKind, ArgumentSpec, Buffer, Driver, Kernel, KernelSpec};

/// The simulator, by device and wave size, made when it is needed: one runs one kernel at a time.
pub struct Simulator {
    drivers: BTreeMap<(c_int, u32), Arc<SimDriver>>,
    compiled: Compiled,
}

/// What a cache was found to have. The program compiles while it loads: what is not here may have come since.
#[derive(Default)]
struct Compiled {
    /// The entries that were read.
    entries: BTreeSet<PathBuf>,
    /// An entry by its object.
    objects: BTreeMap<Vec<u8>, PathBuf>,
    /// The entries of kernels for the simulator, by the kernel's name.
    simulated: BTreeMap<String, Vec<PathBuf>>,
}

impl Simulator {
    pub fn new() -> Self {
        Self { drivers: BTreeMap::new(), compiled: Compiled::default() }
    }

    pub fn driver(&mut self, device: c_int, wave_size: u32) -> Arc<SimDriver> {
        let new = || Arc::new(SimDriver::new("fake", wave_size, 0).expect("threads"));
        Arc::clone(self.drivers.entry((device, wave_size)).or_insert_with(new))
    }

    pub fn allocate(&mut self, len_bytes: usize) -> Option<Buffer> {
        self.driver(0, 32).allocate(len_bytes).ok() // memory is the same for all
    }

    /// Finds the kernel of an object among those that were compiled for the simulator.
    pub fn load(&mut self, device: c_int, cache: &Path, object: &[u8], said: &CodeObject) -> Result<Kernel, String> {
        self.compiled.read(cache);
        let origin = self.compiled.objects.get(object).ok_or("the object is not in the cache")?;
        let text = fs::read_to_string(origin.join("source")).map_err(|error| error.to_string())?;
        let [facts] = said.kernels.as_slice() else { return Err("not one kernel".to_owned()) };
        // Between the first line, which has the sizes, and the rest the simulator's text stands.
        let (sizes, body) = text.split_once('\n').unwrap_or_default();
        let abi_of = |source: &str| {
            let is_of_it = source.starts_with(sizes) && source.contains(body.trim_end());
            let is_of_it = is_of_it && source.contains(shared_with_the_simulator());
            let (_, abi) = simulated(source).filter(|_| is_of_it)?;
            Some(abi.to_owned())
        };
        let mut why = format!("`{}` was not compiled for the simulator", facts.name);
        let paths = self.compiled.simulated.get(&facts.name).cloned().unwrap_or_default();
        for path in paths {
            let source = fs::read_to_string(path.join("source")).unwrap_or_default();
            let (Some(abi), Ok(bytes)) = (abi_of(&source), fs::read(path.join("object"))) else { continue };
            match self.driver(device, facts.wave_size).load(&bytes, spec(facts, abi)) {
                Ok(kernel) => return Ok(kernel),
                Err(error) => why = error.to_string(),
            }
        }
        Err(why)
    }
}

impl Compiled {
    /// Reads the entries that were not there the last time.
    fn read(&mut self, cache: &Path) {
        for path in entries(cache).into_iter().filter(|path| !self.entries.contains(path)).collect::<Vec<_>>() {
            let (Ok(source), Ok(object)) = (fs::read_to_string(path.join("source")), fs::read(path.join("object")))
            else {
                continue; // it is being written
            };
            match simulated(&source) {
                Some((name, _)) => self.simulated.entry(name.to_owned()).or_default().push(path.clone()),
                None => _ = self.objects.insert(object, path.clone()),
            }
            self.entries.insert(path);
        }
    }
}

/// The kernel's name and its ABI, in a source for the simulator: `const char NAME_abi[] = "ABI";`.
fn simulated(source: &str) -> Option<(&str, &str)> {
    let (before, behind) = source.split_once("_abi[] = \"")?;
    let (_, name) = before.rsplit_once("const char ")?;
    Some((name, behind.split('"').next()?))
}

/// What a text and the simulator that is linked here have to agree about. Objects for older ones may be in the cache
/// too: these would call what is not there.
fn shared_with_the_simulator() -> &'static str {
    let text = include_str!("../../../templates/lib/hip/simulator.hip.j2");
    let begin = text.find("struct Thread {").expect("the simulator's text has it");
    text[begin..].split_once("  void (*fence)").map_or("", |(shared, _)| shared)
}

/// The folders of a cache: `v1/<two digits>/<digest>`.
fn entries(cache: &Path) -> Vec<PathBuf> {
    let children = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    children(cache.join("v1")).flat_map(children).collect()
}

/// What a code object says of its kernel, as a contract; what is by value has 32 bits, whatever they mean.
fn spec(facts: &KernelFacts, abi: String) -> KernelSpec {
    let kind = |size: u32| if size == 8 { ArgumentKind::Write } else { ArgumentKind::U32 };
    let sizes = facts.explicit_args().map(|arg| arg.size).enumerate();
    let args = sizes.map(|(i, size)| ArgumentSpec::new(format!("argument {i}"), kind(size)));
    let (entry, block_size) = (facts.name.clone(), facts.max_block_size);
    KernelSpec { entry, abi, args: args.collect(), block_size, ..KernelSpec::default() }
}
