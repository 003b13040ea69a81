//! Prints an error at the end: the chain of causes, then one hint; and gives the exit code.

use std::io;

use gpu::GpuError;

use super::args::NoSuchLayer;
use super::decode::DecodeError;
use super::doctor::NotReady;
use super::eval::against::{NotComparable, OtherVocabulary};
use super::export::ExportError;
use super::output::Output;
use super::peers::PeersError;
use super::replicas::TooFewDevices;
use super::run::chat::ConversationTooLong;
use super::run::getp::merge::NotMerged;
use super::text_input::OtherEncoding;
use super::usage::UsageError;
use batch::BatchError;
use batch::records::RecordsError;
use batch::request_line::LineError;
use batch::source::SourceError;
use chat::chat_format::ChatFormatError;
use chat::chat_format::specials::SpecialsError;
use engine::EngineError;
use engine::blueprint::BlueprintError;
use engine::device::DeviceError;
use engine::everything::EverythingError;
use engine::graph::forward::ForwardError;
use engine::graph::kv_cache::KvTooLarge;
use engine::prefix_store::PrefixStoreError;
use hint::Hint;
use kernel::object::bundle::BundleError;
use kernel::object::cache::CacheError;
use kernel::object::compile::CompileError;
use kernel::object::store::StoreError;
use kernel::pipeline::PipelineError;
use kernel::target::TargetError;
use kernel::template::library_error::LibraryError;
use kernel::template::render::RenderError;
use kernel::tuning::TuningError;
use model::checkpoint::CheckpointError;
use model::checkpoint::tensor_parallel::TensorParallelError;
use model::family::FamilyError;
use model::hub::NotInHub;
use model::tokenizer::TokenizerError;
use replica::ReplicaError;
use serve::failing::EngineFailure;
use serve::replay::ReplayError;
use system::launcher::LauncherError;
use workbench::bench::limits::LimitsError;
use workbench::eval::windows::WindowsError;
use workbench::isa::IsaError;
use workbench::isa::llvm::LlvmError;
use workbench::predict::PredictError;
use workbench::replay::file::LaunchFileError;

/// Prints what went wrong and says with which exit code the process ends. A reader that closed the pipe is no error.
pub(super) fn exit_code(result: anyhow::Result<()>, output: &Output) -> u8 {
    let Err(error) = result else { return 0 };
    if error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe))
    {
        return 0;
    }
    let message: Vec<String> = error.chain().map(ToString::to_string).collect();
    output.error(&message.join("\n  caused by: "));
    if let Some(hint) = error.chain().find_map(hint) {
        output.hint(&hint);
    }
    if error.chain().any(|cause| cause.is::<UsageError>()) { 2 } else { 1 }
}

/// The hint of an error of ours. Every error type that has hints is listed here.
pub(super) fn hint(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    fn hint_of<E: Hint + std::error::Error + 'static>(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
        cause.downcast_ref::<E>().and_then(Hint::hint)
    }
    let hints: &[fn(&(dyn std::error::Error + 'static)) -> Option<String>] = &[
        hint_of::<BatchError>,
        hint_of::<BundleError>,
        hint_of::<CacheError>,
        hint_of::<CheckpointError>,
        hint_of::<CompileError>,
        hint_of::<DecodeError>,
        hint_of::<DeviceError>,
        hint_of::<EngineError>,
        hint_of::<EngineFailure>,
        hint_of::<EverythingError>,
        hint_of::<ExportError>,
        hint_of::<FamilyError>,
        hint_of::<ForwardError>,
        hint_of::<GpuError>,
        hint_of::<PeersError>,
        hint_of::<NotInHub>,
        hint_of::<NotComparable>,
        hint_of::<NotMerged>,
        hint_of::<OtherEncoding>,
        hint_of::<OtherVocabulary>,
        hint_of::<BlueprintError>,
        hint_of::<ChatFormatError>,
        hint_of::<IsaError>,
        hint_of::<KvTooLarge>,
        hint_of::<LauncherError>,
        hint_of::<LibraryError>,
        hint_of::<LimitsError>,
        hint_of::<LineError>,
        hint_of::<LlvmError>,
        hint_of::<ConversationTooLong>,
        hint_of::<NoSuchLayer>,
        hint_of::<NotReady>,
        hint_of::<PipelineError>,
        hint_of::<PredictError>,
        hint_of::<PrefixStoreError>,
        hint_of::<RecordsError>,
        hint_of::<RenderError>,
        hint_of::<ReplicaError>,
        hint_of::<ReplayError>,
        hint_of::<LaunchFileError>,
        hint_of::<workbench::replay::ReplayError>,
        hint_of::<SourceError>,
        hint_of::<SpecialsError>,
        hint_of::<StoreError>,
        hint_of::<TargetError>,
        hint_of::<TensorParallelError>,
        hint_of::<TokenizerError>,
        hint_of::<TooFewDevices>,
        hint_of::<TuningError>,
        hint_of::<WindowsError>,
    ];
    hints.iter().find_map(|hint_of| hint_of(cause))
}
