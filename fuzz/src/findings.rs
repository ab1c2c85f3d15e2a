//! Fuzzes the lines that two processes of a command under `roxie check` write into their files.
//!
//! Checked: no panic; what is not a line of roxie's is left out.

/// Runs one input, of which each process wrote every second line.
pub fn run(data: &[u8]) {
    roxie_cli::fuzz::findings(data);
}
