//! Shows a packet as the C structs that Linux declares for it, with the names and types of `linux/ip.h`,
//! `linux/udp.h` and rxe's `rxe_hdr.h`.

use std::fmt::Write;

use wire::capture::{IcrcCheck, NotRoce, Seen};
use wire::{CmMessage, ExtHeader, Ip, OpcodeRow, Operation, Packet, Position, Qpn, Service};

use crate::source::Record;

pub(super) fn packet(out: &mut String, record: &Record<'_>, seen: &Result<Seen<'_>, NotRoce>) {
    // A write to a string cannot fail.
    let _ = write!(out, "Pkt len: {} bytes. ", record.original_len);
    let seen = match seen {
        Ok(seen) => seen,
        Err(reason) => {
            let _ = writeln!(out, "not RoCEv2: {reason}\n");
            return;
        }
    };
    outer(out, seen);
    match &seen.packet {
        Ok(packet) => roce(out, seen, packet),
        Err(reason) => drop(writeln!(out, "not understood: {reason}")),
    }
    let _ = match seen.icrc() {
        IcrcCheck::Good => writeln!(out, "RXE_ICRC ok\n"),
        IcrcCheck::Bad { want } => writeln!(out, "RXE_ICRC wrong, should be {:#010x}\n", want.swap_bytes()),
        IcrcCheck::Cut => writeln!(out, "RXE_ICRC not checked\n"),
    };
}

/// `struct name { type field; value };`
fn layout(out: &mut String, name: &str, fields: &[(&str, &str, String)]) {
    let _ = writeln!(out, "struct {name} {{");
    for (ty, field, value) in fields {
        let _ = writeln!(out, "    {ty} {field}; {value}");
    }
    out.push_str("};\n");
}

fn outer(out: &mut String, seen: &Seen<'_>) {
    let (src, dst) = (seen.ip.src().to_string(), seen.ip.dst().to_string());
    out.push_str("IP hdr:\n");
    match seen.ip {
        Ip::V4(_) => layout(out, "iphdr", &[("__be32", "saddr", src), ("__be32", "daddr", dst)]),
        Ip::V6(_) => {
            layout(out, "ipv6hdr", &[("struct in6_addr", "saddr", src), ("struct in6_addr", "daddr", dst)]);
        }
    }
    let Some(udp) = seen.udp else { return };
    out.push_str("udp hdr:\n");
    let fields = [
        ("__be16", "source", udp.src_port.to_string()),
        ("__be16", "dest", udp.dst_port.to_string()),
        ("__be16", "len", udp.length.to_string()),
        ("__sum16", "check", format!("{:#x}", udp.checksum).replace("0x0", "0")),
    ];
    layout(out, "udphdr", &fields);
}

fn roce(out: &mut String, seen: &Seen<'_>, packet: &Packet<'_>) {
    let bth = packet.bth;
    let _ = writeln!(out, "{}", kernel_name(packet.row()));
    let flags = seen.udp_payload.get(1).copied().unwrap_or(0);
    let mark = |set: bool, word: &str| if set { format!(" ({word})") } else { String::new() };
    let fields = [
        ("__u8", "opcode", format!("{:#x}", bth.opcode.0)),
        ("__u8", "flags", format!("{flags:#x}{}", mark(bth.solicited, "solicited"))),
        ("__be16", "pkey", format!("{:#x}", bth.p_key.0)),
        ("__be32", "qpn", format!("{:#x}{}", bth.dest_qp.value(), mark(bth.becn, "BECN"))),
        ("__be32", "apsn", format!("{:#x}{}", bth.psn.value(), mark(bth.ack_req, "ack requested"))),
    ];
    layout(out, "rxe_bth", &fields);
    for header in packet.row().headers {
        if extension(out, packet, *header).is_none() {
            out.push_str("not captured\n");
        }
    }
    if seen.payload_len() > 0 {
        out.push_str("RXE_PAYLOAD\n");
        match packet.payload().first_chunk().map(CmMessage::parse) {
            Some(Ok(message)) if bth.dest_qp == Qpn::GSI => drop(writeln!(out, "{message}")),
            _ => text(out, packet.payload()),
        }
    }
}

