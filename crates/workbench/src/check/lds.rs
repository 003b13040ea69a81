//! Fills all LDS with a NaN pattern before a launch: a wrong kernel could depend on what an earlier kernel left there.
//!
//! The template `fill_lds/block` claims as much LDS as a block may have, on every compute unit at once. (The simulator
//! does the same by itself, before each block.)

use gpu::{Argument, Buffer, Driver, Kernel, Launch};

use super::Wrong;
use kernel::object::compile::Request;
use kernel::object::store::Store;
use kernel::target::Target;
use kernel::template::library::Library;
use kernel::template::render::render;
use kernel::template::{Params, Precision, Problem};

const OP: &str = "fill_lds";

/// Blocks for each compute unit: with one at a time on each, none is left out because another took two.
const ROUNDS: usize = 4;

/// A kernel that fills the LDS of a device.
pub(crate) struct LdsFill {
    kernel: Kernel,
    counts: Buffer,
    n_blocks: u32,
}

impl LdsFill {
    /// Loads it; none if the target has no such kernel.
    ///
    /// # Errors
    /// If it cannot be rendered, compiled or loaded.
    pub(crate) fn new(
        library: &Library,
        store: &Store,
        target: &Target,
        driver: &dyn Driver,
    ) -> Result<Option<Self>, Wrong> {
        let problem = Problem::plain(OP, Precision::F32);
        let mut templates = library.templates_where(|ops, _| ops == OP);
        let Some(template) = templates.find(|one| one.fits(&problem, target).is_ok()) else { return Ok(None) };
        // The most that the device grants: what a block may have is not the same on all devices of an arch's family.
        let mut legal: Vec<Params> = template.legal_params(&problem, target).collect();
        legal.sort_by_key(|params| std::cmp::Reverse(params.values().copied().max()));
        let mut refused = None;
        for params in &legal {
            let rendered = render(library, template, &problem, params, target)?;
            let object = store.get_all(&[Request::new(&rendered, target)], &()).remove(0).map_err(Wrong::compile)?;
            match driver.load(&object.object, rendered.spec()) {
                Ok(kernel) => {
                    let n_blocks = ROUNDS * driver.parallelism();
                    let counts = driver.allocate(4 * n_blocks)?;
                    return Ok(Some(Self { kernel, counts, n_blocks: n_blocks as u32 }));
                }
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(None), |error| Err(error.into()))
    }

    /// Launches it.
    ///
    /// # Errors
    /// If the device refuses.
    pub(crate) fn launch(&self, driver: &dyn Driver) -> Result<(), Wrong> {
        let view = self.counts.view();
        let required_bytes = 4 * self.n_blocks as usize;
        let args = [Argument::Memory { view, required_bytes }, Argument::U32(self.n_blocks)];
        let launch = Launch { grid: [self.n_blocks, 1, 1], scratch_bytes: 0, args: &args };
        let mut result = Ok(());
        driver.enter(&mut || result = driver.launch(&self.kernel, &launch));
        Ok(result?)
    }
}
