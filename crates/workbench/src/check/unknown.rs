//! Words that the simulator does not know. A kernel with one need not be wrong: the GPU's compiler decides, if there
//! is one.

use serde::{Deserialize, Serialize};

use super::trial::Trial;
use super::{Checker, Wrong};
use kernel::object::compile::{Request, instead_of, is_of_hip, known_words, unknown_word};
use kernel::object::store::StoreError;
use kernel::target::Target;
use kernel::template::Template;
use kernel::template::origins::Origins;
use kernel::template::render::{Rendered, render};

/// Why kernels did not run although they may be right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unknown {
    /// The word, its place, and what it may be meant for.
    pub text: String,
    /// Whether a GPU's compiler took the kernel.
    pub is_compiled: bool,
}

/// Whether the simulator's compiler refused a word.
pub(super) fn is_of_a_word(error: &StoreError) -> bool {
    unknown_word(error.log()).is_some()
}

impl Checker<'_> {
    /// Of a kernel that the simulator's compiler refused: the word that it does not know, or what is wrong.
    pub(super) fn not_simulated(
        &self,
        template: &Template,
        trial: &Trial,
        kernel: &Rendered,
        target: &Target,
        error: StoreError,
    ) -> Result<Unknown, Wrong> {
        let refused = |error| self.not_compiled(template, trial, kernel, target, error);
        let Some(word) = unknown_word(error.log()).map(str::to_owned) else { return Err(refused(error)) };
        let known = known_words();
        let meant = hint::meant(&word, known.iter().map(String::as_str));
        let is_compiled = match self.compiled_for_the_chip(template, trial) {
            Some(Ok(())) => true,
            Some(Err(wrong)) => return Err(wrong),
            // Nobody else was asked: what looks like a word of HIP, and like no other one, may be one.
            None if is_of_hip(&word) && meant.is_none() => false,
            None => return Err(refused(error)),
        };
        let origins = Origins::trace(self.library, template, &trial.problem, &trial.params, target, kernel);
        let place = origins.and_then(|origins| origins.of_errors(error.log()).into_iter().next());
        let place = place.map(|(_, place)| place.to_string());
        let meant = meant.map(|meant| format!("did you mean `{meant}`?"));
        let about: Vec<String> = place.into_iter().chain(meant).chain(instead_of(error.log())).collect();
        let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join("; ")) };
        let compiled = if is_compiled { "the GPU's compiler compiled it; " } else { "" };
        Ok(Unknown { text: format!("{compiled}the simulator does not know `{word}`{about}"), is_compiled })
    }

    /// What the compiler of the simulated GPU says of a kernel; none if there is no such compiler.
    fn compiled_for_the_chip(&self, template: &Template, trial: &Trial) -> Option<Result<(), Wrong>> {
        if !self.target.is_simulated {
            return Some(Ok(())); // it is asked before anything is simulated
        }
        let chip = Target { is_simulated: false, ..self.target.clone() };
        self.store.try_compiler(&chip).ok()?;
        let kernel = render(self.library, template, &trial.problem, &trial.params, &chip).ok()?;
        let compiled = self.store.get_all(&[Request::new(&kernel, &chip)], &()).remove(0);
        Some(compiled.map(|_| ()).map_err(|error| self.not_compiled(template, trial, &kernel, &chip, error)))
    }
}
