//! Errors, at the edge: the chain of causes, then one hint, then the exit code.

use std::io;
use std::process::ExitCode;

use gpu::GpuError;

use super::decode::DecodeError;
use super::doctor::NotReady;
use super::export::ExportError;
use super::hub::NotInHub;
use super::output::Output;
use super::peers::PeersError;
use super::replicas::TooFewDevices;
use super::run::chat::ConversationTooLong;
use super::run::getp::merge::NotMerged;
use super::usage::UsageError;
use crate::batch::BatchError;
use crate::batch::asked::LineError;
use crate::batch::records::RecordsError;
use crate::batch::source::SourceError;
use crate::chat_format::ChatFormatError;
use crate::chat_format::specials::SpecialsError;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::tensor_parallel::TensorParallelError;
use crate::device::DeviceError;
use crate::engine::EngineError;
use crate::engine::blueprint::BlueprintError;
use crate::error::Hint;
use crate::family::FamilyError;
use crate::graph::forward::ForwardError;
use crate::graph::kv_cache::KvTooLarge;
use crate::launcher::LauncherError;
use crate::object::cache::CacheError;
use crate::object::compile::CompileError;
use crate::object::store::StoreError;
use crate::pipeline::PipelineError;
use crate::replica::ReplicaError;
use crate::serve::failing::EngineFailure;
use crate::serve::replay::ReplayError;
use crate::target::TargetError;
use crate::template::library_error::LibraryError;
use crate::template::render::RenderError;
use crate::tokenizer::TokenizerError;
use crate::tuning::TuningError;
use crate::workbench::bench::limits::LimitsError;
use crate::workbench::isa::IsaError;
use crate::workbench::isa::llvm::LlvmError;
use crate::workbench::predict::PredictError;

/// Prints what went wrong and says how the process ends. A reader that closed the pipe is no error.
pub(super) fn exit_code(result: anyhow::Result<()>, output: &Output) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    if error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
    {
        return ExitCode::SUCCESS;
    }
    let message: Vec<String> = error.chain().map(ToString::to_string).collect();
    output.error(&message.join("\n  caused by: "));
    if let Some(hint) = error.chain().find_map(hint) {
        output.hint(&hint);
    }
    if error.chain().any(|cause| cause.is::<UsageError>()) { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// The hint of an error of ours. Every error type that has hints is listed here.
pub(super) fn hint(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    fn of<E: Hint + std::error::Error + 'static>(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
        cause.downcast_ref::<E>().and_then(Hint::hint)
    }
    let hints: &[fn(&(dyn std::error::Error + 'static)) -> Option<String>] = &[
        of::<BatchError>,
        of::<CacheError>,
        of::<CheckpointError>,
        of::<CompileError>,
        of::<DecodeError>,
        of::<DeviceError>,
        of::<EngineError>,
        of::<EngineFailure>,
        of::<ExportError>,
        of::<FamilyError>,
        of::<ForwardError>,
        of::<GpuError>,
        of::<PeersError>,
        of::<NotInHub>,
        of::<NotMerged>,
        of::<BlueprintError>,
        of::<ChatFormatError>,
        of::<IsaError>,
        of::<KvTooLarge>,
        of::<LauncherError>,
        of::<LibraryError>,
        of::<LimitsError>,
        of::<LineError>,
        of::<LlvmError>,
        of::<ConversationTooLong>,
        of::<NotReady>,
        of::<PipelineError>,
        of::<PredictError>,
        of::<RecordsError>,
        of::<RenderError>,
        of::<ReplicaError>,
        of::<ReplayError>,
        of::<SourceError>,
        of::<SpecialsError>,
        of::<StoreError>,
        of::<TargetError>,
        of::<TensorParallelError>,
        of::<TokenizerError>,
        of::<TooFewDevices>,
        of::<TuningError>,
    ];
    hints.iter().find_map(|of| of(cause))
}
