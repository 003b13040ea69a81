#![no_main]

#[path = "../inputs.rs"]
#[allow(dead_code, reason = "each target has one of them")]
mod inputs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| inputs::bin(data));
