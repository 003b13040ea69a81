//! The simulator's further words: they mean what AMD's manuals say, and `docs/hip-words.md` lists them all.

use std::collections::BTreeSet;

use regex::Regex;

use crate::fixtures::program::{Ran, file, repository, run};

/// A kernel that copies rows: a lane gets what the other one of its pair has by way of the words in the place of
/// `LANE`. What stands in the place of `BODY` asserts what else it knows.
const KERNEL: &str = r#"{#
op = "embedding"
summary = "one block copies one row"
[requires]
precision = ["f32"]
dtypes = { table = ["f32"] }
[launch]
grid = ["n_tokens"]
block_size = "64"
#}
{% include "lib/hip/vectors.hip.j2" %}

typedef float Four __attribute__((ext_vector_type(4)));

{{ signature }} {
  const u32 t = blockIdx.x, own = threadIdx.x, other = own ^ 1, lane = own % {{ wave_size }};
  const f32* from = table + (size_t)row[t] * {{ hidden_size }};
  f32* to = y + (size_t)t * {{ hidden_size }};
  BODY
  for (u32 first = 0; first < {{ hidden_size }}; first += 64) {
    const f32 mine = first + own < {{ hidden_size }} ? from[first + own] : 0.0f;
    int bits;
    __builtin_memcpy(&bits, &mine, 4);
    const int got = LANE;
    f32 theirs;
    __builtin_memcpy(&theirs, &got, 4);
    if (first + other < {{ hidden_size }}) to[first + other] = theirs;
  }
}
"#;

/// The kernel checked in the simulator of a chip.
fn checked(arch: &str, lane: &str, body: &str) -> Ran {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = KERNEL.replace("LANE", lane).replace("BODY", body);
    let _ = file(folder.path(), "embedding/own.hip.j2", text.as_bytes());
    let templates = folder.path().to_str().expect("text");
    let args = ["--op", "embedding", "--variant", "own", "--templates", templates, "--arch", arch];
    run(&[&["kernels", "check", "--first-shape"], &args[..]].concat())
}

/// Words by which a lane gets what the other one of its pair has.
const OF_THE_OTHER: &str = "__builtin_amdgcn_update_dpp(0, bits, 0xb1, 0xf, 0xf, false)";

#[test]
fn lanes_get_what_the_manuals_say() {
    let same = [
        "__builtin_amdgcn_mov_dpp(bits, 0xb1, 0xf, 0xf, true)",
        "(int)__builtin_amdgcn_update_dpp(0, (u32)bits, 0xb1, 0xf, 0xf, false)",
        "__builtin_amdgcn_ds_bpermute(4 * (lane ^ 1), bits)",
        "__builtin_amdgcn_ds_permute(4 * (lane ^ 1), bits)",
        "__builtin_amdgcn_ds_swizzle(bits, 0x041f)",
    ];
    let of_rdna = [
        "__builtin_amdgcn_update_dpp(0, bits, 0x161, 0xf, 0xf, false)",
        "(int)__builtin_amdgcn_permlane16(0, bits, 0x67452301, 0xefcdab89, false, false)",
        "(int)__builtin_amdgcn_mov_dpp8(bits, 14570689)", // of lane i of eight, in three bits each, i ^ 1
    ];
    // Each of them gives what the first does.
    let all_alike = |words: &[&str]| -> String {
        words.iter().map(|word| format!("{{ const int bits = lane; assert({word} == {OF_THE_OTHER}); }}\n")).collect()
    };
    for (arch, words) in [("sim:gfx1100", [&same[..], &of_rdna].concat()), ("sim:gfx942", same.to_vec())] {
        let shifted = "assert(__builtin_amdgcn_update_dpp(100, (int)lane, 0x111, 0xf, 0xf, false) \
             == (lane % 16 ? (int)lane - 1 : 100));\n\
             assert(__builtin_amdgcn_update_dpp(100, (int)lane, 0x101, 0xf, 0xf, true) \
             == (lane % 16 < 15 ? (int)lane + 1 : 0));\n\
             assert(__builtin_amdgcn_update_dpp(100, (int)lane, 0x140, 0x1, 0xf, false) \
             == (lane < 16 ? 15 - (int)lane : 100));\n\
             assert(__builtin_amdgcn_readlane((int)lane, 3) == 3);\n\
             assert(__builtin_amdgcn_writelane(7, 2, 5) == (lane == 2 ? 7 : 5));\n\
             assert(__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)) == lane);\n\
             assert(blockDim.x == 64 && warpSize == {{ wave_size }});\n";
        checked(arch, OF_THE_OTHER, &(all_alike(&words) + shifted)).ok();
    }
    // CDNA alone: lane 15 of a row goes to the whole next row.
    let broadcast = "assert(__builtin_amdgcn_update_dpp(100, (int)lane, 0x142, 0xf, 0xf, false) \
         == (lane < 16 ? 100 : (int)(lane / 16 * 16 - 1)));\n";
    checked("sim:gfx942", OF_THE_OTHER, broadcast).ok();
    let ran = checked("sim:gfx1100", OF_THE_OTHER, broadcast);
    assert!(ran.code == 1 && ran.text().contains("has this DPP control"), "{}", ran.text());
}

