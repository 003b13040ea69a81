//! Models that are data: families as files ([`family`]), the dimensions of one ([`config`]), its weights whatever file
//! they are in ([`checkpoint`]), and its [`tokenizer`]; [`hub`] finds a model by its id, and [`built_in`] is the
//! program's own.

pub mod built_in;
pub mod checkpoint;
pub mod config;
pub mod family;
pub mod hub;
pub mod tokenizer;
