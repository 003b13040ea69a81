//! A layer, as a family's file writes it: one statement per line.
//!
//! ```text
//! statement = [name {, name} =] call [+ name]
//! call      = op(argument {, argument})
//! argument  = [name =] (call | name | weight | number | expression)
//! ```
//!
//! A name is the result of an earlier statement, or `x`, the layer's input. A weight is the name of a tensor, or the
//! common beginning of several tensors' names. `graph/forward` of `engine` makes nodes from statements and the ops'
//! contracts.

use std::collections::BTreeSet;

use super::{FamilyError, FamilyTensor};
use data::Place;
use expression::{Expression, FUNCTIONS};

/// An op with its arguments.
#[derive(Clone, Debug)]
pub struct Statement {
    pub place: Place,
    /// The names of what it gives.
    pub targets: Vec<String>,
    pub op: String,
    /// What it is given, in the order in which it was written.
    pub args: Vec<Argument>,
    /// What is added to what it gives.
    pub residual: Option<String>,
}

/// What an op is given.
#[derive(Clone, Debug)]
pub struct Argument {
    /// The argument's, dim's or constant's name; without one it is the first tensor that nothing else is given for.
    pub name: Option<String>,
    pub operand: Operand,
}

/// An argument of an op in a layer.
#[derive(Clone, Debug)]
pub enum Operand {
    /// What a statement before gave.
    Value(String),
    /// The layer's tensor of this name, or those whose names go on after it.
    Weights(String),
    /// A whole number, or a condition, over the model's dimensions and the number of the `layer`.
    Expression(Expression),
    Number(f32),
    /// A number of the model's.
    NamedNumber(String),
}

/// The names that a layer's text may use.
pub(super) struct Names<'a> {
    /// Of the family's tensors, those in layers.
    pub(crate) tensors: Vec<&'a FamilyTensor>,
    /// Those of them that every layer must use.
    pub(crate) needed: Vec<&'a FamilyTensor>,
    /// Of dimensions and of what is computed of them.
    pub(crate) dims: BTreeSet<String>,
    /// Of numbers that need not be whole.
    pub(crate) numbers: BTreeSet<String>,
    /// What a layer is given besides `x`, by names of the family's own.
    pub(crate) given: BTreeSet<String>,
}

impl Statement {
    /// The operand of this name.
    pub fn operand(&self, name: &str) -> Option<&Operand> {
        self.args.iter().find(|arg| arg.name.as_deref() == Some(name)).map(|arg| &arg.operand)
    }
}

/// Reads a layer; `first` is the line of the file in which `text` begins.
///
/// # Errors
/// The first thing that is wrong, with its line.
pub(super) fn read(text: &str, first: &Place, names: &Names) -> Result<Vec<Statement>, FamilyError> {
    let known = names.given.iter().cloned().chain(["x".to_owned()]).collect();
    let mut reader = Reader { names, known, statements: Vec::new(), n_calls: 0, depth: 0 };
    let mut pending = String::new();
    let mut begun = 0;
    for (i, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if pending.is_empty() {
            begun = i;
        }
        if !pending.is_empty() && !line.is_empty() {
            pending.push(' ');
        }
        pending.push_str(line);
        if depth(&pending) > 0 {
            continue;
        }
        let statement = std::mem::take(&mut pending);
        if !statement.is_empty() {
            reader.statement(&statement, &at(first, begun))?;
        }
    }
    if !pending.is_empty() {
        return Err(FamilyError::at(&at(first, begun), &pending, "`)` for every `(`", "too few"));
    }
    if !reader.statements.iter().any(|statement| statement.targets.iter().any(|target| target == "x")) {
        return Err(FamilyError::at(first, "layer", "a statement that gives `x`, the layer's result", "none"));
    }
    let unused = names.needed.iter().find(|tensor| !reader.uses(tensor));
    if let Some(tensor) = unused {
        let expected = format!("a statement that uses the tensor `{}`", tensor.name);
        return Err(FamilyError::at(first, "layer", &expected, "none"));
    }
    Ok(reader.statements)
}

fn at(first: &Place, line: usize) -> Place {
    Place { file: first.file.clone(), line: first.line + line }
}

/// Brackets that are open after a text.
fn depth(text: &str) -> i64 {
    text.chars().map(|c| i64::from(matches!(c, '(' | '[')) - i64::from(matches!(c, ')' | ']'))).sum()
}

/// A text's parts between separators that are in no brackets and no quotes.
fn parts(text: &str, separator: char) -> Vec<&str> {
    let (mut parts, mut begin, mut depth, mut quote) = (Vec::new(), 0, 0_i64, None);
    for (i, c) in text.char_indices() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('(' | '[', None) => depth += 1,
            (')' | ']', None) => depth -= 1,
            (c, None) if c == separator && depth == 0 => {
                parts.push(text[begin..i].trim());
                begin = i + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(text[begin..].trim());
    parts
}

fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The first `=` that is no part of a comparison.
fn assignment(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let is_one = |&i: &usize| {
        bytes[i] == b'='
            && bytes.get(i + 1) != Some(&b'=')
            && !(i > 0 && matches!(bytes[i - 1], b'=' | b'!' | b'<' | b'>'))
    };
    let end = text.find('(').unwrap_or(text.len());
    (0..end).find(is_one).map(|i| (text[..i].trim(), text[i + 1..].trim()))
}

/// A layer that is being read.
struct Reader<'a> {
    names: &'a Names<'a>,
    /// What statements gave so far.
    known: BTreeSet<String>,
    statements: Vec<Statement>,
    /// Calls within calls, whose results have numbers for names.
    n_calls: usize,
    /// Calls around the one that is read.
    depth: usize,
}

