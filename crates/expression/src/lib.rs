//! Expressions in contracts and front matter: whole numbers and conditions over named values.
//!
//! The language is minijinja's, with limits: a number must be whole and fit 64 bits, `/` is refused because it gives a
//! fraction, and the names in an expression are checked when its file is read. Expressions are compiled once; one
//! evaluation takes under a microsecond (0.4 us in a debug build on a shared two-core machine).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, LazyLock};

use minijinja::value::{Object, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};

use data::Place;
use hint::Hint;

/// Instructions that one expression may execute; the longest in the tree takes under 50.
const FUEL: u64 = 10_000;

/// Characters that an expression may have. The parser's depth grows with the length of a sum.
const MAX_LEN: usize = 1000;

/// The functions that expressions and bodies share.
pub const FUNCTIONS: [&str; 3] = ["ceil_div", "min", "max"];

/// An expression and its place.
#[derive(Clone)]
pub struct Expression {
    text: String,
    place: Place,
    names: BTreeSet<String>,
    compiled: Arc<minijinja::Expression<'static, 'static>>,
}

/// What went wrong with one expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: could not evaluate `{text}`: {reason}")]
pub struct ExpressionError {
    /// The expression's place.
    pub(crate) place: Place,
    pub(crate) text: String,
    pub reason: Reason,
}

