//! The files that are built into the program, listed by `build.rs`: path below the folder, and text.

/// The files of `templates/`.
pub const TEMPLATES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// The files of `tuning/`.
pub const TUNING: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/tuning.rs"));

/// The files of `models/`.
pub const MODELS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/models.rs"));
