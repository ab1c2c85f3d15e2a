//! Fuzz targets for records and memory of other processes on this host: bytes in, a panic if a promise is
//! broken.

pub use crate::hook::control::{
    check_plan as hook_plan, check_reply as hook_reply, check_request as hook_request,
};
pub use crate::registry::check_journal as journal;
pub use crate::registry::check_record as domain_record;
pub use crate::shm::check_ring as ring;
