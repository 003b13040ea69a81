//! Kernels that are data. A [`template`] is rendered for a [`target`], compiled or found as an [`object`], and chosen
//! by the [`tuning`] tables; [`pipeline`] does all of that in one call.

pub mod ahead;
pub mod choice;
pub mod object;
pub mod pipeline;
pub mod step;
pub mod target;
pub mod template;
pub mod tuning;

use std::env;
use std::io;
use std::path::Path;

/// Does the work for which this program started itself, if this process is such a one: to compile a kernel, or to
/// render a template that is not built in. A program that loads kernels calls this before all else, and ends with what
/// it gives, if it gives anything.
///
/// # Errors
/// The job cannot be read, or the result cannot be written.
pub fn worker() -> Option<io::Result<()>> {
    let mut words = env::args_os().skip(1);
    match words.next()?.to_str()? {
        object::compile::COMMAND => words.next().map(|folder| object::compile::run_worker(Path::new(&folder))),
        template::bounded::COMMAND => Some(template::bounded::render_worker()),
        _ => None,
    }
}
