//! Text to ids and back, and chats.

pub mod chat;
mod chat_template;
pub mod encoding;
pub mod outputs;
mod parser;
mod prompts;
mod smollm2;
pub mod tokenizer_choice;
mod ways;
