//! Command line options that select packets.

use std::net::IpAddr;

use clap::Args;
use roxie_capture::filter::{FilterOptions, OpcodeFilter, parse_number};
use wire::capture::PsnRange;
use wire::{Psn, Qpn};

/// Conditions on packets.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Which packets")]
pub(super) struct FilterArgs {
    /// From or to this address (may be given several times)
    #[arg(long, value_name = "IP")]
    host: Vec<IpAddr>,
    /// To or from this queue pair: 17 or 0x11 (may be given several times)
    ///
    /// RoCE packets name the receiving queue pair only. Those in the other direction are found if the
    /// connection's ConnectRequest and ConnectReply are in the capture.
    #[arg(long, value_name = "QPN", value_parser = parse_qpn)]
    qp: Vec<Qpn>,
    /// With this opcode: 0x0a, or words of its name such as "write first" or ack
    #[arg(long, value_name = "OPCODE")]
    opcode: Vec<OpcodeFilter>,
    /// With a packet sequence number in this range: A..B, both included; may wrap
    #[arg(long, value_name = "A..B", value_parser = parse_psns)]
    psn: Option<PsnRange>,
    /// NAKs, RNR NAKs included
    #[arg(long)]
    nak: bool,
    /// Congestion notifications, and packets with a congestion mark
    #[arg(long)]
    cnp: bool,
    /// Packets that show an error: NAKs, rejects, wrong ICRCs, malformed packets
    ///
    /// Only complete packets have an ICRC that can be checked: with -s wrong ICRCs are not found.
    #[arg(long)]
    only_errors: bool,
}

impl FilterArgs {
    /// The options for the library.
    pub(super) fn options(&self) -> FilterOptions {
        FilterOptions {
            hosts: self.host.clone(),
            queue_pairs: self.qp.clone(),
            opcodes: self.opcode.clone(),
            psns: self.psn,
            naks: self.nak,
            congestion: self.cnp,
            errors: self.only_errors,
        }
    }
}

fn parse_psns(text: &str) -> Result<PsnRange, String> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| match parse_number(text) {
        Some(n) if n < 1 << 24 => Ok(Psn::new(n as u32)),
        _ => Err(format!("'{text}' is not a packet sequence number (24 bits)")),
    };
    Ok(PsnRange { first: number(first)?, last: number(last)? })
}

fn parse_qpn(text: &str) -> Result<Qpn, String> {
    match parse_number(text) {
        Some(n) if n < 1 << 24 => Ok(Qpn::new(n as u32)),
        _ => Err("a queue pair number has 24 bits: 17 or 0x11".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_packet_sequence_numbers_may_wrap() {
        let range = parse_psns("0xfffffe..1").expect("a range");
        for (psn, inside) in [(0xff_fffd, false), (0xff_fffe, true), (0, true), (1, true), (2, false)] {
            assert_eq!(range.contains(Psn::new(psn)), inside, "{psn:#x}");
        }
        let one = parse_psns("7").expect("a number");
        assert!(one.contains(Psn::new(7)) && !one.contains(Psn::new(8)));
        assert!(parse_psns("0x1000000").is_err());
    }
}
