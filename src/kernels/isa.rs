//! `kernels show --isa`: the machine code of a template's kernel beside the template's lines, by the compiler's own
//! line table; its resources, how many waves fit a SIMD, and what limits them.

use anyhow::anyhow;
use serde_json::json;

use super::show::RenderedFor;
use crate::output::Output;
use crate::usage::UsageError;
use data::Place;
use kernel::object::compile::Request;
use kernel::object::resources::examine;
use kernel::object::store::Store;
use kernel::target::compute_unit::ComputeUnit;
use kernel::target::{Language, Platform, Target};
use kernel::template::Resources;
use kernel::template::library::Library;
use kernel::template::origins::Origins;
use workbench::isa::{Code, Instruction};

/// Has the compiler write down which line each instruction comes from.
const WITH_LINES: &str = "-gline-tables-only";

/// Has LLVM print each function as it is when nothing but making machine code of it is left.
const PRINTED: [&str; 2] = ["-mllvm", "-print-after=codegenprepare"];
const HEADING: &str = "*** IR Dump After CodeGen Prepare";

/// Names that compilers give a kernel's text.
const SOURCES: [&str; 2] = ["kernel.hip:", "CompileSource:"];

/// Prints it.
///
/// # Errors
/// If the target is no GPU of AMD's, or the kernel cannot be compiled or read.
pub(super) fn run(
    rendered: &RenderedFor,
    library: &Library,
    unit: Option<ComputeUnit>,
    output: &Output,
) -> anyhow::Result<()> {
    let RenderedFor { template, chosen, kernel, target } = rendered;
    of_amd("--isa", target)?;
    let store = Store::from_env()?.without_bundles();
    store.try_compiler(target)?;
    let mut request = Request::new(kernel, target);
    request.options.push(WITH_LINES.to_owned());
    let object = store.get_all(&[request], &()).remove(0)?.object;
    // What it uses is told, whatever its template allows.
    let facts = examine(&object, &kernel.spec(), &Resources { max_spills: None }, target)?;
    let code = Code::with_lines(store.compiler(), &object, &kernel.entry, &target.arch)?;
    let origins = Origins::trace(library, template, &chosen.problem, &chosen.params, target, kernel)
        .ok_or_else(|| anyhow!("the lines of `{}` cannot be told", kernel.label))?;
    let place = |instruction: &Instruction| {
        let lines = instruction.places.iter().filter_map(|place| line_of(place));
        lines.filter_map(|line| origins.of_line(line)).next()
    };
    let block_size = kernel.launch.block_size();
    let waves = unit.map(|unit| {
        let limit = unit.limited_by(target.wave_size, facts.vgprs, facts.lds_bytes, block_size);
        (unit.occupancy(target.wave_size, facts.vgprs, facts.lds_bytes, block_size), unit.waves_per_simd, limit)
    });
    if output.is_json() {
        let of_instruction = |one: &Instruction| {
            let place = place(one).map(ToString::to_string);
            json!({ "address": one.address(), "text": one.text, "place": place })
        };
        let waves = waves.map(|(waves, most, limit)| json!({ "per_simd": waves, "most": most, "limited_by": limit }));
        return Ok(output.json(&json!({
            "schema": 1, "template": kernel.label, "target": target.id(), "params": kernel.params,
            "vgprs": facts.vgprs, "sgprs": facts.sgprs, "lds_bytes": facts.lds_bytes, "spills": facts.spills(),
            "private_bytes": facts.private_bytes, "block_size": block_size, "waves": waves,
            "instructions": code.instructions.iter().map(of_instruction).collect::<Vec<_>>(),
        }))?);
    }
    output.note(&rendered.about());
    let waves = waves
        .map_or(String::new(), |(waves, most, limit)| format!("; {waves} of {most} waves a SIMD, limited by {limit}"));
    output.line(&format!(
        "{} VGPRs, {} SGPRs, {} spilled, {} bytes of LDS, {} private bytes, blocks of {block_size}{waves}; {} instructions",
        facts.vgprs,
        facts.sgprs,
        facts.spills(),
        facts.lds_bytes,
        facts.private_bytes,
        code.instructions.len(),
    ))?;
    let mut text = String::new();
    let mut last: Option<&Place> = None;
    for instruction in &code.instructions {
        let place = place(instruction).or(last);
        if let Some(place) = place.filter(|place| last != Some(*place)) {
            text += &format!("\n{place}  {}\n", line_text(library, place));
            last = Some(place);
        }
        text += &format!("    {:#06x}  {}\n", instruction.address(), instruction.text);
    }
    Ok(output.text(&text)?)
}

/// Prints what the compiler makes machine code of.
///
/// # Errors
/// If the target is no GPU of AMD's, the kernel does not compile, or the compiler does not print it.
pub(super) fn run_ir(rendered: &RenderedFor, output: &Output) -> anyhow::Result<()> {
    let RenderedFor { kernel, target, .. } = rendered;
    of_amd("--ir", target)?;
    let store = Store::from_env()?.without_bundles();
    store.try_compiler(target)?;
    let mut request = Request::new(kernel, target);
    request.options.extend(PRINTED.map(str::to_owned));
    let log = store.compiler().compile(&request)?.log;
    let functions = log.split(HEADING).skip(1).filter_map(|part| Some(part.split_once('\n')?.1.trim_matches('\n')));
    let functions: Vec<&str> = functions.filter(|text| text.contains("define ")).collect();
    if functions.is_empty() {
        return Err(anyhow!("this compiler does not print its language: it says nothing to `{}`", PRINTED.join(" ")));
    }
    let text = functions.join("\n\n");
    if output.is_json() {
        let (template, params) = (&kernel.label, &kernel.params);
        return Ok(output.json(&json!({
            "schema": 1, "template": template, "target": target.id(), "params": params, "ir": text,
        }))?);
    }
    output.note(&rendered.about());
    Ok(output.text(&format!("{text}\n"))?)
}

/// A flag that is for objects of AMD's compiler.
fn of_amd(flag: &str, target: &Target) -> Result<(), UsageError> {
    let (of, whose) = match (target.platform, target.is_simulated) {
        (Platform::Amd, false) => return Ok(()),
        (_, true) => (format!("the simulator of {}", target.arch), "what it runs is the C++ compiler's"),
        _ if target.language() == Language::C => (target.arch.clone(), "the C compiler is not asked for its own"),
        _ => (target.arch.clone(), "its compiler prints neither"),
    };
    Err(UsageError(format!("{flag} is for AMD's GPUs, not {of} ({whose}): for example --arch gfx1100")))
}

/// The number of a line of the kernel's text.
fn line_of(place: &str) -> Option<usize> {
    SOURCES.iter().find_map(|source| place.strip_prefix(source)).and_then(|line| line.parse().ok())
}

fn line_text<'a>(library: &'a Library, place: &Place) -> &'a str {
    let file = library.texts().find(|file| file.place(1).file == place.file);
    file.and_then(|file| file.text.lines().nth(place.line.checked_sub(1)?)).unwrap_or_default().trim()
}
