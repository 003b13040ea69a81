//! Integration tests, one binary: a module per room.

mod architecture;
mod bad_input;
mod cache;
mod chat;
mod checkpoint;
mod compile;
mod contracts;
mod doctor;
mod forward;
mod generate;
mod getp;
mod hip;
mod hiprtc;
mod isa;
mod kernels;
mod logits;
mod models;
mod occupancy;
mod own_templates;
mod program;
mod seeds;
mod simulator;
mod startup;
mod templates;
mod tiny;
mod tokenizer;
