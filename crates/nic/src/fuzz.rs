//! What other processes of this host say, for the fuzz targets: bytes in, a panic if something that must hold does not.

pub use crate::hook::control::{check_reply as hook_reply, check_request as hook_request};
pub use crate::registry::check_record as domain_record;
