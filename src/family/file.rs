//! A family's file: reading it, and everything that can be checked without a model.

use std::collections::HashSet;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::{Cut, Draw, Family, FamilyError, FamilyTensor, Format, Spelled, Stack};
use crate::config::DIMENSIONS;
use crate::template::expression::Expression;
use crate::template::source_file::{Origin, Place, SourceFile};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FamilyTable {
    name: String,
    tensor: Vec<TensorTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorTable {
    name: Spanned<String>,
    #[serde(default)]
    layer: bool,
    #[serde(default)]
    experts: bool,
    shape: Spanned<Vec<Spanned<String>>>,
    openai: Option<Spanned<SpelledTable>>,
    hf: Option<Spanned<SpelledTable>>,
    gguf: Option<Spanned<SpelledTable>>,
    stack: Option<Spanned<StackTable>>,
    #[serde(default)]
    cut: Cut,
    draw: Option<Spanned<DrawTable>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a name, a list of names, or `{ transposed = NAME }`")]
enum SpelledTable {
    Same(String),
    Stacked(Vec<String>),
    Transposed(Transposed),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transposed {
    transposed: String,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a list of numbers of rows, or \"in turn\"")]
enum StackTable {
    Rows(Vec<String>),
    Word(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DrawTable {
    centre: Option<f32>,
    reach: Option<f32>,
    deviation: Option<f32>,
}

impl Family {
    /// Reads a file; `path` is what it is called in errors.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub fn read(path: &str, text: &str) -> Result<Self, FamilyError> {
        let file = File { source: SourceFile { origin: Origin::BuiltIn, name: path.into(), text: text.into() } };
        let table: FamilyTable = toml::from_str(text).map_err(|error| FamilyError::Toml {
            place: file.place(error.span().unwrap_or(0..0)),
            message: error.message().to_owned(),
        })?;
        let tensors: Vec<FamilyTensor> =
            table.tensor.iter().map(|tensor| file.tensor(tensor)).collect::<Result<_, _>>()?;
        let mut names = HashSet::new();
        for tensor in &table.tensor {
            let name = tensor.name.get_ref();
            if !names.insert(name) {
                return Err(file.wrong(&tensor.name, name, "a name that no other tensor has", "it a second time"));
            }
        }
        Ok(Self { name: table.name, tensors })
    }
}

/// The file that is read, for places in it.
struct File {
    source: SourceFile,
}

impl File {
    fn place(&self, span: Range<usize>) -> Place {
        Place { file: self.source.name.clone(), line: self.source.place_at(span.start).line }
    }

    fn wrong<T>(&self, at: &Spanned<T>, item: &str, expected: &str, found: &str) -> FamilyError {
        FamilyError::Declaration {
            place: self.place(at.span()),
            item: format!("`{item}`"),
            expected: expected.to_owned(),
            found: found.to_owned(),
        }
    }

    /// An expression over the dimensions, which stands at `at`.
    fn expression<T>(&self, text: &str, at: &Spanned<T>) -> Result<Expression, FamilyError> {
        let expression = Expression::parse(text, self.place(at.span()))?;
        match expression.names().iter().find(|name| !DIMENSIONS.contains(&name.as_str())) {
            None => Ok(expression),
            Some(name) => {
                let expected = format!("one of {}", DIMENSIONS.join(", "));
                Err(self.wrong(at, text, &expected, &format!("`{name}`")))
            }
        }
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
        let spelled = |spelled: &Option<Spanned<SpelledTable>>| match spelled {
            None => Ok(Spelled::Same(name.clone())),
            Some(spelled) => self.spelled(name, spelled, shape.len(), stack.as_ref()),
        };
        let spelled = [spelled(&table.openai)?, spelled(&table.hf)?, spelled(&table.gguf)?];
        let draw = table.draw.as_ref().map_or(Ok(Draw::Matrix), |draw| self.draw(name, draw))?;
        let (per_layer, is_expert, cut) = (table.layer, table.experts, table.cut);
        Ok(FamilyTensor { name: name.clone(), per_layer, is_expert, shape, spelled, stack, cut, draw })
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

/// The formats in the order of [`FamilyTensor::spelled`].
const _: () = assert!(Format::OpenAi as usize == 0 && Format::HuggingFace as usize == 1 && Format::Gguf as usize == 2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NamedShape;
    use crate::error::Hint;

    const QKV: &str = r#"
name = "small"

[[tensor]]
name  = "attn.qkv.weight"
layer = true
shape = ["(num_attention_heads + 2 * num_key_value_heads) * head_dim", "hidden_size"]
hf    = ["q.weight", "k.weight", "v.weight"]
gguf  = { transposed = "qkv.weight" }
stack = ["num_attention_heads * head_dim", "num_key_value_heads * head_dim", "num_key_value_heads * head_dim"]
cut   = "head rows"
draw  = { centre = 1.0, reach = 0.5 }
"#;

    #[test]
    fn a_file_says_what_a_tensor_is_in_every_format() {
        let family = Family::read("small.toml", QKV).expect("it is right");
        let (tensor, config) = (family.tensor("attn.qkv.weight"), NamedShape::GptOss20b.config(None));
        assert_eq!(tensor.shape(&config), [5120, 2880]);
        assert_eq!(tensor.pieces(Format::OpenAi, &config), [("attn.qkv.weight", vec![5120, 2880])]);
        let heads = [("q.weight", vec![4096, 2880]), ("k.weight", vec![512, 2880]), ("v.weight", vec![512, 2880])];
        assert_eq!(tensor.pieces(Format::HuggingFace, &config), heads);
        assert_eq!(tensor.pieces(Format::Gguf, &config), [("qkv.weight", vec![2880, 5120])]);
        assert_eq!((tensor.cut, tensor.draw), (Cut::HeadRows, Draw::Around { centre: 1.0, reach: 0.5 }));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (from, to, message) in [
            ("layer = true", "layers = true", "small.toml:6: could not read the family: unknown field `layers`"),
            ("name = \"small\"", "", "small.toml:1: could not read the family: missing field `name`"),
            ("= true", "= maybe", "small.toml:6: could not read the family: "),
            ("\"head rows\"", "\"heads\"", "small.toml:11: could not read the family: unknown variant `heads`"),
            ("hidden_size", "hidden", "small.toml:7: `hidden`: expected one of vocab_size, hidden_size, "),
            ("* head_dim\", \"hidden_size\"]", "/ 2\"]", "small.toml:7: could not evaluate `(num_attention_heads + "),
            (
                "\"k.weight\", ",
                "",
                "small.toml:8: `attn.qkv.weight`: expected 3 names, as `stack` has numbers of rows, found 2",
            ),
            (
                "hf    = [\"q.weight\", \"k.weight\", \"v.weight\"]",
                "hf = 3",
                "small.toml:8: could not read the family: ",
            ),
            (
                "[\"(num_attention_heads + 2 * num_key_value_heads) * head_dim\", \"hidden_size\"]",
                "[\"hidden_size\"]",
                "small.toml:9: `attn.qkv.weight`: expected two dimensions to swap, found one",
            ),
            (
                "reach = 0.5",
                "reach = 0.0",
                "small.toml:12: `attn.qkv.weight`: expected `reach` above 0, with `centre` or",
            ),
            ("centre = 1.0", "deviation = 1.0", "small.toml:12: `attn.qkv.weight`: expected `reach` above 0"),
            (
                "stack = [",
                "stack = \"by turns\" # [",
                "small.toml:10: `attn.qkv.weight`: expected a list of numbers of rows, ",
            ),
            (
                "cut   =",
                "experts = true\ncut =",
                "small.toml:7: `attn.qkv.weight`: expected three dimensions of `experts`, found 2",
            ),
        ] {
            assert!(QKV.contains(from), "{from}");
            let error = Family::read("small.toml", &QKV.replacen(from, to, 1)).expect_err(message);
            assert!(error.to_string().starts_with(message), "{error}");
            assert!(error.hint().is_some());
        }
        let twice = [QKV, QKV.split_once("\n\n").expect("a name first").1].concat();
        let error = Family::read("small.toml", &twice).expect_err("the same name").to_string();
        assert!(
            error.starts_with("small.toml:14: `attn.qkv.weight`: expected a name that no other tensor has"),
            "{error}"
        );
        let without = QKV.lines().filter(|line| !line.starts_with("stack")).collect::<Vec<_>>().join("\n");
        let error = Family::read("small.toml", &without).expect_err("no stack").to_string();
        assert!(error.starts_with("small.toml:8: `attn.qkv.weight`: expected `stack`, which says how"), "{error}");
    }
}
