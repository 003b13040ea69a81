//! A family's file: reading it, and everything that can be checked without a model.

mod tables;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use toml::Spanned;

use tables::{
    DimTable, DrawTable, ExpectedTable, FamilyTable, ForwardTable, NumberTable, OtherLayer, RopeTable, ScalingName,
    SpelledTable, StackTable, TensorTable, Transposed, Whole,
};

use super::layer::{self, Names, Statement};
use super::{
    Dim, Draw, Expected, Family, FamilyError, FamilyTensor, Forward, NamingScheme, Number, Pairs, Rope, RopeScaling,
    Shape, Spelled, Stack,
};
use data::{Origin, Place, SourceFile};
use expression::Expression;

impl Family {
    /// Reads a file; `path` is what it is called in errors.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn read(path: &str, text: &str) -> Result<Self, FamilyError> {
        let source = SourceFile { origin: Origin::BuiltIn, name: path.into(), text: text.into() };
        let table: FamilyTable = toml::from_str(text).map_err(|error| FamilyError::Toml {
            place: place(&source, error.span().unwrap_or(0..0)),
            message: error.message().to_owned(),
        })?;
        let file = File { source, dims: table.dims.keys().cloned().collect() };
        let name = table.name.get_ref();
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || !name.chars().all(is_of_name) {
            return Err(file.wrong(&table.name, "name", "letters, digits, `-`, `_` and `.`", &format!("{name:?}")));
        }
        if let Some(chat) =
            table.chat.as_ref().filter(|chat| !["harmony", "template"].contains(&chat.get_ref().as_str()))
        {
            return Err(file.wrong(chat, "chat", "\"harmony\" or \"template\"", &format!("{:?}", chat.get_ref())));
        }
        let has_default = |name: &String| table.dims[name].get_ref().default.is_some();
        let given: Vec<String> = file.dims.iter().filter(|name| !has_default(name)).cloned().collect();
        let heads = ["num_attention_heads", "num_key_value_heads", "head_dim"];
        let has_attention = table.forward.layer.get_ref().contains(super::check::ATTENTION)
            || table.forward.other.iter().any(|other| other.layer.get_ref().contains(super::check::ATTENTION));
        let needed = super::NEEDED.into_iter().chain(heads.into_iter().filter(|_| has_attention));
        if let Some(missing) = needed.into_iter().find(|needed| !file.dims.iter().any(|dim| dim == needed)) {
            return Err(file.wrong(&table.name, "dims", &format!("a dimension `{missing}`"), "none"));
        }
        let dims = in_order(&table.dims).map(|(name, dim)| file.dim(name, dim, &given));
        let dims: Vec<Dim> = dims.collect::<Result<_, _>>()?;
        let numbers = in_order(&table.numbers).map(|(name, number)| file.number(name, number));
        let numbers: Vec<Number> = numbers.collect::<Result<_, _>>()?;
        let rope = file.rope(&table.rope, &numbers)?;
        let facts = table.facts.iter().map(|(name, fact)| {
            let expression = file.expression(fact.get_ref(), fact)?;
            match file.dims.contains(name) || numbers.iter().any(|number| number.name == *name) || name == "layer" {
                true => Err(file.wrong(fact, name, "a name of its own", "one that is taken")),
                false => Ok((name.clone(), expression)),
            }
        });
        let facts: BTreeMap<String, Expression> = facts.collect::<Result<_, FamilyError>>()?;
        let expected = |table: &BTreeMap<String, Spanned<ExpectedTable>>, is_json| {
            let one = |(key, expected)| Ok((String::clone(key), file.expected(key, expected, is_json)?));
            table.iter().map(one).collect::<Result<BTreeMap<_, _>, FamilyError>>()
        };
        let shapes = table.shapes.iter().map(|(name, shape)| file.shape(name, shape, &dims, &numbers));
        let tensors: Vec<FamilyTensor> =
            table.tensor.iter().map(|tensor| file.tensor(tensor)).collect::<Result<_, _>>()?;
        file.no_two_alike(&table.tensor, &tensors)?;
        let forward = file.forward(&table.forward, &tensors, &facts, &numbers)?;
        Ok(Self {
            expected_in_json: expected(&table.expect.json, true)?,
            expected_in_gguf: expected(&table.expect.gguf, false)?,
            shapes: shapes.collect::<Result<_, _>>()?,
            model_types: table.model_type.list(),
            architectures: table.architecture.list(),
            chat: table.chat.map(Spanned::into_inner),
            name: table.name.into_inner(),
            path: path.to_owned(),
            dims,
            numbers,
            facts,
            rope,
            tensors,
            forward,
        })
    }
}

