//! Selects packets: every given condition must hold.

use std::collections::HashMap;
use std::net::IpAddr;
use std::str::FromStr;

use wire::capture::{Conditions, IcrcCheck, OpcodeSet, PsnRange, Seen, is_nak};
use wire::cm::SidrStatus;
use wire::{CmMessage, Opcode, Packet, Qpn};

/// Connections remembered to match [`FilterOptions::queue_pairs`] in both directions. At more than that, all
/// are forgotten: 2^16 connections take a few megabytes.
const CONNECTIONS_MAX: usize = 1 << 16;

/// Conditions on packets. The default admits every packet.
#[derive(Clone, Debug, Default)]
pub struct FilterOptions {
    /// From or to one of these addresses.
    pub hosts: Vec<IpAddr>,
    /// To or from one of these queue pairs.
    ///
    /// RoCE packets name the receiving queue pair only. Packets of the other direction are found if the
    /// connection's ConnectRequest and ConnectReply are in the capture.
    pub queue_pairs: Vec<Qpn>,
    /// With one of these opcodes.
    pub opcodes: Vec<OpcodeFilter>,
    /// With a packet sequence number in this range.
    pub psns: Option<PsnRange>,
    /// NAKs, RNR NAKs included.
    pub naks: bool,
    /// Congestion notification packets, and packets with a congestion mark (ECN CE).
    pub congestion: bool,
    /// Packets that show an error: NAKs, rejects, wrong ICRCs, malformed packets.
    pub errors: bool,
}

impl FilterOptions {
    /// Whether every packet is admitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && self.queue_pairs.is_empty() && self.conditions().is_empty()
    }

    /// The conditions that can be decided from a packet's transport headers.
    #[must_use]
    pub fn conditions(&self) -> Conditions {
        let wanted = |opcode: &Opcode| self.opcodes.iter().any(|filter| filter.admits(*opcode));
        Conditions {
            opcodes: (0..=255).map(Opcode).filter(wanted).collect::<OpcodeSet>(),
            psns: self.psns,
            naks: self.naks,
            congestion: self.congestion,
            errors: self.errors,
        }
    }
}

/// A condition on the opcode.
#[derive(Clone, Debug)]
pub enum OpcodeFilter {
    /// The opcode byte.
    Byte(u8),
    /// Words that must be in the opcode's name.
    Words(String),
}

impl FromStr for OpcodeFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(byte) = parse_number(text) {
            return u8::try_from(byte).map(Self::Byte).map_err(|_| "an opcode is a byte".to_owned());
        }
        let filter = Self::Words(text.to_lowercase());
        if (0..=255).any(|byte| filter.admits(Opcode(byte))) {
            return Ok(filter);
        }
        Err("no opcode has this in its name; try: send, write, read, ack, atomic, flush, cnp".to_owned())
    }
}

impl OpcodeFilter {
    fn admits(&self, opcode: Opcode) -> bool {
        match self {
            Self::Byte(byte) => opcode.0 == *byte,
            Self::Words(words) => opcode.row().is_some_and(|row| row.is_called(words)),
        }
    }
}

/// Parses a decimal number, or a hexadecimal one after `0x`.
#[must_use]
pub fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A queue pair and the address of its host.
type End = (IpAddr, Qpn);

/// Decides for each packet of a capture whether it meets the conditions.
#[derive(Debug)]
pub struct Filter {
    options: FilterOptions,
    /// The conditions of `options` on transport headers.
    conditions: Conditions,
    rules: QueuePairRules,
    /// Queue pairs of ConnectRequests without a reply so far, by address and communication id of the sender.
    requested: HashMap<(IpAddr, u32), End>,
    peers: HashMap<End, End>,
}

/// Exceptions from [`FilterOptions::queue_pairs`]. The default, for files, has none: a packet or management
/// datagram is admitted if it names a wanted queue pair.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QueuePairRules {
    /// Admit all packets other than management datagrams: the capture point has selected them already.
    ///
    /// A process knows both ends of its queue pairs; a packet names only its receiver.
    pub data_is_selected: bool,
    /// Admit all management datagrams, so that the analysis of the recorded file finds every connection
    /// setup.
    pub all_management: bool,
}

impl Filter {
    /// A filter that has seen no packets.
    #[must_use]
    pub fn new(options: FilterOptions, rules: QueuePairRules) -> Self {
        let conditions = options.conditions();
        Self { options, conditions, rules, requested: HashMap::new(), peers: HashMap::new() }
    }

