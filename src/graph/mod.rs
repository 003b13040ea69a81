//! The forward pass as a graph, and the plan that launches it.

pub mod forward;
