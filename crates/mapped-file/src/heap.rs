//! Settings of the C library's heap: how much freed memory it keeps.

/// From here on, freed pieces of 4 MiB or more return to the system at once. Otherwise glibc raises the size from which
/// it maps memory to that of the largest freed piece, 32 MiB at most, and keeps twice as much in the heap of every
/// thread that once had one (mallopt(3), `M_MMAP_THRESHOLD`). With another C library nothing changes.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn return_large_memory() {
    /// Memory of this size or more is returned to the system when it is freed.
    const LARGE_BYTES: i32 = 4 << 20;
    /// What is kept at the end of a heap, of which a process has several.
    const KEPT_BYTES: i32 = 8 << 20;
    // SAFETY: `mallopt` reads its two numbers and takes the lock of what it changes, so that any thread may call it at
    // any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
    }
}

/// Does nothing: this C library is another than glibc.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn return_large_memory() {}
