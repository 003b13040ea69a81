//! The `gptoss-jit` program: see [`gptoss_jit::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    gptoss_jit::cli::main()
}
