//! Checks whether the steering program is still on the interface: any process with the privilege can
//! detach or replace it, and the kernel does not report that.
//!
//! Without the program, the kernel gives packets to the slot's UDP socket, which is slower, unless a
//! program that replaced it does something else with them.

use super::paths::LinkState;
use crate::notice;
use crate::xdp::{Presence, Steering};

/// Checks the program from time to time.
#[derive(Debug, Default)]
pub(super) struct ProgramWatch {
    checked_ns: u64,
    /// The program is not there, and a notice was printed.
    pub(super) is_missing: bool,
    /// Times the program was missing.
    pub(super) lost: u64,
    /// Times the program was attached again.
    pub(super) put_back: u64,
}

/// Time between two checks.
const CHECK_NS: u64 = 500_000_000;
/// Times it is attached again: a second removal is taken as intended.
const PUT_BACK_MAX: u64 = 1;
const SLOWER: &str = "packets come more slowly, by UDP sockets";

impl ProgramWatch {
    /// Checks the program if it is time to; attaches it again if no other program has replaced it, and
    /// prints a notice.
    pub(super) fn check(&mut self, steering: &mut Steering, link: &LinkState, now: u64) {
        if self.is_missing || link.gone || now - self.checked_ns < CHECK_NS {
            return;
        }
        self.checked_ns = now;
        let name = &link.name;
        let lost = match steering.presence() {
            // The engine's address monitor reports that the interface was removed.
            Ok(Presence::On | Presence::Gone) | Err(_) => return,
            Ok(Presence::Replaced { id, name: theirs, .. }) => format!(
                "XDP program {theirs} (id {id}) has replaced roxie's on {name}: {SLOWER}, if it passes them; \
                 detach it ('roxie xdp detach {name} --force') and start this program again"
            ),
            Ok(Presence::Off) if self.put_back < PUT_BACK_MAX => match steering.put_back() {
                Ok(()) => {
                    (self.lost, self.put_back) = (self.lost + 1, self.put_back + 1);
                    notice(format_args!(
                        "roxie's XDP program was taken off {name}; it is back, and stays off the next time"
                    ));
                    return;
                }
                Err(error) => format!(
                    "roxie's XDP program was taken off {name}, and it cannot be attached again ({error}): \
                     {SLOWER}; start this program again"
                ),
            },
            Ok(Presence::Off) => format!(
                "roxie's XDP program was taken off {name} again: {SLOWER}; start this program again to \
                 attach it"
            ),
        };
        self.lost += 1;
        self.is_missing = true;
        notice(lost);
    }
}
