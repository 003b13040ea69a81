//! A GPU thread's own stack, and the switch to it and back.
//!
//! On x86-64 the switch is a few instructions of our own. A processor predicts return addresses from earlier calls. If
//! the switch were a call and a return, these predictions would be wrong in all functions in which a thread waits,
//! which cost a sixth of a simulated kernel's time. So it is two jumps: the lanes of a wave wait in the same
//! functions, called from the same places, so the predictions for one lane are right for the next.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use corosensei::stack::{DefaultStack, Stack, StackPointer};

use super::context::Context;

/// Stack of a thread. GPU threads have little private memory; the pages that are not touched cost nothing.
pub(super) const STACK_BYTES: usize = 256 << 10;

/// A thread's stack. As the system gives them, all begin at the same place of a page, and so in the same few lines of
/// the processor's first cache, out of which they would keep each other: each begins a line further down.
pub(super) struct ThreadStack {
    stack: DefaultStack,
    skipped_bytes: usize,
}

impl ThreadStack {
    const LINE_BYTES: usize = 64;
    const PAGE_BYTES: usize = 4096;

    pub(crate) fn new() -> io::Result<Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let skipped_bytes = NEXT.fetch_add(Self::LINE_BYTES, Ordering::Relaxed) % Self::PAGE_BYTES;
        Ok(Self { stack: DefaultStack::new(STACK_BYTES)?, skipped_bytes })
    }

    /// Where it begins, and its length.
    pub fn bounds(&self) -> [usize; 2] {
        [self.limit().get(), self.base().get() - self.limit().get()]
    }
}

// SAFETY: it is the stack that it holds, whose guard page is at the other end, without less than a page of its
// beginning; a line is a multiple of any alignment that stacks have.
unsafe impl Stack for ThreadStack {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.stack.base().get() - self.skipped_bytes).expect("a stack is longer than a page")
    }

    fn limit(&self) -> StackPointer {
        self.stack.limit()
    }

    /// What Windows knows of the running stack.
    #[cfg(windows)]
    fn teb_fields(&self) -> corosensei::stack::StackTebFields {
        corosensei::stack::StackTebFields { StackBase: self.base().get(), ..self.stack.teb_fields() }
    }

    #[cfg(windows)]
    fn update_teb_fields(&mut self, stack_limit: usize, guaranteed_stack_bytes: usize) {
        self.stack.update_teb_fields(stack_limit, guaranteed_stack_bytes);
    }
}

/// What runs on a stack, until it suspends itself for ever. It owns nothing if it is suspended: it may never go on.
pub(super) type Body = unsafe extern "C" fn(*mut Context) -> !;