/// The entries of a table in the order of the file.
fn in_order<T>(table: &BTreeMap<String, Spanned<T>>) -> impl Iterator<Item = (&String, &Spanned<T>)> {
    let mut entries: Vec<(&String, &Spanned<T>)> = table.iter().collect();
    entries.sort_by_key(|(_, entry)| entry.span().start);
    entries.into_iter()
}

fn place(source: &SourceFile, span: Range<usize>) -> Place {
    Place { file: source.name.clone(), line: source.place_at(span.start).line }
}

/// The file that is read, for places in it.
struct File {
    source: SourceFile,
    /// The names that its expressions may use.
    dims: Vec<String>,
}

impl File {
    fn wrong<T>(&self, at: &Spanned<T>, item: &str, expected: &str, found: &str) -> FamilyError {
        FamilyError::at(&place(&self.source, at.span()), item, expected, found)
    }

    /// An expression over the dimensions, which stands at `at`.
    fn expression<T>(&self, text: &str, at: &Spanned<T>) -> Result<Expression, FamilyError> {
        self.expression_of(text, at, &self.dims)
    }

    /// An expression over these names.
    fn expression_of<T>(&self, text: &str, at: &Spanned<T>, names: &[String]) -> Result<Expression, FamilyError> {
        let expression = Expression::parse(text, place(&self.source, at.span()))?;
        match expression.names().iter().find(|name| !names.contains(name)) {
            None => Ok(expression),
            Some(name) => {
                let expected = format!("one of {}", names.join(", "));
                Err(self.wrong(at, text, &expected, &format!("`{name}`")))
            }
        }
    }

    /// The same of a layer: its number is a name too.
    fn condition_of_layer(&self, text: &Spanned<String>) -> Result<Expression, FamilyError> {
        let names: Vec<String> = self.dims.iter().cloned().chain(["layer".to_owned()]).collect();
        self.expression_of(text.get_ref(), text, &names)
    }

    fn whole(&self, table: &Option<Spanned<Whole>>, names: &[String]) -> Result<Option<Expression>, FamilyError> {
        let Some(at) = table else { return Ok(None) };
        let text = match at.get_ref() {
            Whole::Number(number) => number.to_string(),
            Whole::Text(text) => text.clone(),
        };
        self.expression_of(&text, at, names).map(Some)
    }

    fn rope(&self, table: &Spanned<RopeTable>, numbers: &[Number]) -> Result<Rope, FamilyError> {
        let RopeTable { theta, dim, scaling, factor, low, high, original, divisors } = table.get_ref();
        let number = |name: &String| match numbers.iter().any(|number| number.name == *name) {
            true => Ok(name.clone()),
            false => Err(self.wrong(table, name, "one of the [numbers]", "no such name")),
        };
        let dimension = |name: &String| match self.dims.contains(name) {
            true => Ok(name.clone()),
            false => Err(self.wrong(table, name, "one of the [dims]", "no such name")),
        };
        let scaling = match (scaling, factor, original, low, high) {
            (ScalingName::None, None, None, None, None) => RopeScaling::None,
            (ScalingName::Yarn, Some(factor), Some(original), None, None) => {
                RopeScaling::Yarn { factor: number(factor)?, original: dimension(original)? }
            }
            (ScalingName::Llama3, Some(factor), Some(original), Some(low), Some(high)) => RopeScaling::Llama3 {
                factor: number(factor)?,
                low: number(low)?,
                high: number(high)?,
                original: dimension(original)?,
            },
            _ => {
                let expected = "`scaling = \"yarn\"` with `factor` and `original`, `\"llama3\"` with these, `low` and \
                                `high`, or none of them";
                return Err(self.wrong(table, "rope", expected, "something else"));
            }
        };
        Ok(Rope { theta: number(theta)?, dim: dimension(dim)?, scaling, divisors: divisors.clone() })
    }

