//! `kernels show --isa` and `--ir`: what the compiler made of a template, beside its lines.

use serde_json::Value;

use super::predict::run;
use crate::object::hiprtc;

#[test]
fn machine_code_is_shown_beside_the_templates_lines_and_llvms_language_before_it() {
    for (arch, whose) in [
        ("sim:gfx1100", "not the simulator of gfx1100"),
        ("sm_90", "not sm_90"),
        ("x86-64-v3", "not x86-64-v3 (the C compiler"),
    ] {
        let template = if arch.starts_with("x86") { "rmsnorm/rows" } else { "rmsnorm/row" };
        for flag in ["--isa", "--ir"] {
            let said = run(&["kernels", "show", template, "--arch", arch, flag]).fails(2);
            assert!(said.contains(&format!("{flag} is for AMD's GPUs, ")) && said.contains(whose), "{said}");
        }
    }
    if hiprtc::compiler().is_none() {
        return;
    }
    for arch in ["gfx1100", "gfx942"] {
        let shown = |flag| -> Value {
            let ran = run(&["kernels", "show", "rmsnorm/row", "--arch", arch, flag, "--json"]).ok();
            serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr))
        };
        let isa = shown("--isa");
        assert!(isa["vgprs"].as_u64().is_some_and(|n| (4..=256).contains(&n)), "{isa}");
        assert!(isa["waves"]["limited_by"].is_string() && isa["waves"]["per_simd"].as_u64() > Some(0), "{isa}");
        let instructions = isa["instructions"].as_array().expect("a list");
        let from = |text: &str, file: &str| {
            instructions.iter().any(|one| {
                let [found, place] = ["text", "place"].map(|name| one[name].as_str().unwrap_or_default());
                found.starts_with(text) && place.starts_with(&format!("<built in>/{file}:"))
            })
        };
        assert!(from("global_load", "rmsnorm/row.hip.j2") || from("s_load", "rmsnorm/row.hip.j2"), "{isa}");
        assert!(from("s_barrier", "lib/hip/block_sum.hip.j2"), "{isa}");
        let ir = shown("--ir");
        let ir = ir["ir"].as_str().expect("a text");
        assert!(ir.contains("amdgpu_kernel void @rmsnorm_row(") && ir.contains("llvm.amdgcn."), "{ir}");
    }
}