#[test]
fn numbers_vectors_and_atomics_are_as_the_manuals_say() {
    let body = "\
        assert(__builtin_amdgcn_perm(0x77665544u, 0x33221100u, 0x07030c0du) == 0x773300ffu);\n\
        assert(__builtin_amdgcn_sdot4(0x01ff02fe, 0x01010101, 10, false) == 10);\n\
        assert(__builtin_amdgcn_udot4(0x01ff02feu, 0x01010101u, 10u, false) == 522u);\n\
        assert(__builtin_amdgcn_sudot4(true, 0x01ff02fe, false, 0x01010101, 10, false) == 10);\n\
        assert(__builtin_amdgcn_sdot8(0xf, 0x3, 0, false) == -3);\n\
        assert(__builtin_amdgcn_sdot4(0x7f7f7f7f, 0x7f7f7f7f, 2147483647, true) == 2147483647);\n\
        assert(__builtin_amdgcn_alignbit(1u, 0x80000000u, 31) == 3u);\n\
        assert(__builtin_amdgcn_ubfe(0xabcdu, 4, 8) == 0xbcu && __builtin_amdgcn_sbfe(0xf0u, 4, 4) == -1);\n\
        assert(__builtin_amdgcn_exp2f(3.0f) == 8.0f && __builtin_amdgcn_logf(8.0f) == 3.0f);\n\
        assert(min(3, 2.5f) == 2.5f && max(2, 3) == 3);\n\
        Four four = { 1.0f, 2.0f, 3.0f, 4.0f };\n\
        four = four * 2.0f + 1.0f;\n\
        assert(four.w == 9.0f && four[0] == 3.0f);\n\
        float4 quad = make_float4(1, 2, 3, 4);\n\
        assert(quad.x + quad.w == 5.0f);\n\
        assert((float)(half)(1.0f + 0x1p-10f) == 1.0f + 0x1p-10f && (float)(half)(1.0f + 0x1p-12f) == 1.0f);\n\
        assert((float)__builtin_amdgcn_cvt_pkrtz(1.0f + 0x1.8p-11f, 0.0f)[0] == 1.0f);\n\
        assert(__builtin_amdgcn_fdot2(half2{ (half)1.0f, (half)2.0f }, half2{ (half)3.0f, (half)4.0f }, 1.0f, false) == 12.0f);\n\
        __shared__ u32 count;\n\
        if (own == 0) count = 5;\n\
        __builtin_amdgcn_fence(__ATOMIC_RELEASE, \"workgroup\");\n\
        __builtin_amdgcn_s_barrier();\n\
        __hip_atomic_fetch_add(&count, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);\n\
        __syncthreads();\n\
        assert(__hip_atomic_load(&count, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP) == 69);\n\
        if (t == 0 && own == 9) printf(\"%d is %s\\n\", 7, \"seven\");\n";
    let ran = checked("sim:gfx1100", OF_THE_OTHER, body).ok();
    assert!(ran.stderr.contains("block (0, 0, 0), thread 9: 7 is seven\n"), "{}", ran.stderr);
    let ran = checked("sim:gfx1100", OF_THE_OTHER, "assert(own < 60);");
    assert!(ran.code == 1 && ran.text().contains("fails an `assert`"), "{}", ran.text());
    assert!(ran.text().contains("own.hip.j2:19"), "the template's line: {}", ran.text());
}

#[test]
fn code_that_nothing_ran_is_told_with_its_lines() {
    let body = "#if defined(__AMDGCN__)\n  assert(own == 1000);\n#endif\n  if (t > 1000) {\n    assert(false);\n  }\n";
    let ran = checked("sim:gfx1100", OF_THE_OTHER, body).ok();
    assert!(ran.text().contains("lines never ran: 23"), "{}", ran.text());
    // What the simulator's compiler never gets is another thing: no number of cases says anything of it.
    assert!(ran.text().contains("  not run; the simulator does not compile line 20, which "), "{}", ran.text());
    let ran =
        checked("sim:gfx1100", OF_THE_OTHER, "#if defined(GPTOSS_JIT_SIM)\n  if (t > 1000) return;\n#endif\n").ok();
    assert!(ran.text().contains("  ok; 1 of ") && ran.text().contains(" never ran: 20 (a branch)"), "{}", ran.text());
    let body = "if (t > 1000)\n  return;\nfor (u32 i = 0; i < t * 0; ++i) assert(false);\n";
    let ran = checked("sim:gfx1100", OF_THE_OTHER, body).ok();
    assert!(ran.text().contains(" lines never ran: 20, 21 (a branch)"), "{}", ran.text());
    let all = checked("sim:gfx1100", OF_THE_OTHER, "").ok();
    assert!(!all.text().contains("never ran"), "{}", all.text());
}

