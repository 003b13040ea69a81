//! What the object calls before every access to memory. Compiled with the program, not with each kernel: with
//! [`super::watch`] it is more text than most of them.

use super::context::{Context, FaultKind, Range, Watch, range_of, recent_range, stop};
use super::watch::{Access, IS_ATOMIC, IS_WRITE, Own};

/// Called by the object before the running thread accesses memory. Does not return from an access that is wrong.
pub(super) extern "C" fn access(
    context: *mut Context,
    begin: usize,
    len_bytes: u32,
    alignment: u32,
    how: u32,
    pc: usize,
) {
    // SAFETY: the object passes on the context that `block::run` gave it, which lives as long as the block runs, and
    // nobody else uses it while one of its threads runs. No reference to it is held, but for a moment in `recent_range`
    // and `range_of`.
    let [stack_begin, stack_end] = unsafe { (*context).stack };
    let end = begin.saturating_add(len_bytes as usize);
    if begin >= stack_begin && end <= stack_end {
        return;
    }
    // Most accesses are of these kinds: what may be wrong is found out elsewhere, so that they do not prepare for it.
    let is_aligned = begin & (alignment as usize).wrapping_sub(1) == 0;
    let access = Access { begin, len_bytes, how, pc };
    match recent_range(context, begin, end, pc) {
        Some(range) if is_aligned && how == 0 && range.watch == Watch::Nothing => (),
        Some(range) if is_aligned && range.watch == Watch::Lds => touch_lds(context, range, access),
        _ => access_any(context, access, alignment),
    }
}

/// The same, of what may be wrong.
#[inline(never)]
fn access_any(context: *mut Context, access: Access, alignment: u32) {
    let Access { begin, len_bytes, how, pc } = access;
    let (end, is_write) = (begin.saturating_add(len_bytes as usize), how & IS_WRITE != 0);
    let fault = |kind| stop(context, kind, begin, len_bytes, pc, 0);
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