    fn forward(
        &self,
        table: &ForwardTable,
        tensors: &[FamilyTensor],
        facts: &BTreeMap<String, Expression>,
        numbers: &[Number],
    ) -> Result<Forward, FamilyError> {
        let in_layers = || tensors.iter().filter(|tensor| tensor.per_layer);
        let names = |is_needed: fn(&FamilyTensor) -> bool| Names {
            tensors: in_layers().collect(),
            needed: in_layers().filter(|tensor| is_needed(tensor)).collect(),
            dims: self.dims.iter().chain(facts.keys()).cloned().collect(),
            numbers: numbers.iter().map(|number| number.name.clone()).collect(),
        };
        let read = |text: &Spanned<String>, names: &Names| {
            let mut first = place(&self.source, text.span());
            // TOML leaves out a newline right behind the quotes.
            first.line += usize::from(self.source.text[text.span()].get(3..4) == Some("\n"));
            layer::read(text.get_ref(), &first, names)
        };
        // A tensor of some layers alone may be used by some layers alone.
        let of_all = names(if table.other.is_empty() { |_| true } else { |tensor| tensor.when.is_none() });
        let of_some = names(|_| false);
        let layer: Vec<Statement> = read(&table.layer, &of_all)?;
        let behind = || tensors.iter().filter(|tensor| !tensor.per_layer);
        let of_last = Names { tensors: behind().collect(), needed: Vec::new(), ..names(|_| false) };
        let last = read(&table.last, &of_last)?;
        let other = |other: &OtherLayer| Ok((self.condition_of_layer(&other.when)?, read(&other.layer, &of_some)?));
        Ok(Forward { layer, others: table.other.iter().map(other).collect::<Result<_, FamilyError>>()?, last })
    }

    /// - `given`: the dimensions that have no default
    fn dim(&self, name: &str, table: &Spanned<DimTable>, given: &[String]) -> Result<Dim, FamilyError> {
        let &DimTable { min, max, null, ref json, ref gguf, ref gguf_lacks, ref gguf_has, .. } = table.get_ref();
        let DimTable { default, at_most, multiple_of, .. } = table.get_ref();
        // Shapes are products of a few, in 64 bits.
        if max > MAX_LAYERS && name == "num_hidden_layers" {
            return Err(self.wrong(table, name, &format!("a `max` of {MAX_LAYERS} at most"), &max.to_string()));
        }
        if min < 0 || max < min || max >= 1 << 31 {
            let found = format!("{min} to {max}");
            return Err(self.wrong(table, name, "a range from 0 or more to less than 2^31", &found));
        }
        if null.is_some_and(|null| !(min..=max).contains(&null)) {
            return Err(self.wrong(table, name, "a `null` in its range", &format!("{}", null.unwrap_or_default())));
        }
        Ok(Dim {
            name: name.to_owned(),
            min,
            max,
            json: json.list(),
            gguf: gguf.list(),
            gguf_lacks: gguf_lacks.clone(),
            gguf_has: gguf_has.clone(),
            null,
            default: self.whole(default, given)?,
            at_most: self.whole(at_most, &self.dims)?,
            multiple_of: self.whole(multiple_of, &self.dims)?,
        })
    }

    fn number(&self, name: &str, table: &Spanned<NumberTable>) -> Result<Number, FamilyError> {
        let &NumberTable { above, default, ref json, ref gguf } = table.get_ref();
        if self.dims.iter().any(|dim| dim == name) {
            return Err(self.wrong(table, name, "a name that no dimension has", "it a second time"));
        }
        if !above.is_finite() {
            return Err(self.wrong(table, name, "an `above` that is a number", &above.to_string()));
        }
        if let Some(default) = default
            && !(default.is_finite() && default > f64::from(above))
        {
            return Err(self.wrong(table, name, &format!("a `default` above {above}"), &default.to_string()));
        }
        Ok(Number { name: name.to_owned(), above, json: json.list(), gguf: gguf.list(), default })
    }

    /// GGUF has numbers alone, so a text there is an expression.
    fn expected(&self, key: &str, table: &Spanned<ExpectedTable>, is_json: bool) -> Result<Expected, FamilyError> {
        Ok(match table.get_ref() {
            ExpectedTable::Text(text) if is_json => Expected::Text(text.clone()),
            ExpectedTable::Text(text) => Expected::Dims(self.expression(text, table)?),
            ExpectedTable::Flag(flag) if is_json => Expected::Flag(*flag),
            ExpectedTable::Flag(flag) => {
                return Err(self.wrong(table, key, "a number, or an expression in quotes", &flag.to_string()));
            }
            ExpectedTable::Number(number) => Expected::Number(*number),
        })
    }