/// Why an expression is refused, or its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// It uses `/`.
    #[error("`/` gives a fraction; `//` or `ceil_div` give whole numbers")]
    Fraction,
    /// It is longer than any expression needs to be.
    #[error("it has more than {MAX_LEN} characters")]
    TooLong,
    /// It uses a name that has no value.
    #[error("`{0}` has no value here")]
    Undefined(String),
    /// It is not an expression, or it divides by zero, overflows, mixes types, …
    #[error("{0}")]
    Engine(String),
    /// Its value is not a whole number from 0 to 2^64 - 1.
    #[error("it is {0}, expected a whole number from 0 to 2^64 - 1")]
    NotWhole(String),
    /// Its value is not a boolean.
    #[error("it is {0}, expected true or false")]
    NotCondition(String),
    /// Numbers that belong together are too many together.
    #[error("{what} are too many, expected at most {limit}")]
    TooMany {
        /// The numbers, and what they count.
        what: String,
        limit: u64,
    },
    /// It is larger than the place that it is for can hold.
    #[error("it is {value}, expected at most {limit}")]
    TooLarge { value: u64, limit: u64 },
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// If it is not one, or uses `/`.
    pub fn parse(text: &str, place: Place) -> Result<Self, ExpressionError> {
        static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(environment);
        let refuse = |reason| ExpressionError { place: place.clone(), text: text.to_owned(), reason };
        if text.replace("//", "").contains('/') {
            return Err(refuse(Reason::Fraction));
        }
        if text.len() > MAX_LEN {
            return Err(ExpressionError {
                place,
                text: format!("{}…", text.chars().take(40).collect::<String>()),
                reason: Reason::TooLong,
            });
        }
        let compiled = ENVIRONMENT
            .compile_expression_owned(text.to_owned())
            .map_err(|error| refuse(Reason::Engine(describe(&error))))?;
        let mut names: BTreeSet<String> = compiled.undeclared_variables(false).into_iter().collect();
        names.retain(|name| !FUNCTIONS.contains(&name.as_str()));
        Ok(Self { text: text.to_owned(), place, names, compiled: Arc::new(compiled) })
    }

    /// The expression as it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The file and line of the expression.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The names it uses, functions left out.
    pub fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// Its value as a whole number.
    ///
    /// # Errors
    /// If it is no whole number, is negative, or does not fit.
    pub fn whole(&self, scope: &Arc<Scope>) -> Result<u64, ExpressionError> {
        let value = self.value(scope)?;
        let is_whole = value.kind() == ValueKind::Number && value.is_integer();
        let whole = is_whole.then(|| u64::try_from(value.clone()).ok()).flatten();
        whole.ok_or_else(|| self.error(Reason::NotWhole(value.to_string())))
    }

    /// Its value as a whole number of 32 bits.
    ///
    /// # Errors
    /// As [`Self::whole`], and if the value does not fit 32 bits.
    pub fn whole_u32(&self, scope: &Arc<Scope>) -> Result<u32, ExpressionError> {
        let value = self.whole(scope)?;
        u32::try_from(value).map_err(|_| self.error(Reason::TooLarge { value, limit: u32::MAX.into() }))
    }

    /// Its value as a condition.
    ///
    /// # Errors
    /// If it is neither true nor false.
    pub fn holds(&self, scope: &Arc<Scope>) -> Result<bool, ExpressionError> {
        let value = self.value(scope)?;
        bool::try_from(value.clone())
            .ok()
            .filter(|_| value.kind() == ValueKind::Bool)
            .ok_or_else(|| self.error(Reason::NotCondition(value.to_string())))
    }

    /// Its value: a whole number or a condition.
    ///
    /// # Errors
    /// If it is neither.
    pub fn fact(&self, scope: &Arc<Scope>) -> Result<Value, ExpressionError> {
        match self.value(scope)?.kind() {
            ValueKind::Bool => self.holds(scope).map(Value::from),
            _ => self.whole(scope).map(Value::from),
        }
    }

    /// An error about this expression.
    pub fn error(&self, reason: Reason) -> ExpressionError {
        ExpressionError { place: self.place.clone(), text: self.text.clone(), reason }
    }

    /// The expression with every name that the scope knows replaced by its value: `n_tokens * 4`. For comments.
    pub fn with_literals(&self, scope: &Scope) -> String {
        let mut result = String::new();
        let mut rest = self.text.as_str();
        while let Some(first) = rest.chars().next() {
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let end = rest.find(|c: char| is_name(c) != is_name(first)).unwrap_or(rest.len());
            let (word, tail) = rest.split_at(end);
            match scope.get(word) {
                Some(value) => result += &spelled(value),
                None => result += word,
            }
            rest = tail;
        }
        result
    }

    fn value(&self, scope: &Arc<Scope>) -> Result<Value, ExpressionError> {
        let value = self.compiled.eval(Value::from_dyn_object(Arc::clone(scope)));
        if let Ok(value) = &value
            && !value.is_undefined()
        {
            return Ok(value.clone());
        }
        let missing = self.names.iter().find(|name| scope.get(name).is_none());
        Err(self.error(match (missing, value) {
            (Some(name), _) => Reason::Undefined(name.clone()),
            (None, Err(error)) => Reason::Engine(describe(&error)),
            (None, Ok(_)) => Reason::Engine("it has no value".into()),
        }))
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` at {}", self.text, self.place)
    }
}

/// Named values: those known when the kernel is rendered, and optionally those known only at launch.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    known: Arc<BTreeMap<String, Value>>,
    scalars: BTreeMap<String, u64>,
}

impl Scope {
    /// A scope of these values.
    pub fn new(known: BTreeMap<String, Value>) -> Self {
        Self { known: Arc::new(known), scalars: BTreeMap::new() }
    }

    /// The same scope with the scalar arguments of a launch.
    pub fn with_scalars(&self, scalars: &BTreeMap<String, u64>) -> Self {
        Self { known: Arc::clone(&self.known), scalars: scalars.clone() }
    }

    /// The values that are known when the kernel is rendered.
    pub fn known(&self) -> &BTreeMap<String, Value> {
        &self.known
    }

    /// The value of this name, if it has one.
    pub fn get(&self, name: &str) -> Option<Value> {
        self.known.get(name).cloned().or_else(|| self.scalars.get(name).map(|&value| Value::from(value)))
    }
}

impl Object for Scope {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.get(key)
    }
}

/// Adds the functions that expressions and bodies share.
pub fn add_functions(environment: &mut Environment<'_>) {
    environment.add_function("ceil_div", ceil_div);
    environment.add_function("min", |a: i128, b: i128| a.min(b));
    environment.add_function("max", |a: i128, b: i128| a.max(b));
}

/// What minijinja says of an error, without its place.
pub fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    add_functions(&mut environment);
    environment
}

fn ceil_div(a: u64, b: u64) -> Result<u64, Error> {
    if b == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("ceil_div({a}, 0) divides by zero")));
    }
    Ok(a.div_ceil(b))
}

/// A value as C and the expression language both write it.
fn spelled(value: Value) -> String {
    match value.kind() {
        ValueKind::Bool => value.is_true().to_string(),
        _ => value.to_string(),
    }
}

impl Hint for ExpressionError {
    fn hint(&self) -> Option<String> {
        Some("`templates/README.md` says what expressions may use".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place { file: "op.toml".into(), line: 3 }
    }

    fn scope() -> Arc<Scope> {
        let known = [("n", Value::from(2880)), ("tile", Value::from(64)), ("weight", Value::from("bf16"))];
        let known = known.into_iter().chain([("has_bias", Value::from(true)), ("big", Value::from(u64::MAX))]);
        Arc::new(Scope::new(known.map(|(name, value)| (name.to_owned(), value)).collect()))
    }

    fn whole(text: &str) -> Result<u64, String> {
        Expression::parse(text, place())
            .and_then(|expression| expression.whole(&scope()))
            .map_err(|error| error.to_string())
    }

    fn holds(text: &str) -> Result<bool, String> {
        Expression::parse(text, place())
            .and_then(|expression| expression.holds(&scope()))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn whole_numbers_come_out_whole() {
        assert_eq!(whole("ceil_div(n, tile) * 2 - 1"), Ok(89));
        assert_eq!(whole("n // 7 + n % 7 + min(3, 4) + max(3, 4)"), Ok(411 + 3 + 7));
        assert_eq!(whole("big"), Ok(u64::MAX));
    }

    #[test]
    fn conditions_compare_numbers_flags_and_dtypes() {
        assert_eq!(holds("n % 64 == 0 and weight == 'bf16' and not (tile > 64)"), Ok(true));
        assert_eq!(holds("has_bias"), Ok(true));
        assert_eq!(holds("weight in ['f32']"), Ok(false));
    }

    #[test]
    fn what_is_not_a_whole_number_is_refused() {
        for (text, why) in [
            ("n / 64", "`/` gives a fraction; `//` or `ceil_div` give whole numbers"),
            ("1.5 * 3", "it is 4.5, expected a whole number"),
            ("2 - 3", "it is -1, expected a whole number"),
            ("big * 2", "it is 36893488147419103230, expected a whole number"),
            ("big * big * big", "invalid operation"),
            ("has_bias", "it is True, expected a whole number"),
            ("n // 0", "invalid operation"),
            ("ceil_div(n, 0)", "ceil_div(2880, 0) divides by zero"),
            ("n +", "syntax error"),
            ("nowhere", "`nowhere` has no value here"),
            ("nowhere + 1", "`nowhere` has no value here"),
        ] {
            let error = whole(text).expect_err(text);
            assert!(error.starts_with("op.toml:3: could not evaluate `"), "{error}");
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(holds("n").expect_err("a number").contains("it is 2880, expected true or false"));
    }

    #[test]
    fn an_endless_expression_is_refused() {
        assert!(whole(&vec!["n"; 600_000].join("+")).expect_err("too long").contains("more than 1000 characters"));
        assert!(whole(&"(".repeat(900)).is_err());
    }

    #[test]
    fn names_leave_functions_out_and_comments_show_literals() {
        let expression = Expression::parse("n_tokens * ceil_div(n, tile)", place()).expect("parses");
        assert_eq!(expression.names().iter().collect::<Vec<_>>(), ["n", "n_tokens", "tile"]);
        assert_eq!(expression.with_literals(&scope()), "n_tokens * ceil_div(2880, 64)");
    }

    #[test]
    fn scalars_join_at_launch() {
        let expression = Expression::parse("n_tokens * n", place()).expect("parses");
        let scope = scope().with_scalars(&BTreeMap::from([("n_tokens".to_owned(), 3)]));
        assert_eq!(expression.whole(&Arc::new(scope)), Ok(8640));
    }
}