#[test]
fn a_word_that_the_simulator_does_not_know_is_not_called_wrong() {
    let ran = checked("sim:gfx1100", OF_THE_OTHER, "if (__clock64() == 0) return;").ok();
    assert!(ran.text().contains("not run; "), "{}", ran.text());
    assert!(ran.text().contains("the simulator does not know `__clock64` ("), "{}", ran.text());
    assert!(ran.text().contains("own.hip.j2:19)"), "{}", ran.text());
    let ran = checked("sim:gfx1100", OF_THE_OTHER, "extern __shared__ f32 sums[];\n  sums[own] = 0;").ok();
    assert!(ran.text().contains("the simulator does not know `extern __shared__` ("), "{}", ran.text());
    assert!(ran.text().contains("own.hip.j2:19; declare `sums` with its size"), "{}", ran.text());
    // What no compiler knows is wrong.
    let ran = checked("sim:gfx1100", OF_THE_OTHER, "__syncthread();");
    assert!(ran.code == 1 && ran.text().contains("__syncthread"), "{}", ran.text());
}

#[test]
fn conflicts_of_banks_and_lines_are_told_by_their_lines() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Lane i reads word 32 i of LDS: all of them are of one bank.
    let body = "__shared__ f32 held[2048];\n  for (u32 i = own; i < 2048; i += 64) held[i] = 0.0f;\n  __syncthreads();\n\
                  if (held[own * 32] > 1.0f) to[0] = 0.0f;\n";
    let text = KERNEL.replace("LANE", OF_THE_OTHER).replace("BODY", body);
    let _ = file(folder.path(), "embedding/own.hip.j2", text.as_bytes());
    let templates = folder.path().to_str().expect("text");
    let args = ["--op", "embedding", "--variant", "own", "--templates", templates, "--arch", "sim:gfx1100"];
    let ran = run(&[&["kernels", "check", "--memory", "--first-shape"], &args[..]].concat()).ok();
    let line = |number: &str| ran.text().lines().find(|line| line.contains("LDS ") && line.ends_with(number));
    let times = |number: &str| line(number).is_some_and(|line| line.split_whitespace().any(|word| word == "32.00"));
    assert!(times("own.hip.j2:22") && !times("own.hip.j2:20"), "{}", ran.text());
}

/// Names that a text defines outside of `namespace sim`.
fn defined(text: &str) -> BTreeSet<String> {
    let inner = Regex::new(r"(?s)\nnamespace sim \{.*?\n\}  // namespace sim\n").expect("a pattern");
    let text = inner.replace_all(text, "\n");
    let patterns = [
        r"(?m)^#define (\w+)",
        r"(?m)^typedef [^;]* (\w+);",
        r"(?m)^(?:static inline|SIM_INSIDE) [\w: ]+? (\w+)\(",
        r"(?m)^template [^\n]* SIM_INSIDE \w+ (\w+)\(",
        r"(?m)\b(?:float|double) (\w+)\((?:float|double)[^)]*\);",
    ];
    let found = patterns.iter().flat_map(|pattern| {
        let pattern = Regex::new(pattern).expect("a pattern");
        pattern.captures_iter(&text).map(|found| found[1].to_owned()).collect::<Vec<_>>()
    });
    found.filter(|name| !name.starts_with("SIM_") && !name.starts_with("GPTOSS_")).collect()
}

#[test]
fn the_page_lists_the_words_that_the_simulator_has() {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).expect(path);
    let mut words = defined(&read("templates/lib/hip/simulator.hip.j2"));
    words.extend(defined(&read("crates/kernel/src/object/compile/simulator_words.h")));
    let page = read("docs/hip-words.md");
    let in_code = Regex::new(r"`(\w+)`").expect("a pattern");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let listed: BTreeSet<String> =
        rows.flat_map(|cell| in_code.captures_iter(cell).map(|word| word[1].to_owned()).collect::<Vec<_>>()).collect();
    let missing: Vec<&String> = words.difference(&listed).collect();
    let unknown: Vec<&String> = listed.difference(&words).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "not in the page: {missing:?}; not in the simulator: {unknown:?}"
    );
}
