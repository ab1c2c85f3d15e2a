//! What other processes of a host say: records between the processes of a domain, requests and replies over the socket of a hook.
//!
//! What must hold: no panic; what was understood is understood again when it is written anew. A hook that was asked for is
//! also made, with its programs and the parameters of its native stages.

use roxie::fuzz;

/// Byte 0 chooses what it is, the rest is the message.
pub fn run(data: &[u8]) {
    let Some((which, bytes)) = data.split_first() else { return };
    match which % 3 {
        0 => fuzz::domain_record(bytes),
        1 => fuzz::hook_request(bytes),
        _ => fuzz::hook_reply(bytes),
    }
}
