//! The whole job of `tune`: which kernel is the fastest for every problem of a forward pass at every number of rows.
//!
//! [`job`] says what there is to tune, in the order of its share of a step, and [`alone`] what only runs fused. A
//! [`judge::Judge`] says how long a kernel takes: [`device`] measures it, in a process of its own, and [`predicted`]
//! works it out without the device. [`tuner`] asks it about some parameters of every template ([`walk`]), and where the
//! best of two numbers of rows differ, about those between (`refine`); all that was said is in a [`journal`] at once.
//! [`rows`] makes rows of a tuning table of it, and [`step`] keeps those with which whole steps are no slower.

pub mod alone;
pub mod device;
pub mod job;
pub mod journal;
pub mod judge;
pub(crate) mod objects;
pub mod predicted;
mod refine;
pub mod rekey;
pub mod rows;
pub mod stale;
pub mod step;
pub mod tuner;
pub mod walk;
pub mod worker;
