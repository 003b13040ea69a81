//! Templates and contracts: what they may say, and what becomes of it.

mod commands;
pub mod contracts;
pub mod own_templates;
