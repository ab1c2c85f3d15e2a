//! Whether the peer in a ping-pong waits for the acknowledgement of its request before it sends the next one.
//!
//! Nothing on the wire tells: `ib_write_lat` waits for each completion, UCX collects them now and then. So after many turns the
//! ACK, which otherwise leaves with the answer, is kept back once. Who sends the next request all the same does not wait, and
//! gets one ACK for several turns: one packet is on its way each time instead of two.

/// Turns before a peer is tried, and how many times as many before it is tried again, each time that it waited.
const TRIAL_AFTER: u32 = 256;
const TRIAL_GROWTH: u32 = 16;
/// How long the peer has to show that it does not wait: one that does loses this. A turn takes 3 to 10 us.
const TRIAL_NS: u64 = 20_000;
/// ... and one that has shown it, whose thread may just have lost its CPU.
const PATIENT_NS: u64 = 50_000;
/// It may do that once in so many turns, about as often as the clock ticks, and is still believed.
const TURNS_PER_PAUSE: u32 = 64;
/// Turns for which one ACK is kept back at most.
const KEPT_MAX: u8 = 8;

/// What is known of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// It has sent a request while the ACK of the one before was kept back.
    is_patient: bool,
    /// Turns since then, or since it waited.
    turns: u32,
    trial_after: u32,
    /// Turns for which the present ACK has been kept back.
    kept: u8,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { is_patient: false, turns: 0, trial_after: TRIAL_AFTER, kept: 0 }
    }

    /// The answer leaves. For how many nanoseconds the ACK may stay behind, if it may.
    #[inline]
    pub(crate) fn keep(&mut self) -> Option<u64> {
        self.turns = self.turns.saturating_add(1);
        let (may_stay, ns) = if self.is_patient {
            (self.kept < KEPT_MAX, PATIENT_NS)
        } else {
            (self.turns >= self.trial_after, TRIAL_NS)
        };
        self.kept += u8::from(may_stay);
        may_stay.then_some(ns)
    }

    /// The next request is here.
    #[inline]
    pub(crate) fn request_arrived(&mut self) {
        if self.kept > 0 && !self.is_patient {
            *self = Self { is_patient: true, ..Self::new() };
        }
    }

    /// The time for the ACK to leave is over. Returns whether it was kept back: nothing has come meanwhile.
    pub(crate) fn time_is_over(&mut self) -> bool {
        if !self.is_keeping() {
            return false;
        }
        let is_patient = self.is_patient && self.turns >= TURNS_PER_PAUSE;
        let trial_after =
            if self.is_patient { TRIAL_AFTER } else { self.trial_after.saturating_mul(TRIAL_GROWTH) };
        *self = Self { is_patient, trial_after, ..Self::new() };
        true
    }

    /// Whether an ACK stays behind.
    #[inline]
    pub(crate) fn is_keeping(&self) -> bool {
        self.kept > 0
    }

    /// The ACK leaves, or is needless.
    #[inline]
    pub(crate) fn ack_sent(&mut self) {
        self.kept = 0;
    }
}

#[cfg(test)]
mod tests {
    use wire::{Opcode, Rkey};

    use super::*;
    use crate::testing::{Bench, Pkt, REMOTE, RKEY, write};

    /// Turns until the ACK stays behind, from here on.
    fn turns_until_trial(patience: &mut Patience) -> usize {
        1 + std::iter::repeat_with(|| patience.keep()).take_while(Option::is_none).count()
    }

    fn patient() -> Patience {
        let mut patience = Patience::new();
        turns_until_trial(&mut patience);
        patience.request_arrived();
        patience
    }

    #[test]
    fn a_peer_that_waits_is_tried_less_and_less_often() {
        let mut patience = Patience::new();
        for trial in [256, 4096, 65_536] {
            assert_eq!(turns_until_trial(&mut patience), trial);
            patience.time_is_over();
        }
    }

    #[test]
    fn a_peer_that_does_not_wait_gets_an_ack_for_several_turns() {
        let mut patience = patient();
        for _ in 0..3 {
            let kept = std::iter::repeat_with(|| patience.keep()).take_while(Option::is_some).count();
            assert_eq!(kept, usize::from(KEPT_MAX));
            patience.ack_sent();
        }
    }

