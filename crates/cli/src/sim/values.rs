//! Values of options that several parts of `roxie sim` have.

use std::num::NonZeroUsize;

use roxie_capture::filter::parse_number;

pub(super) fn seed(text: &str) -> Result<u64, String> {
    parse_number(text).ok_or_else(|| "a number below 2^64, decimal or 0x with hexadecimal digits".to_owned())
}

pub(super) fn threads(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "a number from 1 on; without --threads there is one for each CPU".to_owned())
}
