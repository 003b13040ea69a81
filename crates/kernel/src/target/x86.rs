//! Instruction sets of x86-64: their names, and which of them this machine has.

/// Instruction sets of the x86-64 levels, each with what it adds, under the names that templates use.
pub(super) const X86_LEVELS: [(&str, &[&str]); 4] =
    [("x86-64", &[]), ("x86-64-v2", &["sse4_2"]), ("x86-64-v3", &["avx2", "fma", "f16c"]), ("x86-64-v4", &["avx512"])];

/// Instruction sets beyond the levels that templates may ask for, with the compiler option that allows each.
pub(super) const X86_EXTENSIONS: [(&str, &str); 5] = [
    ("amx_bf16", "-mamx-bf16"),
    ("avx512bf16", "-mavx512bf16"),
    ("avx512fp16", "-mavx512fp16"),
    ("avx512vnni", "-mavx512vnni"),
    ("avxvnni", "-mavxvnni"),
];

/// Those of them that templates ask for. A test reads the templates.
pub(super) const ASKED_X86_EXTENSIONS: [&str; 2] = ["amx_bf16", "avx512bf16"];

/// The highest level whose instruction sets this machine has, as an index into [`X86_LEVELS`].
#[cfg(target_arch = "x86_64")]
pub(super) fn detected_level() -> usize {
    use std::is_x86_feature_detected as has;
    let v2 = has!("sse3") && has!("ssse3") && has!("sse4.1") && has!("sse4.2") && has!("popcnt") && has!("cmpxchg16b");
    let v3 = v2
        && has!("avx2")
        && has!("bmi1")
        && has!("bmi2")
        && has!("fma")
        && has!("f16c")
        && has!("lzcnt")
        && has!("movbe");
    let v4 = v3 && has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl");
    usize::from(v2) + usize::from(v3) + usize::from(v4)
}

/// Those of [`X86_EXTENSIONS`] that this machine has.
#[cfg(target_arch = "x86_64")]
pub(super) fn detected_extensions() -> Vec<&'static str> {
    use std::is_x86_feature_detected as has;
    let detected = [
        ("amx_bf16", gpu::amx::multiplies_bf16()),
        ("avx512bf16", has!("avx512bf16")),
        ("avx512fp16", has!("avx512fp16")),
        ("avx512vnni", has!("avx512vnni")),
        ("avxvnni", has!("avxvnni")),
    ];
    detected.into_iter().filter(|(_, present)| *present).map(|(name, _)| name).collect()
}
