//! The machine code in an AMD object, read by comgr in a worker. comgr is LLVM, like hipRTC, and is never opened in
//! the process that owns the model.

use std::env;
use std::fmt::Write as _;
use std::path::PathBuf;

use comgr_sys::{Code, Comgr, Instruction};
use hiprtc_sys::HIPRTC;

use super::host::unavailable;
use super::job::{CompileJob, CompileOutput, Failure, How};

/// The text that [`super::Compilers::disassemble`] describes.
pub(super) fn disassemble(job: &CompileJob) -> Result<CompileOutput, Failure> {
    let reads = job.reads.as_ref().ok_or_else(|| unavailable("there is no object to read"))?;
    let root = env::var_os(HIPRTC.root_variable).map(PathBuf::from);
    let candidates = Comgr::candidates(job.toolchain.compiler.as_deref(), root.as_deref());
    let comgr = Comgr::open(&candidates).map_err(|error| unavailable(&error.to_string()))?;
    let failed = |what: String| Failure { how: How::BadObject { what }, log: String::new() };
    let (address, bytes) = gpu::gcn_code(&reads.object, &job.entry).map_err(|error| failed(error.to_string()))?;
    let arch = job.target.split(':').next().unwrap_or_default();
    let code = comgr.disassemble(arch, Code { address, bytes }).map_err(|error| failed(error.to_string()))?;
    let addresses: Vec<u64> = code.iter().map(|instruction| instruction.address).collect();
    let lines = match reads.with_lines {
        true => comgr.lines(&reads.object, &addresses).map_err(|error| failed(error.to_string()))?,
        false => vec![Vec::new(); code.len()],
    };
    let object = text(&job.entry, address, &code, &lines).into_bytes();
    Ok(CompileOutput { object, log: String::new(), facts: Vec::new(), files: Vec::new() })
}

fn text(entry: &str, start: u64, code: &[Instruction], lines: &[Vec<String>]) -> String {
    let mut text = format!("{start:016x} <{entry}>:\n");
    let mut before: &[String] = &[];
    for (Instruction { address, text: instruction, target }, lines) in code.iter().zip(lines) {
        if lines.as_slice() != before && !lines.is_empty() {
            let _ = writeln!(text, "; {}", lines.join(" "));
            before = lines;
        }
        let target = target.map(|target| format!(" <{entry}+{:#x}>", target.wrapping_sub(start)));
        let _ = writeln!(text, "\t{instruction} // {address:012X}:{}", target.unwrap_or_default());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stand_before_what_they_became() {
        let one = |address, text: &str, target| Instruction { address, text: text.into(), target };
        let code = [one(16, "s_nop 0", None), one(20, "s_nop 1", None), one(24, "s_branch 65533", Some(20))];
        let lines =
            [vec!["k.hip:3".to_owned()], vec!["k.hip:3".to_owned()], vec!["a:1".to_owned(), "k.hip:4".to_owned()]];
        let expected = "0000000000000010 <k>:\n; k.hip:3\n\ts_nop 0 // 000000000010:\n\ts_nop 1 // 000000000014:\n\
             ; a:1 k.hip:4\n\ts_branch 65533 // 000000000018: <k+0x4>\n";
        assert_eq!(text("k", 16, &code, &lines), expected);
    }
}
