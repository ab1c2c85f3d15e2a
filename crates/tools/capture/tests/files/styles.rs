//! The styles in which packets are shown.

use roxie_capture::paint::Colours;
use roxie_capture::show::{Show, Style, Times};
use roxie_capture::source::Source;

use wire::capture::Seen;

use crate::golden;

fn show(name: &str, style: Style) -> Vec<String> {
    let file = golden::file(name);
    let mut source = Source::new(&file[..]).expect("a capture");
    let mut show = Show::new(style, Times::Relative, Colours::None);
    let mut packets = Vec::new();
    while let Some(record) = source.next_record().expect("reads") {
        let mut text = String::new();
        show.packet(&mut text, &record, &Seen::parse(record.decode_as, record.data));
        packets.push(text);
    }
    packets
}

/// The packet carries the text of rping.
#[test]
fn the_struct_style_shows_a_write_as_the_structs_of_rxe() {
    let want = "\
Pkt len: 138 bytes. IP hdr:
struct iphdr {
    __be32 saddr; 10.99.0.3
    __be32 daddr; 10.99.0.2
};
udp hdr:
struct udphdr {
    __be16 source; 52189
    __be16 dest; 4791
    __be16 len; 104
    __sum16 check; 0
};
IB_OPCODE_RC_RDMA_WRITE_ONLY
struct rxe_bth {
    __u8 opcode; 0xa
    __u8 flags; 0x0
    __be16 pkey; 0xffff
    __be32 qpn; 0x4d
    __be32 apsn; 0xc8b9e5 (ack requested)
};
RXE_RETH
struct rxe_reth {
    __be64 va; 0x55f4557eb130
    __be32 rkey; 0x402c
    __be32 len; 64
};
RXE_PAYLOAD
rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr<00>
RXE_ICRC ok

";
    assert_eq!(show("cm-rping-v4", Style::Struct)[11], want);
}

#[test]
fn the_line_style_shows_operation_and_syndrome() {
    let lines = show("nak-write-bounds-v4", Style::Line);
    let want = [
        "     1 0.000000000 10.99.0.2 > 10.99.0.3 RC RDMA WRITE Only QP=",
        "AETH ACK MSN=1",
        "RC RDMA WRITE First",
        "RC RDMA WRITE Last",
        "RC Acknowledge QP=0x00002a PSN=16777201, AETH NAK Remote access error MSN=1",
    ];
    for (line, want) in lines.iter().zip(want) {
        assert!(line.contains(want), "{line} has no {want}");
    }
}

#[test]
fn the_json_style_has_one_object_per_line_with_the_names_of_wireshark() {
    for line in show("rc-flush-atomic-write-v4", Style::Json) {
        assert_eq!(line.find('\n'), Some(line.len() - 1));
        let packet: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert!(packet["infiniband.bth.psn"].is_number() && packet["infiniband.bth.destqp"].is_string());
        if packet["infiniband.bth.opcode"] == 0x1c {
            assert_eq!(packet["roxie.feth.selectivity"].as_u64().map(|n| n < 2), Some(true));
            assert!(packet["infiniband.reth.va"].is_string());
        }
    }
}

#[test]
fn every_packet_of_every_golden_capture_is_shown_in_every_style() {
    for name in golden::names() {
        for style in [Style::Line, Style::Struct, Style::Tree, Style::Json, Style::Hex] {
            for text in show(&name, style) {
                assert!(text.ends_with('\n') && !text.contains("not captured"), "{name}: {text}");
                assert!(name == "cm-mckey-v4" || !text.contains("not understood"), "{name}: {text}");
            }
        }
    }
}
