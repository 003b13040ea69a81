//! Flags that several commands share, and what they open.

pub(crate) mod chat_template;
mod desktop;
mod device;
mod kernel_counts;
mod kv;
mod model;
mod placement;
mod quantize;
mod room;
pub(crate) mod shapes;
pub(crate) mod source;
pub(crate) mod tokenizer;

pub(crate) use device::{DeviceArgs, kernel_counts};
pub(crate) use kernel_counts::KernelCounts;
pub(crate) use kv::{KvArgs, KvDtype, NoSuchLayer, Speculate};
pub(crate) use model::{ModelArgs, built_in_file, built_in_model};
pub(crate) use placement::{Placement, PlacementArgs};
pub(crate) use quantize::{QuantizeArgs, StoredWeightsArgs};
pub(crate) use room::Room;
