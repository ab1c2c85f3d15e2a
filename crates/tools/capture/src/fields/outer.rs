//! Dissects the capture's record header, the link layer, IP and UDP.

use wire::capture::{Link, Lrh, Seen, Tunnel, TunnelKind, tunnels};
use wire::{Ip, Ipv4, Ipv6};

use super::{Layer, Value, Words};
use crate::source::Record;

pub(super) fn frame<'a>(record: &Record<'a>) -> Layer<'a> {
    let (number, len, cap_len) = (record.number, record.original_len, record.data.len());
    let mut layer = Layer::new(Words::Frame(number, len, cap_len))
        .number("frame.number", "Number", number)
        .add("frame.time_epoch", "Time", Value::Time(record.time_ns))
        .means(Words::Date(record.time_ns))
        .number("frame.len", "Length", len as u64)
        .number("frame.cap_len", "Captured", cap_len as u64)
        .number("frame.interface_id", "Interface", record.interface as u64);
    if let Some(outbound) = record.outbound {
        let (number, meaning) = if outbound { (2_u8, "outbound") } else { (1, "inbound") };
        layer = layer.number("frame.packet_flags_direction", "Direction", number).means(meaning);
    }
    if let Some(comment) = record.comment {
        layer = layer.text("frame.comment", "Comment", String::from_utf8_lossy(comment));
    }
    layer
}

pub(super) fn headers<'a>(record: &Record<'a>, seen: &Seen<'a>, layers: &mut Vec<Layer<'a>>) {
    link(&seen.link, layers);
    if seen.tunnels > 0 {
        layers.extend(tunnels(record.decode_as, record.data).into_iter().flatten().map(tunnel));
    }
    match seen.ip {
        Ip::V4(ip) => layers.push(ipv4(&ip)),
        // These addresses stand for local identifiers.
        Ip::V6(_) if seen.link.lrh.is_some_and(|lrh| lrh.next == Lrh::NEXT_BTH) => {}
        Ip::V6(ip) => layers.push(ipv6(&ip)),
    }
    let Some(udp) = seen.udp else { return };
    let mut layer = Layer::new(Words::Udp(udp))
        .number("udp.srcport", "Source Port", udp.src_port)
        .number("udp.dstport", "Destination Port", udp.dst_port)
        .number("udp.length", "Length", udp.length)
        .hex("udp.checksum", "Checksum", 4, udp.checksum);
    if udp.checksum == 0 {
        layer = layer.means("none");
    }
    layers.push(layer);
}

fn tunnel<'a>(tunnel: Tunnel) -> Layer<'a> {
    let mut layer = Layer::new(tunnel.kind.to_string());
    if let Some((src, dst)) = tunnel.ends {
        layer = layer.add("roxie.tunnel.src", "Source", Value::Ip(src));
        layer = layer.add("roxie.tunnel.dst", "Destination", Value::Ip(dst));
    }
    match tunnel.kind {
        TunnelKind::Vxlan(vni) => layer.number("vxlan.vni", "Network Identifier", vni),
        TunnelKind::Geneve(vni) => layer.hex("geneve.vni", "Network Identifier", 6, vni),
        TunnelKind::Gre(Some(key)) => layer.hex("gre.key", "Key", 8, key),
        TunnelKind::Erspan(session) => layer.number("erspan.spanid", "Session", session),
        TunnelKind::Mpls(label) => layer.number("mpls.label", "Label", label),
        TunnelKind::Pppoe(session) => layer.hex("pppoe.session_id", "Session", 4, session),
        TunnelKind::Gtp(teid) => layer.hex("gtp.teid", "Tunnel Endpoint", 8, teid),
        TunnelKind::Nsh(path) => layer.number("nsh.spi", "Service Path", path),
        TunnelKind::Gre(None) | TunnelKind::Ip => layer,
    }
}

