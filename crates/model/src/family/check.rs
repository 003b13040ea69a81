//! Checks of a family that need a model's dimensions: every expression has a value, pieces make up their tensors, and
//! layers keep what they read.

use std::sync::Arc;

use super::layer::{Operand, Statement};
use super::{Expected, Family, FamilyError, FamilyTensor, NamingScheme, RopeScaling, Stack, in_layer};
use data::Place;
use expression::Scope;

/// The op whose layers keep the keys and values of positions.
pub(crate) const ATTENTION: &str = "attention";
/// The op that multiplies rows by a matrix.
pub(super) const LINEAR: &str = "linear";
/// The op that stores them.
pub(super) const ROPE_KV: &str = "rope_kv";

/// Its rows are looked up for every token: `(vocab_size, hidden_size)`.
pub const EMBEDDING: &str = "embedding.weight";
/// Its rows are multiplied by the last norm: `(vocab_size, hidden_size)`.
pub const UNEMBEDDING: &str = "unembedding.weight";

impl Family {
    /// Whether a model of these dimensions (and what is computed of them) can be made of the family.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line.
    pub(crate) fn check(&self, dims: &Arc<Scope>, n_layers: usize) -> Result<(), FamilyError> {
        let in_layers: Vec<Arc<Scope>> = (0..n_layers).map(|l| Arc::new(in_layer(dims, l))).collect();
        for tensor in &self.tensors {
            if let Some(when) = &tensor.when {
                let scopes = if tensor.per_layer { &in_layers[..] } else { std::slice::from_ref(dims) };
                scopes.iter().try_for_each(|scope| when.holds(scope).map(|_| ()))?;
            }
            tensor.check(dims)?;
        }
        for expected in self.expected_in_gguf.values() {
            if let Expected::Dims(expression) = expected {
                expression.whole(dims)?;
            }
        }
        for rope in &self.ropes {
            let most = dims.get("head_dim").and_then(|dim| u32::try_from(dim).ok()).unwrap_or(u32::MAX);
            let found = rope.dim.whole_u32(dims)?;
            // YaRN's factor is on all cosines, and those of what does not rotate must stay 1.
            let is_partial_yarn = matches!(rope.scaling, RopeScaling::Yarn { .. }) && found < most && most < u32::MAX;
            if found == 0 || !found.is_multiple_of(2) || found > most || is_partial_yarn {
                let expected = format!("an even number from 2 to the {most} values of a head, all of them for YaRN");
                return Err(FamilyError::at(rope.dim.place(), "rope", &expected, &found.to_string()));
            }
        }
        for (when, _) in &self.forward.others {
            in_layers.iter().try_for_each(|scope| when.holds(scope).map(|_| ()))?;
        }
        self.check_embeddings(dims)?;
        for (l, scope) in in_layers.iter().enumerate() {
            self.check_state(self.forward.statements(dims, l), scope)?;
        }
        Ok(())
    }

    /// The program itself looks up rows of the one, and multiplies by those of the other.
    fn check_embeddings(&self, dims: &Arc<Scope>) -> Result<(), FamilyError> {
        let size = |name: &str| dims.get(name).and_then(|value| usize::try_from(value).ok()).unwrap_or_default();
        let expected = [size("vocab_size"), size("hidden_size")];
        let place = Place { file: self.path.clone(), line: 0 };
        for (name, is_needed) in [(EMBEDDING, true), (UNEMBEDDING, false)] {
            let tensor = self.tensors.iter().find(|tensor| tensor.name == name);
            let Some(tensor) = tensor.filter(|tensor| !tensor.layers(dims, 1).is_empty()) else {
                match is_needed {
                    true => return Err(FamilyError::at(&place, name, "such a tensor outside of the layers", "none")),
                    false => continue,
                }
            };
            let found = tensor.shape(dims);
            if tensor.per_layer || found != expected {
                let found = if tensor.per_layer { "one in each layer".to_owned() } else { format!("{found:?}") };
                return Err(FamilyError::at(tensor.shape[0].place(), name, &format!("{expected:?}"), &found));
            }
        }
        Ok(())
    }

    /// A layer keeps positions once, and stores them before it reads them.
    fn check_state(&self, statements: &[Statement], scope: &Arc<Scope>) -> Result<(), FamilyError> {
        let (mut stored, mut read) = (0, 0);
        for statement in statements {
            match statement.op.as_str() {
                ROPE_KV => stored += 1,
                ATTENTION => {
                    read += 1;
                    match statement.operand("window") {
                        Some(Operand::Expression(window)) => {
                            window.whole_u32(scope)?;
                        }
                        _ => {
                            let expected = "`window = …`, the positions that are seen, 0 for all";
                            return Err(FamilyError::at(&statement.place, ATTENTION, expected, "none"));
                        }
                    }
                }
                _ => continue,
            }
            if (stored, read) != (1, 0) && (stored, read) != (1, 1) {
                let expected = "one `rope_kv` in a layer, and after it one `attention`";
                return Err(FamilyError::at(&statement.place, &statement.op, expected, "others"));
            }
        }
        Ok(())
    }
}

impl FamilyTensor {
    /// Its shape, and that its pieces make it up.
    fn check(&self, dims: &Arc<Scope>) -> Result<(), FamilyError> {
        for dimension in &self.shape {
            if dimension.whole_u32(dims)? == 0 {
                return Err(FamilyError::at(dimension.place(), &self.name, "dimensions above 0", "0"));
            }
        }
        let rows = self.shape(dims)[0];
        if let Some(Stack::Rows(of_pieces)) = &self.stack {
            let mut sum = 0;
            for of_piece in of_pieces {
                sum += of_piece.whole_u32(dims)? as usize;
            }
            if sum != rows {
                let expected = format!("pieces of {rows} rows together, as `shape` has");
                return Err(FamilyError::at(of_pieces[0].place(), &self.name, &expected, &sum.to_string()));
            }
        }
        let Some(pairs) = &self.pairs else { return Ok(()) };
        let of_head = pairs.rows.whole_u32(dims)? as usize;
        let rotated = pairs.rotated.whole_u32(dims)? as usize;
        if !rotated.is_multiple_of(2) || rotated > of_head {
            let expected = format!("an even number of rows that rotate, at most the {of_head} of a head");
            return Err(FamilyError::at(pairs.rotated.place(), &self.name, &expected, &rotated.to_string()));
        }
        let is_of_heads = |rows: usize| of_head > 0 && of_head.is_multiple_of(2) && rows.is_multiple_of(of_head);
        for format in NamingScheme::ALL {
            let pieces = self.pieces(format, dims);
            if let Some(piece) = pieces.iter().find(|piece| piece.pairs.is_some_and(|pairs| !is_of_heads(pairs.end))) {
                let n_rows = piece.pairs.map_or(0, |pairs| pairs.end);
                let expected = format!("an even number of rows that divides the {n_rows} of `{}`", piece.name);
                return Err(FamilyError::at(pairs.rows.place(), &self.name, &expected, &of_head.to_string()));
            }
        }
        Ok(())
    }
}

/// What a layer says it sees; 0 is all. It was checked.
pub(crate) fn window(statement: &Statement, scope: &Arc<Scope>) -> usize {
    match statement.operand("window") {
        Some(Operand::Expression(window)) => window.whole_u32(scope).unwrap_or_default() as usize,
        _ => 0,
    }
}
