//! hipRTC, AMD's run-time compiler.

use std::io::Seek;
use std::path::{Path, PathBuf};
use std::{fs, io};

use hiprtc_sys::HIPRTC;

use super::host::{contraction, unavailable};
use super::job::{CompileJob, CompileOutput, Failure, How, Toolchain};
use super::{Canary, CompileError, Compiler, CompilerOptions, rtc};
use crate::object::key::Digest;
use crate::target::{Platform, Target};
use crate::template::Precision;

/// The user's word on where hipRTC is: see [`Toolchain::hiprtc_in`].
const ROOT_VARIABLE: &str = "GPTOSS_JIT_HIPRTC";

/// How to come by one without ROCm.
const FETCH: &str =
    "`tests/fetch-hiprtc.sh target/hiprtc` fetches a hipRTC (Debian), and `GPTOSS_JIT_HIPRTC=target/hiprtc` names it";

/// The header that hipRTC has its compiler read before every source, and ours, which is read in its place.
const HEADER_NAME: &str = "hiprtc_runtime.h";
pub(super) const HEADER: &str = include_str!("hiprtc_runtime.h");

/// A word that hipRTC's header does not have. What uses it did not compile with ours.
const ASSERT: &str = "-Dassert(...)=((__VA_ARGS__)?(void)0:__builtin_trap())";

/// What the device library of a chip, or of a family of chips, is called in front of its number, and after.
const DEVICE_LIBRARY: (&str, &str) = ("oclc_isa_version_", ".bc");

/// hipRTC, for AMD GPUs.
#[derive(Debug)]
pub(super) struct Hiprtc;

impl Compiler for Hiprtc {
    fn name(&self) -> &'static str {
        "hiprtc"
    }

    fn title(&self) -> &'static str {
        HIPRTC.name
    }

    fn source_name(&self) -> &'static str {
        "kernel.hip"
    }

    fn variable(&self) -> &'static str {
        ROOT_VARIABLE
    }

    fn compiles_for(&self, target: &Target) -> bool {
        target.platform == Platform::Amd && !target.is_simulated
    }

    fn options(&self, target: &Target, precision: Precision) -> Vec<String> {
        let mut options = options(target);
        options.push(contraction(precision).into());
        options.push(format!("{}{}", HIPRTC.target_option, target.arch));
        options
    }

    fn find(&self, options: &CompilerOptions) -> Result<Toolchain, CompileError> {
        rtc::find(&HIPRTC, &options.hiprtc, ROOT_VARIABLE, Toolchain::hiprtc_in)
    }

    /// Device libraries, LDS, a barrier, a shuffle, a loop that is unrolled.
    fn canary(&self) -> Canary {
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

    fn compile(&self, job: &CompileJob) -> Result<CompileOutput, Failure> {
        let cannot = |error: io::Error| unavailable(&format!("could not put `{HEADER_NAME}` into its folder: {error}"));
        fs::write(HEADER_NAME, HEADER).map_err(cannot)?;
        let mut job = job.clone();
        let libraries = device_libraries(&job)?;
        if let Some(folder) = &libraries {
            job.options.push(format!("--rocm-device-lib-path={}", folder.display()));
        }
        let made = match rtc::compile(&HIPRTC, &job) {
            Err(Failure { how: How::Rejected, .. }) => {
                fs::remove_file(HEADER_NAME).and_then(|()| forget_printed()).map_err(cannot)?;
                job.options.push(ASSERT.into());
                rtc::compile(&HIPRTC, &job)
            }
            made => made,
        };
        let mut made = made?;
        // Another header is another compiler, and so are other libraries: they may make another object of a source.
        made.facts.push(format!("{HEADER_NAME} {}", Digest::of(HEADER.as_bytes())));
        if let Some(folder) = libraries {
            let cannot =
                |error| unavailable(&format!("could not read the device libraries in `{}`: {error}", folder.display()));
            let (fact, files) = facts_of_libraries(&folder).map_err(cannot)?;
            made.facts.push(fact);
            made.files.extend(files);
        }
        Ok(made)
    }

    fn hint(&self, how: &How, target: &str, log: &str) -> String {
        match how {
            How::Unavailable => {
                format!("{FETCH}, or install ROCm; no GPU is needed")
            }
            _ if log.contains("cannot find ROCm device library") => format!(
                "this hipRTC finds no device library for {target}: Debian's are in `rocm-device-libs-21` (the number is \
                 its LLVM's), AMD's packages have it from ROCm 6.3 on; `--device hip` compiles for the chip itself"
            ),
            _ => format!("this hipRTC may be too old for {target}; `gptoss-jit doctor` shows which one was found"),
        }
    }
}