fn link<'a>(link: &Link<'a>, layers: &mut Vec<Layer<'a>>) {
    if let Some(ethernet) = link.ethernet {
        let layer = Layer::new(Words::Ethernet(ethernet))
            .add("eth.dst", "Destination", Value::Mac(ethernet.dst))
            .add("eth.src", "Source", Value::Mac(ethernet.src))
            .hex("eth.type", "Type", 4, ethernet.ether_type.0);
        layers.push(layer);
    }
    if let Some(lrh) = link.lrh {
        let layer = Layer::new("Local Route Header")
            .hex("infiniband.lrh.vl", "Virtual Lane", 2, lrh.vl)
            .number("infiniband.lrh.lver", "Version", lrh.version)
            .number("infiniband.lrh.sl", "Service Level", lrh.sl)
            .hex("infiniband.lrh.lnh", "Next Header", 2, lrh.next)
            .number("infiniband.lrh.dlid", "Destination LID", lrh.dst)
            .number("infiniband.lrh.pktlen", "Packet Length", u64::from(lrh.len_words) * 4)
            .number("infiniband.lrh.slid", "Source LID", lrh.src);
        layers.push(layer);
    }
    if let Some(kind) = link.packet_type {
        let mut layer = Layer::new("Linux cooked capture");
        layer = layer.number("sll.pkttype", "Packet Type", kind).means(match kind {
            0 => "to us",
            1 => "broadcast",
            2 => "multicast",
            3 => "to another host",
            4 => "sent by us",
            _ => "unknown",
        });
        if let Some(index) = link.ifindex {
            layer = layer.number("sll.ifindex", "Interface Index", index);
        }
        layers.push(layer);
    }
    for tag in link.tags() {
        let layer = Layer::new(format!("VLAN {}", tag.id))
            .number("vlan.priority", "Priority", tag.priority)
            .flag("vlan.dei", "Drop Eligible", tag.drop_eligible)
            .number("vlan.id", "ID", tag.id)
            .hex("vlan.etype", "Type", 4, tag.ether_type.0);
        layers.push(layer);
    }
}

fn ipv4(ip: &Ipv4) -> Layer<'static> {
    let mut layer = Layer::long(Words::Ipv4(*ip))
        .number("ip.version", "Version", ip.version)
        .number("ip.hdr_len", "Header Length", ip.ihl * 4)
        .hex("ip.dsfield", "Differentiated Services", 2, ip.tos)
        .number("ip.dsfield.dscp", "DSCP", ip.tos >> 2)
        .number("ip.dsfield.ecn", "ECN", ip.tos & 3)
        .means(ecn(ip.tos))
        .number("ip.len", "Total Length", ip.total_len)
        .hex("ip.id", "Identification", 4, ip.id)
        .hex("ip.flags", "Flags", 2, ip.flags)
        .flag("ip.flags.df", "Don't Fragment", ip.flags & 2 != 0)
        .flag("ip.flags.mf", "More Fragments", ip.flags & 1 != 0)
        .number("ip.frag_offset", "Fragment Offset", ip.fragment_offset)
        .number("ip.ttl", "Time to Live", ip.ttl)
        .number("ip.proto", "Protocol", ip.protocol)
        .hex("ip.checksum", "Header Checksum", 4, ip.checksum);
    if !ip.checksum_ok() {
        layer = layer.means("wrong (or left to the NIC)");
    }
    let (src, dst) = (Value::Ip(ip.src.into()), Value::Ip(ip.dst.into()));
    layer.add("ip.src", "Source", src).add("ip.dst", "Destination", dst)
}

fn ipv6(ip: &Ipv6) -> Layer<'static> {
    Layer::new(Words::Ipv6(Box::new(*ip)))
        .number("ipv6.version", "Version", ip.version)
        .hex("ipv6.tclass", "Traffic Class", 8, ip.traffic_class)
        .number("ipv6.tclass.dscp", "DSCP", ip.traffic_class >> 2)
        .number("ipv6.tclass.ecn", "ECN", ip.traffic_class & 3)
        .means(ecn(ip.traffic_class))
        .hex("ipv6.flow", "Flow Label", 6, ip.flow_label)
        .number("ipv6.plen", "Payload Length", ip.payload_len)
        .number("ipv6.nxt", "Next Header", ip.next_header)
        .number("ipv6.hlim", "Hop Limit", ip.hop_limit)
        .add("ipv6.src", "Source", Value::Ip(ip.src.into()))
        .add("ipv6.dst", "Destination", Value::Ip(ip.dst.into()))
}

fn ecn(tos: u8) -> &'static str {
    match tos & 3 {
        0 => "not ECN-capable: congestion cannot be marked",
        3 => "CE: a switch or router marked congestion",
        _ => "ECN-capable",
    }
}
