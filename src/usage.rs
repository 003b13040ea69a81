//! Errors of usage, which exit with code 2.

/// Flags that parse one by one and make no sense together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub String);