    #[test]
    fn a_pause_is_forgiven_if_the_one_before_was_long_ago() {
        let mut patience = patient();
        for _ in 0..TURNS_PER_PAUSE {
            patience.keep();
            patience.request_arrived();
            patience.ack_sent();
        }
        assert_eq!(patience.keep(), Some(PATIENT_NS));
        patience.time_is_over();
        patience.ack_sent();
        assert_eq!(patience.keep(), Some(PATIENT_NS), "still believed");
        patience.time_is_over();
        assert_eq!(turns_until_trial(&mut patience), 256, "it has shown that it can go on");
    }

    /// A request leaves. Whether the ACK of what the peer has sent before goes with it.
    fn ask(b: &mut Bench, i: u32) -> bool {
        b.events();
        b.post(u64::from(i), write(0), 8);
        let sent = b.sent();
        assert!(sent[0].starts_with("WRITE Only"), "{sent:?}");
        sent.len() == 2
    }

    /// It is acknowledged, and the peer's request arrives.
    fn hear(b: &mut Bench, i: u32) {
        b.batch(&[Pkt::ack(500 + i), Pkt::new(Opcode::RC_WRITE_ONLY, 100 + i).reth(0, Rkey(0), 0).ack_req()]);
    }

    /// A ping-pong of two turns, the ACKs of which leave by themselves.
    fn in_turns() -> Bench {
        let mut b = Bench::rc();
        for i in 0..2 {
            ask(&mut b, i);
            hear(&mut b, i);
            b.sent();
        }
        b
    }

    /// The turn, from the `from`th on, in which an ACK stays behind.
    fn until_kept(b: &mut Bench, from: u32) -> u32 {
        let goes_along = |&i: &u32| {
            let goes = ask(b, i);
            if goes {
                hear(b, i);
            }
            goes
        };
        from + (from..).take_while(goes_along).count() as u32
    }

    #[test]
    fn a_peer_that_waits_gets_its_ack_20_us_later_once() {
        let mut b = in_turns();
        let kept = until_kept(&mut b, 2);
        assert_eq!(b.qp.poll_timeout(), Some(b.now.plus_ns(TRIAL_NS)));
        b.at(b.now.plus_ns(TRIAL_NS));
        assert_eq!(b.sent(), [format!("Acknowledge {} msn {kept}", 99 + kept)]);
        // The pattern goes on: a peer that has both would stop polling, and who keeps back *its* ACK wait for the clock.
        hear(&mut b, kept);
        assert!(b.sent().is_empty());
        let again = until_kept(&mut b, kept + 1);
        assert_eq!(again - kept, TRIAL_AFTER * TRIAL_GROWTH);
    }

    #[test]
    fn of_a_peer_that_goes_on_several_turns_are_acknowledged_together() {
        let mut b = in_turns();
        let first = until_kept(&mut b, 2);
        hear(&mut b, first);
        let acks = (first + 1..first + 30).filter(|&i| {
            let goes = ask(&mut b, i);
            hear(&mut b, i);
            goes
        });
        let every = u32::from(KEPT_MAX) + 1;
        assert_eq!(acks.map(|i| i - first).collect::<Vec<_>>(), [every, 2 * every, 3 * every]);
    }

    /// What leaves before its last packet is no news of the peer.
    #[test]
    fn behind_an_answer_of_several_packets_it_is_kept_back_no_longer() {
        let mut b = in_turns();
        let kept = until_kept(&mut b, 2);
        hear(&mut b, kept);
        b.post(1, write(0), 3000);
        assert_eq!(b.sent().len(), 3);
        assert_eq!(b.qp.poll_timeout(), Some(b.now.plus_ns(PATIENT_NS)));
        b.at(b.now.plus_ns(PATIENT_NS));
        assert_eq!(b.sent().len(), 1, "the ACK");
    }

    /// Its window would be full before it hears of any.
    #[test]
    fn a_longer_message_is_acknowledged_each_turn() {
        let mut b = Bench::rc();
        for i in 0..2 * TRIAL_AFTER {
            let along = ask(&mut b, i);
            assert!(along || i < 3, "turn {i}");
            let first = Pkt::new(Opcode::RC_WRITE_FIRST, 100 + 2 * i).reth(REMOTE, RKEY, 1032);
            let last = Pkt::new(Opcode::RC_WRITE_LAST, 101 + 2 * i).payload(1, 8).ack_req();
            b.batch(&[Pkt::ack(500 + i), first.payload(1, 1024), last]);
            if i < 2 {
                b.sent();
            }
        }
    }
}