    /// Whether the packet meets the conditions. Must be called for all packets of a capture, in their order.
    pub fn admits(&mut self, seen: &Seen<'_>) -> bool {
        let message = cm_message(seen);
        if !self.options.queue_pairs.is_empty() {
            self.learn_connection(seen, message.as_ref());
        }
        let options = &self.options;
        let hosts = [seen.ip.src(), seen.ip.dst()];
        (options.hosts.is_empty() || options.hosts.iter().any(|host| hosts.contains(host)))
            && (options.queue_pairs.is_empty() || self.matches_queue_pair(seen, message.as_ref()))
            && self.conditions.admits(seen.bth.as_ref(), seen.packet.as_ref().ok(), seen.ecn())
            && (!options.errors || is_error(seen, message.as_ref()))
    }

    fn matches_queue_pair(&self, seen: &Seen<'_>, message: Option<&CmMessage>) -> bool {
        let Some(bth) = seen.bth else { return false };
        let is_management = bth.dest_qp == Qpn::GSI;
        if is_management && self.rules.all_management || !is_management && self.rules.data_is_selected {
            return true;
        }
        let wanted = |qpn: Qpn| self.options.queue_pairs.contains(&qpn);
        let peer = self.peers.get(&(seen.ip.dst(), bth.dest_qp));
        let source = seen.packet.as_ref().ok().and_then(Packet::deth).map(|deth| deth.src_qp);
        let named = match message {
            Some(CmMessage::Req(req)) => Some(req.local_qpn),
            Some(CmMessage::Rep(rep)) => Some(rep.local_qpn),
            Some(CmMessage::Dreq(dreq)) => Some(dreq.remote_qpn),
            Some(CmMessage::SidrRep(rep)) => Some(rep.qpn),
            _ => None,
        };
        [Some(bth.dest_qp), peer.map(|end| end.1), source, named].into_iter().flatten().any(wanted)
    }

    /// Remembers both ends of a connection from its ConnectRequest and ConnectReply.
    fn learn_connection(&mut self, seen: &Seen<'_>, message: Option<&CmMessage>) {
        let (src, dst) = (seen.ip.src(), seen.ip.dst());
        if self.requested.len() + self.peers.len() > CONNECTIONS_MAX {
            self.requested.clear();
            self.peers.clear();
        }
        match message {
            Some(CmMessage::Req(req)) => {
                self.requested.insert((src, req.local_comm_id), (src, req.local_qpn));
            }
            Some(CmMessage::Rep(rep)) => {
                if let Some(active) = self.requested.remove(&(dst, rep.remote_comm_id)) {
                    let passive = (src, rep.local_qpn);
                    self.peers.extend([(active, passive), (passive, active)]);
                }
            }
            _ => {}
        }
    }
}

/// The connection manager message in a packet; `None` for other packets.
#[must_use]
pub fn cm_message(seen: &Seen<'_>) -> Option<CmMessage> {
    let packet = seen.packet.as_ref().ok()?;
    if packet.bth.dest_qp != Qpn::GSI {
        return None;
    }
    CmMessage::parse(packet.payload().first_chunk()?).ok()
}

fn is_error(seen: &Seen<'_>, message: Option<&CmMessage>) -> bool {
    let rejected = match message {
        Some(CmMessage::Rej(_)) => true,
        Some(CmMessage::SidrRep(rep)) => rep.status != SidrStatus::SUCCESS,
        _ => false,
    };
    rejected || seen.packet.as_ref().map_or(true, is_nak) || matches!(seen.icrc(), IcrcCheck::Bad { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opcode_filter_is_a_byte_or_words_of_the_name() {
        let filter: OpcodeFilter = "0x0a".parse().expect("a byte");
        assert!(filter.admits(Opcode::RC_WRITE_ONLY) && !filter.admits(Opcode::RC_WRITE_FIRST));
        let filter: OpcodeFilter = "write Only imm".parse().expect("words");
        assert!(filter.admits(Opcode::RC_WRITE_ONLY_IMM) && !filter.admits(Opcode::RC_WRITE_ONLY));
        let filter: OpcodeFilter = "ack".parse().expect("a word");
        assert!(filter.admits(Opcode::RC_ACKNOWLEDGE) && filter.admits(Opcode::RC_ATOMIC_ACKNOWLEDGE));
        assert!("wrte".parse::<OpcodeFilter>().is_err());
        assert!("256".parse::<OpcodeFilter>().is_err());
    }
}