pub(super) use switch::{Coroutine, Link};

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod switch {
    use std::arch::asm;
    use std::ptr;

    use corosensei::stack::Stack;

    use super::{Body, Context, ThreadStack};

    /// Something that runs on a stack of its own.
    pub(crate) struct Coroutine {
        stack: ThreadStack,
        /// What it put on its stack last: where it goes on.
        top: *mut usize,
    }

    /// The way back to who resumed a coroutine, or the first of several that went on for each other.
    #[derive(Debug)]
    pub(crate) struct Link {
        back: *mut usize,
    }

    impl Link {
        /// A pointer to no coroutine.
        pub const NONE: Self = Self { back: ptr::null_mut() };
    }

    impl Coroutine {
        /// Begins with `body` when it is first resumed.
        pub(crate) fn new(stack: ThreadStack, body: Body) -> Self {
            let base = stack.base().get() as *mut usize;
            // SAFETY: two words at the beginning of a stack that nobody uses. The body is entered as if it was called
            // from 0, where whoever follows return addresses stops; the stack is aligned as it then has to be.
            let top = unsafe {
                base.sub(1).write(0);
                base.sub(2).write(body as usize);
                base.sub(2)
            };
            Self { stack, top }
        }

        /// Runs it until it, or who goes on for it, goes back.
        ///
        /// # Safety
        /// The context is valid for its body, and the same each time; `link` has no other user meanwhile.
        #[inline(always)]
        pub unsafe fn resume(own: *mut Self, context: *mut Context, link: *mut Link) {
            // SAFETY: on top of its stack is where it goes on, by `new` or by `switch`.
            unsafe { switch(&raw mut (*link).back, (*own).top, context) };
        }

        /// The running coroutine stops, and the next one goes on, or who resumed it if there is none.
        ///
        /// # Safety
        /// `own` is the one that runs, with this context and link; `next` is not, and takes the same context.
        #[inline(always)]
        pub unsafe fn suspend(
            own: *mut Self,
            next: impl FnOnce() -> Option<*mut Self>,
            context: *mut Context,
            link: *mut Link,
        ) {
            // SAFETY: as above; the way back was left when the first of them was resumed, by who has not gone on since.
            unsafe {
                let to = next().map_or((*link).back, |next| (*next).top);
                switch(&raw mut (*own).top, to, context);
            }
        }

        /// Its stack, for another one.
        pub(crate) fn into_stack(self) -> Option<ThreadStack> {
            Some(self.stack)
        }
    }

    /// Leaves in `save` what another switch goes on with, and goes on with what is on top of `to`, for whose beginning
    /// the context is.
    ///
    /// # Safety
    /// `to` was left by a switch or made by [`Coroutine::new`], and nothing went on with it since.
    #[inline(always)]
    unsafe fn switch(save: *mut *mut usize, to: *mut usize, context: *mut Context) {
        // SAFETY: all registers that are not saved on the stack are said to be lost.
        unsafe {
            asm!(
                "push rbp",
                "push rbx",
                "lea rax, [rip + 2f]",
                "push rax",
                "mov [rsi], rsp",
                "mov rsp, rdx",
                "pop rax",
                "jmp rax",
                "2:",
                "pop rbx",
                "pop rbp",
                inout("rdi") context => _,
                inout("rsi") save => _,
                inout("rdx") to => _,
                lateout("r12") _,
                lateout("r13") _,
                lateout("r14") _,
                lateout("r15") _,
                clobber_abi("sysv64"),
            );
        }
    }
}

/// The same by corosensei, elsewhere.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod switch {
    use std::ptr;

    use corosensei::Yielder;

    use super::{Body, Context, ThreadStack};

    type Input = (*mut Context, *mut Link);

    /// Something that runs on a stack of its own.
    pub(crate) struct Coroutine {
        inner: corosensei::Coroutine<Input, (), (), ThreadStack>,
        yielder: *const Yielder<Input, ()>,
    }

    /// The way back to who resumed a coroutine.
    #[derive(Debug)]
    pub(crate) struct Link {
        yielder: *const Yielder<Input, ()>,
    }

    impl Link {
        /// A pointer to no coroutine.
        pub const NONE: Self = Self { yielder: ptr::null() };
    }

    impl Coroutine {
        /// Begins with `body` when it is first resumed.
        pub(crate) fn new(stack: ThreadStack, body: Body) -> Self {
            let begin = move |yielder: &Yielder<Input, ()>, (context, link): Input| {
                // SAFETY: who resumes it says that both are valid.
                unsafe {
                    (*link).yielder = yielder;
                    body(context)
                }
            };
            Self { inner: corosensei::Coroutine::with_stack(stack, begin), yielder: ptr::null() }
        }

        /// Runs it until it goes back.
        ///
        /// # Safety
        /// The context is valid for its body, and the same each time; `link` has no other user meanwhile.
        pub unsafe fn resume(own: *mut Self, context: *mut Context, link: *mut Link) {
            // SAFETY: nobody else uses it.
            unsafe {
                (*link).yielder = (*own).yielder;
                (*own).inner.resume((context, link));
                (*own).yielder = (*link).yielder;
            }
        }

        /// The running coroutine stops, and who resumed it goes on: it is who knows the next.
        ///
        /// # Safety
        /// `own` is the one that runs, with this link.
        pub unsafe fn suspend(
            _own: *mut Self,
            _next: impl FnOnce() -> Option<*mut Self>,
            _context: *mut Context,
            link: *mut Link,
        ) {
            // SAFETY: the yielder is the running coroutine's.
            unsafe { (*(*link).yielder).suspend(()) };
        }

        /// Its stack, for another one.
        pub(crate) fn into_stack(mut self) -> Option<ThreadStack> {
            if !self.inner.started() {
                return None; // it still holds its closure, and goes with its stack
            }
            // SAFETY: nothing on its stack owns anything, by what a body promises.
            unsafe { self.inner.force_reset() };
            Some(self.inner.into_stack())
        }
    }
}
