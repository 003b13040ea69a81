//! The template engine, set up to print C, with only the names and filters that `templates/README.md` lists.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value};

use expression::add_functions;

/// Instructions that one rendering may execute. The longest template in the tree takes under a thousandth of it.
const FUEL: u64 = 20_000_000;

/// The longest `range`.
const MAX_RANGE: u32 = 65_536;

/// The function that is true the first time that a rendering calls it with a file's name.
pub(super) const ONCE: &str = "is_first_include";

/// The text of a file of the library, which renders to nothing if it was included before. Its lines keep their
/// numbers.
pub(super) fn once(name: &str, text: &str) -> String {
    format!("{{% if {ONCE}({name:?}) %}}{text}{{% endif %}}")
}

/// An engine that holds no template yet.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_debug(true); // errors then carry their line
    environment.set_fuel(Some(FUEL));
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    environment.set_syntax(syntax.expect("the default delimiters are legal"));
    environment.add_filter("div_exact", div_exact);
    environment.add_filter("f32", f32_literal);
    environment.add_function("range", range);
    environment.add_function(ONCE, is_first_include);
    add_functions(&mut environment);
    environment.set_formatter(print_value);
    environment
}

/// `n | div_exact(d)` is n / d, or an error when d does not divide n.
fn div_exact(n: u64, d: u64) -> Result<u64, Error> {
    if d == 0 || !n.is_multiple_of(d) {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{d} does not divide {n}")));
    }
    Ok(n / d)
}

/// A C literal that reads back to the nearest f32.
fn f32_literal(value: f64) -> Result<String, Error> {
    let value = value as f32;
    if !value.is_finite() {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{value} has no literal")));
    }
    Ok(format!("{value:e}f"))
}

fn range(n: u32) -> Result<Value, Error> {
    if n > MAX_RANGE {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("range({n}): at most {MAX_RANGE}")));
    }
    Ok(Value::from_iter(0..n))
}

fn is_first_include(state: &mut State<'_, '_>, name: String) -> bool {
    state.set_temp(&name, Value::from(true)).is_none()
}

/// Prints a value as C spells it. Floats must say their type: `{{ x | f32 }}`.
fn print_value(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Bool => write!(out, "{}", value.is_true())?,
        ValueKind::String => write!(out, "{value}")?,
        ValueKind::Number if value.is_integer() => write!(out, "{value}")?,
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::Number => {
            let message =
                format!("{value} is not a whole number: print floats with `| f32`, divide with `//` or `div_exact`");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        kind => {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("a {kind} cannot be printed into a kernel")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str) -> Result<String, String> {
        environment().render_str(text, ()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn values_print_as_c() {
        assert_eq!(render("{{ 1 == 1 }} {{ 2880 // 64 }} {{ 2880 | div_exact(64) }}"), Ok("true 45 45".into()));
        assert_eq!(render("{{ 1e-5 | f32 }} {{ (1 / 3) | f32 }} {{ 2 | f32 }}"), Ok("1e-5f 3.3333334e-1f 2e0f".into()));
        assert_eq!(render("{% for i in range(3) %}{{ i }},{% endfor %}"), Ok("0,1,2,".into()));
    }

    #[test]
    fn every_f32_reads_back() {
        for value in [1e-5f32, f32::MIN_POSITIVE, f32::MAX, 1.702, 0.1, -0.0, 1e-45] {
            let literal = f32_literal(value.into()).expect("finite");
            let read: f32 = literal.trim_end_matches('f').parse().expect("a number");
            assert_eq!(read.to_bits(), value.to_bits(), "{literal}");
        }
    }

    #[test]
    fn what_c_cannot_spell_is_refused() {
        for (text, why) in [
            ("{{ 2880 / 64 }}", "45.0 is not a whole number"),
            ("{{ 7 | div_exact(2) }}", "2 does not divide 7"),
            ("{{ none }}", "a none cannot be printed"),
            ("{{ [1] }}", "a sequence cannot be printed"),
            ("{{ 1e300 | f32 }}", "inf has no literal"),
            ("{{ nothing }}", "undefined value"),
            ("{{ range(100000) }}", "at most 65536"),
        ] {
            let error = render(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_runaway_template_runs_out_of_fuel() {
        let loops = "{% for a in range(65536) %}{% for b in range(65536) %}{% set c = a %}{% endfor %}{% endfor %}";
        assert!(render(loops).expect_err("endless").contains("ran out of fuel"));
    }
}
