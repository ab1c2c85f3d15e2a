//! A rate limit for each source address: the excess of a faster source is dropped. On egress the sources
//! are the device's own addresses.

use std::collections::HashMap;
use std::net::IpAddr;

use super::parameters::Parameters;
use super::{HookError, HookPacket, Stage, Verdict};

/// The limit of each source: a token bucket of its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Police {
    /// The unit of a token.
    pub unit: PoliceUnit,
    /// Tokens per second, 1..=10^12.
    pub rate: u64,
    /// Tokens that a bucket holds, 1..=2^30: the limit of a burst. A packet that costs more never passes.
    pub burst: u64,
    /// Most sources known at once, 1..=65536. Further ones are not limited while none of these is idle.
    pub sources: usize,
}

/// The unit of a token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PoliceUnit {
    /// A byte of a frame, Ethernet header to ICRC.
    Bytes,
    /// A packet.
    Packets,
}

impl Police {
    const USAGE: &str = "police:rate=125M,burst=1M,sources=4096 (bytes a second; burst 64K and sources 4096 \
                         if not given) or police:pps=10K,burst=100 (packets a second; burst 64); \
                         numbers may end in K, M, G or Ki, Mi, Gi";
    const RATE_MAX: u64 = 1_000_000_000_000;
    const BURST_MAX: u64 = 1 << 30;
    const SOURCES_MAX: u64 = 1 << 16;

    /// Parses the text after `police:`.
    pub(super) fn parse(text: &str) -> Result<Police, HookError> {
        let mut parameters = Parameters::new("police", text, Self::USAGE);
        let (mut rate, mut pps, mut burst, mut sources) = (None, None, None, None);
        while let Some((name, value)) = parameters.next()? {
            let (place, max) = match name {
                "rate" => (&mut rate, Self::RATE_MAX),
                "pps" => (&mut pps, Self::RATE_MAX),
                "burst" => (&mut burst, Self::BURST_MAX),
                "sources" => (&mut sources, Self::SOURCES_MAX),
                _ => return Err(parameters.error()),
            };
            let number = parameters.quantity(value)?;
            if !(1..=max).contains(&number) || place.replace(number).is_some() {
                return Err(parameters.error());
            }
        }
        let (unit, rate, usual_burst) = match (rate, pps) {
            (Some(rate), None) => (PoliceUnit::Bytes, rate, 64_000),
            (None, Some(pps)) => (PoliceUnit::Packets, pps, 64),
            _ => return Err(parameters.error()),
        };
        let sources = sources.unwrap_or(4096) as usize;
        Ok(Police { unit, rate, burst: burst.unwrap_or(usual_burst), sources })
    }

    /// Returns the stage that applies the limit.
    #[must_use]
    pub fn stage(self) -> Box<dyn Stage> {
        Box::new(Policing::new(self))
    }
}

/// The buckets. For each source, the time is kept at which its bucket is full again. A packet advances
/// that time by its cost, and passes if the result is at most a full bucket ahead.
#[derive(Debug)]
struct Policing {
    police: Police,
    /// Nanoseconds per token, times 2^[`SHIFT`].
    price: u128,
    burst_ns: u64,
    full_at_ns: HashMap<IpAddr, u64>,
    tidied_ns: u64,
    dropped: u64,
    unlimited: u64,
}

/// Fixed point of the price: at the highest rate a token takes a thousandth of a nanosecond.
const SHIFT: u32 = 32;
/// Idle sources are removed at most this often.
const TIDY_NS: u64 = 1_000_000;

impl Policing {
    fn new(police: Police) -> Policing {
        let price = (1_000_000_000_u128 << SHIFT) / u128::from(police.rate);
        Policing {
            police,
            price,
            burst_ns: cost(price, police.burst),
            full_at_ns: HashMap::with_capacity(police.sources),
            tidied_ns: 0,
            dropped: 0,
            unlimited: 0,
        }
    }

