//! The chips that a HIP library knows, found by searching its bytes.

use std::fs;
use std::path::Path;

use super::{Gpu, KernelDriver};

/// A name that is in every list.
const KNOWN_TO_ALL: &str = "gfx90a";

/// Whether the library has an arch among the names of chips that it knows, which are strings of their own in it. None
/// if even one that all know is not there: then it keeps them in another way.
pub(super) fn lists(library: &[u8], arch: &str) -> Option<bool> {
    let has = |name: &str| library.split(|byte| *byte == 0).any(|text| text == name.as_bytes());
    if has(KNOWN_TO_ALL) { Some(has(arch)) } else { None }
}

impl KernelDriver {
    /// The GPUs that are not in a library's list of chips. None if it has no list, or cannot be read.
    pub(crate) fn unlisted(&self, library: &Path) -> Option<Vec<&Gpu>> {
        let library = fs::read(library).ok()?;
        let is_listed: Option<Vec<bool>> = self.gpus.iter().map(|gpu| lists(&library, &gpu.arch)).collect();
        Some(self.gpus.iter().zip(is_listed?).filter(|(_, is_listed)| !is_listed).map(|(gpu, _)| gpu).collect())
    }
}
