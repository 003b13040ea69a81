//! What hipRTC makes of the GPU templates, read from the disassembly.

use std::io::{self, Write};

use gptoss_jit::kernel::isa::llvm::{Llvm, LlvmError};

/// LLVM's tools; none, said aloud, where this one is missing.
pub fn llvm(tool: &'static str) -> Option<Llvm> {
    let llvm = Llvm::find();
    match llvm.run(tool, &["--version"], b"") {
        Ok(_) => Some(llvm),
        Err(LlvmError::NotFound { .. }) => {
            // Not by the macro, whose words the harness keeps to itself when a test passes.
            let _ = writeln!(io::stderr(), "skipped: no {tool} (tests/fetch-llvm.sh target/llvm fetches one)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