fn extension(out: &mut String, packet: &Packet<'_>, header: ExtHeader) -> Option<()> {
    let hex = |value: u64| format!("{value:#x}");
    let word = |value: u32| format!("{value:#x}");
    let (name, fields): (_, Vec<(&str, &str, String)>) = match header {
        ExtHeader::Rdeth => ("rxe_rdeth", vec![("__be32", "een", word(packet.rdeth()?.ee_context))]),
        ExtHeader::Deth => {
            let deth = packet.deth()?;
            let (qkey, sqp) = (word(deth.q_key.0), word(deth.src_qp.value()));
            ("rxe_deth", vec![("__be32", "qkey", qkey), ("__be32", "sqp", sqp)])
        }
        // rxe has no XRC: the name is from the IBA.
        ExtHeader::Xrceth => ("rxe_xrceth", vec![("__be32", "srqn", word(packet.xrceth()?.srqn))]),
        ExtHeader::Feth => {
            let feth = packet.feth()?;
            let bits = u32::from(feth.selectivity) << 4 | u32::from(feth.placement);
            ("rxe_feth", vec![("__be32", "bits", word(bits))])
        }
        ExtHeader::Reth => {
            let reth = packet.reth()?;
            let fields = vec![
                ("__be64", "va", hex(reth.va)),
                ("__be32", "rkey", word(reth.r_key.0)),
                ("__be32", "len", reth.dma_len.to_string()),
            ];
            ("rxe_reth", fields)
        }
        ExtHeader::AtomicEth => {
            let atomic = packet.atomic_eth()?;
            let fields = vec![
                ("__be64", "va", hex(atomic.va)),
                ("__be32", "rkey", word(atomic.r_key.0)),
                ("__be64", "swap_add", hex(atomic.swap_or_add)),
                ("__be64", "comp", hex(atomic.compare)),
            ];
            ("rxe_atmeth", fields)
        }
        ExtHeader::Aeth => {
            let aeth = packet.aeth()?;
            let raw = u32::from(aeth.syndrome.byte()) << 24 | aeth.msn.value();
            let value = format!("{raw:#x} ({}, msn {})", aeth.syndrome, aeth.msn);
            ("rxe_aeth", vec![("__be32", "smsn", value)])
        }
        ExtHeader::AtomicAckEth => {
            ("rxe_atmack", vec![("__be64", "orig", hex(packet.atomic_ack_eth()?.original))])
        }
        ExtHeader::ImmDt => ("rxe_immdt", vec![("__be32", "imm", word(u32::from_be_bytes(packet.imm()?)))]),
        ExtHeader::Ieth => ("rxe_ieth", vec![("__be32", "rkey", word(packet.ieth()?.0))]),
        ExtHeader::CnpReserved => return Some(()),
    };
    let _ = writeln!(out, "{}", name.to_uppercase());
    layout(out, name, &fields);
    Some(())
}

/// Appends printable ASCII as it is, and all other bytes in hexadecimal between angle brackets.
fn text(out: &mut String, bytes: &[u8]) {
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        let plain = |byte: &u8| (0x20..0x7f).contains(byte);
        let len = rest.iter().take_while(|byte| plain(byte) == plain(first)).count();
        let (run, behind) = rest.split_at(len);
        if plain(first) {
            out.extend(run.iter().map(|byte| char::from(*byte)));
        } else {
            out.push('<');
            for byte in run {
                let _ = write!(out, "{byte:02x}");
            }
            out.push('>');
        }
        rest = behind;
    }
    out.push('\n');
}

/// The name of an opcode in `rdma/ib_pack.h`.
fn kernel_name(row: &OpcodeRow) -> String {
    let service = row.service.name();
    if row.service == Service::Cnp {
        return format!("IB_OPCODE_{service}");
    }
    // The operation, and what follows the position; some operations have a single packet, without a position.
    let (operation, with) = match row.operation {
        Operation::Send => ("SEND", Some("")),
        Operation::SendImm => ("SEND", Some("_WITH_IMMEDIATE")),
        Operation::SendInv => ("SEND", Some("_WITH_INVALIDATE")),
        Operation::Write => ("RDMA_WRITE", Some("")),
        Operation::WriteImm => ("RDMA_WRITE", Some("_WITH_IMMEDIATE")),
        Operation::ReadResponse => ("RDMA_READ_RESPONSE", Some("")),
        Operation::ReadRequest => ("RDMA_READ_REQUEST", None),
        Operation::Ack => ("ACKNOWLEDGE", None),
        Operation::AtomicAck => ("ATOMIC_ACKNOWLEDGE", None),
        Operation::CompareSwap => ("COMPARE_SWAP", None),
        Operation::FetchAdd => ("FETCH_ADD", None),
        Operation::Flush => ("FLUSH", None),
        Operation::AtomicWrite => ("ATOMIC_WRITE", None),
        Operation::Resync | Operation::Cnp => ("RESYNC", None),
    };
    let Some(with) = with else { return format!("IB_OPCODE_{service}_{operation}") };
    let position = match row.position {
        Position::First => "FIRST",
        Position::Middle => "MIDDLE",
        Position::Last => "LAST",
        Position::Only => "ONLY",
    };
    format!("IB_OPCODE_{service}_{operation}_{position}{with}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Opcode;

    #[test]
    fn opcodes_have_the_names_of_the_kernel() {
        let name = |opcode: Opcode| kernel_name(opcode.row().expect("a row"));
        assert_eq!(name(Opcode::RC_WRITE_ONLY), "IB_OPCODE_RC_RDMA_WRITE_ONLY");
        assert_eq!(name(Opcode::RC_SEND_LAST_INV), "IB_OPCODE_RC_SEND_LAST_WITH_INVALIDATE");
        assert_eq!(name(Opcode::UD_SEND_ONLY_IMM), "IB_OPCODE_UD_SEND_ONLY_WITH_IMMEDIATE");
        assert_eq!(name(Opcode::RC_ATOMIC_WRITE), "IB_OPCODE_RC_ATOMIC_WRITE");
        assert_eq!(name(Opcode::CNP), "IB_OPCODE_CNP");
    }

    #[test]
    fn printable_payload_is_shown_as_text() {
        let mut out = String::new();
        text(&mut out, b"rdma-ping-0: ABC\x00\xff12");
        assert_eq!(out, "rdma-ping-0: ABC<00ff>12\n");
    }
}
