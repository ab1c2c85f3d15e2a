//! Which packets to show: every condition given must hold.

use std::collections::HashMap;
use std::net::IpAddr;
use std::str::FromStr;

use clap::Args;
use wire::capture::{Conditions, IcrcCheck, OpcodeSet, PsnRange, Seen, is_nak};
use wire::cm::SidrStatus;
use wire::{CmMessage, Opcode, Packet, Psn, Qpn};

/// Connections whose two ends are remembered for `--qp`.
const CONNECTIONS_MAX: usize = 1 << 16;

/// Conditions on packets.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Which packets")]
pub struct FilterArgs {
    /// From or to this address (any of them, if given several times)
    #[arg(long, value_name = "IP")]
    pub host: Vec<IpAddr>,
    /// To or from this queue pair: 17 or 0x11
    ///
    /// RoCE packets name the receiving queue pair only. Those in the other direction are found if the connection's
    /// ConnectRequest and ConnectReply are in the capture.
    #[arg(long, value_name = "QPN", value_parser = parse_qpn)]
    pub qp: Vec<Qpn>,
    /// With this opcode: 0x0a, or words of its name such as "write first" or ack
    #[arg(long, value_name = "OPCODE")]
    pub opcode: Vec<OpcodeFilter>,
    /// With a packet sequence number in this range: A..B, both included; may wrap
    #[arg(long, value_name = "A..B", value_parser = parse_psns)]
    pub psn: Option<PsnRange>,
    /// NAKs, RNR NAKs included
    #[arg(long)]
    pub nak: bool,
    /// Congestion notifications, and packets that a router marked
    #[arg(long)]
    pub cnp: bool,
    /// What went wrong: NAKs, rejects, bad ICRCs, packets that make no sense
    ///
    /// Whether an ICRC is bad takes the whole packet: with -s that is not looked at.
    #[arg(long)]
    pub only_errors: bool,
}

impl FilterArgs {
    /// Whether everything is wanted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.host.is_empty() && self.qp.is_empty() && self.conditions().is_empty()
    }

    /// What can be asked of a packet's headers.
    #[must_use]
    pub fn conditions(&self) -> Conditions {
        let wanted = |opcode: &Opcode| self.opcode.iter().any(|filter| filter.admits(*opcode));
        Conditions {
            opcodes: (0..=255).map(Opcode).filter(wanted).collect::<OpcodeSet>(),
            psns: self.psn,
            naks: self.nak,
            congestion: self.cnp,
            errors: self.only_errors,
        }
    }
}

/// One `--opcode`.
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

fn parse_psns(text: &str) -> Result<PsnRange, String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| match parse_number(text) {
        Some(n) if n < 1 << 24 => Ok(Psn::new(n as u32)),
        _ => Err(format!("'{text}' is no packet sequence number")),
    };
    Ok(PsnRange { first: number(first)?, last: number(last)? })
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

fn parse_qpn(text: &str) -> Result<Qpn, String> {
    match parse_number(text) {
        Some(n) if n < 1 << 24 => Ok(Qpn::new(n as u32)),
        _ => Err("a queue pair number has 24 bits: 17 or 0x11".to_owned()),
    }
}

/// A queue pair of some host.
type End = (IpAddr, Qpn);

/// The conditions, and what `--qp` has to remember.
#[derive(Debug)]
pub struct Filter {
    args: FilterArgs,
    /// Those of `args` that headers tell.
    conditions: Conditions,
    management: Management,
    /// Who asked for a connection, by address and communication id.
    asked: HashMap<(IpAddr, u32), End>,
    peers: HashMap<End, End>,
}

/// What `--qp` means for management datagrams, and for others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Management {
    /// Those that name a wanted queue pair.
    Named,
    /// The same; all others were chosen by somebody who knows it better.
    NamedOfChosen,
    /// All of them, for whoever wants to know later who was connected; all others were chosen.
    AllOfChosen,
    /// All of them, and what names a wanted queue pair.
    All,
}

impl Filter {
    /// With these conditions.
    #[must_use]
    pub fn new(args: FilterArgs, management: Management) -> Self {
        Self { conditions: args.conditions(), args, management, asked: HashMap::new(), peers: HashMap::new() }
    }

