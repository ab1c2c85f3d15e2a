//! An impaired network, reproducible from a seed: packets are lost, duplicated, delayed, or marked as
//! having met congestion; all packets, those of a kind, or a single one.

use transport::split_mix64;
use wire::{Ethernet, Ipv4, Ipv6};

use super::chosen::Chosen;
use super::parameters::Parameters;
use super::{HookError, HookPacket, Stage, Verdict};
use sys::random_u64;

/// The impairments. The same seed does the same to the same packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impair {
    /// Probability that a packet is lost, 0.0..=1.0.
    pub loss: f64,
    /// Probability that a packet is duplicated.
    pub duplicate: f64,
    /// Delay of each packet, in nanoseconds.
    pub delay_ns: u64,
    /// Largest additional random delay, in nanoseconds; packets then overtake each other.
    pub jitter_ns: u64,
    /// Probability that an ECN-capable packet is marked.
    pub ecn: f64,
    /// Seed of the random numbers.
    pub seed: u64,
    /// The packets concerned; the others pass.
    pub chosen: Chosen,
}

impl Impair {
    const USAGE: &str = "impair:loss=1%,duplicate=0.1%,delay=2ms,jitter=1ms,ecn=5%,seed=7, each of them \
                             optional and given once; shares are 0%..100% or 0..1, times at most 60s; \
                             opcode=write-last selects only such packets; nth=3, nth=3..5 or nth=3.. selects \
                             only the third of them, the third to the fifth, or all from the third on";

    /// Parses the text after `impair:`.
    pub(super) fn parse(text: &str) -> Result<Impair, HookError> {
        let mut impair = Impair {
            loss: 0.0,
            duplicate: 0.0,
            delay_ns: 0,
            jitter_ns: 0,
            ecn: 0.0,
            seed: random_u64(),
            chosen: Chosen::ALL,
        };
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
                "ecn" => impair.ecn = parameters.fraction(value)?,
                "seed" => impair.seed = parameters.number(value)?,
                "opcode" => impair.chosen = impair.chosen.opcode(value).ok_or_else(|| parameters.error())?,
                "nth" => impair.chosen = impair.chosen.nth_from(value).ok_or_else(|| parameters.error())?,
                _ => return Err(parameters.error()),
            }
        }
        Ok(impair)
    }

    /// Returns the stage that applies the impairments.
    #[must_use]
    pub fn stage(self) -> Box<dyn Stage> {
        let state = self.seed;
        Box::new(Impairing { impair: self, state, chosen: 0, lost: 0, doubled: 0, delayed: 0, marked: 0 })
    }
}

#[derive(Debug)]
struct Impairing {
    impair: Impair,
    state: u64,
    /// Packets of the selected kind so far.
    chosen: u64,
    lost: u64,
    doubled: u64,
    delayed: u64,
    marked: u64,
}

impl Impairing {
    fn happens(&mut self, probability: f64) -> bool {
        // A fraction has 53 bits.
        probability > 0.0
            && ((split_mix64(&mut self.state) >> 11) as f64) < probability * (1_u64 << 53) as f64
    }
}

impl Stage for Impairing {
    fn run(&mut self, packet: &mut HookPacket<'_>) -> Verdict {
        let opcode = packet.bytes().first().copied().unwrap_or_default();
        if !self.impair.chosen.admits(opcode, &mut self.chosen) {
            return Verdict::Pass;
        }
        if self.happens(self.impair.loss) {
            self.lost += 1;
            return Verdict::Drop;
        }
        if self.happens(self.impair.duplicate) {
            self.doubled += 1;
            packet.double();
        }
        if self.happens(self.impair.ecn) && mark(packet) {
            self.marked += 1;
        }
        let Impair { delay_ns, jitter_ns, .. } = self.impair;
        if delay_ns + jitter_ns > 0 {
            self.delayed += 1;
            let extra_ns = if jitter_ns > 0 { split_mix64(&mut self.state) % jitter_ns } else { 0 };
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
            ("marked", self.marked),
        ];
        rows.map(|(name, value)| (name.to_owned(), value)).into()
    }
}

/// The ECN field of a traffic class (RFC 3168, section 5): its mask, which equals Congestion Experienced.
const CE: u8 = 3;

/// Marks an ECN-capable packet as a congested switch does; leaves others alone. Returns whether it was
/// marked.
fn mark(packet: &mut HookPacket<'_>) -> bool {
    let done = packet.with_frame(|buff| {
        // The frames that hooks see have no VLAN tag.
        let marked = buff.packet().get(Ethernet::LEN..).and_then(marked_header)?;
        let header = buff.packet_mut().get_mut(Ethernet::LEN..)?.get_mut(..marked.len)?;
        header.copy_from_slice(&marked.bytes[..marked.len]);
        Some(())
    });
    done.flatten().is_some()
}

/// Returns the marked form of the IP header at the start of these bytes; `None` if the sender is not
/// ECN-capable.
fn marked_header(ip: &[u8]) -> Option<Marked> {
    let (mut bytes, len) = ([0; Ipv6::LEN], if ip.first()? >> 4 == 4 { Ipv4::LEN } else { Ipv6::LEN });
    let class = match (ip.first_chunk(), ip.first_chunk()) {
        (Some(v4), _) if len == Ipv4::LEN => {
            let header = Ipv4::parse(v4);
            let marked = Ipv4 { tos: header.tos | CE, ..header }.with_checksum();
            marked.emit(bytes.first_chunk_mut()?);
            header.tos
        }
        (_, Some(v6)) => {
            let header = Ipv6::parse(v6);
            Ipv6 { traffic_class: header.traffic_class | CE, ..header }.emit(&mut bytes);
            header.traffic_class
        }
        _ => return None,
    };
    (class & CE != 0).then_some(Marked { bytes, len })
}

/// An IP header.
struct Marked {
    bytes: [u8; Ipv6::LEN],
    len: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn an_ecn_capable_packet_is_marked_and_its_checksum_is_right() {
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let marked = |tos| {
            let mut bytes = [0; Ipv4::LEN];
            Ipv4 { tos, ..Ipv4::udp(src, dst, 64, 28) }.with_checksum().emit(&mut bytes);
            marked_header(&bytes).map(|marked| Ipv4::parse(marked.bytes.first_chunk().unwrap()))
        };
        assert_eq!(marked(0x68), None);
        for tos in [0x69, 0x6a, 0x6b] {
            let header = marked(tos).unwrap();
            assert_eq!(header, Ipv4 { tos: 0x6b, ..Ipv4::udp(src, dst, 64, 28) }.with_checksum());
        }
    }

    #[test]
    fn an_ecn_capable_ipv6_packet_is_marked() {
        let marked = |traffic_class| {
            let mut bytes = [0; Ipv6::LEN];
            let ip = Ipv6::udp(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 64, 28);
            Ipv6 { traffic_class, ..ip }.emit(&mut bytes);
            marked_header(&bytes).map(|marked| Ipv6::parse(&marked.bytes).traffic_class)
        };
        assert_eq!([0, 0x68, 0x6a, 2].map(marked), [None, None, Some(0x6b), Some(3)]);
    }
}
