//! OpenAI's harmony chat format.
