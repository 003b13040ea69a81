//! The NVRTC backend: NVIDIA's run-time compiler, opened with dlopen, in the worker only. No GPU is needed.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;

use rtc_sys::Vendor;

use super::hiprtc::compile_with;
use super::identity::Canary;
use super::job::{Failure, Job, Made, Toolchain};
use super::{CompileError, CompilerOptions};
use crate::target::Backend;

/// The user's word on where NVRTC is: the library, or a folder, see [`Toolchain::nvrtc_in`].
const ROOT_VARIABLE: &str = "GPTOSS_JIT_NVRTC";

/// Where NVRTC is. In the parent: looks at paths and at the environment, opens nothing.
///
/// What the options name; else `$GPTOSS_JIT_NVRTC`; else the worker looks in the usual places, for which it is told
/// `$CUDA_PATH` and `$LD_LIBRARY_PATH`.
pub(super) fn find(options: &CompilerOptions) -> Result<Toolchain, CompileError> {
    if options.nvrtc.compiler.is_some() {
        return Ok(options.nvrtc.clone());
    }
    if let Some(root) = env::var_os(ROOT_VARIABLE).filter(|root| !root.is_empty()) {
        return Toolchain::nvrtc_in(Path::new(&root));
    }
    let mut toolchain = options.nvrtc.clone();
    for name in ["CUDA_PATH", "LD_LIBRARY_PATH"] {
        if let Ok(value) = env::var(name) {
            toolchain.environment.insert(name.into(), value);
        }
    }
    Ok(toolchain)
}

impl Toolchain {
    /// NVRTC: the library itself, or the one in `root`, or in `lib64` or `lib` below it.
    ///
    /// # Errors
    /// When there is none: [`CompileError::NoNvrtc`].
    pub fn nvrtc_in(root: &Path) -> Result<Self, CompileError> {
        // The worker's current folder is another one.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let places = [root.clone(), root.join("lib64"), root.join("lib")];
        let library = places.iter().find_map(|place| Vendor::Nvidia.candidates(Some(place), None).into_iter().next());
        let Some(library) = library else { return Err(CompileError::NoNvrtc { root }) };
        Ok(Self {
            backend: Backend::Nvrtc,
            compiler: Some(library),
            environment: BTreeMap::new(),
            launcher: Vec::new(),
        })
    }
}

/// Compiles. In the worker, whose current folder is private.
pub(super) fn compile(job: &Job) -> Result<Made, Failure> {
    compile_with(Vendor::Nvidia, job)
}

/// A small kernel whose object tells compilers apart, as hipRTC's does.
pub(super) fn canary() -> Canary {
    const SOURCE: &str = "extern \"C\" __global__ __launch_bounds__(64) void canary(const float* x, float* y) {\n\
        \x20 __shared__ float shared[64];\n\
        \x20 float sum = 0.0f;\n\
        \x20 for (int i = 0; i < 8; ++i) sum += expf(x[64 * i + threadIdx.x]) * rsqrtf(sum + 1.0f);\n\
        \x20 shared[threadIdx.x] = sum + __shfl_xor_sync(~0u, sum, 1, 32);\n\
        \x20 __syncthreads();\n\
        \x20 y[threadIdx.x] = shared[63 - threadIdx.x];\n\
        }\n";
    Canary { source: SOURCE, entry: "canary", options: &["--std=c++17", "--fmad=false"] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn it_is_found_as_a_file_in_a_folder_and_below_an_installation() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(Toolchain::nvrtc_in(root.path()), Err(CompileError::NoNvrtc { .. })));
        let folder = root.path().join("lib64");
        fs::create_dir_all(&folder).unwrap();
        let library = folder.join("libnvrtc.so.12");
        fs::write(&library, "").unwrap();
        for place in [root.path(), &folder, &library] {
            assert_eq!(Toolchain::nvrtc_in(place).unwrap().compiler.as_ref(), Some(&library), "{}", place.display());
        }
    }
}
