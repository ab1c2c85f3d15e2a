//! Which packets a connection believes. A forger that does not see the traffic can put every field into a
//! packet, but must guess the PSN and the UDP source port of the peer.
//!
//! The peer's source ports are learned, one for its requests and one for its responses: hardware need not use
//! the same. A packet from another port is believed only if its PSN is one of the few that the peer must send
//! next (`Responder::admit_foreign`, `Requester::admit_foreign`), because a peer may change its port: its
//! route, its address translator or its port of roxie changes.
//!
//! A packet with a PSN that the peer cannot send is a guess. A peer that changes its port with many packets
//! in flight and loses the first sends a sequence of such packets: it counts as one guess, and nothing in it
//! is believed ([`Trust::continues_guess`]). The peer recovers when it goes back to the expected packet.
//!
//! A forger that finds a PSN by trying has sent many guesses before. After [`GUESSES_MAX`] of them the
//! connection believes no other port and keeps no early request, until no guess has come for
//! [`DISTRUST_NS`]. One guess from the peer's own port is enough, because that forger has a larger target:
//! every early request that would be kept.

use wire::Psn;

use crate::in_flight::SPAN;
use crate::time::Instant;

/// Guesses after which the connection distrusts. A packet that was delayed for seconds is a guess, too, so it
/// is not one. With the double the forger has the double number of tries in a minute.
pub(crate) const GUESSES_MAX: u32 = 16;
/// Time without a guess after which guesses are forgotten: a minute. With half of it the forger has the
/// double number of tries; a peer that changes its port during an attack waits so long.
pub(crate) const DISTRUST_NS: u64 = 60_000_000_000;
/// Distance from the expected PSN, in packets, from which on a packet from the peer's own port is a guess:
/// the send window of the largest adapters is below it. A forger hits the range once in 128 tries.
const FAR: i32 = 1 << 16;
/// Most by which a packet of a sequence of guesses is ahead of the one before. Whatever its value, it makes
/// no packet believed; a peer that loses more packets in a row makes another guess.
const STEP_MAX: i32 = SPAN as i32;
/// No port has this number.
const NONE: u32 = u32::MAX;

/// The half of a connection that a packet belongs to: its requests or its responses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Half {
    Requests,
    Responses,
}

/// The peer's ports, and the guesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trust {
    /// UDP source ports of the peer, by [`Half`].
    ports: [u32; 2],
    /// Another port, from which a response in flight came after the last guess.
    candidate: u32,
    guesses: u32,
    guessed_at: Instant,
    /// The last packet of a sequence from another port that began with a guess.
    sequence: Option<(u16, Psn)>,
}

impl Default for Trust {
    fn default() -> Self {
        Self { ports: [NONE; 2], candidate: NONE, guesses: 0, guessed_at: Instant::ZERO, sequence: None }
    }
}

impl Trust {
    /// Whether the peer uses this port in this half.
    #[inline]
    pub(crate) fn knows(&self, half: Half, port: u16) -> bool {
        self.ports[half as usize] == u32::from(port)
    }

    /// Whether the peer uses this port in the other half, so that it needs no proof.
    pub(crate) fn knows_from_other(&self, half: Half, port: u16) -> bool {
        self.ports[1 - half as usize] == u32::from(port)
    }

    /// Whether no port of this half is known yet.
    pub(crate) fn is_new(&self, half: Half) -> bool {
        self.ports[half as usize] == NONE
    }

    /// The peer uses this port in this half from now on.
    pub(crate) fn learn(&mut self, half: Half, port: u16) {
        self.ports[half as usize] = u32::from(port);
        self.candidate = NONE;
        self.sequence = None;
    }

    /// A request from this other port is a guess, the first of a sequence.
    pub(crate) fn begin_guess(&mut self, port: u16, psn: Psn) {
        self.sequence = Some((port, psn));
    }

    /// Whether a request counts up from a guess that came from the same port. Such a request is never
    /// executed, so it need not be counted: a forger gains nothing by it. Any other request ends the
    /// sequence.
    pub(crate) fn continues_guess(&mut self, port: u16, psn: Psn) -> bool {
        let is_next =
            |(from, last): (u16, Psn)| from == port && (1..STEP_MAX).contains(&psn.distance_from(last));
        self.sequence = self.sequence.filter(|last| is_next(*last)).map(|_| (port, psn));
        self.sequence.is_some()
    }

    /// Whether the last response in flight from another port came from this one, too, without a guess since.
    pub(crate) fn is_repeated(&mut self, port: u16) -> bool {
        core::mem::replace(&mut self.candidate, u32::from(port)) == u32::from(port)
    }

    /// Counts a guess, which may have the weight of several. Returns whether the connection begins to
    /// distrust because of it.
    pub(crate) fn on_guess(&mut self, now: Instant, weight: u32) -> bool {
        if now >= self.guessed_at.plus_ns(DISTRUST_NS) {
            self.guesses = 0;
        }
        let was_trusting = self.guesses < GUESSES_MAX;
        self.guesses = self.guesses.saturating_add(weight);
        self.guessed_at = now;
        self.candidate = NONE;
        was_trusting && self.guesses >= GUESSES_MAX
    }

    /// Whether there were so many guesses that other ports and early requests are not believed.
    pub(crate) fn is_distrustful(&self, now: Instant) -> bool {
        self.guesses >= GUESSES_MAX && now < self.guessed_at.plus_ns(DISTRUST_NS)
    }
}

/// Whether the peer cannot have sent a packet from its own port so far from the expected one.
#[inline]
pub(crate) fn is_far(distance: i32) -> bool {
    distance.unsigned_abs() >= FAR.unsigned_abs()
}

/// Whether a packet from another port, so far from the expected one, is a guess.
pub(crate) fn is_foreign_guess(distance: i32) -> bool {
    u64::from(distance.unsigned_abs()) >= SPAN
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn guesses_are_forgotten_after_a_minute_without_one() {
        let mut trust = Trust::default();
        for second in 0..u64::from(GUESSES_MAX) - 1 {
            assert!(!trust.on_guess(Instant(second * SECOND), 1));
        }
        assert!(!trust.is_distrustful(Instant(15 * SECOND)));
        assert!(trust.on_guess(Instant(15 * SECOND), 1));
        assert!(trust.is_distrustful(Instant(74 * SECOND)));
        assert!(!trust.is_distrustful(Instant(75 * SECOND)));
        assert!(!trust.on_guess(Instant(75 * SECOND), 1), "the first of a new minute");
        assert!(!trust.is_distrustful(Instant(75 * SECOND)));
    }

    #[test]
    fn each_half_has_its_own_port() {
        let mut trust = Trust::default();
        assert!(trust.is_new(Half::Requests) && !trust.knows(Half::Requests, 0xffff));
        trust.learn(Half::Requests, 0xc000);
        assert!(trust.knows(Half::Requests, 0xc000) && !trust.knows(Half::Responses, 0xc000));
        assert!(trust.knows_from_other(Half::Responses, 0xc000) && trust.is_new(Half::Responses));
    }
}
