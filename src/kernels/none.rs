//! Why a name selects no template: it is misspelled, or those that it names do not fit the target.

use std::sync::Arc;

use crate::usage::UsageError;
use kernel::target::Target;
use kernel::template::library::Library;
use kernel::template::{Params, Template};

/// So many templates that do not fit are told.
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

/// Why no template of this name, op or variant, is checked: those that there are do not fit, or it is misspelled.
pub(super) fn why_none(library: &Library, target: &Target, name: &str) -> Option<String> {
    let is_it = |template: &&Arc<Template>| {
        let ops = template.ops.join("+");
        template.variant == name || template.label() == name || ops == name || template.ops.iter().any(|op| op == name)
    };
    let misfit = |template: &Arc<Template>| {
        let why = match template.language == target.language() {
            true => template.fits_target(target).err()?.to_string(),
            false => format!("is in {}", template.language.name()),
        };
        Some(format!("{} {why}", template.label()))
    };
    let misfits: Vec<String> = library.templates().filter(is_it).filter_map(misfit).take(MAX_TOLD).collect();
    if !misfits.is_empty() {
        return Some(misfits.join("; "));
    }
    let templates: Vec<&Arc<Template>> = library.templates().collect();
    let labels: Vec<String> = templates.iter().map(|template| template.label()).collect();
    let words = templates.iter().flat_map(|one| one.ops.iter().map(String::as_str).chain([one.variant.as_str()]));
    let meant = hint::meant(name, words.chain(labels.iter().map(String::as_str)))?;
    Some(format!("did you mean `{meant}`?"))
}