    fn admits(&mut self, source: IpAddr, frame_len: usize, now_ns: u64) -> bool {
        let tokens = match self.police.unit {
            PoliceUnit::Bytes => frame_len as u64,
            PoliceUnit::Packets => 1,
        };
        let cost_ns = cost(self.price, tokens);
        if self.full_at_ns.len() >= self.police.sources && !self.full_at_ns.contains_key(&source) {
            self.tidy(now_ns);
            if self.full_at_ns.len() >= self.police.sources {
                self.unlimited += 1;
                return true;
            }
        }
        let full_at_ns = self.full_at_ns.entry(source).or_insert(now_ns);
        let then = now_ns.max(*full_at_ns).saturating_add(cost_ns);
        if then - now_ns > self.burst_ns {
            self.dropped += 1;
            return false;
        }
        *full_at_ns = then;
        true
    }

    /// Removes sources with full buckets: they are like new ones.
    fn tidy(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.tidied_ns) >= TIDY_NS {
            self.tidied_ns = now_ns;
            self.full_at_ns.retain(|_, full_at_ns| *full_at_ns > now_ns);
        }
    }
}

fn cost(price: u128, tokens: u64) -> u64 {
    u64::try_from((price * u128::from(tokens)) >> SHIFT).unwrap_or(u64::MAX)
}

impl Stage for Policing {
    fn run(&mut self, packet: &mut HookPacket<'_>) -> Verdict {
        let Some(source) = packet.headers().map(|headers| headers.key().src) else { return Verdict::Pass };
        match self.admits(source, packet.frame_len(), packet.now_ns()) {
            true => Verdict::Pass,
            false => Verdict::Drop,
        }
    }

    fn rows(&self) -> Vec<(String, u64)> {
        let rows = [
            ("policed", self.dropped),
            ("sources", self.full_at_ns.len() as u64),
            ("unlimited", self.unlimited),
        ];
        rows.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn policing(text: &str) -> Policing {
        Policing::new(Police::parse(text).unwrap())
    }

    fn source(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// Returns how many of `count` packets of `len` bytes, `step_ns` apart, pass.
    fn passed(policing: &mut Policing, from: IpAddr, count: u64, len: usize, step_ns: u64) -> usize {
        (0..count).filter(|n| policing.admits(from, len, SECOND + n * step_ns)).count()
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut bytes = policing("rate=1M,burst=10K");
        assert_eq!(passed(&mut bytes, source(1), 100, 1000, 0), 10, "a bucket");
        // One second of a million bytes, and the bucket; sent twice as fast.
        let mut bytes = policing("rate=1M,burst=10K");
        assert_eq!(passed(&mut bytes, source(1), 2000, 1000, 500_000), 1000 + 9);
        let mut packets = policing("pps=100,burst=5");
        assert_eq!(passed(&mut packets, source(1), 10, 4000, 0), 5, "whatever their length");
        assert_eq!((packets.dropped, packets.rows()[0].1), (5, 5));
        assert!(!policing("rate=1G,burst=999").admits(source(1), 1000, SECOND), "more than a bucket");
    }

    #[test]
    fn each_source_has_a_bucket_of_its_own() {
        let mut policing = policing("pps=1,burst=1");
        for last in 0..100 {
            assert!(policing.admits(source(last), 100, SECOND));
            assert!(!policing.admits(source(last), 100, SECOND + 999_999_998));
        }
        assert!(policing.admits(source(0), 100, 2 * SECOND));
    }

    #[test]
    fn a_source_beyond_the_limit_replaces_an_idle_one_or_is_not_limited() {
        let mut policing = policing("pps=1,burst=1,sources=2");
        assert!([1, 2, 3, 3].into_iter().all(|last| policing.admits(source(last), 100, SECOND)));
        assert_eq!((policing.unlimited, policing.full_at_ns.len()), (2, 2));
        assert!(policing.admits(source(3), 100, 3 * SECOND) && !policing.admits(source(3), 100, 3 * SECOND));
        assert_eq!(policing.full_at_ns.len(), 1);
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        let usual = Police { unit: PoliceUnit::Bytes, rate: 125_000_000, burst: 64_000, sources: 4096 };
        assert_eq!(Police::parse("rate=125M").unwrap(), usual);
        for wrong in [
            "",
            "rate=0",
            "rate=1e9",
            "rate=1M,pps=5",
            "burst=5",
            "rate=1M,burst=2Gi",
            "pps=1,sources=0",
            "pps=1,pps=1",
            "pps",
            "speed=5",
        ] {
            let error = Police::parse(wrong).unwrap_err().to_string();
            assert!(error.contains("police:rate=125M"), "{wrong}: {error}");
        }
    }
}
