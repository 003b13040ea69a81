//! The hipRTC backend: AMD's run-time compiler, opened with dlopen, in the worker only. No GPU is needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use rtc_sys::{Image, Rtc, Vendor};

use super::identity::Canary;
use super::job::{Failure, How, Job, Made, Toolchain, source_name};
use super::{CompileError, CompilerOptions};
use crate::target::Backend;

/// The user's word on where hipRTC is: see [`Toolchain::hiprtc_in`].
const ROOT_VARIABLE: &str = "GPTOSS_JIT_HIPRTC";

/// Where hipRTC is. In the parent: looks at paths and at the environment, opens nothing.
///
/// What the options name; else `$GPTOSS_JIT_HIPRTC`; else the worker looks in the usual places, for which it is told
/// `$ROCM_PATH` and `$LD_LIBRARY_PATH`.
pub(super) fn find(options: &CompilerOptions) -> Result<Toolchain, CompileError> {
    if options.hiprtc.compiler.is_some() {
        return Ok(options.hiprtc.clone());
    }
    if let Some(root) = env::var_os(ROOT_VARIABLE).filter(|root| !root.is_empty()) {
        return Toolchain::hiprtc_in(Path::new(&root));
    }
    let mut toolchain = options.hiprtc.clone();
    for name in ["ROCM_PATH", "LD_LIBRARY_PATH"] {
        if let Ok(value) = env::var(name) {
            toolchain.environment.insert(name.into(), value);
        }
    }
    Ok(toolchain)
}

impl Toolchain {
    /// The hipRTC below `root`: in `lib` of a ROCm installation, or unpacked there from packages. Unpacked packages
    /// bring a loader and a libc of their own, newer than this system's perhaps; the worker is then started with those.
    ///
    /// # Errors
    /// When there is none: [`CompileError::NoHiprtc`].
    pub fn hiprtc_in(root: &Path) -> Result<Self, CompileError> {
        // The worker's current folder is another one.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let folders = [root.join("usr/lib/x86_64-linux-gnu"), root.join("lib"), root.clone()];
        let found = folders.into_iter().find_map(|folder| {
            let library = Vendor::Amd.candidates(Some(&folder), None).into_iter().next()?;
            Some((folder, library))
        });
        let Some((folder, library)) = found else { return Err(CompileError::NoHiprtc { root }) };
        let loader = folder.join("ld-linux-x86-64.so.2");
        let launcher = if loader.is_file() {
            [loader.to_string_lossy(), "--library-path".into(), folder.to_string_lossy()].map(String::from).to_vec()
        } else {
            Vec::new()
        };
        Ok(Self { backend: Backend::Hiprtc, compiler: Some(library), environment: BTreeMap::new(), launcher })
    }
}

/// Compiles. In the worker, whose current folder is private.
pub(super) fn compile(job: &Job) -> Result<Made, Failure> {
    compile_with(Vendor::Amd, job)
}

/// The same with either vendor's compiler, which have the same functions.
pub(super) fn compile_with(vendor: Vendor, job: &Job) -> Result<Made, Failure> {
    let rtc = open(vendor, job.toolchain.compiler.as_deref())?;
    let mut options = job.options.clone();
    let for_target = match vendor {
        Vendor::Amd => "--offload-arch=",
        Vendor::Nvidia => "--gpu-architecture=",
    };
    if !options.iter().any(|option| option.starts_with(for_target)) {
        options.push(format!("{for_target}{}", job.target)); // the canary's options name no target
    }
    let made = rtc.compile(&job.source, source_name(job.toolchain.backend), &options).map_err(refusal)?;
    let log = made.log;
    // hipRTC 6.4 reports success for an option that it does not know: only the log tells.
    if log.lines().any(|line| line.starts_with("error: ")) {
        return Err(Failure { how: How::Rejected, log });
    }
    let images = rtc_sys::images();
    let files = images.iter().map(|image| image.path.clone()).collect();
    Ok(Made { object: made.object, log, facts: facts(&images), files })
}

