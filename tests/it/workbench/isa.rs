//! What hipRTC makes of the GPU templates, read from the disassembly: matrix instructions where a template says that it
//! uses the matrix unit, wide loads, nothing in private memory. And that the reader of disassemblies sees what is
//! there.

use std::collections::BTreeSet;

use format::Dtype;
use kernel::object::cache::{Cache, CacheLimits};
use kernel::object::compile::Request;
use kernel::object::store::Store;
use kernel::target::Target;
use kernel::template::library::{Layer, Library};
use kernel::tuning::TuningTables;
use workbench::check::code::KernelCode;
use workbench::check::{Checker, Selection};
use workbench::isa::llvm::{Llvm, LlvmError};
use workbench::isa::speed::{COUNTED_OVER_MCA, IssueModel, LoopSpeed, Machine};
use workbench::isa::{Code, Instruction};

use crate::fixtures::program::shared_cache;
use crate::fixtures::skipped;
use crate::object::hiprtc;

/// One arch of every instruction set that is promised. Templates of two precisions need no matrix unit and are the same
/// text for all chips of a wave size: each of the three compiles a third of their kernels. (gfx950's text with mxfp4 is
/// its own, and a third of these is.) Those of a matrix unit have one precision: of each, a chip compiles every other
/// choice of types, the next chip the rest, and so it is with the next template, so that of template, types and chip
/// any two meet.
const CDNA: [&str; 3] = ["gfx90a", "gfx942", "gfx950"];
const RDNA: [&str; 3] = ["gfx1030", "gfx1100", "gfx1201"];
/// The others: gfx1151 has gfx1100's instructions (and scalar arithmetic besides), gfx1200 has all of gfx1201's. They
/// take part where the variable is set, and no kernel is left out; `object/hiprtc.rs` compiles for them.
const OTHER_ARCHS: [&str; 2] = ["gfx1151", "gfx1200"];
const OTHERS_TOO: &str = "GPTOSS_JIT_ALL_ARCHS";

