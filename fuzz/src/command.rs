//! Fuzzes what two engines of a command under `roxie run --capture` send over their sockets, and what they
//! write into the memory of their taps.
//!
//! Checked: no panic; the file is a capture without damage, and holds the packets that were counted.

/// Runs one input.
pub fn run(data: &[u8]) {
    roxie_capture::fuzz::command(data);
}
