//! A plain-loop reference of every op.
