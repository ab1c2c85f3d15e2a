//! Dissects BTH, extension headers, payload and invariant CRC.

use wire::capture::{IcrcCheck, Seen};
use wire::icrc::ICRC_LEN;
use wire::{Bth, ExtHeader, Feth, Packet, Qpn, Syndrome, credits_of_code, rnr_timer_ns};

use super::{Layer, Words, mad};

pub(super) fn headers<'a>(seen: &Seen<'a>, layers: &mut Vec<Layer<'a>>) {
    if let Some(header) = &seen.bth {
        layers.push(bth(header, seen.udp_payload));
    }
    match &seen.packet {
        Ok(packet) => {
            for header in packet.row().headers {
                layers.push(extension(packet, *header, seen.udp_payload));
            }
            payload(seen, packet, layers);
        }
        Err(reason) => {
            layers.push(Layer::new("Not understood").text("roxie.error", "Why", reason.to_string()));
        }
    }
    icrc(seen, layers);
}

fn bth(bth: &Bth, bytes: &[u8]) -> Layer<'static> {
    Layer::long(Words::Bth(bth.opcode))
        .number("infiniband.bth.opcode", "Opcode", bth.opcode.0)
        .means(Words::Opcode(bth.opcode))
        .flag("infiniband.bth.se", "Solicited Event", bth.solicited)
        .flag("infiniband.bth.m", "MigReq", bth.mig_req)
        .number("infiniband.bth.padcnt", "Pad Count", bth.pad_cnt)
        .number("infiniband.bth.tver", "Header Version", bth.tver)
        .number("infiniband.bth.p_key", "Partition Key", bth.p_key.0)
        .flag("roxie.bth.fecn", "FECN", bth.fecn)
        .flag("roxie.bth.becn", "BECN", bth.becn)
        .hex("infiniband.bth.destqp", "Destination Queue Pair", 6, bth.dest_qp.value())
        .flag("infiniband.bth.a", "Acknowledge Request", bth.ack_req)
        .number("infiniband.bth.reserved7", "Reserved", bytes.get(8).map_or(0, |byte| byte & 0x7f))
        .number("infiniband.bth.psn", "Packet Sequence Number", bth.psn.value())
}

fn extension<'a>(packet: &Packet<'a>, header: ExtHeader, bytes: &'a [u8]) -> Layer<'a> {
    let layer = || Layer::new(Words::Extension(header));
    let cut = || layer().text("roxie.cut", "Cut", "the capture ends before this header does");
    fill(layer(), packet, header, bytes).unwrap_or_else(cut)
}

fn fill<'a>(layer: Layer<'a>, packet: &Packet<'a>, header: ExtHeader, bytes: &'a [u8]) -> Option<Layer<'a>> {
    Some(match header {
        ExtHeader::Rdeth => {
            layer.number("infiniband.rdeth.eecnxt", "E2E Context", packet.rdeth()?.ee_context)
        }
        ExtHeader::Deth => {
            let deth = packet.deth()?;
            layer.hex("infiniband.deth.q_key", "Queue Key", 16, deth.q_key.0).hex(
                "infiniband.deth.srcqp",
                "Source Queue Pair",
                8,
                deth.src_qp.value(),
            )
        }
        ExtHeader::Xrceth => layer.hex("roxie.xrceth.srqn", "XRC SRQ", 6, packet.xrceth()?.srqn),
        ExtHeader::Feth => {
            let feth = packet.feth()?;
            layer
                .hex("roxie.feth.placement", "Placement Type", 1, feth.placement)
                .means(placement(feth.placement))
                .number("roxie.feth.selectivity", "Selectivity", feth.selectivity)
                .means(match feth.selectivity {
                    Feth::RANGE => "the range of the RETH",
                    Feth::WHOLE_MR => "the whole memory region",
                    _ => "reserved",
                })
        }
        ExtHeader::Reth => {
            let reth = packet.reth()?;
            layer
                .hex("infiniband.reth.va", "Virtual Address", 16, reth.va)
                .hex("infiniband.reth.r_key", "Remote Key", 8, reth.r_key.0)
                .number("infiniband.reth.dmalen", "DMA Length", reth.dma_len)
        }
        ExtHeader::AtomicEth => {
            let atomic = packet.atomic_eth()?;
            layer
                .hex("infiniband.reth.va", "Virtual Address", 16, atomic.va)
                .hex("infiniband.reth.r_key", "Remote Key", 8, atomic.r_key.0)
                .number("infiniband.atomiceth.swapdt", "Swap (Or Add) Data", atomic.swap_or_add)
                .number("infiniband.atomiceth.cmpdt", "Compare Data", atomic.compare)
        }
        ExtHeader::Aeth => {
            let aeth = packet.aeth()?;
            let byte = aeth.syndrome.byte();
            let layer = layer
                .number("infiniband.aeth.syndrome", "Syndrome", byte)
                .means(Words::Syndrome(aeth.syndrome))
                .number("infiniband.aeth.syndrome.opcode", "OpCode", byte >> 5 & 3);
            syndrome(layer, aeth.syndrome).number(
                "infiniband.aeth.msn",
                "Message Sequence Number",
                aeth.msn.value(),
            )
        }
        ExtHeader::AtomicAckEth => {
            let original = packet.atomic_ack_eth()?.original;
            layer.number("infiniband.atomicacketh.origremdt", "Original Remote Data", original)
        }
        ExtHeader::ImmDt => {
            let at = packet.row().offset(header)?;
            layer.bytes("infiniband.immdt", "Immediate Data", bytes.get(at..at + 4)?)
        }
        ExtHeader::Ieth => {
            let at = packet.row().offset(header)?;
            layer.bytes("infiniband.ieth", "RKey", bytes.get(at..at + 4)?)
        }
        ExtHeader::CnpReserved => {
            let at = packet.row().offset(header)?;
            layer.bytes("roxie.cnp.reserved", "Reserved", bytes.get(at..at + 16)?)
        }
    })
}

