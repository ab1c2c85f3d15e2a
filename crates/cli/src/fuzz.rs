//! What a hostile command or client can write, for the fuzz targets: bytes in, a panic if a promise is
//! broken.

pub use crate::check::check_findings as findings;
pub use crate::metrics::check_request as scrape_request;
pub use crate::trace::check_recording as recording;
