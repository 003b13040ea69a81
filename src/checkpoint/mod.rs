//! Checkpoints: files in, named tensors out.
