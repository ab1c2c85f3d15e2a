//! Receive times from the driver: an XDP program writes what the driver knows about a packet in front of it
//! (`bpf::Hints`), and the classifier program of the capture reads it there.

use bpf::{Asm, AsmError, Hints, Program, Reg, XdpAction};
use roxie::xdp::{Attached, Mode, attach, hint_kfuncs};
use sys::{Link, XdpMode};

use super::error::{During, LiveError};

/// How many receive times came from where.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ReceiveTimes {
    /// Timestamps of the NIC.
    pub nic: u64,
    /// Times at which the XDP program ran in the driver.
    pub driver: u64,
    /// Times at which the network stack handled the packet: the XDP program had not seen it.
    pub stack: u64,
}

/// For the capture file.
pub(super) const TIMES: &str = "the NIC's timestamp where its driver gives one, placed on the host's clock \
                                by the smallest delay seen; else the time at which an XDP program ran in the \
                                driver";
/// Stack offset of the hints.
const HINTS: i16 = -(Hints::LEN as i16);

/// Attaches the program to the interface, until the value is dropped.
pub(super) fn attach_program(link: &Link) -> Result<Attached, LiveError> {
    let step = format!("{}: using the receive hints of its driver", link.name);
    let kfuncs = hint_kfuncs(link.index).during(&step)?;
    if kfuncs.is_empty() {
        return Err(LiveError::NoHints { name: link.name.clone() });
    }
    let mut program = program(&kfuncs).during("assembling the XDP program of receive times")?;
    program.frags = true;
    let step = format!("attaching the XDP program of receive times to {}", link.name);
    // The program asks the driver, so it cannot run in generic mode.
    attach(link.index, &program, Mode::Only(XdpMode::Native)).during(&step)
}

/// The program passes every packet, also one whose headroom is too small for hints.
fn program(kfuncs: &bpf::HintKfuncs) -> Result<Program, AsmError> {
    let mut asm = Asm::new("roxie_hints");
    let fails = asm.label();
    asm.mov(Reg::R6, Reg::R1).read_hints(Reg::R6, HINTS, kfuncs).push_hints(Reg::R6, HINTS, fails);
    asm.bind(fails).ret(XdpAction::Pass);
    asm.finish()
}

/// Places times of the NIC's clock on the host's clock.
///
/// A packet cannot arrive before it was received, so the smallest difference of both clocks is the best
/// estimate of their offset. The estimate is renewed, because the clocks drift apart.
#[derive(Debug, Default)]
pub(super) struct NicClock {
    /// The smallest difference of the present period and of the one before.
    smallest: [Option<i64>; 2],
    period_ends_ns: u64,
}

/// Length of a period. A cheap oscillator drifts by 50 us per second: half a millisecond in a period.
const PERIOD_NS: u64 = 10_000_000_000;

impl NicClock {
    /// Returns the time `nic_ns` of the NIC on the host's clock. The packet had arrived in the host at
    /// `arrived_ns`.
    pub(super) fn host_ns(&mut self, nic_ns: u64, arrived_ns: u64) -> u64 {
        if arrived_ns >= self.period_ends_ns {
            let is_next = arrived_ns - self.period_ends_ns < PERIOD_NS;
            self.smallest = [None, self.smallest[0].filter(|_| is_next)];
            self.period_ends_ns = arrived_ns.saturating_add(PERIOD_NS);
        }
        let difference = arrived_ns.wrapping_sub(nic_ns) as i64;
        let present = self.smallest[0].map_or(difference, |smallest| smallest.min(difference));
        self.smallest[0] = Some(present);
        let offset = self.smallest[1].map_or(present, |before| before.min(present));
        nic_ns.wrapping_add(offset as u64)
    }
}

#[cfg(test)]
mod tests;
