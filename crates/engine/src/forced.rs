//! Teacher-forced logits, and the logits of each device, for comparisons.

use bytemuck::cast_slice;

use super::{Engine, EngineError};
use crate::plan::executor::Observer;
use crate::scheduler::{BlockTables, Row, RowToken, Step};

/// A text on its way through a model.
pub struct Forced<'a> {
    engine: &'a mut Engine,
    ids: &'a [u32],
    /// The first position whose logits are wanted.
    first: usize,
    /// The first position that has not run.
    at: usize,
    /// (rows of the last step, vocab_size)  f32
    logits: Vec<f32>,
}

impl Engine {
    /// The logits after every token of `ids`, (ids.len(), vocab_size), row-major: each token is forwarded as given,
    /// whatever the model would have said. Runs between requests, in a slot of its own.
    ///
    /// # Errors
    /// [`EngineError::Prompt`], [`EngineError::Plan`].
    pub fn teacher_force(&mut self, ids: &[u32], mut observer: Option<Observer<'_>>) -> Result<Vec<f32>, EngineError> {
        let mut logits = Vec::with_capacity(ids.len() * self.config.vocab_size);
        let mut forced = self.forced(ids, 0)?;
        while let Some(rows) = forced.next_rows(observer.as_mut().map(|observe| &mut **observe as Observer<'_>))? {
            logits.extend_from_slice(rows);
        }
        Ok(logits)
    }

    /// The same piece by piece, for texts whose logits no memory holds, and only the logits after the tokens from
    /// position `first` on.
    ///
    /// # Errors
    /// [`EngineError::Prompt`], [`EngineError::Plan`].
    pub fn forced<'a>(&'a mut self, ids: &'a [u32], first: usize) -> Result<Forced<'a>, EngineError> {
        self.room_behind(ids)?;
        assert!(self.is_idle(), "teacher forcing uses slot 0");
        self.tables_written = false;
        self.scheduler.forget_prefixes();
        // The scheduler makes a request's rows; here many of them want logits, so they are made by hand.
        let mut tables = BlockTables::new(&self.layout);
        assert!(tables.grow(0, ids.len()), "one sequence of full capacity always fits");
        for group in 0..self.layout.groups().len() {
            self.executor.write(&format!("block_table.{group}"), cast_slice(tables.table(group)))?;
        }
        Ok(Forced { engine: self, ids, first: first.min(ids.len()), at: 0, logits: Vec::new() })
    }

    /// The logits that each device of a model that several compute has of the last step, in their order: all have the
    /// same, to the bit.
    ///
    /// # Errors
    /// [`EngineError::Plan`].
    pub fn logits_of_all_devices(&self, n_rows: usize) -> Result<Vec<Vec<u8>>, EngineError> {
        Ok(self.executor.read_all("logits", 4 * n_rows * self.config.vocab_size)?)
    }
}

impl Forced<'_> {
    /// Logits after the next tokens, (tokens, vocab_size), row-major, of so many tokens as the engine gives logits for
    /// in a step; `None` after the last token.
    ///
    /// # Errors
    /// [`EngineError::Plan`].
    pub fn next_rows(&mut self, mut observer: Option<Observer<'_>>) -> Result<Option<&[f32]>, EngineError> {
        while self.at < self.first {
            self.step(self.first, observer.as_mut().map(|observe| &mut **observe as Observer<'_>))?;
        }
        if self.at == self.ids.len() {
            return Ok(None);
        }
        self.step(self.ids.len(), observer)?;
        Ok(Some(&self.logits))
    }

    /// Runs the next tokens before `end`. Those from `first` on have logits, which are read.
    fn step(&mut self, end: usize, observer: Option<Observer<'_>>) -> Result<(), EngineError> {
        let chunk = &self.ids[self.at..end.min(self.at + self.engine.max_logit_rows)];
        let row =
            |(i, &token): (usize, &u32)| Row { slot: 0, position: (self.at + i) as u32, token: RowToken::Id(token) };
        let rows = chunk.iter().enumerate().map(row).collect();
        let wants_logits = self.at >= self.first;
        let step = if wants_logits { Step::with_all_logits(rows) } else { Step { rows, ..Step::default() } };
        let _waiting = self.engine.waits_for(chunk.len());
        self.engine.write_rows(&step)?;
        self.engine.executor.run(step.shape(), observer)?;
        self.at += chunk.len();
        if wants_logits {
            self.logits.resize(chunk.len() * self.engine.config.vocab_size, 0.0);
            self.engine.executor.first().read("logits", 0, bytemuck::cast_slice_mut(&mut self.logits))?;
        }
        Ok(())
    }
}
