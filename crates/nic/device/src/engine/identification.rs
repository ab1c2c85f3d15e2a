//! Which IPv4 identifications a flow uses, where the port does not see them.
//!
//! The ICRC covers the identification, so a receiver that does not know it recovers it from the ICRC, and any
//! of 65536 ICRCs is correct then. A flow that has shown its pattern is held to it: roxie sends the index of
//! the segment in its burst, Linux counts upwards, together with other flows to the same host. A sender of
//! another kind never shows a pattern, and any identification of it is accepted.

use std::net::IpAddr;

use transport::Instant;

use crate::port::RxBatch;

/// Flows that are remembered, by a hash; a later one displaces an earlier one, which has no pattern then.
const FLOWS: usize = 256;
/// Identifications below this are the index of a segment (UDP_MAX_SEGMENTS of linux/udp.h).
const SEGMENTS_MAX: u16 = 128;
/// Packets in a row, or batches of segment indices, that fit before a flow has a pattern. With random
/// identifications one in 40 fits, so that 16 in a row are none.
const PROOF: u8 = 16;
/// Packets that do not fit after which a flow has no pattern any more: its sender was restarted. They are
/// forgotten after [`CALM`] packets that fit; a few of these may be forged.
const DOUBT: u8 = 4;
const CALM: u8 = 200;
/// A counter that other flows advance, too, is within this distance after no time, and one further for every
/// [`NS_PER_ID`] that have passed: 500,000 packets in a second.
const STEP_MAX: u64 = 1024;
const NS_PER_ID: u64 = 2_000;
/// Packets that overtake each other have earlier identifications.
const BACK_MAX: u16 = 256;

/// What is known of one flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    tag: u64,
    at: Instant,
    last: u16,
    proof: u8,
    doubt: u8,
}

/// The flows that sent lately.
#[derive(Debug)]
pub(super) struct Identifications(Box<[Flow]>);

impl Default for Identifications {
    fn default() -> Self {
        Self(vec![Flow::default(); FLOWS].into_boxed_slice())
    }
}

impl Identifications {
    /// The flow of a batch; `None` if its identifications are known or there are none.
    #[inline]
    pub(super) fn flow(&self, batch: &RxBatch<'_>) -> Option<Flow> {
        let (IpAddr::V4(src), None) = (batch.src, batch.ip_id) else { return None };
        let tag = 1 << 48 | u64::from(src.to_bits()) << 16 | u64::from(batch.src_port);
        let flow = self.0[place(tag)];
        Some(if flow.tag == tag { flow } else { Flow { tag, ..Flow::default() } })
    }

    /// Remembers a flow.
    #[inline]
    pub(super) fn put(&mut self, flow: Flow) {
        self.0[place(flow.tag)] = flow;
    }
}

/// Fibonacci hashing.
fn place(tag: u64) -> usize {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
}

impl Flow {
    /// A packet had an identification of the pattern.
    #[inline]
    pub(super) fn fits(&mut self, now: Instant, id: u16) {
        self.proof += 1;
        if self.proof == PROOF + CALM {
            self.proof = PROOF;
        }
        if self.proof == PROOF {
            self.doubt = 0;
        }
        (self.last, self.at) = (id, now);
    }

    /// Packets had the indices of their segments. They do not move a counter that is a pattern.
    #[inline]
    pub(super) fn fits_segments(&mut self, now: Instant) {
        if self.last < SEGMENTS_MAX || self.proof < PROOF {
            self.fits(now, 0);
        }
    }

    /// Whether a packet with a recovered identification is accepted.
    pub(super) fn accepts(&mut self, now: Instant, id: u16) -> bool {
        let passed = now.since(self.at).as_nanos() as u64;
        let forward = u64::from(id.wrapping_sub(self.last));
        let is_near = forward <= STEP_MAX + passed / NS_PER_ID || self.last.wrapping_sub(id) <= BACK_MAX;
        if is_near {
            self.fits(now, id);
        } else if id < SEGMENTS_MAX {
            self.fits_segments(now);
        } else if self.proof >= PROOF && self.doubt + 1 < DOUBT {
            self.doubt += 1;
            return false;
        } else {
            (self.proof, self.doubt) = (0, 0);
            (self.last, self.at) = (id, now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use wire::IcrcHeader;

    /// Runs a flow, and sends it packets with random ICRCs. Returns how many of these are accepted.
    fn accepted_at_random(id_of: impl Fn(u64) -> u16, rounds: u64) -> (u64, u64) {
        let [src, dst] = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last));
        let icrc = IcrcHeader::v4(src, dst, 0xc000, 4791);
        let mut packet = vec![0x04; 32];
        let mut flow = Flow::default();
        let (mut refused, mut accepted, mut random) = (0, 0, 1_u64);
        for round in 1..=rounds {
            let now = Instant(round * 10_000);
            let genuine = icrc.icrc(id_of(round), &packet[..28]);
            packet[28..].copy_from_slice(&genuine.to_le_bytes());
            match icrc.verify(0, &packet) {
                Ok(0) => flow.fits_segments(now),
                Ok(id) => refused += u64::from(!flow.accepts(now, id)),
                Err(reason) => panic!("{reason}"),
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            packet[28..].copy_from_slice(&((random >> 32) as u32).to_le_bytes());
            accepted += u64::from(icrc.verify(0, &packet).is_ok_and(|id| flow.accepts(now, id)));
        }
        (accepted, refused)
    }

    /// Without the pattern one in 65536 is accepted.
    #[test]
    fn a_random_icrc_is_not_accepted_on_a_flow_with_a_pattern() {
        const ROUNDS: u64 = 600_000;
        for id_of in [|_| 0, |round| (round * 3) as u16] {
            let (accepted, refused) = accepted_at_random(id_of, ROUNDS);
            assert!(accepted <= 1 && refused == 0, "{accepted} accepted, {refused} genuine ones refused");
        }
    }

    #[test]
    fn a_sender_with_random_identifications_is_accepted() {
        let id_of = |round: u64| (round.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u16;
        let (_, refused) = accepted_at_random(id_of, 10_000);
        assert_eq!(refused, 0);
    }

    #[test]
    fn a_sender_that_restarts_its_counter_is_accepted_again() {
        let mut flow = Flow::default();
        for round in 1..100 {
            assert!(flow.accepts(Instant(round * 1000), 5000 + round as u16));
        }
        let later: Vec<bool> = (0..6).map(|i| flow.accepts(Instant(100_000), 40_000 + i)).collect();
        assert_eq!(later, [false, false, false, true, true, true]);
    }

    /// A forger that sends segment indices between the packets does not hold a restarted counter back.
    #[test]
    fn segment_indices_neither_move_a_counter_nor_delay_its_restart() {
        let mut flow = Flow::default();
        for round in 1..50 {
            assert!(flow.accepts(Instant(round * 1000), 5000 + round as u16));
        }
        for round in 50..100 {
            assert!(flow.accepts(Instant(round * 1000), 5000 + round as u16));
            flow.fits_segments(Instant(round * 1000));
            assert!(flow.accepts(Instant(round * 1000), 3));
        }
        let mut refused = 0;
        for i in 0..20 {
            refused += u32::from(!flow.accepts(Instant(100_000), 40_000 + i));
            flow.fits_segments(Instant(100_000));
        }
        assert_eq!(refused, 3);
    }
}
