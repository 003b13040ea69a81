//! What was asked for and makes no sense.

/// Flags that parse one by one and make no sense together.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub String);
