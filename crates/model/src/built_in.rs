//! The program's own model, for a library in another process.
//!
//! A package has both a program and a library. Only the program contains the model's files; the library asks for them.

use std::io;
use std::path::Path;

use bytes::Bytes;

use system::bounded_process::{self, BoundedError};

/// The hidden command that gives a file of the model: [`answer`].
pub const COMMAND: &str = "__built-in-model";

/// A file of the built-in model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuiltInFile {
    Model,
    Tokenizer,
}

impl BuiltInFile {
    const ALL: [Self; 2] = [Self::Model, Self::Tokenizer];

    fn name(self) -> &'static str {
        match self {
            Self::Model => "model.bin",
            Self::Tokenizer => "tokenizer.bin",
        }
    }

    /// Asks `program` for the file. When its only argument is [`COMMAND`], `program` calls [`answer`].
    ///
    /// # Errors
    /// The program cannot be started, or does not know the command.
    pub fn ask(self, program: &Path) -> Result<Bytes, BoundedError> {
        bounded_process::run(program, COMMAND, self.name().as_bytes()).map(Bytes::from)
    }
}

/// The program's side: reads a file's name from stdin and writes the file to stdout. An unknown name has no bytes.
///
/// # Errors
/// The name cannot be read, or the file not be written.
pub fn answer(file: impl Fn(BuiltInFile) -> &'static [u8] + Sync) -> io::Result<()> {
    bounded_process::answer(|name| {
        let asked = BuiltInFile::ALL.into_iter().find(|file| file.name().as_bytes() == name);
        asked.map_or_else(Vec::new, |asked| file(asked).to_vec())
    })
}
