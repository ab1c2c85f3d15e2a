//! Fuzzes hooks as a process gets them from `roxie run` or over the control socket: programs as instructions,
//! maps with their initial contents, and names of kernel functions.
//!
//! Checked: no panic; a decoded hook survives encoding and decoding, and is built or refused.

/// Runs one input: what follows the version in the file of a hook.
pub fn run(data: &[u8]) {
    roxie_hook::fuzz::plan(data);
}