/// Opens the library that was named, or the first in the usual places.
fn open(vendor: Vendor, library: Option<&Path>) -> Result<Rtc, Failure> {
    let unavailable = |log| Failure { how: How::Unavailable, log };
    if let Some(library) = library {
        return Rtc::open(vendor, &[library.to_owned()]).map_err(|error| unavailable(error.to_string()));
    }
    let root = match vendor {
        Vendor::Amd => "ROCM_PATH",
        Vendor::Nvidia => "CUDA_PATH",
    };
    let root = env::var_os(root).map(PathBuf::from);
    Rtc::open(vendor, &vendor.candidates(None, root.as_deref())).map_err(|error| {
        let folders = vendor.searched(None, root.as_deref());
        let folders: Vec<String> = folders.iter().map(|folder| format!("`{}`", folder.display())).collect();
        unavailable(format!("{error}\nand found no such file in {}", folders.join(", ")))
    })
}

/// Every failure of a call follows from the source or the options: the same again would fail again.
fn refusal(error: rtc_sys::CompileError) -> Failure {
    let log = match error {
        rtc_sys::CompileError::Rejected { log, .. } if !log.trim().is_empty() => log,
        other => other.to_string(),
    };
    Failure { how: How::Rejected, log }
}

/// The mapped libraries by file name and build id. Not their paths: the same compiler in another place is the same
/// compiler.
fn facts(images: &[Image]) -> Vec<String> {
    let fact = |image: &Image| {
        let name = image.path.file_name().unwrap_or_default().to_string_lossy();
        match &image.build_id {
            Some(build_id) => format!("{name} {build_id}"),
            // Rare, and the canary tells such libraries apart; the length is a help.
            None => format!("{name} of {} bytes", fs::metadata(&image.path).map_or(0, |file| file.len())),
        }
    };
    let mut facts: Vec<String> = images.iter().map(fact).collect();
    facts.sort();
    facts
}

/// A small kernel whose object tells compilers apart that say the same of themselves: device libraries, LDS, a
/// barrier, a shuffle, a loop that is unrolled.
pub(super) fn canary() -> Canary {
    const SOURCE: &str = "extern \"C\" __global__ __launch_bounds__(64) void canary(const float* x, float* y) {\n\
        \x20 __shared__ float shared[64];\n\
        \x20 float sum = 0.0f;\n\
        \x20 for (int i = 0; i < 8; ++i) sum += expf(x[64 * i + threadIdx.x]) * rsqrtf(sum + 1.0f);\n\
        \x20 shared[threadIdx.x] = sum + __shfl_xor(sum, 1, 32);\n\
        \x20 __syncthreads();\n\
        \x20 y[threadIdx.x] = shared[63 - threadIdx.x];\n\
        }\n";
    Canary { source: SOURCE, entry: "canary", options: &["-O3", "-std=c++17", "-nostdinc"] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_packages_are_started_with_their_own_loader() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib/x86_64-linux-gnu");
        fs::create_dir_all(&folder).unwrap();
        assert!(matches!(Toolchain::hiprtc_in(root.path()), Err(CompileError::NoHiprtc { .. })));

        fs::write(folder.join("libhiprtc.so.6"), "").unwrap();
        fs::write(folder.join("ld-linux-x86-64.so.2"), "").unwrap();
        let toolchain = Toolchain::hiprtc_in(root.path()).unwrap();
        assert_eq!(toolchain.compiler, Some(folder.join("libhiprtc.so.6")));
        assert_eq!(toolchain.launcher[1..], ["--library-path".to_owned(), folder.display().to_string()]);
    }

    #[test]
    fn a_rocm_installation_is_started_as_usual() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("lib")).unwrap();
        fs::write(root.path().join("lib/libhiprtc.so"), "").unwrap();
        let toolchain = Toolchain::hiprtc_in(root.path()).unwrap();
        assert_eq!(toolchain.compiler, Some(root.path().join("lib/libhiprtc.so")));
        assert!(toolchain.launcher.is_empty());
    }

    #[test]
    fn the_same_compiler_in_another_place_has_the_same_facts() {
        let image =
            |folder: &str| Image { path: Path::new(folder).join("libhiprtc.so.6"), build_id: Some("ab".into()) };
        assert_eq!(facts(&[image("/a")]), facts(&[image("/b")]));
        assert_ne!(facts(&[image("/a")]), facts(&[Image { build_id: Some("cd".into()), ..image("/a") }]));
    }
}
