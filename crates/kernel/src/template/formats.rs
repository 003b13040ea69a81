//! Arguments in block formats: a contract declares one by the shape of its numbers; a kernel takes its codes and,
//! right after them, each parameter of its blocks.

use std::collections::BTreeMap;

use super::contract::{Access, Arg, ArgDtype};
use super::library_error::LibraryError;
use expression::Expression;
use format::{BlockFormat, Dtype, Parameter};

/// The arguments that a declared one stands for: itself or, where it is only read and its type may be a format with
/// blocks, its codes, in rows of whole blocks, and every parameter that any of the formats has.
///
/// # Errors
/// If the shape has fewer axes than a block.
pub(super) fn expanded(arg: Arg, dtypes: &BTreeMap<String, Vec<Dtype>>) -> Result<Vec<Arg>, LibraryError> {
    let (ArgDtype::Named(variable), Some(shape), Access::Read) = (&arg.dtype, &arg.shape, arg.access) else {
        return Ok(vec![arg]);
    };
    let formats: Vec<&BlockFormat> = dtypes[variable].iter().filter_map(|dtype| dtype.format()).collect();
    if formats.is_empty() {
        return Ok(vec![arg]);
    }
    let n_axes = if formats.iter().any(|format| format.block[0] > 1) { 2 } else { 1 };
    if shape.len() < n_axes {
        return Err(LibraryError::Declaration {
            place: arg.place.clone(),
            item: format!("the shape of `{}`", arg.name),
            expected: format!("at least {n_axes} axes, as a block of its types has"),
            found: shape.len().to_string(),
        });
    }
    let variable = Variable(variable);
    let filled = |length: &str, format: &BlockFormat| match format.block[1] {
        1 => length.to_owned(),
        columns => format!("{columns} * ceil_div({length}, {columns})"),
    };
    let codes = axes(shape, |i, length| match i {
        0 => variable.choice(&formats, |format| filled(length, format), Some(length)),
        _ => length.to_owned(),
    })?;
    let mut args = vec![Arg { shape: Some(codes), ..arg.clone() }];
    for name in Parameter::NAMES {
        let of = |format: &BlockFormat| format.parameter(name);
        let having: Vec<&BlockFormat> = formats.iter().copied().filter(|format| of(format).is_some()).collect();
        let Some(parameter) = having.first().and_then(|format| of(format)) else { continue };
        let blocks = |i: usize, length: &str, format: &BlockFormat| {
            let in_block = format.block[1] / of(format).expect("it has it").every;
            match format.block.iter().rev().nth(i) {
                Some(&n) if i == 0 && in_block > 1 => format!("{in_block} * ceil_div({length}, {n})"),
                Some(&n) if n > 1 => format!("ceil_div({length}, {n})"),
                _ => length.to_owned(),
            }
        };
        let shape = axes(shape, |i, length| variable.choice(&having, |format| blocks(i, length, format), None))?;
        let is_there = variable.is_one_of(&having);
        let when = arg.when.as_ref().map_or(is_there.clone(), |when| format!("({}) and {is_there}", when.text()));
        args.push(Arg {
            name: parameter.name_beside(&arg.name),
            dtype: ArgDtype::Parameter { of: variable.0.to_owned(), name },
            shape: Some(shape),
            when: Some(Expression::parse(&when, arg.place.clone())?),
            part_of: Some(arg.name.clone()),
            ..arg.clone()
        });
    }
    Ok(args)
}

/// The axes of a shape, each made another expression; they are counted from the innermost.
fn axes(shape: &[Expression], text: impl Fn(usize, &str) -> String) -> Result<Vec<Expression>, LibraryError> {
    let n = shape.len();
    let axis = |(i, axis): (usize, &Expression)| match text(n - 1 - i, axis.text()) {
        same if same == axis.text() => Ok(axis.clone()),
        other => Ok(Expression::parse(&other, axis.place().clone())?),
    };
    shape.iter().enumerate().map(axis).collect()
}

/// The name of a type that is chosen by the problem.
struct Variable<'a>(&'a str);