/// Where the device libraries for a family of chips are, if hipRTC does not find its own. Debian's holds them, and
/// looks for them by other names; its package of the same libraries (`rocm-device-libs-21`) has them in a folder
/// beside it.
fn device_libraries(job: &CompileJob) -> Result<Option<PathBuf>, Failure> {
    if !job.target.ends_with("-generic") {
        return Ok(None);
    }
    rtc::open(&HIPRTC, job.toolchain.compiler.as_deref())?; // what it is linked with is mapped then
    let images = ::rtc::images();
    let is_hiprtc = |name: &str| HIPRTC.libraries.iter().any(|library| name.starts_with(library));
    let image =
        images.iter().find(|image| image.path.file_name().is_some_and(|name| is_hiprtc(&name.to_string_lossy())));
    Ok(image.and_then(|image| libraries_beside(&image.path, &job.target)))
}

/// `../llvm-21/lib/clang/21/amdgcn/bitcode` beside the library's folder, if the family is there. Of several the lowest
/// version, which every LLVM that is newer reads.
fn libraries_beside(hiprtc: &Path, family: &str) -> Option<PathBuf> {
    let number =
        |path: &Path, prefix: &str| -> Option<u32> { path.file_name()?.to_str()?.strip_prefix(prefix)?.parse().ok() };
    let inside = |folder: PathBuf, prefix: &'static str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(move |entry| Some((number(&entry.path(), prefix)?, entry.path())))
    };
    let (before, behind) = DEVICE_LIBRARY;
    let name = format!("{before}{}{behind}", family.strip_prefix("gfx")?);
    inside(hiprtc.parent()?.parent()?.to_owned(), "llvm-")
        .flat_map(|(version, llvm)| inside(llvm.join("lib/clang"), "").map(move |(_, clang)| (version, clang)))
        .map(|(version, clang)| (version, clang.join("amdgcn/bitcode")))
        .filter(|(_, folder)| folder.join(&name).is_file())
        .min()
        .map(|(_, folder)| folder)
}

/// What identifies the libraries of a folder, and its files.
fn facts_of_libraries(folder: &Path) -> io::Result<(String, Vec<PathBuf>)> {
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    let mut files: Vec<_> =
        entries.into_iter().filter(|path| path.extension().is_some_and(|end| end == "bc")).collect();
    files.sort();
    let digests =
        files.iter().map(|file| Ok(Digest::of(&fs::read(file)?).to_string())).collect::<io::Result<Vec<_>>>()?;
    Ok((format!("device libraries {}", Digest::of(digests.concat().as_bytes())), files))
}

/// Empties the file that holds what was printed: the parent is to see what the last attempt has to say.
pub(super) fn forget_printed() -> io::Result<()> {
    let mut printed = system::os::stderr_file()?;
    printed.set_len(0)?;
    printed.rewind()
}

/// The options of every kernel but those of its precision and its chip.
fn options(target: &Target) -> Vec<String> {
    let mut options: Vec<String> =
        ["-O3", "-std=c++17", "-nostdinc", "-Werror=unused-command-line-argument"].map(String::from).to_vec();
    options.push(format!("-mcode-object-version={}", target.code_object_version));
    // Both have changed their defaults between versions. They exist from RDNA on.
    if !target.arch.starts_with("gfx9") {
        options.push("-mcumode".into());
        options.push(if target.wave_size == 32 { "-mno-wavefrontsize64" } else { "-mwavefrontsize64" }.into());
    }
    options
}

