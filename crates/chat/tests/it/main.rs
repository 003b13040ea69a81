//! Tests of what models write and read, and of grammars, that need no program.

extern crate gptoss_jit_chat as chat;

mod grammar;
mod parser;
mod prompts;
