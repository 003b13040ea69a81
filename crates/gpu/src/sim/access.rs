//! The functions that an object calls before every access to memory. They are compiled with the program, because with
//! [`super::watch`] they are longer than most kernels.

use super::context::{Context, FaultKind, Range, Watch, is_on_stack, look, range_of, recent_range, stop};
use super::traffic;
use super::watch::{Access, IS_ASSERTION, IS_ATOMIC, IS_WRITE, Own};

/// Of `what` in [`access`]: bytes, then the alignment in bytes, then how.
const ALIGNMENT_SHIFT: u32 = 24;
const HOW_SHIFT: u32 = 29;

const MAX_LEN_BYTES: u32 = (1 << ALIGNMENT_SHIFT) - 1;
const MAX_ALIGNMENT: u32 = (1 << (HOW_SHIFT - ALIGNMENT_SHIFT)) - 1;

/// Called by the object before the running thread accesses memory. Does not return from an access that is wrong. Half
/// of all accesses are of the two kinds that are looked for here: the others are elsewhere, so that these do not
/// prepare for them.
pub(super) extern "C" fn access(context: *mut Context, begin: usize, what: u32, pc: usize) {
    let len_bytes = (what & MAX_LEN_BYTES) as usize;
    // SAFETY: the object passes on the context that `block::run` gave it, which lives as long as the block runs, as its
    // threads do, and nobody else uses it while one of them runs. No reference to it is held, but for a moment in
    // `recent_range` and `range_of`.
    let [stack, stack_bytes] = unsafe { (*(*context).thread).stack };
    let on_stack = begin.wrapping_sub(stack);
    if on_stack < stack_bytes && on_stack + len_bytes <= stack_bytes {
        return;
    }
    let is_unwatched = |range: &Range| range.watch == Watch::Nothing;
    if what >> HOW_SHIFT == 0
        && is_aligned(begin, what)
        && recent_range(context, begin, begin.saturating_add(len_bytes), pc).is_some_and(is_unwatched)
    {
        return;
    }
    access_watched(context, begin, what, pc);
}

/// [`access`], which also counts it in [`traffic`] unless it is to the thread's own stack.
pub(super) extern "C" fn counted_access(context: *mut Context, begin: usize, what: u32, pc: usize) {
    // SAFETY: as in `access`.
    let (thread, [stack, stack_bytes]) = unsafe { ((*(*context).thread).index, (*(*context).thread).stack) };
    if begin.wrapping_sub(stack) >= stack_bytes {
        traffic::count(context, thread, begin, what & MAX_LEN_BYTES, pc);
    }
    access(context, begin, what, pc);
}

/// Called by the object if the running thread uses a pointer that is not aligned as its type is. A thread's own memory
/// is exempt: a GPU's compiler places it as it likes.
pub(super) extern "C" fn misaligned(context: *mut Context, address: usize, alignment: u32, pc: usize) {
    if !is_on_stack(context, address) {
        stop(context, FaultKind::Unaligned, address, alignment, pc, 0);
    }
}

fn is_aligned(begin: usize, what: u32) -> bool {
    begin & ((what >> ALIGNMENT_SHIFT & MAX_ALIGNMENT) as usize).wrapping_sub(1) == 0
}

/// The same of memory that is watched: most is LDS, and nothing has to be found out about it.
#[inline(never)]
extern "C" fn access_watched(context: *mut Context, begin: usize, what: u32, pc: usize) {
    let (len_bytes, how) = (what & MAX_LEN_BYTES, what >> HOW_SHIFT);
    let access = Access { begin, len_bytes, how, pc };
    let range = recent_range(context, begin, begin.saturating_add(len_bytes as usize), pc);
    match range.filter(|range| range.watch == Watch::Lds && is_aligned(begin, what)) {
        Some(range) if Own::new(context).is_plain_in_lds(range, access) => (),
        Some(range) => touch_lds(context, range, access),
        None => access_any(context, access, what >> ALIGNMENT_SHIFT & MAX_ALIGNMENT),
    }
}

/// The same, of what may be wrong.
#[inline(never)]
fn access_any(context: *mut Context, access: Access, alignment: u32) {
    let Access { begin, len_bytes, how, pc } = access;
    let (end, is_write) = (begin.saturating_add(len_bytes as usize), how & IS_WRITE != 0);
    let fault = |kind| stop(context, kind, begin, len_bytes, pc, 0);
    if how & IS_ASSERTION != 0 {
        fault(FaultKind::Assertion);
    }
    let range = recent_range(context, begin, end, pc).or_else(|| range_of(context, begin, end, pc));
    let Some(range) = range else {
        return fault(if is_write { FaultKind::Write } else { FaultKind::Read });
    };
    if is_write && !range.is_writable {
        fault(FaultKind::ReadOnly);
    }
    debug_assert!(alignment.is_power_of_two());
    if begin & (alignment as usize - 1) != 0 {
        fault(FaultKind::Misaligned);
    }
    if how & IS_ATOMIC != 0 {
        look(context, begin); // before it hears what the word was told
    }
    match range.watch {
        Watch::Nothing => (),
        Watch::Lds => touch_lds(context, range, access),
        Watch::Global => {
            let own = Own::new(context);
            own.touch_all::<false>(range, access);
            if how & IS_ATOMIC != 0 {
                own.synchronise(begin);
            }
        }
    }
}

/// Bytes of a variable in LDS.
#[inline(never)]
fn touch_lds(context: *mut Context, range: &Range, access: Access) {
    Own::new(context).touch_all::<true>(range, access);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_aligned_if_its_alignment_divides_it() {
        for (alignment, how) in (0..5).flat_map(|shift| [0, IS_WRITE, IS_ATOMIC].map(|how| (1_usize << shift, how))) {
            let what = how << HOW_SHIFT | (alignment as u32) << ALIGNMENT_SHIFT | 4;
            for begin in 0..64 {
                assert_eq!(is_aligned(begin, what), begin % alignment == 0, "{begin} {alignment}");
            }
        }
    }
}
