//! Which flows leave through the UDP port although their neighbour is resolved: in copy mode, those that send
//! bursts.
//!
//! In copy mode the kernel makes a buffer for each packet of an AF_XDP socket, but only one for a burst of a
//! UDP socket (UDP_SEGMENT). A single packet leaves earlier through the AF_XDP socket, past the network
//! stack. Packets are received over AF_XDP either way.
//!
//! A flow changes its way between two rounds only, so that its packets leave in order. A round ends with a
//! flush.

use crate::variable::BadVariable;

/// How bursts leave in copy mode.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum BurstPath {
    /// Through UDP sockets, segmented by the kernel.
    #[default]
    Udp,
    /// Packet by packet through the AF_XDP socket, as single packets do.
    Ring,
}

impl BurstPath {
    /// Reads `ROXIE_XSK_BURSTS`.
    ///
    /// # Errors
    /// The variable, if it has another value than `udp` or `ring`.
    pub fn from_env() -> Result<BurstPath, BadVariable> {
        const NAME: &str = "ROXIE_XSK_BURSTS";
        let word = std::env::var_os(NAME).unwrap_or_default().to_string_lossy().into_owned();
        match word.as_str() {
            "" | "udp" => Ok(BurstPath::Udp),
            "ring" => Ok(BurstPath::Ring),
            _ => Err(BadVariable::new(NAME, &word, &["udp", "ring"])),
        }
    }
}

/// What the rounds of one flow have shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bursts {
    /// The round of the last packet.
    round: u64,
    /// Packets of the flow in that round.
    packets: u32,
    /// Rounds since the last burst.
    calm_rounds: u32,
    /// Packets leave through the UDP port.
    are_sent: bool,
}

/// Packets of a flow in one round that are a burst. In copy mode as many cost the kernel as much through the
/// AF_XDP socket as one system call of a UDP socket. Half: a request and its acknowledgement are a burst.
const BURST_MIN: u32 = 4;
/// Rounds without a burst after which a flow leaves through the AF_XDP socket again, if its UDP socket is
/// empty; else after as many more. Half: a flow that sends bursts and acknowledgements in turn changes its
/// way more often. Double: single packets have the longer latency of UDP sockets for longer.
const CALM_ROUNDS: u32 = 64;

impl Bursts {
    /// Whether packets of round `round` leave through the UDP port. `is_ring_empty` says whether the kernel
    /// has taken all packets of the flow's AF_XDP queue, which a burst would overtake; `is_socket_empty`
    /// whether no queueing discipline holds packets of its UDP socket, which AF_XDP would overtake.
    #[inline]
    pub(super) fn leave_by_udp(
        &mut self,
        round: u64,
        is_ring_empty: impl FnOnce() -> bool,
        is_socket_empty: impl FnOnce() -> bool,
    ) -> bool {
        if self.round != round {
            let is_burst = self.packets >= BURST_MIN;
            self.calm_rounds = if is_burst { 0 } else { self.calm_rounds.saturating_add(1) };
            if !self.are_sent {
                self.are_sent = is_burst && is_ring_empty();
            } else if self.calm_rounds >= CALM_ROUNDS {
                self.are_sent = !is_socket_empty();
                self.calm_rounds = 0;
            }
            (self.round, self.packets) = (round, 0);
        }
        self.are_sent
    }

    /// A packet of the present round leaves.
    #[inline]
    pub(super) fn add(&mut self) {
        self.packets += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends this many packets in each round, from round `first` on; returns how many leave through UDP.
    /// The flow's other way is empty or not.
    fn rounds(bursts: &mut Bursts, first: u64, packets: &[u32], is_empty: bool) -> u32 {
        let mut by_udp = 0;
        for (round, packets) in (first..).zip(packets) {
            for _ in 0..*packets {
                by_udp += u32::from(bursts.leave_by_udp(round, || is_empty, || is_empty));
                bursts.add();
            }
        }
        by_udp
    }

    #[test]
    fn a_flow_leaves_by_udp_from_the_round_after_a_burst_until_it_was_calm() {
        let mut bursts = Bursts::default();
        assert_eq!(rounds(&mut bursts, 1, &[1, 2, 3, 1], true), 0, "no bursts");
        assert_eq!(rounds(&mut bursts, 5, &[60], true), 0, "a round has one way");
        assert_eq!(rounds(&mut bursts, 6, &[1, 60, 1], true), 62);
        let calm = [1; CALM_ROUNDS as usize + 10];
        assert_eq!(rounds(&mut bursts, 9, &calm, true), CALM_ROUNDS - 1, "round 8 counts");
    }

    #[test]
    fn single_packets_do_not_overtake_bursts_that_a_queueing_discipline_holds() {
        let mut bursts = Bursts::default();
        assert_eq!(rounds(&mut bursts, 1, &[60, 60], true), 60);
        let calm = [1; 3 * CALM_ROUNDS as usize];
        assert_eq!(rounds(&mut bursts, 3, &calm, false), 3 * CALM_ROUNDS, "the socket is never empty");
        let next = 3 + 3 * u64::from(CALM_ROUNDS);
        assert!(rounds(&mut bursts, next, &calm, true) < CALM_ROUNDS, "it is empty");
    }

    #[test]
    fn a_burst_does_not_overtake_packets_that_wait_in_the_ring() {
        let mut bursts = Bursts::default();
        assert_eq!(rounds(&mut bursts, 1, &[60, 60, 60], false), 0);
        assert_eq!(rounds(&mut bursts, 4, &[60], true), 60);
    }
}
