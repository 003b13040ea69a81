//! Decides whether a failure is the kernel's fault. Only a compiler's message about a line of the kernel's text
//! counts, because it comes again with the same text. Everything else (a linker, a full disk, no memory, no processes,
//! a missing file) may be gone the next time, however it is worded.

use std::sync::LazyLock;

use regex::Regex;

use super::job::How;

/// `kernel.c:2:9: error: …` of GCC and clang, `kernel.c:5: Error: …` of the assembler, `kernel.hip(12): error: …` and
/// `kernel.hip(12): error #20: …` of NVRTC. Not `fatal error`, with which compilers give up for reasons of their own:
/// a file that is not there, a disk that is full.
static AT_A_LINE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^(\S+?)(?::\d+(?::\d+)?|\(\d+\)): [Ee]rror\b").expect("a constant expression"));

/// Whether a compiler's log holds an error at a line of the source, which it calls by one of these names.
pub(super) fn blames_the_source(log: &str, names: &[&str]) -> bool {
    AT_A_LINE.captures_iter(log).any(|found| names.contains(&&found[1]))
}

/// What the words of a compiler say of the reason for which it gave up, where the source is not it. They make a better
/// message and a better hint; nothing is remembered or forgotten by them.
pub(super) fn passing_cause(log: &str, free_bytes: u64) -> Option<How> {
    let says = |words: &[&str]| words.iter().any(|words| log.contains(words));
    if says(&["bad_alloc", "ut of memory", "memory exhausted", "annot allocate memory", "memory allocation of"])
        || says(&["Killed signal terminated program"])
    {
        Some(How::OutOfMemory)
    } else {
        says(&["No space left on device", "Disk quota exceeded"]).then_some(How::NoRoom { free_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_at_a_line_of_the_source_is_the_sources() {
        for log in [
            "kernel.c:2:9: error: 'undeclared' undeclared here",
            "kernel.c: In function 'f':\nkernel.c:2:9: error: expected ';'\n    2 | a b\n",
            "kernel.c: Assembler messages:\nkernel.c:5: Error: no such instruction: `bogus'",
            "kernel.c(12): error: identifier \"x\" is undefined",
            "kernel.c(12): error #20: identifier \"x\" is undefined",
        ] {
            assert!(blames_the_source(log, &["kernel.c"]), "{log}");
            assert!(!blames_the_source(log, &["kernel.hip"]), "{log}");
        }
    }

    #[test]
    fn nothing_else_is() {
        for log in [
            "",
            "/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status",
            "cc: fatal error: cannot execute 'as': vfork: Resource temporarily unavailable\ncompilation terminated.",
            "kernel.c:3:1: fatal error: error writing to /tmp/cc.s: No space left on device",
            "kernel.c:1:10: fatal error: leak.h: No such file or directory",
            "kernel.c:3:1: internal compiler error: Segmentation fault",
            "kernel.c:1:20: warning: unused variable 'error'",
            "kernel.c:1:20: note: error: not this one",
            "cc1: error: bad value 'no-such-chip' for '-march=' switch",
            "/usr/include/math.h:3:4: error: #error no",
            "    4 | kernel.c:1:1: error: a comment",
            "ptxas error   : Entry function 'k' uses too much shared data",
        ] {
            assert!(!blames_the_source(log, &["kernel.c"]), "{log}");
        }
    }
}
