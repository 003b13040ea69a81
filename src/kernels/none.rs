//! Explains why a name selects no template: it is misspelled, or the templates of that name do not fit the target.

use std::sync::Arc;

use crate::usage::UsageError;
use kernel::target::Target;
use kernel::template::library::Library;
use kernel::template::{Params, Template};
use workbench::check::Selection;

/// Most misfits that are printed.
const MAX_TOLD: usize = 3;

/// Refuses parameters that one of these templates does not declare: no test would fit it.
pub(super) fn refuse_params<'a>(
    templates: impl Iterator<Item = &'a Arc<Template>>,
    params: &Params,
) -> Result<(), UsageError> {
    if params.is_empty() {
        return Ok(());
    }
    for template in templates {
        template.complete_params(params).map_err(|why| UsageError(format!("--set: {why}")))?;
    }
    Ok(())
}

/// Why no template of a selection is checked: those that there are do not fit, or a name is misspelled.
pub(super) fn why_none(library: &Library, target: &Target, asked: &Selection) -> Option<String> {
    let is_op =
        |template: &Template, name: &str| template.ops.join("+") == name || template.ops.iter().any(|op| op == name);
    let is_variant = |template: &Template, name: &str| template.variant == name || template.label() == name;
    let is_asked_for = |template: &&Arc<Template>| {
        (asked.op.is_empty() || asked.op.iter().any(|op| is_op(template, op)))
            && (asked.variant.is_empty() || asked.variant.iter().any(|name| is_variant(template, name)))
    };
    let misfit = |template: &Arc<Template>| {
        let why = match template.language == target.language() {
            true => template.fits_target(target).err()?.to_string(),
            false => format!("is in {}", template.language.name()),
        };
        Some(format!("{} {why}", template.label()))
    };
    let templates: Vec<&Arc<Template>> = library.templates().collect();
    let of_names = || templates.iter().copied().filter(is_asked_for);
    let misfits: Vec<String> = of_names().filter_map(misfit).take(MAX_TOLD).collect();
    if !misfits.is_empty() {
        let is_for_gpus = !target.is_gpu() && of_names().all(|template| template.language != target.language());
        let cure = if is_for_gpus { "; `--arch sim:gfx1100` runs it in the simulator" } else { "" };
        return Some(format!("{}{cure}", misfits.join("; ")));
    }
    let is_known = |name: &&String| templates.iter().any(|one| is_op(one, name) || is_variant(one, name));
    let Some(name) = asked.op.iter().chain(&asked.variant).find(|name| !is_known(name)) else {
        let (op, variant) = (asked.op.first()?, asked.variant.first()?);
        return Some(format!("`{op}` has no variant `{variant}`: `gptoss-jit kernels ls --op {op} --why` lists them"));
    };
    let labels: Vec<String> = templates.iter().map(|template| template.label()).collect();
    let words = templates.iter().flat_map(|one| one.ops.iter().map(String::as_str).chain([one.variant.as_str()]));
    let meant = hint::meant(name, words.chain(labels.iter().map(String::as_str)))?;
    Some(format!("did you mean `{meant}`?"))
}
