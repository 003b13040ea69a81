//! NVRTC, NVIDIA's run-time compiler.

use std::path::Path;

use nvrtc_sys::NVRTC;

use super::job::{CompileJob, CompileOutput, Failure, How, Toolchain};
use super::{Canary, CompileError, Compiler, CompilerOptions, rtc};
use crate::target::{Platform, Target};
use crate::template::Precision;

/// The user's word on where NVRTC is: the library, or a folder, see [`Toolchain::nvrtc_in`].
const ROOT_VARIABLE: &str = "GPTOSS_JIT_NVRTC";

/// NVRTC, for NVIDIA GPUs.
#[derive(Debug)]
pub(super) struct Nvrtc;

impl Compiler for Nvrtc {
    fn name(&self) -> &'static str {
        "nvrtc"
    }

    fn title(&self) -> &'static str {
        NVRTC.name
    }

    fn source_name(&self) -> &'static str {
        "kernel.hip"
    }

    fn variable(&self) -> &'static str {
        ROOT_VARIABLE
    }

    fn compiles_for(&self, target: &Target) -> bool {
        target.platform == Platform::Nvidia && !target.is_simulated
    }

    fn options(&self, target: &Target, precision: Precision) -> Vec<String> {
        let mut options = options();
        options.push(format!("--fmad={}", precision == Precision::Bf16)); // as `-ffp-contract`
        // From Hopper on, `a` allows what only chips of this number have; such an object runs on no other anyway.
        let own = if target.capability() >= 90 { "a" } else { "" };
        options.push(format!("{}{}{own}", NVRTC.target_option, target.arch));
        options
    }

    fn find(&self, options: &CompilerOptions) -> Result<Toolchain, CompileError> {
        rtc::find(&NVRTC, &options.nvrtc, ROOT_VARIABLE, Toolchain::nvrtc_in)
    }

    fn canary(&self) -> Canary {
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

    fn compile(&self, job: &CompileJob) -> Result<CompileOutput, Failure> {
        rtc::compile(&NVRTC, job)
    }

    fn hint(&self, how: &How, target: &str, _log: &str) -> String {
        match how {
            How::Unavailable => {
                "install CUDA's NVRTC, or name the library or its folder in `GPTOSS_JIT_NVRTC`; no GPU is needed".into()
            }
            _ => format!("this NVRTC may be too old for {target}; `gptoss-jit doctor` shows which one was found"),
        }
    }
}

/// The options of every kernel but those of its precision and its chip.
fn options() -> Vec<String> {
    // Functions without a word before them are the device's, as a kernel's helpers are.
    let options =
        ["--std=c++17", "--device-as-default-execution-space", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];
    options.map(String::from).to_vec()
}

impl Toolchain {
    /// NVRTC: the library itself, or the one in `root`, or in `lib64` or `lib` below it.
    ///
    /// # Errors
    /// When there is none: [`CompileError::NotThere`].
    pub(crate) fn nvrtc_in(root: &Path) -> Result<Self, CompileError> {
        // The worker's current folder is another one.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let places = [root.clone(), root.join("lib64"), root.join("lib")];
        let library = places.iter().find_map(|place| NVRTC.candidates(Some(place), None).into_iter().next());
        let hint = "name `libnvrtc.so.12` or its folder, such as `/usr/local/cuda`, or unset `GPTOSS_JIT_NVRTC`";
        let library = library.ok_or(CompileError::NotThere { compiler: Nvrtc.title(), root, hint })?;
        Ok(Self::new(Nvrtc.name(), Some(library)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn it_is_found_as_a_file_in_a_folder_and_below_an_installation() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(Toolchain::nvrtc_in(root.path()), Err(CompileError::NotThere { compiler: "NVRTC", .. })));
        let folder = root.path().join("lib64");
        fs::create_dir_all(&folder).unwrap();
        let library = folder.join("libnvrtc.so.12");
        fs::write(&library, "").unwrap();
        for place in [root.path(), &folder, &library] {
            assert_eq!(Toolchain::nvrtc_in(place).unwrap().compiler.as_ref(), Some(&library), "{}", place.display());
        }
    }

    #[test]
    fn options_name_the_chip_and_what_only_it_has() {
        let of = |precision| Nvrtc.options(&Target::gpu("sm_90").unwrap(), precision);
        assert!(of(Precision::Bf16).ends_with(&["--fmad=true".into(), "--gpu-architecture=sm_90a".into()]));
        assert!(of(Precision::F32).ends_with(&["--fmad=false".into(), "--gpu-architecture=sm_90a".into()]));
        assert_eq!(Nvrtc.names_in_diagnostics(), ["kernel.hip"], "as in messages of the other GPU compiler");
    }
}
