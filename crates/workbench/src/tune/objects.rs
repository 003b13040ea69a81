//! Objects of the kernels to be judged, without those that spill or exceed the chip.

use std::sync::Arc;

use super::judge::{CandidateKernel, Reason, Uses, Verdict};
use kernel::object::compile::Request;
use kernel::object::resources::examine;
use kernel::object::store::{Progress, Store};
use kernel::target::Target;

/// A compiled kernel that may be judged.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) bytes: Arc<[u8]>,
    /// What a GPU's object uses.
    pub(crate) uses: Option<Uses>,
}

impl Object {
    /// The verdict on one that spills registers.
    pub(crate) fn spills(&self) -> Option<Verdict> {
        let spills = self.uses.map_or(0, |uses| uses.spills);
        (spills > 0).then(|| Verdict::refused(Reason::Spills, format!("it spills {spills} registers")))
    }
}

/// The objects, in the order of the kernels, or why there is none that may be used.
pub(crate) fn objects(
    store: &Store,
    target: &Target,
    kernels: &[CandidateKernel],
    progress: &dyn Progress,
) -> Vec<Result<Object, Verdict>> {
    let requests: Vec<Request> = kernels.iter().map(|kernel| kernel.request.clone()).collect();
    let objects = store.get_all(&requests, progress).into_iter();
    let usable = |(kernel, object): (&CandidateKernel, Result<_, _>)| {
        let object: kernel::object::store::Loaded =
            object.map_err(|error| Verdict::refused(Reason::NotCompiled, error))?;
        let rendered = &kernel.rendered;
        let examined =
            target.is_real_gpu().then(|| examine(&object.object, &rendered.spec(), &rendered.resources, target));
        let uses = examined.transpose().map_err(|error| Verdict::refused(Reason::Exceeds, error))?;
        let object = Object { bytes: Arc::clone(&object.object), uses: uses.map(|facts| Uses::from_facts(&facts)) };
        object.spills().filter(|_| !kernel.is_known).map_or(Ok(object), Err)
    };
    kernels.iter().zip(objects).map(usable).collect()
}
