//! AMX, the matrix unit of Intel's Xeon processors from Sapphire Rapids on: whether kernels of [`crate::host`] may use
//! it. Its tiles are 8 KiB of a thread's state, which Linux saves only for a process that asked for it.

/// Whether the cores multiply tiles of bf16, and the system lets this process use them. Asks it, once: the permission
/// is the process's, for threads that there are and those to come, and lasts until it ends.
pub fn multiplies_bf16() -> bool {
    static GRANTED: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| has_bf16_tiles() && ask());
    *GRANTED
}

/// What the processor says: AMX-TILE and AMX-BF16.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_bf16_tiles() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    if __cpuid(0).eax < 7 {
        return false;
    }
    __cpuid_count(7, 0).edx & (AMX_BF16 | AMX_TILE) == AMX_BF16 | AMX_TILE
}

/// Asks Linux for the tiles' state. A kernel that does not know them, or a sandbox, refuses.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn ask() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers and no memory; it changes nothing but what this process may do.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn has_bf16_tiles() -> bool {
    false
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn ask() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn the_permission_holds_for_threads_that_were_there_before() {
        use std::io::Write;
        use std::sync::mpsc;

        const ARCH_GET_XCOMP_PERM: libc::c_ulong = 0x1022;
        let (tell, wait) = mpsc::channel::<()>();
        let before = std::thread::spawn(move || {
            wait.recv().ok()?;
            let mut granted = 0u64;
            // SAFETY: the call writes one u64, which is there.
            let done = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &raw mut granted) };
            (done == 0).then_some(granted >> 18 & 1)
        });
        if !multiplies_bf16() {
            let _ = writeln!(std::io::stderr(), "skipped: no AMX with bf16 that this process may use");
            return;
        }
        tell.send(()).expect("waits");
        assert_eq!(before.join().expect("ends"), Some(1));
    }
}
