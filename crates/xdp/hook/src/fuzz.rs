//! Fuzz targets for records of other processes on this host: bytes in, a panic if a promise is broken.

pub use crate::control::{check_plan as plan, check_reply as reply, check_request as request};
