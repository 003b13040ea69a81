//! A target: the chip as facts. What is compiled for, not what is running.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Which compiler turns a rendered template into an object, and which templates fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// C for this machine's cores, compiled by the system's `cc`; `.c.j2` templates.
    Host,
    /// HIP C++ for an AMD GPU, compiled by hipRTC; `.hip.j2` templates.
    Hiprtc,
    /// A pretended compiler for tests: it can crash, hang and emit garbage on request.
    Mock,
}

impl Backend {
    /// The name used in keys, tables and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Hiprtc => "hiprtc",
            Self::Mock => "mock",
        }
    }

    /// What a template's file name ends in for this backend.
    pub const fn template_extension(self) -> &'static str {
        match self {
            Self::Host => ".c.j2",
            Self::Hiprtc | Self::Mock => ".hip.j2",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A chip, as the facts that templates and compilers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Who compiles for it.
    pub backend: Backend,
    /// `gfx1100`, `x86-64-v4`, …
    pub arch: String,
    /// Lanes that run in step: 32 or 64 on an AMD GPU, 1 on the host.
    pub wave_size: u32,
    /// What the chip can do beyond its arch: `avx512bf16`, `wmma_gfx11`, `mfma`, …
    pub features: BTreeSet<String>,
    /// LDS that one block may use, in bytes; 0 on the host.
    pub lds_bytes: u32,
}
