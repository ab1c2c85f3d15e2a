//! Fuzzes messages between processes of one host: records between the processes of a domain, and requests and
//! replies over the control socket of hooks.
//!
//! Checked: no panic; a decoded message survives encoding and decoding. A requested hook is also built, with
//! its programs and the parameters of its native stages.

use roxie::fuzz;
use roxie_hook::fuzz as hook;

/// Runs one input. Byte 0 selects the kind, the rest is the message.
pub fn run(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else { return };
    match which % 3 {
        0 => fuzz::domain_record(bytes),
        1 => hook::request(bytes),
        _ => hook::reply(bytes),
    }
}