    fn shape(
        &self,
        name: &str,
        table: &Spanned<BTreeMap<String, Spanned<f64>>>,
        dims: &[Dim],
        numbers: &[Number],
    ) -> Result<Shape, FamilyError> {
        let values = table.get_ref();
        let is_dim = |name: &String| self.dims.contains(name);
        let is_number = |name: &String| numbers.iter().any(|number| number.name == *name);
        let given_dims = dims.iter().filter(|dim| dim.default.is_none()).map(|dim| &dim.name);
        let given_numbers = numbers.iter().filter(|number| number.default.is_none()).map(|number| &number.name);
        let needed = given_dims.chain(given_numbers);
        if let Some(missing) = needed.into_iter().find(|needed| !values.contains_key(*needed)) {
            return Err(self.wrong(table, name, &format!("`{missing}`"), "none"));
        }
        for (key, value) in values {
            if !is_dim(key) && !is_number(key) {
                return Err(self.wrong(value, key, "a dimension or a number of the family", "another name"));
            }
            let found = *value.get_ref();
            if let Some(dim) = dims.iter().find(|dim| dim.name == *key)
                && (found.fract() != 0.0 || !(dim.min as f64..=dim.max as f64).contains(&found))
            {
                let expected = format!("a whole number from {} to {}", dim.min, dim.max);
                return Err(self.wrong(value, key, &expected, &found.to_string()));
            }
            if let Some(number) = numbers.iter().find(|number| number.name == *key)
                && !(found.is_finite() && found > f64::from(number.above))
            {
                return Err(self.wrong(value, key, &format!("a number above {}", number.above), &found.to_string()));
            }
        }
        let values = values.iter().map(|(name, value)| (name.clone(), *value.get_ref())).collect();
        Ok(Shape { name: name.to_owned(), values })
    }

    fn tensor(&self, table: &TensorTable) -> Result<FamilyTensor, FamilyError> {
        let name = table.name.get_ref();
        let shape: Vec<Expression> =
            table.shape.get_ref().iter().map(|n| self.expression(n.get_ref(), n)).collect::<Result<_, _>>()?;
        if shape.is_empty() || table.experts && shape.len() != 3 {
            let expected = if table.experts { "three dimensions of `experts`" } else { "at least one dimension" };
            return Err(self.wrong(&table.shape, name, expected, &shape.len().to_string()));
        }
        let stack = table.stack.as_ref().map(|stack| self.stack(name, stack, shape.len())).transpose()?;
        let spelled = |format| match table.spelled(format) {
            None => Ok(Spelled::Same(name.clone())),
            Some(spelled) => self.spelled(name, spelled, shape.len(), stack.as_ref()),
        };
        let [openai, hf, gguf, ollama] = NamingScheme::ALL.map(spelled);
        let spelled = [openai?, hf?, gguf?, ollama?];
        let draw = table.draw.as_ref().map_or(Ok(Draw::Matrix), |draw| self.draw(name, draw))?;
        let pairs = table.pairs.as_ref().map(|pairs| {
            let names = match &spelled[NamingScheme::Gguf as usize] {
                Spelled::Same(name) | Spelled::Transposed(name) => std::slice::from_ref(name),
                Spelled::Stacked(names) => names,
            };
            match pairs.get_ref().gguf.iter().find(|name| !names.contains(name)) {
                Some(other) => Err(self.wrong(pairs, name, "names that `gguf` has", &format!("`{other}`"))),
                None => Ok(Pairs {
                    gguf: pairs.get_ref().gguf.clone(),
                    rows: self.expression(&pairs.get_ref().rows, pairs)?,
                }),
            }
        });
        let pairs = pairs.transpose()?;
        let (per_layer, is_expert, is_exact, cut) = (table.layer, table.experts, table.exact, table.cut);
        let when = table.when.as_ref().map(|when| match per_layer {
            true => self.condition_of_layer(when),
            false => self.expression(when.get_ref(), when),
        });
        let when = when.transpose()?;
        let name = name.clone();
        Ok(FamilyTensor { name, per_layer, is_expert, is_exact, when, shape, spelled, stack, pairs, cut, draw })
    }

