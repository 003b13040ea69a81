//! Objects of kernels that are to be judged, without those that spill or exceed the chip.

use std::sync::Arc;

use super::judge::{Kernel, Reason, Uses, Verdict};
use crate::object::compile::Request;
use crate::object::resources::examine;
use crate::object::store::{Progress, Store};
use crate::target::Target;

/// A compiled kernel that may be judged.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// What a GPU's object uses.
    pub uses: Option<Uses>,
}

/// The objects, in the order of the kernels, or why there is none that may be used.
pub fn objects(
    store: &Store,
    target: &Target,
    kernels: &[Kernel],
    progress: &dyn Progress,
) -> Vec<Result<Object, Verdict>> {
    let requests: Vec<Request> = kernels.iter().map(|kernel| kernel.request.clone()).collect();
    let objects = store.get_all(&requests, progress).into_iter();
    let usable = |(kernel, object): (&Kernel, Result<_, _>)| {
        let object: crate::object::store::Loaded =
            object.map_err(|error| Verdict::refused(Reason::NotCompiled, error))?;
        let rendered = &kernel.rendered;
        let examined =
            target.is_real_gpu().then(|| examine(&object.object, &rendered.spec(), &rendered.resources, target));
        let uses = examined.transpose().map_err(|error| Verdict::refused(Reason::Exceeds, error))?;
        let uses = uses.map(|facts| Uses::of(&facts));
        match uses {
            Some(Uses { spills, .. }) if spills > 0 && !kernel.is_known => {
                Err(Verdict::refused(Reason::Spills, format!("it spills {spills} registers")))
            }
            uses => Ok(Object { bytes: Arc::clone(&object.object), uses }),
        }
    };
    kernels.iter().zip(objects).map(usable).collect()
}