impl Toolchain {
    /// The hipRTC below `root`: in `lib` of a ROCm installation, or unpacked there from packages. Unpacked packages
    /// bring a loader and a libc of their own, newer than this system's perhaps; the worker is then started with those.
    ///
    /// # Errors
    /// When there is none: [`CompileError::NotThere`].
    pub fn hiprtc_in(root: &Path) -> Result<Self, CompileError> {
        // The worker's current folder is another one.
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        let folders = [root.join("usr/lib/x86_64-linux-gnu"), root.join("lib"), root.clone()];
        let found = folders.into_iter().find_map(|folder| {
            let library = HIPRTC.candidates(Some(&folder), None).into_iter().next()?;
            Some((folder, library))
        });
        let hint = "name the folder of a ROCm installation, such as `/opt/rocm`, or what `tests/fetch-hiprtc.sh target/hiprtc` fetches, \
                    or unset `GPTOSS_JIT_HIPRTC`";
        let (folder, library) = found.ok_or(CompileError::NotThere { compiler: Hiprtc.title(), root, hint })?;
        let loader = folder.join("ld-linux-x86-64.so.2");
        let launcher = if loader.is_file() {
            [loader.to_string_lossy(), "--library-path".into(), folder.to_string_lossy()].map(String::from).to_vec()
        } else {
            Vec::new()
        };
        Ok(Self { launcher, ..Self::new(Hiprtc.name(), Some(library)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacked_packages_are_started_with_their_own_loader() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("usr/lib/x86_64-linux-gnu");
        fs::create_dir_all(&folder).unwrap();
        assert!(matches!(Toolchain::hiprtc_in(root.path()), Err(CompileError::NotThere { compiler: "hipRTC", .. })));

        fs::write(folder.join("libhiprtc.so.6"), "").unwrap();
        fs::write(folder.join("ld-linux-x86-64.so.2"), "").unwrap();
        let toolchain = Toolchain::hiprtc_in(root.path()).unwrap();
        assert_eq!(toolchain.compiler, Some(folder.join("libhiprtc.so.6")));
        assert_eq!(toolchain.launcher[1..], ["--library-path".to_owned(), folder.display().to_string()]);
    }

    #[test]
    fn device_libraries_of_a_family_are_found_beside_hiprtc_where_a_package_has_them() {
        let root = tempfile::tempdir().unwrap();
        let hiprtc = root.path().join("usr/lib/x86_64-linux-gnu/libhiprtc.so.6");
        let folder = |llvm: &str| root.path().join(format!("usr/lib/llvm-{llvm}/lib/clang/{llvm}/amdgcn/bitcode"));
        for (llvm, family) in [("9", "9-generic"), ("21", "11-generic"), ("100", "11-generic")] {
            fs::create_dir_all(folder(llvm)).unwrap();
            fs::write(folder(llvm).join(format!("oclc_isa_version_{family}.bc")), llvm).unwrap();
        }
        assert_eq!(libraries_beside(&hiprtc, "gfx11-generic"), Some(folder("21")), "the lowest that has it");
        assert_eq!(libraries_beside(&hiprtc, "gfx9-generic"), Some(folder("9")));
        assert_eq!(libraries_beside(&hiprtc, "gfx12-generic"), None);
        assert_eq!(libraries_beside(&root.path().join("opt/rocm/lib/libhiprtc.so"), "gfx11-generic"), None);

        let (one, files) = facts_of_libraries(&folder("21")).unwrap();
        assert_eq!(files, [folder("21").join("oclc_isa_version_11-generic.bc")]);
        fs::write(&files[0], "another").unwrap();
        assert_ne!(facts_of_libraries(&folder("21")).unwrap().0, one, "other libraries are told apart");
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
}
