//! A graph, chosen kernels and memory, ready to run step after step.
