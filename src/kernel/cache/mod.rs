//! The on-disk cache of compiled kernels.
