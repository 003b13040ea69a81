//! The tensors of a family's file.

use std::collections::{HashMap, HashSet};

use toml::Spanned;

use super::File;
use super::tables::{DrawTable, OffsetTable, PairsTable, SpelledTable, StackTable, TensorTable, Transposed};
use crate::family::tensor::EXPERT;
use crate::family::{Draw, FamilyError, FamilyTensor, NamingScheme, Pairs, Spelled, Stack};
use expression::Expression;

impl File {
    pub(super) fn tensor(&self, table: &TensorTable) -> Result<FamilyTensor, FamilyError> {
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
            Some(at) => {
                let spelled = self.spelled(name, at, shape.len(), stack.as_ref())?;
                let n_each = spelled.names().iter().filter(|name| name.contains(EXPERT)).count();
                let is_whole = matches!((&spelled, &stack), (Spelled::Same(_), _) | (_, Some(Stack::InTurn)));
                match n_each == 0 || table.experts && is_whole && n_each == spelled.names().len() {
                    true => Ok(spelled),
                    false => {
                        let expected = "`{e}` in all names or in none, of `experts`, alone or \"in turn\"";
                        Err(self.wrong(at, name, expected, "another spelling"))
                    }
                }
            }
        };
        let [openai, hf, gguf, fused] = NamingScheme::ALL.map(spelled);
        let spelled = [openai?, hf?, gguf?, fused?];
        let draw = table.draw.as_ref().map_or(Ok(Draw::Matrix), |draw| self.draw(name, draw))?;
        let pairs = table.pairs.as_ref().map(|pairs| self.pairs(name, pairs, &spelled)).transpose()?;
        let offset = table.offset.as_ref().map_or(Ok([None; 4]), |offset| self.offset(name, offset, shape.len()))?;
        let (per_layer, is_expert, is_exact, cut) = (table.layer, table.experts, table.exact, table.cut);
        let when = table.when.as_ref().map(|when| match per_layer {
            true => self.condition_of_layer(when),
            false => self.expression(when.get_ref(), when),
        });
        let when = when.transpose()?;
        let name = name.clone();
        Ok(FamilyTensor { name, per_layer, is_expert, is_exact, when, shape, spelled, stack, pairs, offset, cut, draw })
    }

    fn pairs(&self, name: &str, pairs: &Spanned<PairsTable>, spelled: &[Spelled]) -> Result<Pairs, FamilyError> {
        let PairsTable { hf, gguf, rows, rotated } = pairs.get_ref();
        for (given, format, key) in [(hf, NamingScheme::HuggingFace, "hf"), (gguf, NamingScheme::Gguf, "gguf")] {
            let names = spelled[format as usize].names();
            if let Some(other) = given.iter().find(|name| !names.contains(name)) {
                return Err(self.wrong(pairs, name, &format!("names that `{key}` has"), &format!("`{other}`")));
            }
        }
        let rotated = self.expression(rotated.as_ref().unwrap_or(rows), pairs)?;
        Ok(Pairs { hf: hf.clone(), gguf: gguf.clone(), rows: self.expression(rows, pairs)?, rotated })
    }

    /// In the order of the formats. Sums of what is in blocks would be in none.
    fn offset(
        &self,
        name: &str,
        offset: &Spanned<OffsetTable>,
        n_dims: usize,
    ) -> Result<[Option<f32>; 4], FamilyError> {
        let OffsetTable { hf, gguf } = *offset.get_ref();
        let is_finite = [hf, gguf].into_iter().flatten().all(f32::is_finite);
        match n_dims == 1 && is_finite {
            true => Ok([None, hf, gguf, gguf]),
            false => Err(self.wrong(offset, name, "numbers, of a tensor of one dimension", "others")),
        }
    }

    /// Checks that no name stands for two tensors, neither here nor in any format.
    pub(super) fn no_two_alike(&self, tables: &[TensorTable], tensors: &[FamilyTensor]) -> Result<(), FamilyError> {
        let mut names = HashSet::new();
        for TensorTable { name, .. } in tables {
            if !names.insert(name.get_ref()) {
                return Err(self.wrong(name, name.get_ref(), "a name that no other tensor has", "it a second time"));
            }
        }
        for format in NamingScheme::ALL {
            let mut owners = HashMap::new();
            for (table, tensor) in tables.iter().zip(tensors) {
                for stored in tensor.names(format) {
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

/// The formats in the order of [`FamilyTensor::spelled`].
const _: () = assert!(
    NamingScheme::OpenAi as usize == 0
        && NamingScheme::HuggingFace as usize == 1
        && NamingScheme::Gguf as usize == 2
        && NamingScheme::Fused as usize == 3
);