    /// Checks that no name stands for two tensors, neither here nor in any format.
    fn no_two_alike(&self, tables: &[TensorTable], tensors: &[FamilyTensor]) -> Result<(), FamilyError> {
        let mut names = HashSet::new();
        for TensorTable { name, .. } in tables {
            if !names.insert(name.get_ref()) {
                return Err(self.wrong(name, name.get_ref(), "a name that no other tensor has", "it a second time"));
            }
        }
        for format in NamingScheme::ALL {
            let mut owners = HashMap::new();
            for (table, tensor) in tables.iter().zip(tensors) {
                let names = match tensor.spelled(format) {
                    Spelled::Same(name) | Spelled::Transposed(name) => std::slice::from_ref(name),
                    Spelled::Stacked(names) => names,
                };
                for stored in names {
                    let Some(owner) = owners.insert((tensor.per_layer, stored), &tensor.name) else { continue };
                    let expected = "stored names that no other tensor has";
                    let found = format!("`{stored}`, which `{owner}` has");
                    return Err(match table.spelled(format) {
                        Some(at) => self.wrong(at, &tensor.name, expected, &found),
                        None => self.wrong(&table.name, &tensor.name, expected, &found),
                    });
                }
            }
        }
        Ok(())
    }

    fn stack(&self, name: &str, stack: &Spanned<StackTable>, n_dims: usize) -> Result<Stack, FamilyError> {
        match stack.get_ref() {
            StackTable::Rows(rows) => {
                Ok(Stack::Rows(rows.iter().map(|n| self.expression(n, stack)).collect::<Result<_, _>>()?))
            }
            StackTable::Word(word) if word == "in turn" && n_dims > 1 => Ok(Stack::InTurn),
            StackTable::Word(word) if word == "in turn" => {
                Err(self.wrong(stack, name, "two dimensions or more: rows in turn are those of the second", "one"))
            }
            StackTable::Word(word) => {
                Err(self.wrong(stack, name, "a list of numbers of rows, or \"in turn\"", &format!("{word:?}")))
            }
        }
    }

    fn spelled(
        &self,
        name: &str,
        spelled: &Spanned<SpelledTable>,
        n_dims: usize,
        stack: Option<&Stack>,
    ) -> Result<Spelled, FamilyError> {
        match spelled.get_ref() {
            SpelledTable::Same(stored) => Ok(Spelled::Same(stored.clone())),
            SpelledTable::Transposed(Transposed { transposed }) if n_dims > 1 => {
                Ok(Spelled::Transposed(transposed.clone()))
            }
            SpelledTable::Transposed(_) => Err(self.wrong(spelled, name, "two dimensions to swap", "one")),
            SpelledTable::Stacked(stored) => match stack {
                None => Err(self.wrong(spelled, name, "`stack`, which says how these are put together", "none")),
                Some(Stack::Rows(rows)) if rows.len() != stored.len() => {
                    let expected = format!("{} names, as `stack` has numbers of rows", rows.len());
                    Err(self.wrong(spelled, name, &expected, &stored.len().to_string()))
                }
                Some(_) if stored.len() < 2 => Err(self.wrong(spelled, name, "two names or more", "fewer")),
                Some(_) => Ok(Spelled::Stacked(stored.clone())),
            },
        }
    }

    fn draw(&self, name: &str, draw: &Spanned<DrawTable>) -> Result<Draw, FamilyError> {
        let positive = |number: f32| number.is_finite() && number > 0.0;
        match *draw.get_ref() {
            DrawTable { centre: None, reach: None, deviation: Some(deviation) } if positive(deviation) => {
                Ok(Draw::Deviation(deviation))
            }
            DrawTable { centre, reach: Some(reach), deviation: None }
                if positive(reach) && centre.is_none_or(f32::is_finite) =>
            {
                Ok(Draw::Around { centre: centre.unwrap_or(0.0), reach })
            }
            _ => Err(self.wrong(
                draw,
                name,
                "`reach` above 0, with `centre` or without, or `deviation` above 0 alone",
                "another `draw`",
            )),
        }
    }
}

/// Layers are gone through one by one.
const MAX_LAYERS: i64 = 65_536;

/// The formats in the order of [`FamilyTensor::spelled`].
const _: () = assert!(
    NamingScheme::OpenAi as usize == 0
        && NamingScheme::HuggingFace as usize == 1
        && NamingScheme::Gguf as usize == 2
        && NamingScheme::Ollama as usize == 3
);

#[cfg(test)]
mod tests;
