//! Where templates come from, what shadows what, and which fit a target.
