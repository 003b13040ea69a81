//! Tuning tables: which template, with which parameters, for which shapes.
