//! Text to ids and back, and chats.

pub mod chat;
pub mod encoding;
pub mod tokenizer_choice;
