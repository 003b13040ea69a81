//! General tools for the machine: files that appear whole, files that no other user wrote, locks that end, processes
//! with bounds, and numbers with units.

pub mod bounded_process;
pub mod foreign_text;
pub mod git_lfs;
pub mod home;
pub mod json_entries;
pub mod launcher;
pub mod lock_file;
pub mod new_file;
pub mod os;
pub mod trust;
pub mod units;
