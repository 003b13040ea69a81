//! A quick check of one template: the cases that are most likely to fail, each in a separate process.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::CHECK_WORKER;
use kernel::object::store::Store;
use kernel::target::Target;
use kernel::template::Params;
use kernel::template::library::Library;
use system::bounded_process::this_program;
use workbench::check::parent::{ChildError, Children};
use workbench::check::{Checked, Checker, Selection};

/// What checks a kernel.
pub(super) enum On {
    /// A device of the target, by the word that opens it.
    Device(String),
    /// The simulator of a GPU, or for a host's kernel the host.
    Simulator,
}

/// What is checked, and for how long.
pub(super) struct Quick<'a> {
    /// The folder of templates that the children look in first.
    pub(crate) templates: Option<&'a Path>,
    pub(crate) op: &'a str,
    pub(crate) variant: &'a str,
    /// Those left out have their defaults.
    pub(crate) params: Params,
    pub(crate) within: Duration,
    pub(crate) deadline: Duration,
    pub(crate) stop: &'a Arc<AtomicBool>,
}

impl Quick<'_> {
    /// One result for each precision.
    pub(crate) fn check(
        self,
        target: &Target,
        on: &On,
        store: &Store,
        library: &Library,
    ) -> Result<Vec<Checked>, ChildError> {
        let Self { templates, op, variant, params, within, deadline, stop } = self;
        let mut words: Vec<OsString> = vec![CHECK_WORKER.into(), "kernels".into(), "check".into()];
        if let Some(templates) = templates {
            words.extend(["--templates".into(), templates.into()]);
        }
        words.extend(["--op".into(), op.into(), "--variant".into(), variant.into()]);
        words.extend(["--tuned=false".into(), format!("--within={}", within.as_secs_f64()).into()]);
        words.extend(params.iter().map(|(name, value)| format!("--set={name}={value}").into()));
        let target = match on {
            On::Device(device) => {
                words.extend(["--device".into(), device.into()]);
                target.clone()
            }
            On::Simulator => {
                words.extend(["--arch".into(), format!("sim:{}", target.arch).into()]);
                target.clone().simulated()
            }
        };
        let children = Children {
            program: this_program(),
            words,
            deadline,
            stops_at_hang: true,
            stop: Arc::clone(stop),
            until: None,
        };
        let selection = Selection {
            op: vec![op.to_owned()],
            op_alone: true,
            variant: vec![variant.to_owned()],
            params,
            within: Some(within),
            more_rows: true,
            is_fenced: true,
            ..Selection::default()
        };
        let checker = Checker { library, target: &target, store, runner: None, compute_unit: None };
        checker.check_in_children(&selection, &children, &mut |_| ())
    }
}
