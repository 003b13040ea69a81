//! What an op is (`op.toml`) and what a template says of itself (front matter).
