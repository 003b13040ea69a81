//! The environment variables that this program reads, for `--help` and the manual.

/// Each variable, and what it is for.
const VARIABLES: [(&str, &str); 30] = [
    ("GPTOSS_JIT_CACHE", "the folder of compiled kernels [default: gptoss-jit in the user's cache folder]"),
    ("GPTOSS_JIT_CACHE_SIZE", "the most that folder may take: 500MB, 2GiB"),
    ("GPTOSS_JIT_BUNDLES", "bundles of compiled kernels, and folders of bundles, separated by colons"),
    ("GPTOSS_JIT_NO_COMPILE", "1: like --no-compile"),
    ("GPTOSS_JIT_JOBS", "compilers at a time [default: one per core]"),
    ("GPTOSS_JIT_TEMPLATES", "a folder of templates, searched after --templates"),
    ("GPTOSS_JIT_API_KEY", "a key; `serve` then refuses requests without it"),
    (
        "GPTOSS_JIT_STEP_TIMEOUT",
        "seconds until a GPU that does not finish a step is given up; longer for steps of many rows; 0: never [default: 15]",
    ),
    ("GPTOSS_JIT_GRAPHS", "0: launch a GPU's steps kernel by kernel; 1: replay repeated steps as graphs [default: 1]"),
    (
        "GPTOSS_JIT_LOG",
        "log level on stderr: error, warn, info, debug, trace [default: warn; serve also logs requests]",
    ),
    ("GPTOSS_JIT_HIP", "the HIP runtime: libamdhip64.so or its folder"),
    ("GPTOSS_JIT_HIPRTC", "a folder with hipRTC, which compiles for AMD GPUs"),
    ("GPTOSS_JIT_CUDA", "the CUDA driver: libcuda.so.1 or its folder"),
    ("GPTOSS_JIT_NVRTC", "NVRTC, which compiles for NVIDIA GPUs: the library or a folder"),
    ("GPTOSS_JIT_LLVM", "a folder with llvm-mca, which predicts times on AMD GPUs"),
    (
        "GPTOSS_JIT_SIM_SEED",
        "seed of the order in which sim devices run blocks, waves and lanes [default: 0, one after another]",
    ),
    ("ROCM_PATH", "where ROCm is, for the HIP runtime and hipRTC"),
    ("CUDA_PATH", "where CUDA is, for NVRTC"),
    ("VIRTUAL_ENV", "the active Python environment, whose ROCm and CUDA wheels are searched for libraries"),
    ("CONDA_PREFIX", "the active Conda environment, searched likewise"),
    ("CC", "the C compiler, for the cpu"),
    ("CXX", "the C++ compiler, for sim devices"),
    ("HF_HUB_CACHE", "Hugging Face's cache of models"),
    ("HUGGINGFACE_HUB_CACHE", "the old name of HF_HUB_CACHE"),
    ("HF_HOME", "the folder with hub/, if HF_HUB_CACHE is not set"),
    ("XDG_CACHE_HOME", "the user's cache folder [default: ~/.cache]"),
    ("XDG_DATA_HOME", "the user's share folder, for bundles [default: ~/.local/share]"),
    ("XDG_DATA_DIRS", "folders searched for gptoss-jit/bundles [default: /usr/local/share:/usr/share]"),
    ("XDG_STATE_HOME", "the folder for the history of typed chat lines [default: ~/.local/state]"),
    ("NO_COLOR", "no colours on stderr"),
];

/// The list, for the end of a help text.
pub(super) fn help() -> String {
    let width = VARIABLES.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, what): &(&str, &str)| format!("\n  {name:<width$}  {what}");
    format!("Environment variables:{}", VARIABLES.iter().map(line).collect::<String>())
}
