//! Integration tests, one binary: a folder per room, as in `src`.

mod architecture;
mod chat_format;
mod checkpoint;
mod cli;
mod device;
mod engine;
mod fixtures;
mod graph;
mod hints;
mod object;
mod project_files;
mod serve;
mod template;
mod tokenizer;
mod trial;
mod workbench;
