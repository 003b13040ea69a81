//! The parameters of a template: their legal values for a problem on a target.

use super::{Param, Params, Problem, Template};
use crate::target::Target;
use expression::{ExpressionError, Scope};
use std::sync::Arc;

/// Most combinations of parameters of a template: a search for a legal one may have to try all.
pub(super) const MAX_CHOICES: usize = 1 << 17;

/// Parameters that a template refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// The template declares no such parameter.
    #[error("`{label}` has no parameter `{name}`{}", if known.is_empty() { ": it has none".to_owned() } else { format!(", expected one of: {}", known.join(", ")) })]
    Unknown { label: String, name: String, known: Vec<String> },
    /// The value is none of those declared.
    #[error("`{label}`: {name} = {value}, expected one of: {}", values.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))]
    Value { label: String, name: String, value: u32, values: Vec<u32> },
    /// A constraint does not hold.
    #[error("`{label}`: {constraint}: `{text}` does not hold for {given}")]
    Constraint {
        label: String,
        /// The constraint's name.
        constraint: String,
        text: String,
        /// The values of the names in it.
        given: String,
    },
    /// A constraint could not be evaluated.
    #[error(transparent)]
    Expression(#[from] ExpressionError),
}

impl Template {
    /// Completes parameters with the defaults and checks them: values, then constraints.
    ///
    /// # Errors
    /// The first that is not legal, by name.
    pub fn resolve_params(&self, given: &Params, problem: &Problem, target: &Target) -> Result<Params, ParamsError> {
        let params = self.complete_params(given)?;
        self.check_constraints(&params, problem, target)?;
        Ok(params)
    }

    /// Completes parameters with the defaults, whatever the problem, and checks their names and values.
    ///
    /// # Errors
    /// The first that the template does not declare.
    pub fn complete_params(&self, given: &Params) -> Result<Params, ParamsError> {
        if let Some(name) = given.keys().find(|name| !self.params.contains_key(*name)) {
            let known = self.params.keys().cloned().collect();
            return Err(ParamsError::Unknown { label: self.label(), name: name.clone(), known });
        }
        let mut params = Params::new();
        for (name, param) in &self.params {
            let value = given.get(name).copied().unwrap_or(param.default);
            if !param.values.contains(&value) {
                let (name, values) = (name.clone(), param.values.clone());
                return Err(ParamsError::Value { label: self.label(), name, value, values });
            }
            params.insert(name.clone(), value);
        }
        Ok(params)
    }

    /// Every legal choice of parameters for a problem on a target: the defaults first if they are legal, then in the
    /// order of the values, the last parameter changing fastest.
    pub fn legal_params<'a>(&'a self, problem: &'a Problem, target: &'a Target) -> impl Iterator<Item = Params> + 'a {
        let defaults: Params = self.params.iter().map(|(name, param)| (name.clone(), param.default)).collect();
        let count = self.params.values().map(|param| param.values.len()).product::<usize>(); // up to MAX_CHOICES
        let others = (0..count).map(|i| self.nth_params(i)).filter({
            let defaults = defaults.clone();
            move |params| *params != defaults && !self.is_another_op(params)
        });
        let all = std::iter::once(defaults).chain(others);
        all.filter(|params| self.check_constraints(params, problem, target).is_ok())
    }

    /// Whether they change what is computed: a parameter that is not tunable is not at its default.
    pub(crate) fn is_another_op(&self, params: &Params) -> bool {
        let differs = |(name, param): (&String, &Param)| params.get(name).is_some_and(|value| *value != param.default);
        self.params.iter().filter(|(_, param)| !param.is_tunable).any(differs)
    }

    fn nth_params(&self, mut i: usize) -> Params {
        let mut params = Params::new();
        for (name, param) in self.params.iter().rev() {
            params.insert(name.clone(), param.values[i % param.values.len()]);
            i /= param.values.len();
        }
        params
    }

    pub(super) fn check_constraints(
        &self,
        params: &Params,
        problem: &Problem,
        target: &Target,
    ) -> Result<(), ParamsError> {
        let scope = Arc::new(self.scope(problem, params, target)?);
        for (constraint, expression) in &self.constraints {
            if !expression.holds(&scope)? {
                return Err(ParamsError::Constraint {
                    label: self.label(),
                    constraint: constraint.clone(),
                    text: expression.text().to_owned(),
                    given: values(expression.names().iter(), &scope),
                });
            }
        }
        Ok(())
    }
}

/// `a = 1, b = 2`.
fn values<'a>(names: impl Iterator<Item = &'a String>, scope: &Scope) -> String {
    let value = |name: &String| scope.get(name).map(|value| format!("{name} = {value}"));
    names.filter_map(value).collect::<Vec<_>>().join(", ")
}
