//! The options that each backend compiles with. They are part of a kernel's key, so nothing is left to a default.

use crate::target::{Backend, Target};
use crate::template::Precision;
use crate::template::render::Rendered;

/// The options that a kernel is compiled with for a target, in order: the target's for its precision, then the template's own.
pub fn options(kernel: &Rendered, target: &Target) -> Vec<String> {
    let mut options = match target.backend {
        Backend::Host => host(),
        Backend::Sim => sim(),
        Backend::Hiprtc | Backend::Mock => hiprtc(target),
        Backend::Nvrtc => nvrtc(),
    };
    // Contraction rounds once where two operations round twice: never at the parity precision.
    let contraction = match (target.backend, kernel.precision) {
        (Backend::Nvrtc, Precision::F32) => "--fmad=false",
        (Backend::Nvrtc, Precision::Bf16) => "--fmad=true",
        (_, Precision::F32) => "-ffp-contract=off",
        (_, Precision::Bf16) => "-ffp-contract=fast",
    };
    options.push(contraction.into());
    options.extend(target.compile_options());
    options.extend(kernel.options.iter().cloned());
    options
}

fn host() -> Vec<String> {
    let options = [
        "-x",
        "c",
        "-std=gnu11",
        "-O3",
        "-fPIC",
        "-shared",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-Wall",
        "-Werror=implicit-function-declaration",
        // Options may come before the source, where a linker that drops unneeded libraries would drop libm.
        "-Wl,--no-as-needed",
        "-lm",
    ];
    options.map(String::from).to_vec()
}

fn sim() -> Vec<String> {
    let options = [
        "-std=gnu++17",
        "-O1", // half the compile time of -O2, and hardly slower: what takes time is watching
        "-g1", // lines, for messages
        "-fPIC",
        "-fsanitize=thread", // calls before every access to memory; the functions are the simulator's
        "-fno-tree-loop-distribute-patterns", // memset and memcpy would hide accesses
        // Without it LDS of inline functions would be one variable for all copies of an object in the process.
        "-fvisibility=hidden",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-math-errno",
        "-fno-strict-aliasing", // as hipRTC's clang has it in effect: kernels read vectors through pointers to elements
        "-Wno-attributes",
        "-Wno-unknown-pragmas",
        "-Wno-psabi",
    ];
    options.map(String::from).to_vec()
}

fn hiprtc(target: &Target) -> Vec<String> {
    let mut options: Vec<String> =
        ["-O3", "-std=c++17", "-nostdinc", "-Werror=unused-command-line-argument"].map(String::from).to_vec();
    // Both have changed their defaults between versions. They exist from RDNA on.
    if !target.arch.starts_with("gfx9") {
        options.push("-mcumode".into());
        options.push(if target.wave_size == 32 { "-mno-wavefrontsize64" } else { "-mwavefrontsize64" }.into());
    }
    options
}

fn nvrtc() -> Vec<String> {
    // Functions without a word before them are the device's, as a kernel's helpers are.
    let options =
        ["--std=c++17", "--device-as-default-execution-space", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"];
    options.map(String::from).to_vec()
}
