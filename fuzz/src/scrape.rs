//! Fuzzes requests to the server of `roxie metrics`.
//!
//! Checked: no panic; the reply does not depend on how the bytes of a request arrive, nor on bytes behind it.

/// Runs one input, as all prefixes of what a client sends.
pub fn run(data: &[u8]) {
    roxie_cli::fuzz::scrape_request(data);
}
