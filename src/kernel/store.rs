//! Key to object: cached or freshly compiled, many at once.
