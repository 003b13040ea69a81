//! `ComputeUnit::occupancy` with the facts of every GPU in `tuning/`, against what LLVM prints for a kernel that uses
//! as many registers, as much LDS and as large a block: an independent computation.

use kernel::target::TargetFacts;
use kernel::target::compute_unit::ComputeUnit;
use kernel::tuning::TuningTables;
use workbench::isa::llvm::Llvm;

use crate::workbench::isa::llvm;

const ARCHS: [&str; 13] = [
    "gfx906", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150",
    "gfx1151", "gfx1200", "gfx1201",
];

/// Vector registers, bytes of LDS, threads of a block.
const USES: [(u32, u32, u32); 24] = [
    (1, 0, 256),
    (24, 0, 256),
    (25, 0, 256),
    (64, 0, 256),
    (65, 0, 256),
    (96, 0, 256),
    (97, 0, 256),
    (128, 0, 256),
    (129, 0, 256),
    (168, 0, 256),
    (169, 0, 256),
    (256, 0, 256),
    (8, 4096, 64),
    (8, 1024, 32),
    (8, 8448, 256),
    (8, 16_384, 256),
    (8, 20_480, 256),
    (8, 33_000, 256),
    (8, 65_536, 1024),
    (8, 4096, 384),
    (8, 0, 640),
    (8, 0, 128),
    (100, 20_480, 128),
    (100, 10_000, 512),
];

/// Kernels as LLVM's assembly: `k0` uses what the first of [`USES`] says, and so on.
fn kernels() -> String {
    let mut text = String::new();
    for (i, (vgprs, lds_bytes, block)) in USES.iter().enumerate() {
        let store =
            if *lds_bytes > 0 { format!("  store volatile i8 1, ptr addrspace(3) @t{i}\n") } else { String::new() };
        if *lds_bytes > 0 {
            text += &format!("@t{i} = internal addrspace(3) global [{lds_bytes} x i8] poison\n");
        }
        let last = vgprs - 1;
        text += &format!(
            "define amdgpu_kernel void @k{i}() #{i} {{\n  call void asm sideeffect \"; use\", \"~{{v{last}}}\"()\n{store}  ret void\n}}\n\
             attributes #{i} = {{ \"amdgpu-flat-work-group-size\"=\"{block},{block}\" }}\n"
        );
    }
    text
}

/// What LLVM says of each kernel: vector registers, bytes of LDS, occupancy.
fn said_by_llvm(llvm: &Llvm, arch: &str) -> Vec<[u32; 3]> {
    let args = ["-mtriple=amdgcn-amd-amdhsa", &format!("-mcpu={arch}"), "-mattr=+cumode", "-o", "-"];
    // Where there is no CU mode, llc warns of the attribute and goes on.
    let text = llvm.run("llc", &args, kernels().as_bytes()).unwrap_or_else(|error| panic!("{arch}: {error}"));
    let all = |key: &str| -> Vec<u32> {
        let values = text.lines().filter_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse().ok());
        values.collect()
    };
    let (vgprs, lds, occupancy) = (all("; NumVgprs: "), all("; LDSByteSize: "), all("; Occupancy: "));
    assert_eq!((vgprs.len(), lds.len(), occupancy.len()), (USES.len(), USES.len(), USES.len()), "{arch}: {text}");
    (0..USES.len()).map(|i| [vgprs[i], lds[i], occupancy[i]]).collect()
}

#[test]
fn occupancy_is_what_llvm_says() {
    let Some(llvm) = llvm("llc") else { return };
    let tables = TuningTables::load(&[]).expect("built in");
    for arch in ARCHS {
        let TargetFacts { wave_size, compute_unit, .. } = tables.facts(arch).expect(arch).clone();
        let unit: ComputeUnit = compute_unit.expect(arch);
        for ((_, _, block), [vgprs, lds_bytes, expected]) in USES.iter().zip(said_by_llvm(&llvm, arch)) {
            let found = unit.occupancy(wave_size, vgprs, lds_bytes, *block);
            assert_eq!(found, expected, "{arch}: {vgprs} registers, {lds_bytes} bytes of LDS, blocks of {block}");
        }
    }
}

#[test]
fn every_gpu_that_is_known_has_facts_and_limits() {
    let tables = TuningTables::load(&[]).expect("built in");
    for arch in ARCHS {
        let facts = tables.facts(arch).expect(arch);
        let (unit, product) = (facts.compute_unit.expect(arch), facts.product.as_ref().expect(arch));
        assert!(unit.lds_bytes >= facts.lds_bytes, "{arch}: a block may use more LDS than there is");
        let has_matrix_unit = facts.features.iter().any(|name| name.starts_with("wmma") || name.starts_with("mfma"));
        assert_eq!(product.matrix_flop_per_cycle > 0, has_matrix_unit, "{arch}");
    }
    // As AMD states it of the MI300X and the RX 7900 XTX: 1307.4 and 122.8 TFLOPS.
    let tflops = |arch: &str| tables.facts(arch).and_then(|facts| facts.product.as_ref()).expect(arch).matrix_tflops();
    assert!((tflops("gfx942") - 1307.4).abs() < 0.1 && (tflops("gfx1100") - 122.88).abs() < 0.01);
}
