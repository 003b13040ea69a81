//! NVRTC, NVIDIA's run-time compiler: its paths, its functions' names, and the second library that it needs.

#![allow(unsafe_code)]

mod builtins;

use rtc::{Compiler, Installation};

/// NVIDIA's compiler. Packages for Python have no unversioned name.
pub static NVRTC: Compiler = Compiler {
    name: "NVRTC",
    target_option: "--gpu-architecture=",
    root_variable: "CUDA_PATH",
    installation: Installation {
        parent: "/usr/local",
        name: "cuda",
        libraries: "lib64",
        wheels: &["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"],
    },
    libraries: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    prefix: "nvrtc",
    code: "GetCUBIN",
    prepare: builtins::open_beside,
};