impl Variable<'_> {
    /// `weight in ['q8_0', 'q4_1']`
    fn is_one_of(&self, formats: &[&BlockFormat]) -> String {
        let names: Vec<String> = formats.iter().map(|format| format!("'{}'", format.dtype)).collect();
        format!("{} in [{}]", self.0, names.join(", "))
    }

    /// An expression that is another one in each format, and `otherwise` where it is none of them. Without that it is
    /// one of them.
    fn choice(&self, formats: &[&BlockFormat], of: impl Fn(&BlockFormat) -> String, otherwise: Option<&str>) -> String {
        let mut choices: Vec<(String, Vec<&BlockFormat>)> = Vec::new();
        for &format in formats {
            let text = of(format);
            match choices.iter_mut().find(|(other, _)| *other == text) {
                Some((_, having)) => having.push(format),
                None => choices.push((text, vec![format])),
            }
        }
        choices.retain(|(text, _)| Some(text.as_str()) != otherwise);
        let last = match otherwise {
            Some(text) => text.to_owned(),
            None => choices.pop().expect("there is a format").0,
        };
        let choose = |rest, (text, having): &(String, Vec<&BlockFormat>)| {
            format!("{text} if {} else {rest}", self.is_one_of(having))
        };
        choices.iter().rev().fold(last, choose)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use data::Place;
    use expression::Scope;

    /// (name, type, shape) of what a contract's argument is in a problem.
    fn in_problem(dtype: &str, flag: bool, dtypes: &[Dtype]) -> Vec<(String, String, Vec<u64>)> {
        let place = || Place { file: "op.toml".into(), line: 1 };
        let expression = |text: &str| Expression::parse(text, place()).expect(text);
        let arg = Arg {
            name: "weight".into(),
            dtype: ArgDtype::Named("of".into()),
            shape: Some(vec![expression("n + 1"), expression("k")]),
            access: Access::Read,
            when: Some(expression("flag or false")),
            may_alias: None,
            is_zeroed: false,
            is_weights: true,
            part_of: None,
            place: place(),
        };
        let scope = [("n", 4.into()), ("k", 33.into()), ("flag", flag.into()), ("of", dtype.into())];
        let scope = Arc::new(Scope::new(scope.map(|(name, value)| (name.to_owned(), value)).into()));
        let args = expanded(arg, &[("of".to_owned(), dtypes.to_vec())].into()).expect("right");
        let there =
            args.iter().filter(|arg| arg.when.as_ref().expect("it has one").holds(&scope).expect("a condition"));
        let said = there.map(|arg| {
            let dtype = match &arg.dtype {
                ArgDtype::Named(name) => name.clone(),
                ArgDtype::Parameter { of, name } => format!("{name} of {of}"),
                _ => panic!("another type"),
            };
            let axes = arg.shape.as_ref().expect("a tensor").iter();
            (arg.name.clone(), dtype, axes.map(|axis| axis.whole(&scope).expect("a number")).collect())
        });
        said.collect()
    }

    #[test]
    fn an_argument_is_the_pointers_that_its_format_has() {
        let all = [Dtype::Bf16, Dtype::Mxfp4, Dtype::Q8_0, Dtype::Q5K, Dtype::Q6K, Dtype::Q4_1];
        let of = |name: &str, dtype: &str, shape: [u64; 2]| (name.to_owned(), dtype.to_owned(), shape.to_vec());
        assert_eq!(in_problem("bf16", true, &all), [of("weight", "of", [5, 33])]);
        let scaled = [of("weight", "of", [5, 64]), of("scale", "scale of of", [5, 2])];
        assert_eq!(in_problem("mxfp4", true, &all), scaled);
        assert_eq!(in_problem("q8_0", true, &all), scaled);
        let both = [&scaled[..], &[of("offset", "offset of of", [5, 2])]].concat();
        assert_eq!(in_problem("q4_1", true, &all), both);
        assert_eq!(in_problem("q4_1", true, &[Dtype::Q4_1]), both);
        assert_eq!(in_problem("q4_1", false, &all), []);
        let beside = |every: u64, name: &str| of(name, &format!("{name} of of"), [5, every]);
        let of_256 = [of("weight", "of", [5, 256]), beside(1, "scale")];
        let groups = [beside(1, "offset"), beside(8, "high"), beside(8, "group_scale"), beside(8, "group_offset")];
        assert_eq!(in_problem("q5_k", true, &all), [&of_256[..], &groups].concat());
        let groups = [beside(16, "high"), beside(16, "group_scale")];
        assert_eq!(in_problem("q6_k", true, &all), [&of_256[..], &groups].concat());
    }
}
