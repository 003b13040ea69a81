//! `run --capture-launch`: one launch of a step goes into a file, for `kernels replay`.

use std::ffi::OsString;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::output::Output;
use crate::output_file::OutputFile;
use crate::usage::UsageError;
use engine::Engine;
use engine::device::Device;
use engine::plan::capture::{Capture, CapturedLaunch};
use system::units::human_bytes;
use workbench::replay::file;

/// The requested capture, and its result.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct CaptureArgs {
    /// Write a launch with everything it reads and writes into FILE, for `kernels replay`: of this node, as `kernels
    /// plan` names it (`block.0.attn.qkv`), in step STEP, counted from 1
    #[arg(long, num_args = 2, value_names = ["NODE[,STEP]", "FILE"])]
    capture_launch: Vec<OsString>,

    #[arg(skip)]
    taken: Arc<Mutex<Option<CapturedLaunch>>>,
}

/// The file that waits for it.
pub(super) struct Captures {
    args: CaptureArgs,
    file: OutputFile,
}

impl CaptureArgs {
    pub(super) fn is_given(&self) -> bool {
        !self.capture_launch.is_empty()
    }

    /// The node, and which of its launches.
    fn launch(&self) -> Result<(String, usize), UsageError> {
        let text = self.capture_launch[0].to_string_lossy();
        let (node, step) = text.split_once(',').map_or((&*text, Some(1)), |(node, step)| (node, step.parse().ok()));
        match step {
            Some(step) if step > 0 => Ok((node.trim().to_owned(), step)),
            _ => Err(UsageError(format!("--capture-launch {text}: expected a step's number, from 1, after the comma"))),
        }
    }

    /// Opens the file, if one is asked for.
    pub(super) fn create(&self) -> anyhow::Result<Option<Captures>> {
        if !self.is_given() {
            return Ok(None);
        }
        self.launch()?;
        let file = OutputFile::create(Path::new(&self.capture_launch[1]), "a launch")?;
        Ok(Some(Captures { args: self.clone(), file }))
    }

    /// Has the engine take the launch down.
    pub(super) fn begin(&self, engine: &Engine) -> anyhow::Result<()> {
        if !self.is_given() {
            return Ok(());
        }
        let (node, step) = self.launch()?;
        let executor = engine.executor();
        if !executor.nodes().any(|known| known == node) {
            let meant = hint::meant(&node, executor.nodes());
            let meant = meant.map_or_else(
                || "`gptoss-jit kernels plan` lists them".into(),
                |meant| format!("did you mean `{meant}`?"),
            );
            return Err(UsageError(format!("--capture-launch: the model has no node `{node}`: {meant}")).into());
        }
        let taken = Arc::clone(&self.taken);
        let take = Box::new(move |launch| *taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(launch));
        executor.capture(Capture::new(&node, step, take));
        Ok(())
    }
}

impl Captures {
    /// Writes what was taken.
    ///
    /// `device`: where the model ran.
    pub(super) fn finish(self, device: &Device, output: &Output) -> anyhow::Result<()> {
        let Self { args, file } = self;
        let Some(launch) = args.taken.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            let (node, step) = args.launch()?;
            anyhow::bail!("`{node}` was launched in fewer than {step} steps: nothing is written");
        };
        file.fill(|to| {
            let mut to = BufWriter::new(to);
            file::write(&launch, &mut to)?;
            to.flush()
        })?;
        let n_bytes: usize =
            launch.args.iter().flat_map(|arg| [&arg.before, &arg.after]).flatten().map(|bytes| bytes.len()).sum();
        let path = Path::new(&args.capture_launch[1]).display();
        let (label, template) = (&launch.label, &launch.template);
        output.note(&format!(
            "{label} by {template} is in `{path}` ({}): `gptoss-jit kernels replay {path} --device {device}`",
            human_bytes(n_bytes as u64)
        ));
        Ok(())
    }
}
