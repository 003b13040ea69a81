//! The declarations that contracts and front matter share: names, arguments, expressions; and errors about them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::contract::{Access, Arg, ArgDtype};
use super::library_error::LibraryError;
use data::{Place, SourceFile};
use expression::Expression;
use format::Dtype;

/// The type of an argument that the precision gives it: [`ArgDtype::Activation`].
const ACTIVATION: &str = "activation";

/// Names that the renderer defines; nothing else may have them.
pub(crate) const RESERVED: [&str; 23] = [
    ACTIVATION,
    "signature",
    "entry",
    "arch",
    "wave_size",
    "lds_bytes",
    "early_launch",
    "precision",
    "features",
    "block_size",
    "range",
    "ceil_div",
    "min",
    "max",
    "kernel",
    "scratch",
    "block_x",
    "block_y",
    "block_z",
    "args",
    "true",
    "false",
    "loop",
];

/// An entry of `[[args]]` or of `[[workspace]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ArgTable {
    pub(crate) name: Spanned<String>,
    pub(crate) dtype: Spanned<String>,
    pub(crate) shape: Option<Vec<Spanned<String>>>,
    access: Option<Access>,
    when: Option<Spanned<String>>,
    #[serde(default)]
    zeroed: bool,
    #[serde(default)]
    weights: bool,
    pub(crate) may_alias: Option<Spanned<String>>,
}

/// TOML inside a file: it finds the lines that spans lie in, and makes the errors.
pub(super) struct Toml<'a> {
    pub(crate) file: &'a SourceFile,
    /// Where in the file the TOML begins, in bytes.
    pub(crate) base: usize,
    /// `contract` or `front matter`.
    pub(crate) what: &'static str,
}

impl Toml<'_> {
    pub(crate) fn parse<T: serde::de::DeserializeOwned>(&self, text: &str) -> Result<T, LibraryError> {
        toml::from_str(text).map_err(|error| LibraryError::Toml {
            place: self.file.place_of(self.base, error.span()),
            what: self.what,
            message: error.message().trim().to_owned(),
        })
    }

    pub(crate) fn place(&self, span: Range<usize>) -> Place {
        self.file.place_of(self.base, Some(span))
    }

    pub(crate) fn refuse(
        &self,
        span: Range<usize>,
        item: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> LibraryError {
        LibraryError::Declaration {
            place: self.place(span),
            item: item.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// An expression that may use only these names.
    pub(crate) fn expression(
        &self,
        text: &Spanned<String>,
        known: &BTreeSet<String>,
    ) -> Result<Expression, LibraryError> {
        let expression = Expression::parse(text.get_ref(), self.place(text.span()))?;
        match expression.names().difference(known).next() {
            Some(name) => Err(LibraryError::UnknownName {
                place: expression.place().clone(),
                name: name.clone(),
                known: known.iter().cloned().collect(),
            }),
            None => Ok(expression),
        }
    }

    /// A name that C and the template language both take, and that the renderer does not need.
    pub(crate) fn name(&self, what: &str, name: &str, span: Range<usize>) -> Result<(), LibraryError> {
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !is_name {
            return Err(self.refuse(span, what, "a name of a-z, 0-9 and _", format!("`{name}`")));
        }
        if RESERVED.contains(&name) || Dtype::from_name(name).is_some() {
            return Err(self.refuse(span, what, "a name that the renderer does not define", format!("`{name}`")));
        }
        Ok(())
    }

    /// An argument; `dtypes` are the named types, `known` what its expressions may use.
    pub(crate) fn arg(
        &self,
        table: &ArgTable,
        dtypes: &BTreeMap<String, Vec<Dtype>>,
        conditions: &BTreeSet<String>,
        known: &BTreeSet<String>,
    ) -> Result<Arg, LibraryError> {
        let name = table.name.get_ref();
        if RESERVED.contains(&name.as_str()) && name != "block_size" {
            return Err(self.refuse(
                table.name.span(),
                "argument",
                "a name that the renderer does not define",
                format!("`{name}`"),
            ));
        }
        let shape = table.shape.as_ref().map(|axes| axes.iter().map(|axis| self.expression(axis, known)).collect());
        let arg = Arg {
            name: name.clone(),
            dtype: self.arg_dtype(&table.dtype, dtypes)?,
            shape: shape.transpose()?,
            access: table.access.unwrap_or_default(),
            when: table.when.as_ref().map(|when| self.expression(when, conditions)).transpose()?,
            may_alias: table.may_alias.as_ref().map(|name| name.get_ref().clone()),
            is_zeroed: table.zeroed,
            is_weights: table.weights,
            part_of: None,
            place: self.place(table.name.span()),
        };
        self.check_scalar(&arg, table)?;
        Ok(arg)
    }

    fn arg_dtype(
        &self,
        dtype: &Spanned<String>,
        dtypes: &BTreeMap<String, Vec<Dtype>>,
    ) -> Result<ArgDtype, LibraryError> {
        let name = dtype.get_ref();
        if let Some(fixed) = Dtype::from_name(name) {
            return Ok(ArgDtype::Fixed(fixed));
        }
        if name == ACTIVATION {
            return Ok(ArgDtype::Activation);
        }
        if dtypes.contains_key(name) {
            return Ok(ArgDtype::Named(name.clone()));
        }
        let fixed = Dtype::ALL.iter().map(|d| d.name()).chain([ACTIVATION]);
        let known: Vec<&str> = fixed.chain(dtypes.keys().map(String::as_str)).collect();
        let expected = format!("a type or a name from [dtypes]: {}", known.join(", "));
        Err(self.refuse(dtype.span(), "dtype", expected, format!("`{name}`")))
    }

    fn check_scalar(&self, arg: &Arg, table: &ArgTable) -> Result<(), LibraryError> {
        let by_value = [Dtype::U32, Dtype::I32, Dtype::F32].map(ArgDtype::Fixed);
        if arg.is_scalar() && !by_value.contains(&arg.dtype) {
            let item = format!("the scalar `{}`", arg.name);
            return Err(self.refuse(
                table.dtype.span(),
                item,
                "dtype u32, i32 or f32, or a shape",
                table.dtype.get_ref(),
            ));
        }
        if arg.is_weights && (arg.is_scalar() || arg.access != Access::Read) {
            let item = format!("`weights` of `{}`", arg.name);
            return Err(self.refuse(table.name.span(), item, "a tensor that is only read", "another argument"));
        }
        if arg.is_scalar() && (arg.access != Access::Read || arg.may_alias.is_some() || arg.when.is_some()) {
            let item = format!("the scalar `{}`", arg.name);
            return Err(self.refuse(table.name.span(), item, "no `access`, `may_alias` or `when`", "one of them"));
        }
        Ok(())
    }
}
