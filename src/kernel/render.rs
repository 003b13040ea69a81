//! A template, a problem, parameters and a target in; self-contained source out.
