//! Which rows go into the next step.