/// LLVM's tools; none, said aloud, where this one is missing.
pub fn llvm(tool: &'static str) -> Option<Llvm> {
    let llvm = Llvm::find();
    match llvm.run(tool, &["--version"], b"") {
        Ok(_) => Some(llvm),
        Err(LlvmError::NotFound { .. }) => {
            skipped(&format!("no {tool} (tests/fetch-llvm.sh target/llvm fetches one)"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

// ---- the reader ----

/// `rounds` matrix multiplications of 16 x 16, whose operands are loaded 16 bytes at a time; `UNIT` is the builtin.
const MATRIX: &str = r#"
typedef short Row __attribute__((ext_vector_type(8)));
typedef __bf16 Bf16Row __attribute__((ext_vector_type(8)));
typedef float Sum8 __attribute__((ext_vector_type(8)));
typedef float Sum4 __attribute__((ext_vector_type(4)));
extern "C" __global__ __launch_bounds__(64) void k(const Row* a, const Row* b, SUM* d, unsigned rounds) {
  SUM sum[4] = {};
#pragma unroll 1
  for (unsigned i = 0; i < rounds; ++i) {
    const Row x = a[i * 64 + threadIdx.x], y = b[i * 64 + threadIdx.x];
    for (int j = 0; j < 4; ++j) sum[j] = UNIT;
  }
  for (int j = 0; j < 4; ++j) d[j * 64 + threadIdx.x] = sum[j];
}
"#;

/// For an arch: the builtin, what it adds to, how many instructions the four of it are, and the operations of each.
fn matrix_unit(arch: &str) -> (&'static str, &'static str, usize, u64) {
    const TWICE: &str = "__builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x.hi, y.hi, \
         __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x.lo, y.lo, sum[j], 0, 0, 0), 0, 0, 0)";
    const WIDE: &str = "__builtin_amdgcn_mfma_f32_16x16x32_bf16((Bf16Row)x, (Bf16Row)y, sum[j], 0, 0, 0)";
    const REPEATED: &str = "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(\
         __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7), \
         __builtin_shufflevector(y, y, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7), sum[j])";
    const SPLIT: &str = "__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(x, y, sum[j])";
    let flop = |k: u64| 2 * 16 * 16 * k;
    match arch {
        "gfx90a" | "gfx942" => (TWICE, "Sum4", 8, flop(16)),
        "gfx950" => (WIDE, "Sum4", 4, flop(32)),
        "gfx1100" => (REPEATED, "Sum8", 4, flop(16)),
        _ => (SPLIT, "Sum8", 4, flop(16)),
    }
}

/// The kernel above for an arch, disassembled, and a round of its loop.
fn matrix_loop(llvm: &Llvm, arch: &str) -> Option<(Code, LoopSpeed)> {
    let compiler = hiprtc::compiler()?;
    let (unit, sum, n_instructions, flop) = matrix_unit(arch);
    let source = MATRIX.replace("UNIT", unit).replace("SUM", sum);
    let option = format!("--offload-arch={arch}");
    let object = compiler.compile(&hiprtc::request(&source, arch, &["-O3", &option])).expect(arch).object;
    let code = Code::disassemble(compiler, &object, "k", arch).expect(arch);
    let loops = code.loops();
    let [found] = loops.as_slice() else { panic!("{arch}: {loops:?}") };
    let tables = TuningTables::load(&[]).expect("built in");
    let facts = tables.facts(arch).expect(arch);
    let (unit, product) = (facts.compute_unit.expect(arch), facts.product.clone().expect(arch));
    let machine = Machine { arch, wave_size: facts.wave_size, compute_unit: &unit, product: &product };
    assert!(found.is_hot(&code) && found.is_innermost(), "{arch}");
    let speed = found.speed(&code, &IssueModel::Mca(llvm.clone()), machine);
    assert_eq!(code.instructions.iter().filter(|i| i.is_matrix()).count(), n_instructions, "{arch}");
    assert_eq!(speed.matrix_flop, n_instructions as u64 * flop, "{arch}");
    assert_eq!(speed.memory_bytes, 2 * 16 * u64::from(facts.wave_size), "{arch}");
    Some((code, speed))
}

#[test]
fn the_loop_of_a_matrix_kernel_is_found_on_every_matrix_unit() {
    let Some(llvm) = llvm("llvm-mca") else { return };
    for arch in ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"] {
        let Some((code, speed)) = matrix_loop(&llvm, arch) else { return };
        assert!(code.instructions.iter().all(|i| !i.is_scratch()), "{arch}");
        let (busy, alone) = (speed.matrix_share_busy(), speed.matrix_share_alone());
        assert!(0.0 < alone && alone <= busy && busy <= 1.0, "{arch}: {speed:?}");
        // Loads take hundreds of cycles, and the loop does not load ahead.
        assert!(speed.alone_cycles > 250.0, "{arch}: {speed:?}");
    }
}

#[test]
fn llvm_and_amd_agree_on_the_time_of_a_matrix_operation() {
    let Some(llvm) = llvm("llvm-mca") else { return };
    // Only on CDNA does LLVM's model give matrix operations the time that they take.
    for (arch, cycles) in [("gfx90a", 32), ("gfx942", 16), ("gfx950", 16)] {
        let Some((code, speed)) = matrix_loop(&llvm, arch) else { return };
        let matrix: Vec<&Instruction> = code.instructions.iter().filter(|i| i.is_matrix()).collect();
        assert_eq!(speed.matrix_cycles, (matrix.len() * cycles) as f64, "{arch}: by AMD's rate");
        let text: String = matrix.iter().map(|instruction| format!("{}\n", instruction.text)).collect();
        let cpu = format!("-mcpu={arch}");
        let said = llvm.run("llvm-mca", &["-mtriple=amdgcn-amd-amdhsa", &cpu], text.as_bytes()).expect(arch);
        let throughput = said.lines().find_map(|line| line.strip_prefix("Block RThroughput:")).expect("told");
        let throughput: f64 = throughput.trim().parse().expect("a number");
        assert_eq!(4.0 * throughput, speed.matrix_cycles, "{arch}: by LLVM's model, four clock cycles each");
    }
}

#[test]
fn counting_is_as_far_off_as_it_says() {
    let Some(llvm) = llvm("llvm-mca") else { return };
    let (mca, counted) = (IssueModel::Mca(llvm), IssueModel::Counted { why: String::new() });
    let tables = TuningTables::load(&[]).expect("built in");
    let (mut all, mut worst) = (Vec::new(), Vec::new());
    for arch in ["gfx1100", "gfx942"] {
        let all_of_them = std::env::var_os(OTHERS_TOO).is_some();
        let Some(kernels) = kernels(arch, Some([1, 3]).filter(|_| !all_of_them)) else { return };
        let facts = tables.facts(arch).expect(arch);
        let (unit, product) = (facts.compute_unit.expect(arch), facts.product.clone().expect(arch));
        let machine = Machine { arch, wave_size: facts.wave_size, compute_unit: &unit, product: &product };
        for kernel in kernels.iter().step_by(if all_of_them { 1 } else { 5 }) {
            let (_, code) = kernel.made.as_ref().unwrap_or_else(|error| panic!("{}: {error}", name(arch, kernel)));
            for found in code.loops().iter().filter(|found| found.is_hot(code)) {
                let [by_mca, by_count] = [&mca, &counted].map(|model| found.speed(code, model, machine).busy_cycles);
                all.push(by_count / by_mca);
                worst.push((by_count / by_mca, format!("{} at {:#x}", name(arch, kernel), found.header())));
            }
        }
    }
    worst.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(all.len() > 20, "{}", all.len());
    let [least, most] = COUNTED_OVER_MCA;
    let ends = [worst.first(), worst.last()];
    crate::fixtures::say(&format!("counted over llvm-mca: {ends:?}"));
    assert!(all.iter().all(|ratio| (least..=most).contains(ratio)), "{ends:?}");
    // Of a sample the ends may lie further in.
    if std::env::var_os(OTHERS_TOO).is_some() {
        assert!(
            worst[0].0 < 1.1 * least && worst[worst.len() - 1].0 > most / 1.1,
            "{ends:?}: it says more than it is off"
        );
    }
}

// ---- the templates ----

/// The kernels of all GPU templates that fit an arch, or a share of them. None, said aloud, without hipRTC.
fn kernels(arch: &str, share: Option<[usize; 2]>) -> Option<Vec<KernelCode>> {
    hiprtc::compiler()?;
    let library = Library::from_layers(vec![Layer::built_in()]);
    let cache = Cache::open(shared_cache(), CacheLimits::default());
    let (store, target) = (Store::new(cache, hiprtc::options()), Target::gpu(arch).expect(arch));
    let checker = Checker { library: &library, target: &target, store: &store, runner: None, compute_unit: None };
    let kernels = checker.codes(&Selection::default(), share);
    assert!(!kernels.is_empty(), "{arch}: no template fits");
    Some(kernels)
}

fn name(arch: &str, kernel: &KernelCode) -> String {
    format!("{arch}: {}/{} {} ({})", kernel.op, kernel.variant, kernel.precision, kernel.case)
}

/// Whether a loop of the code, loops inside of it included, has such an instruction.
fn in_a_loop(code: &Code, what: fn(&Instruction) -> bool) -> bool {
    code.loops().iter().any(|found| found.all.iter().any(|&i| what(&code.instructions[i])))
}

/// Two 4-bit numbers times a power of two to bf16, which only CDNA4 can do.
fn is_fp4_conversion(instruction: &Instruction) -> bool {
    instruction.text.starts_with("v_cvt_scalef32_pk_bf16_fp4")
}

/// Whether an innermost loop both converts and multiplies.
fn converts_for_the_unit(code: &Code) -> bool {
    let has = |of: &[usize], what: fn(&Instruction) -> bool| of.iter().any(|&i| what(&code.instructions[i]));
    let loops = code.loops();
    let mut innermost = loops.iter().filter(|found| found.is_innermost());
    innermost.any(|found| has(&found.all, is_fp4_conversion) && has(&found.all, Instruction::is_matrix))
}

/// Whether a kernel reads weights in blocks: a lane then loads 8 numbers or more at once, of which few bytes have all.
fn is_of_blocks(case: &str) -> bool {
    let weight = case.split(", ").find_map(|part| part.strip_prefix("weight "));
    weight.and_then(Dtype::from_name).is_some_and(|dtype| dtype.format().is_some())
}

/// Whether a kernel reads a cache of eight bits: 8 neighbours, the run of a matrix unit, are 64 bits of it.
fn is_of_eight_bits(case: &str) -> bool {
    case.split(", ").any(|part| part == "kv int8" || part == "kv fp8")
}

/// What is wrong with the code of a kernel. `uses_matrix_unit` says whether it is to.
fn faults(source: &str, code: &Code, variant: &str) -> Vec<&'static str> {
    let uses_matrix_unit = source.contains("__builtin_amdgcn_wmma_") || source.contains("__builtin_amdgcn_mfma_");
    let converts = source.contains("__builtin_amdgcn_cvt_scalef32_pk_bf16_fp4");
    let has = |what: fn(&Instruction) -> bool| code.instructions.iter().any(what);
    // A wave of 64 takes a row of 2880 in few enough steps, six runs of 8, for none of them to be left a loop.
    let is_unrolled = code.instructions.iter().filter(|instruction| instruction.is_wide_load()).count() >= 6;
    let faults = [
        (has(Instruction::is_scratch), "it uses private memory"),
        (uses_matrix_unit && !in_a_loop(code, Instruction::is_matrix), "no matrix instruction in a loop"),
        (uses_matrix_unit && !has(Instruction::is_wide_load), "no load of 128 bits"),
        (uses_matrix_unit && converts && !converts_for_the_unit(code), "no conversion of mxfp4 where it multiplies"),
        (!uses_matrix_unit && has(Instruction::is_matrix), "matrix instructions that its source does not ask for"),
        (
            variant == "gemv" && !in_a_loop(code, Instruction::is_wide_load) && !is_unrolled,
            "no loads of 128 bits, neither in a loop nor one after the other",
        ),
    ];
    faults.into_iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, what)| what).collect()
}

#[test]
fn templates_become_the_instructions_that_they_are_made_for_on_cdna() {
    become_their_instructions(&CDNA);
}

/// Beside the other, so that no test is alone for long in the end.
#[test]
fn templates_become_the_instructions_that_they_are_made_for_on_rdna() {
    become_their_instructions(&RDNA);
    if std::env::var_os(OTHERS_TOO).is_some() {
        become_their_instructions(&OTHER_ARCHS);
    }
}

fn become_their_instructions(archs: &[&str]) {
    let (mut wrong, mut n_matrix, mut converting) = (Vec::new(), 0, BTreeSet::new());
    let all = std::env::var_os(OTHERS_TOO).is_some();
    for (nth, &arch) in archs.iter().enumerate() {
        // Of kernels for a matrix unit it has the half in which those are that only it converts for.
        let nth = if arch == "gfx950" { nth + archs.len() } else { nth };
        let Some(kernels) = kernels(arch, Some([nth, archs.len()]).filter(|_| !all)) else { return };
        for kernel in &kernels {
            match &kernel.made {
                Err(error) => wrong.push(format!("{}: {error}", name(arch, kernel))),
                Ok((rendered, code)) => {
                    n_matrix += usize::from(code.instructions.iter().any(Instruction::is_matrix));
                    if converts_for_the_unit(code) {
                        converting.insert((arch, kernel.op.clone()));
                    }
                    let loads_bytes = kernel.variant == "gemv" && is_of_blocks(&kernel.case);
                    let variant = if loads_bytes { "gemv of blocks" } else { &kernel.variant };
                    let mut found = faults(&rendered.source, code, variant);
                    found.retain(|what| *what != "no load of 128 bits" || !is_of_eight_bits(&kernel.case));
                    wrong.extend(found.into_iter().map(|what| format!("{}: {what}", name(arch, kernel))));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_matrix > 0, "no template uses a matrix unit");
    let gfx950 = archs.iter().filter(|&&arch| arch == "gfx950");
    let expected = gfx950.flat_map(|&arch| ["moe_mlp1", "moe_mlp2"].map(|op| (arch, op.to_owned())));
    assert_eq!(converting, expected.collect(), "the experts, where there is the instruction");
}

/// Of another word than the worker's own header has, which a kernel is compiled with first.
const ANOTHER_WORD: &str = "\n__device__ static inline unsigned of_hiprtcs_header() { return blockDim.x; }\n";

#[test]
fn the_workers_header_gives_the_instructions_that_hiprtcs_gives() {
    let Some(compiler) = hiprtc::compiler() else { return };
    let library = Library::from_layers(vec![Layer::built_in()]);
    let store = Store::new(Cache::open(shared_cache(), CacheLimits::default()), hiprtc::options());
    // Shuffles and exponentials, atomics and votes, double precision.
    for (arch, op, variant) in [
        ("gfx1100", "attention", "decode"),
        ("gfx1100", "moe_sort", "block"),
        ("gfx942", "sample", "block"),
        ("gfx942", "rope_angles", "lane"),
    ] {
        let target = Target::gpu(arch).expect(arch);
        let checker = Checker { library: &library, target: &target, store: &store, runner: None, compute_unit: None };
        let selection = Selection { op: vec![op.into()], variant: vec![variant.into()], ..Selection::default() };
        let kernel = checker.codes(&selection, None).into_iter().next().expect("it fits");
        let (rendered, code) = kernel.made.as_ref().unwrap_or_else(|error| panic!("{op}/{variant}: {error}"));
        let ours = Request::new(rendered, &target);
        let theirs = Request { source: format!("{}{ANOTHER_WORD}", ours.source), ..ours };
        let made = compiler.compile(&theirs).unwrap_or_else(|error| panic!("{op}/{variant}: {error}"));
        assert_eq!(made.log, "", "what the first header lacks is not told");
        let other = Code::disassemble(compiler, &made.object, &rendered.entry, arch).expect("a kernel");
        let text = |code: &Code| code.instructions.iter().map(|one| one.text.clone()).collect::<Vec<_>>();
        assert_eq!(text(code), text(&other), "{arch}: {op}/{variant}");
    }
}

#[test]
fn the_wrong_instructions_are_seen() {
    let code = |lines: &[&str]| {
        let line = |(i, text): (usize, &&str)| format!("\t{text} // {:012X}: 00000000{}\n", 4 * i, branch(text));
        let body: String = lines.iter().enumerate().map(line).collect();
        Code::parse(&format!("0000000000000000 <k>:\n{body}")).expect("a disassembly").remove(0)
    };
    let matrix = "v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], v[0:7]";
    let (wide, back, end) = ("global_load_b128 v[0:3], v[4:5], off", "s_cbranch_scc1 0", "s_endpgm");
    let source = "__builtin_amdgcn_wmma_f32";
    assert_eq!(faults(source, &code(&[matrix, wide, back, end]), "matrix"), [""; 0]);
    assert_eq!(faults(source, &code(&[wide, back, matrix, end]), "matrix"), ["no matrix instruction in a loop"]);
    assert_eq!(faults(source, &code(&[matrix, back, end]), "matrix"), ["no load of 128 bits"]);
    let (fp4, both) =
        ("v_cvt_scalef32_pk_bf16_fp4 v0, v1, v2", format!("{source} __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4"));
    assert_eq!(faults(&both, &code(&[matrix, wide, fp4, back, end]), "matrix"), [""; 0]);
    assert_eq!(
        faults(&both, &code(&[matrix, wide, back, fp4, end]), "matrix"),
        ["no conversion of mxfp4 where it multiplies"]
    );
    assert_eq!(faults("", &code(&[matrix, back, end]), "tile").len(), 1);
    let narrow = ["no loads of 128 bits, neither in a loop nor one after the other"];
    assert_eq!(faults("", &code(&["v_add_f32 v0, v1, v2", back, wide, end]), "gemv"), narrow);
    assert_eq!(faults("", &code(&["v_add_f32 v0, v1, v2", end]), "gemv"), narrow);
    assert_eq!(faults("", &code(&[wide, back, end]), "gemv"), [""; 0]);
    assert_eq!(faults("", &code(&[wide, wide, wide, wide, wide, wide, end]), "gemv"), [""; 0], "unrolled whole");
    assert_eq!(faults("", &code(&["scratch_store_b32 off, v0, s32", end]), "row"), ["it uses private memory"]);
}

/// The loop's branch goes to the first instruction.
fn branch(text: &str) -> &'static str {
    if text.starts_with("s_cbranch") { " <k>" } else { "" }
}
