//! Tests of templates that need no program.

extern crate gptoss_jit_kernel as kernel;

mod lib_names;
mod rendering;
