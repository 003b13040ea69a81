//! The library face: load a model, submit requests, stream tokens.
