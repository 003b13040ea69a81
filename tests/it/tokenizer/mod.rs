//! Text to ids and back, and chats.

pub mod chat;
mod chat_template;
pub mod encoding;
mod smollm2;
mod strings;
pub mod tokenizer_choice;
mod ways;
