//! Memory nodes of this machine: each has some of the cores and some of the memory, and reads other nodes' memory more
//! slowly. Weights that all cores read are spread over all nodes, page by page, to use the bandwidth of all of them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether memory is spread.
static IS_SPREAD: AtomicBool = AtomicBool::new(false);

/// Where the system says which nodes have memory.
const LIST: &str = "/sys/devices/system/node/has_memory";

/// The nodes that have memory; none if the system does not say.
pub fn nodes() -> Vec<usize> {
    listed(Path::new(LIST))
}

fn listed(path: &Path) -> Vec<usize> {
    std::fs::read_to_string(path).map_or(Vec::new(), |text| numbers(&text).unwrap_or_default())
}

/// Numbers and ranges with commas between them, such as `0-1,3`.
fn numbers(text: &str) -> Option<Vec<usize>> {
    const MOST: usize = 1024; // as many as Linux has
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// Spreads memory over all nodes that this thread, and threads that it starts later, touch first: private memory, and
/// pages of files that are not in memory yet. A machine with one node, and a policy chosen for this program
/// (`numactl`), stay as they are.
pub(crate) fn spread() {
    let nodes = nodes();
    if nodes.len() > 1 && set(&nodes) {
        IS_SPREAD.store(true, Ordering::Relaxed);
    }
}

/// Whether a device of this machine's cores had memory spread over all nodes.
pub fn is_spread() -> bool {
    IS_SPREAD.load(Ordering::Relaxed)
}

#[cfg(target_os = "linux")]
fn set(nodes: &[usize]) -> bool {
    use std::ffi::{c_int, c_ulong};
    use std::ptr;

    const BITS: usize = c_ulong::BITS as usize;
    let mut mode: c_int = 0;
    let nothing = ptr::null_mut::<c_ulong>();
    // SAFETY: the mode is valid for writes; no mask and no address is asked for.
    let asked = unsafe { libc::syscall(libc::SYS_get_mempolicy, &mut mode, nothing, 0_usize, nothing, 0_usize) };
    if asked != 0 || mode != libc::MPOL_DEFAULT {
        return false;
    }
    let mut mask = vec![0 as c_ulong; nodes.iter().max().map_or(1, |last| last / BITS + 1)];
    nodes.iter().for_each(|node| mask[node / BITS] |= 1 << (node % BITS));
    let n_bits = mask.len() * BITS + 1; // the kernel takes one less
    // SAFETY: the mask has so many bits.
    unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_INTERLEAVE, mask.as_ptr(), n_bits) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn set(_nodes: &[usize]) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_read_and_what_is_none_is_nothing() {
        for (text, expected) in [("0\n", vec![0]), ("0-1\n", vec![0, 1]), ("0,2-3\n", vec![0, 2, 3]), ("\n", vec![])] {
            assert_eq!(numbers(text), Some(expected), "{text:?}");
        }
        assert!(["x", "1-", "0-99999999999", "0-2000"].iter().all(|text| numbers(text).is_none()));
        assert!(listed(Path::new("/nowhere")).is_empty());
    }

    /// On a thread of its own: other tests keep what they have.
    #[test]
    fn a_policy_that_somebody_chose_stays() {
        let twice = || {
            let nodes = nodes();
            let first = !nodes.is_empty() && set(&nodes);
            (first, first && set(&nodes))
        };
        let (_, second) = std::thread::spawn(twice).join().expect("no panic");
        assert!(!second, "the first was there, or none can be set");
    }
}
