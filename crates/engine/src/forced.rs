//! Logits themselves, for comparing: of tokens that are given, and of each device.

use bytemuck::cast_slice;

use super::{Engine, EngineError};
use crate::plan::executor::Observer;
use crate::scheduler::{BlockTables, Row, RowToken, Step};

impl Engine {
    /// The logits after every token of `ids`, (ids.len(), vocab_size), row-major: each token is forwarded as given,
    /// whatever the model would have said. Runs between requests, in a slot of its own.
    ///
    /// # Errors
    /// [`EngineError::Prompt`], [`EngineError::Plan`].
    pub fn teacher_force(&mut self, ids: &[u32], mut observer: Option<Observer<'_>>) -> Result<Vec<f32>, EngineError> {
        self.room_behind(ids)?;
        assert!(self.is_idle(), "teacher forcing uses slot 0");
        self.tables_written = false;
        self.scheduler.forget_prefixes();
        // The scheduler makes a request's rows; here all of them want logits, so they are made by hand.
        let mut tables = BlockTables::new(&self.layout);
        assert!(tables.grow(0, ids.len()), "one sequence of full capacity always fits");
        for group in 0..self.layout.groups().len() {
            self.executor.write(&format!("block_table.{group}"), cast_slice(tables.table(group)))?;
        }
        let mut logits = vec![0.0_f32; ids.len() * self.config.vocab_size];
        for first in (0..ids.len()).step_by(self.max_logit_rows) {
            let chunk = &ids[first..ids.len().min(first + self.max_logit_rows)];
            let row =
                |(i, &token): (usize, &u32)| Row { slot: 0, position: (first + i) as u32, token: RowToken::Id(token) };
            let step = Step::with_all_logits(chunk.iter().enumerate().map(row).collect());
            let _waiting = self.waits_for(chunk.len());
            self.write_rows(&step)?;
            self.executor.run(step.shape(), observer.as_mut().map(|observe| &mut **observe as Observer<'_>))?;
            let part = &mut logits[first * self.config.vocab_size..][..chunk.len() * self.config.vocab_size];
            self.executor.first().read("logits", bytemuck::cast_slice_mut(part))?;
        }
        Ok(logits)
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