/// Calls within each other.
const MAX_DEPTH: usize = 8;

impl Reader<'_> {
    fn uses(&self, tensor: &FamilyTensor) -> bool {
        let operands = self.statements.iter().flat_map(|statement| &statement.args).map(|arg| &arg.operand);
        operands.into_iter().any(|operand| matches!(operand, Operand::Weights(name) if tensor.is_of(name)))
    }

    fn statement(&mut self, text: &str, place: &Place) -> Result<(), FamilyError> {
        let (targets, body) = match assignment(text) {
            Some((targets, body)) => (parts(targets, ','), body),
            None => (Vec::new(), text),
        };
        if let Some(target) = targets.iter().find(|target| !is_name(target)) {
            return Err(FamilyError::at(
                place,
                text,
                "a name before `=`, of letters, digits and `_`",
                &format!("`{target}`"),
            ));
        }
        let (call, residual) = match parts(body, '+').as_slice() {
            [call] => (*call, None),
            [call, added] => (*call, Some(*added)),
            _ => return Err(FamilyError::at(place, text, "one call of an op, and one `+ name` at most", "more")),
        };
        if let Some(added) = residual.filter(|added| !self.known.contains(*added)) {
            return Err(self.unknown(place, added));
        }
        let targets: Vec<String> = targets.into_iter().map(str::to_owned).collect();
        self.call(call, place, targets.clone(), residual.map(str::to_owned))?;
        self.known.extend(targets);
        Ok(())
    }

    fn call(
        &mut self,
        text: &str,
        place: &Place,
        targets: Vec<String>,
        residual: Option<String>,
    ) -> Result<(), FamilyError> {
        let Some((op, inner)) = call(text) else {
            return Err(FamilyError::at(place, text, "a call of an op, such as `rmsnorm(x, attn.norm)`", "none"));
        };
        let args = parts(inner, ',').into_iter().filter(|arg| !arg.is_empty());
        let args = args.map(|arg| self.argument(arg, place)).collect::<Result<_, _>>()?;
        let (place, op) = (place.clone(), op.to_owned());
        self.statements.push(Statement { place, targets, op, args, residual });
        Ok(())
    }

    fn argument(&mut self, text: &str, place: &Place) -> Result<Argument, FamilyError> {
        let (name, value) = match assignment(text) {
            Some((name, _)) if !is_name(name) => {
                return Err(FamilyError::at(place, text, "an argument's name before `=`", &format!("`{name}`")));
            }
            Some((name, value)) => (Some(name.to_owned()), value),
            None => (None, text),
        };
        let operand = self.operand(value, place)?;
        let is_tensor = matches!(operand, Operand::Value(_) | Operand::Weights(_));
        if name.is_none() && !is_tensor {
            return Err(FamilyError::at(place, text, "a name before a number: `name = number`", "none"));
        }
        Ok(Argument { name, operand })
    }

    fn operand(&mut self, text: &str, place: &Place) -> Result<Operand, FamilyError> {
        if let Some((op, _)) = call(text)
            && !FUNCTIONS.contains(&op)
        {
            if self.depth == MAX_DEPTH {
                let expected = format!("{MAX_DEPTH} calls within each other at most");
                return Err(FamilyError::at(place, op, &expected, "more"));
            }
            self.n_calls += 1;
            self.depth += 1;
            let name = format!("{op}.{}", self.n_calls);
            self.call(text, place, vec![name.clone()], None)?;
            self.depth -= 1;
            return Ok(Operand::Value(name));
        }
        if self.known.contains(text) {
            return Ok(Operand::Value(text.to_owned()));
        }
        if self.names.tensors.iter().any(|tensor| tensor.is_of(text)) {
            return Ok(Operand::Weights(text.to_owned()));
        }
        if self.names.numbers.contains(text) {
            return Ok(Operand::NamedNumber(text.to_owned()));
        }
        if let (Ok(number), true) = (text.parse::<f64>(), text.contains(['.', 'e'])) {
            return match number as f32 {
                single if single.is_finite() && (single != 0.0) == (number != 0.0) => Ok(Operand::Number(single)),
                _ => Err(FamilyError::at(place, text, "a number that f32 has", "another")),
            };
        }
        let expression = Expression::parse(text, place.clone())?;
        match expression.names().iter().find(|name| !self.names.dims.contains(*name) && *name != "layer") {
            None => Ok(Operand::Expression(expression)),
            Some(name) => Err(self.unknown(place, if text.contains(' ') { name } else { text })),
        }
    }

    fn unknown(&self, place: &Place, name: &str) -> FamilyError {
        let given = self.known.iter().filter(|name| !name.contains('.')).cloned().collect::<Vec<_>>().join(", ");
        let expected = format!("a tensor of a layer, a dimension, or what a statement before gave ({given})");
        FamilyError::at(place, name, &expected, "no such name")
    }
}

/// The name of an op and what is in its brackets, if a text is nothing but a call.
fn call(text: &str) -> Option<(&str, &str)> {
    let (op, rest) = text.split_once('(')?;
    let inner = rest.strip_suffix(')')?;
    let mut depth = 0;
    let is_one = inner.chars().all(|c| {
        depth += i64::from(c == '(') - i64::from(c == ')');
        depth >= 0
    });
    (is_name(op) && is_one).then_some((op, inner))
}
