//! The program with a fake device.
