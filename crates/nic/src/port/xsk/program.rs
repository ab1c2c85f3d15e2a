//! Whether the steering program is still on the interface: whoever may can take it off or put another in its place, and
//! the kernel tells nobody.
//!
//! Without it packets go on: the kernel gives them to the slot's UDP socket, more slowly, unless the program that came
//! instead does something else with them.

use super::paths::LinkState;
use crate::notice;
use crate::xdp::{Presence, Steering};

/// Looks at the program from time to time.
#[derive(Debug, Default)]
pub(super) struct ProgramWatch {
    looked_ns: u64,
    /// It is not there, and that was said.
    pub(super) is_missing: bool,
    /// Times it was found missing.
    pub(super) lost: u64,
    /// Times it was put back.
    pub(super) put_back: u64,
}

/// Time between two looks.
const LOOK_NS: u64 = 500_000_000;
/// Times it is put back: who takes it off again means it.
const PUT_BACK_MAX: u64 = 1;
const SLOWER: &str = "packets come more slowly, by UDP sockets";

impl ProgramWatch {
    /// Looks, if that is due; puts the program back where nothing has taken its place, and says what has happened.
    pub(super) fn look(&mut self, steering: &mut Steering, link: &LinkState, now: u64) {
        if self.is_missing || link.gone || now - self.looked_ns < LOOK_NS {
            return;
        }
        self.looked_ns = now;
        let name = &link.name;
        let lost = match steering.presence() {
            // That the interface is gone is told where all of the device learns it.
            Ok(Presence::On | Presence::Gone) | Err(_) => return,
            Ok(Presence::Replaced { id, name: theirs, .. }) => format!(
                "XDP program {theirs} (id {id}) has taken the place of roxie's on {name}: {SLOWER}, if it lets them pass; \
                 take it off ('roxie xdp detach {name} --force') and start this program again"
            ),
            Ok(Presence::Off) if self.put_back < PUT_BACK_MAX => match steering.put_back() {
                Ok(()) => {
                    (self.lost, self.put_back) = (self.lost + 1, self.put_back + 1);
                    notice(format_args!(
                        "somebody took roxie's XDP program off {name}; it is back, and stays off the next time"
                    ));
                    return;
                }
                Err(error) => format!(
                    "somebody took roxie's XDP program off {name}, and it cannot be put back ({error}): {SLOWER}; start \
                     this program again"
                ),
            },
            Ok(Presence::Off) => format!(
                "somebody took roxie's XDP program off {name} again: {SLOWER}; start this program again to have it back"
            ),
        };
        self.lost += 1;
        self.is_missing = true;
        notice(lost);
    }
}
