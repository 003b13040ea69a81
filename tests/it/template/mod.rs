//! Templates and contracts: what they may say, and what becomes of it.

pub mod contracts;
pub mod lib_names;
pub mod own_templates;
pub mod rendering;
