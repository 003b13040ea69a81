//! Worker processes around the compilers.
