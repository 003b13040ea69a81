//! The built-in files, listed by the build script (path below the folder, and text), and places in files of these
//! kinds.

mod source_file;

pub use source_file::{Origin, Place, SourceFile};

/// The files of `templates/`.
pub const TEMPLATES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// The files of `tuning/`.
pub const TUNING: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/tuning.rs"));

/// The files of `models/`.
pub const MODELS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/models.rs"));

/// The files of `chats/`.
pub const CHATS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/chats.rs"));