    /// Whether the packet is wanted. All packets of a capture must be asked about, in their order.
    pub fn admits(&mut self, seen: &Seen<'_>) -> bool {
        let message = cm_message(seen);
        if !self.args.qp.is_empty() {
            self.learn(seen, message.as_ref());
        }
        let args = &self.args;
        let hosts = [seen.ip.src(), seen.ip.dst()];
        (args.host.is_empty() || args.host.iter().any(|host| hosts.contains(host)))
            && (args.qp.is_empty() || self.of_qp(seen, message.as_ref()))
            && self.conditions.admits(seen.bth.as_ref(), seen.packet.as_ref().ok(), seen.ecn())
            && (!args.only_errors || is_error(seen, message.as_ref()))
    }

    fn of_qp(&self, seen: &Seen<'_>, message: Option<&CmMessage>) -> bool {
        let Some(bth) = seen.bth else { return false };
        match (self.management, bth.dest_qp == Qpn::GSI) {
            (Management::All | Management::AllOfChosen, true) => return true,
            (Management::NamedOfChosen | Management::AllOfChosen, false) => return true,
            _ => {}
        }
        let wanted = |qpn: Qpn| self.args.qp.contains(&qpn);
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

    fn learn(&mut self, seen: &Seen<'_>, message: Option<&CmMessage>) {
        let (src, dst) = (seen.ip.src(), seen.ip.dst());
        if self.asked.len() + self.peers.len() > CONNECTIONS_MAX {
            self.asked.clear();
            self.peers.clear();
        }
        match message {
            Some(CmMessage::Req(req)) => {
                self.asked.insert((src, req.local_comm_id), (src, req.local_qpn));
            }
            Some(CmMessage::Rep(rep)) => {
                if let Some(active) = self.asked.remove(&(dst, rep.remote_comm_id)) {
                    let passive = (src, rep.local_qpn);
                    self.peers.extend([(active, passive), (passive, active)]);
                }
            }
            _ => {}
        }
    }
}

/// The message of the connection manager that a packet carries.
#[must_use]
pub fn cm_message(seen: &Seen<'_>) -> Option<CmMessage> {
    let packet = seen.packet.as_ref().ok()?;
    if packet.bth.dest_qp != Qpn::GSI {
        return None;
    }
    CmMessage::parse(packet.payload().first_chunk()?).ok()
}

fn is_error(seen: &Seen<'_>, message: Option<&CmMessage>) -> bool {
    let refused = match message {
        Some(CmMessage::Rej(_)) => true,
        Some(CmMessage::SidrRep(rep)) => rep.status != SidrStatus::SUCCESS,
        _ => false,
    };
    refused || seen.packet.as_ref().map_or(true, is_nak) || matches!(seen.icrc(), IcrcCheck::Bad { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opcode_is_a_byte_or_words_of_its_name() {
        let filter: OpcodeFilter = "0x0a".parse().expect("a byte");
        assert!(filter.admits(Opcode::RC_WRITE_ONLY) && !filter.admits(Opcode::RC_WRITE_FIRST));
        let filter: OpcodeFilter = "write Only imm".parse().expect("words");
        assert!(filter.admits(Opcode::RC_WRITE_ONLY_IMM) && !filter.admits(Opcode::RC_WRITE_ONLY));
        let filter: OpcodeFilter = "ack".parse().expect("a word");
        assert!(filter.admits(Opcode::RC_ACKNOWLEDGE) && filter.admits(Opcode::RC_ATOMIC_ACKNOWLEDGE));
        assert!("wrte".parse::<OpcodeFilter>().is_err());
        assert!("256".parse::<OpcodeFilter>().is_err());
    }

    #[test]
    fn a_range_of_psns_may_wrap() {
        let range = parse_psns("0xfffffe..1").expect("a range");
        for (psn, inside) in [(0xff_fffd, false), (0xff_fffe, true), (0, true), (1, true), (2, false)] {
            assert_eq!(range.contains(Psn::new(psn)), inside, "{psn:#x}");
        }
        let one = parse_psns("7").expect("a number");
        assert!(one.contains(Psn::new(7)) && !one.contains(Psn::new(8)));
        assert!(parse_psns("0x1000000").is_err());
    }
}
