//! Launches, executed: the cache of the program keeps the text beside every object, and the same text compiled for the
//! simulator under another key. That one runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gpu::code_object::CodeObject;
use gpu::sim::SimDriver;
use gpu::{Argument, ArgumentKind, ArgumentSpec, Buffer, Driver, Kernel, KernelSpec, Launch};

/// The simulator, by wave size, made when it is needed.
pub struct Simulator {
    drivers: BTreeMap<u32, SimDriver>,
}

impl Simulator {
    pub fn new() -> Self {
        Self { drivers: BTreeMap::new() }
    }

    fn driver(&mut self, wave_size: u32) -> &SimDriver {
        self.drivers.entry(wave_size).or_insert_with(|| SimDriver::new("fake", wave_size, 0).expect("threads"))
    }

    pub fn allocate(&mut self, len_bytes: usize) -> Option<Buffer> {
        self.driver(32).allocate(len_bytes).ok() // memory is the same for all
    }

    /// Finds the kernel of an object among those that were compiled for the simulator.
    pub fn load(&mut self, cache: &Path, object: &[u8], said: &CodeObject) -> Result<Kernel, String> {
        let entries = entries(cache);
        let same = |path: &&PathBuf| fs::read(path.join("object")).is_ok_and(|bytes| bytes == object);
        let origin = entries.iter().find(same).ok_or("the object is not in the cache")?;
        let text = fs::read_to_string(origin.join("source")).map_err(|error| error.to_string())?;
        let [facts] = said.kernels.as_slice() else { return Err("not one kernel".to_owned()) };
        let abi_line = format!("const char {}_abi[] = \"", facts.name);
        let simulated = |path: &PathBuf| {
            let source = fs::read_to_string(path.join("source")).ok()?;
            let (_, abi) = source.split_once(&abi_line).filter(|_| source.contains(text.trim_end()))?;
            let bytes = fs::read(path.join("object")).ok()?;
            Some((abi.split('"').next().unwrap_or_default().to_owned(), bytes))
        };
        let found = entries.iter().filter(|path| *path != origin).find_map(simulated);
        let (abi, bytes) = found.ok_or_else(|| format!("`{}` was not compiled for the simulator", facts.name))?;
        let kind = |size: u32| if size == 8 { ArgumentKind::Write } else { ArgumentKind::U32 };
        let arg = |(i, size): (usize, u32)| ArgumentSpec { name: format!("argument {i}"), kind: kind(size) };
        let spec = KernelSpec {
            entry: facts.name.clone(),
            abi,
            args: facts.explicit_args().map(|arg| arg.size).enumerate().map(arg).collect(),
            block_size: facts.max_block_size,
        };
        self.driver(facts.wave_size).load(&bytes, spec).map_err(|error| error.to_string())
    }

    pub fn run(&mut self, wave_size: u32, kernel: &Kernel, grid: [u32; 3], args: &[Argument]) -> Result<(), String> {
        self.driver(wave_size).launch(kernel, &Launch { grid, scratch_bytes: 0, args }).map_err(|error| error.to_string())
    }
}

/// The folders of a cache: `v1/<two digits>/<digest>`.
fn entries(cache: &Path) -> Vec<PathBuf> {
    let children = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    children(cache.join("v1")).flat_map(children).collect()
}