fn syndrome(layer: Layer<'_>, syndrome: Syndrome) -> Layer<'_> {
    match syndrome {
        Syndrome::Ack(code) => {
            let name = "infiniband.aeth.syndrome.credit_count";
            layer.number(name, "Credit Count", code).means(
                credits_of_code(code)
                    .map_or_else(|| "credits not in use".to_owned(), |n| format!("{n} receives posted")),
            )
        }
        Syndrome::RnrNak(timer) => {
            let us = rnr_timer_ns(timer) / 1000;
            layer.number("infiniband.aeth.syndrome.timer", "Timer", timer).means(format!(
                "{}.{:02} ms",
                us / 1000,
                us % 1000 / 10
            ))
        }
        Syndrome::Nak(code) => layer
            .number("infiniband.aeth.syndrome.error_code", "Error Code", code as u8)
            .means(code.to_string()),
        Syndrome::Reserved(byte) => {
            layer.number("infiniband.aeth.syndrome.reserved_value", "Reserved", byte & 0x1f)
        }
    }
}

fn payload<'a>(seen: &Seen<'a>, packet: &Packet<'a>, layers: &mut Vec<Layer<'a>>) {
    let bytes = packet.payload();
    if packet.bth.dest_qp == Qpn::GSI
        && let Some(mad) = bytes.first_chunk()
    {
        mad::layers(mad, layers);
        return;
    }
    if seen.payload_len() > 0 {
        let mut layer = Layer::new(Words::Payload(seen.payload_len()));
        layer = layer.bytes("infiniband.payload", "Payload", bytes);
        if bytes.len() < seen.payload_len() {
            layer = layer.means(format!("the first {} bytes", bytes.len()));
        }
        layers.push(layer);
    }
}

fn icrc<'a>(seen: &Seen<'a>, layers: &mut Vec<Layer<'a>>) {
    let check = seen.icrc();
    let mut layer = Layer::new("Invariant CRC");
    if let (true, Some((_, bytes))) = (seen.is_whole(), seen.udp_payload.split_last_chunk::<ICRC_LEN>()) {
        // In the byte order of the packet, like Wireshark.
        layer = layer.hex("infiniband.invariant.crc", "Invariant CRC", 8, u32::from_be_bytes(*bytes));
    }
    let (status, meaning) = match check {
        IcrcCheck::Good => ("good", None),
        IcrcCheck::Bad { want } => ("bad", Some(format!("should be {:#010x}", want.swap_bytes()).into())),
        IcrcCheck::Cut => (
            "unknown",
            Some(Words::from(if seen.is_whole() {
                "no ICRC is specified for packets of this form"
            } else {
                "the capture does not hold the whole packet"
            })),
        ),
    };
    layer = layer.text("roxie.icrc.status", "Status", status);
    if let Some(meaning) = meaning {
        layer = layer.means(meaning);
    }
    layers.push(layer);
}

fn placement(bits: u8) -> String {
    let names = [(Feth::GLOBAL_VISIBILITY, "global visibility"), (Feth::PERSISTENCE, "persistence")];
    let set: Vec<&str> = names.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "nothing".to_owned() } else { set.join(" and ") }
}

pub(super) fn words(header: ExtHeader) -> &'static str {
    match header {
        ExtHeader::Rdeth => "Reliable Datagram Extended Transport Header",
        ExtHeader::Deth => "Datagram Extended Transport Header",
        ExtHeader::Xrceth => "XRC Extended Transport Header",
        ExtHeader::Feth => "Flush Extended Transport Header",
        ExtHeader::Reth => "RDMA Extended Transport Header",
        ExtHeader::AtomicEth => "Atomic Extended Transport Header",
        ExtHeader::Aeth => "ACK Extended Transport Header",
        ExtHeader::AtomicAckEth => "Atomic ACK Extended Transport Header",
        ExtHeader::ImmDt => "Immediate Data Extended Transport Header",
        ExtHeader::Ieth => "Invalidate Extended Transport Header",
        ExtHeader::CnpReserved => "Congestion Notification",
    }
}
