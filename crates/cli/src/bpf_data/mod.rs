//! Data of XDP programs, of a process's hooks or of the kernel: maps, records, printed lines.

pub(crate) mod args;
mod entry;
mod records;
mod show;
mod table;
mod types;

pub(crate) use records::{Content, RecordOutput, time_of};
pub(crate) use show::{Source, run, unseen};
pub(crate) use table::{Hooked, Kernel, Table};
pub(crate) use types::{MapView, Shape};
