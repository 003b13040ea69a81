//! Flags that several commands have, and what they open.

pub(crate) mod chat_template;
mod desktop;
mod device;
mod kv;
mod model;
mod placement;
mod quantize;
mod room;
pub(crate) mod shapes;
pub(crate) mod source;
pub(crate) mod tokenizer;

pub(crate) use device::{DeviceArgs, kernel_counts};
pub(crate) use kv::{KvArgs, NoSuchLayer, Speculate};
pub(crate) use model::ModelArgs;
pub(crate) use placement::{Placement, PlacementArgs};
pub(crate) use quantize::QuantizeArgs;
pub(crate) use room::Room;
