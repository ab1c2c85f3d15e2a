//! Fuzz targets for records and memory of other processes on this host: bytes in, a panic if a promise is
//! broken.

pub use crate::registry::check_journal as journal;
pub use crate::registry::check_record as domain_record;
pub use crate::shm::check_ring as ring;
