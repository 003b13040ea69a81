//! The gpt-oss forward pass.
