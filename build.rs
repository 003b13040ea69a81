//! How the program is linked.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The program that tests start thousands of times is the one that nobody optimises: where its place is fixed, the
    // loader has no addresses to change, which is a third of what such a start takes.
    if env::var("OPT_LEVEL").is_ok_and(|level| level == "0")
        && env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
    {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}
