//! Shows a packet as one line, like tcpdump.

use std::fmt::Write;

use wire::capture::{IcrcCheck, LinkControl, NotRoce, Seen, tunnels};
use wire::{CmMessage, ExtHeader, Ieth, ImmDt, MadHeader, Operation, Packet, Qpn, Syndrome};

use crate::paint::{Colours, Tone};
use crate::source::Record;

pub(super) fn packet(
    out: &mut String,
    colours: Colours,
    record: &Record<'_>,
    seen: &Result<Seen<'_>, NotRoce>,
) {
    let seen = match seen {
        Ok(seen) => seen,
        Err(reason) => {
            let control = LinkControl::find(record.decode_as, record.data);
            let what = control.map_or_else(|| reason.to_string(), |control| control.to_string());
            out.push_str(&colours.paint(Tone::Faint, &format!("not RoCEv2: {what}")));
            return;
        }
    };
    let arrow = match record.outbound.or(seen.link.outbound()) {
        Some(true) => "out ",
        Some(false) => "in ",
        None => "",
    };
    // A write to a string cannot fail.
    out.push_str(arrow);
    if seen.tunnels > 0 {
        for tunnel in tunnels(record.decode_as, record.data).iter().flatten() {
            let _ = write!(out, "[{}] ", tunnel.kind);
        }
    }
    let _ = write!(out, "{} > {} ", seen.ip.src(), seen.ip.dst());
    if seen.udp.is_none() {
        out.push_str(if seen.link.lrh.is_some() { "InfiniBand " } else { "RoCEv1 " });
    }
    match &seen.packet {
        Ok(packet) => out.push_str(&colours.paint(tone(packet), &words(seen, packet))),
        Err(reason) => {
            let bth = seen.bth.map(|bth| bth.to_string()).unwrap_or_default();
            out.push_str(&colours.paint(Tone::Bad, &format!("not understood: {reason} {bth}")));
        }
    }
    if matches!(seen.icrc(), IcrcCheck::Bad { .. }) {
        out.push_str(&colours.paint(Tone::Bad, " [bad ICRC]"));
    }
    for (is_so, words) in
        [(seen.ecn() == 3, " [CE]"), (seen.is_fragment, " [fragment]"), (seen.has_options, " [IP options]")]
    {
        if is_so {
            out.push_str(&colours.paint(Tone::Warn, words));
        }
    }
}

fn tone(packet: &Packet<'_>) -> Tone {
    match packet.aeth().map(|aeth| aeth.syndrome) {
        Some(Syndrome::Nak(_) | Syndrome::Reserved(_)) => Tone::Bad,
        Some(Syndrome::RnrNak(_)) => Tone::Warn,
        _ => match packet.row().operation {
            Operation::Cnp => Tone::Warn,
            _ if packet.bth.dest_qp == Qpn::GSI => Tone::Strong,
            Operation::Ack => Tone::Faint,
            _ => Tone::Plain,
        },
    }
}

fn words(seen: &Seen<'_>, packet: &Packet<'_>) -> String {
    if let (Qpn::GSI, Some(mad)) = (packet.bth.dest_qp, packet.payload().first_chunk()) {
        return match (CmMessage::parse(mad), mad.first_chunk().map(MadHeader::parse)) {
            (Ok(message), _) => message.to_string(),
            (Err(_), Some(header)) => header.to_string(),
            (Err(reason), None) => reason.to_string(),
        };
    }
    let mut words = packet.bth.to_string();
    for header in packet.row().headers {
        if let Some(text) = extension(packet, *header) {
            words.push_str(", ");
            words.push_str(&text);
        }
    }
    let (there, len) = (packet.payload().len(), seen.payload_len());
    if len > 0 {
        let _ = write!(words, ", {len} bytes");
        if there < len {
            let _ = write!(words, " ({there} captured)");
        }
    }
    words
}

fn extension(packet: &Packet<'_>, header: ExtHeader) -> Option<String> {
    Some(match header {
        ExtHeader::Rdeth => packet.rdeth()?.to_string(),
        ExtHeader::Deth => packet.deth()?.to_string(),
        ExtHeader::Xrceth => packet.xrceth()?.to_string(),
        ExtHeader::Feth => packet.feth()?.to_string(),
        ExtHeader::Reth => packet.reth()?.to_string(),
        ExtHeader::AtomicEth => packet.atomic_eth()?.to_string(),
        ExtHeader::Aeth => packet.aeth()?.to_string(),
        ExtHeader::AtomicAckEth => packet.atomic_ack_eth()?.to_string(),
        ExtHeader::ImmDt => ImmDt(packet.imm()?).to_string(),
        ExtHeader::Ieth => Ieth { r_key: packet.ieth()? }.to_string(),
        ExtHeader::CnpReserved => return None,
    })
}
