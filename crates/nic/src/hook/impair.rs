//! A bad network, from a seed: packets are lost, come twice, or late.

use super::parameters::Parameters;
use super::{HookError, HookPacket, Stage, Verdict};
use crate::sys::random_u64;

/// What the network is to do. The same seed does the same to the same packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impair {
    /// Probability that a packet is lost, 0.0..=1.0.
    pub loss: f64,
    /// Probability that one comes twice.
    pub duplicate: f64,
    /// How long each is held back, in nanoseconds.
    pub delay_ns: u64,
    /// How much more than that at most; packets overtake each other then.
    pub jitter_ns: u64,
    /// Where chance begins.
    pub seed: u64,
}

impl Impair {
    const USAGE: &str = "impair:loss=1%,duplicate=0.1%,delay=2ms,jitter=1ms,seed=7, each of them optional and given once; \
                         shares are 0%..100% or 0..1, times at most 60s";

    /// From the text behind `impair:`.
    pub(super) fn parse(text: &str) -> Result<Impair, HookError> {
        let mut impair = Impair { loss: 0.0, duplicate: 0.0, delay_ns: 0, jitter_ns: 0, seed: random_u64() };
        let mut parameters = Parameters::new("impair", text, Self::USAGE);
        let mut seen = Vec::new();
        while let Some((name, value)) = parameters.next()? {
            if seen.contains(&name) {
                return Err(parameters.error());
            }
            seen.push(name);
            match name {
                "loss" => impair.loss = parameters.fraction(value)?,
                "duplicate" => impair.duplicate = parameters.fraction(value)?,
                "delay" => impair.delay_ns = parameters.time_ns(value)?,
                "jitter" => impair.jitter_ns = parameters.time_ns(value)?,
                "seed" => impair.seed = parameters.number(value)?,
                _ => return Err(parameters.error()),
            }
        }
        Ok(impair)
    }

    /// The stage that does it.
    #[must_use]
    pub fn stage(self) -> Box<dyn Stage> {
        Box::new(Impairing { impair: self, state: self.seed, lost: 0, doubled: 0, delayed: 0 })
    }
}

#[derive(Debug)]
struct Impairing {
    impair: Impair,
    state: u64,
    lost: u64,
    doubled: u64,
    delayed: u64,
}

impl Impairing {
    /// 64 random bits (SplitMix64).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    fn happens(&mut self, probability: f64) -> bool {
        // 53 bits are what a fraction has.
        probability > 0.0 && ((self.random() >> 11) as f64) < probability * (1_u64 << 53) as f64
    }
}

impl Stage for Impairing {
    fn run(&mut self, packet: &mut HookPacket<'_>) -> Verdict {
        if self.happens(self.impair.loss) {
            self.lost += 1;
            return Verdict::Drop;
        }
        if self.happens(self.impair.duplicate) {
            self.doubled += 1;
            packet.double();
        }
        let Impair { delay_ns, jitter_ns, .. } = self.impair;
        if delay_ns + jitter_ns > 0 {
            self.delayed += 1;
            let extra_ns = if jitter_ns > 0 { self.random() % jitter_ns } else { 0 };
            packet.hold_ns(delay_ns + extra_ns);
        }
        Verdict::Pass
    }

    fn rows(&self) -> Vec<(String, u64)> {
        let rows = [
            ("seed", self.impair.seed),
            ("lost", self.lost),
            ("doubled", self.doubled),
            ("delayed", self.delayed),
        ];
        rows.map(|(name, value)| (name.to_owned(), value)).into()
    }
}
