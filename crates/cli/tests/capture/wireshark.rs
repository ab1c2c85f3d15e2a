//! Every field of every golden packet, compared with what Wireshark's dissector makes of it.
//!
//! All captures are joined into one file, so that tshark starts once. What it shows as `infiniband.`, `eth.`, `ip.`, `ipv6.` or
//! `udp.` must be a field of ours with the same value, but for the names below, each with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use pcap_file::{Endianness, TsResolution};
use roxie_cli::capture::fields::{self, Value};
use roxie_cli::capture::source::Source;
use wire::Opcode;
use wire::capture::Seen;

use crate::build::pcap;
use crate::golden;

/// Wireshark's fields that are no fields of the packet, or that it gets wrong.
const LEFT_OUT: [&str; 24] = [
    // Whole headers, shown below each field by field.
    "infiniband.bth",
    "infiniband.deth",
    "infiniband.reth",
    "infiniband.aeth",
    "infiniband.atomiceth",
    "infiniband.atomicacketh",
    "infiniband.mad",
    "infiniband.mad.data",
    "infiniband.smplid.smpdata",
    "infiniband.cm.req.ip_cm",
    // Pieces of the service id.
    "infiniband.cm.req.serviceid.prefix",
    "infiniband.cm.req.serviceid.protocol",
    "infiniband.cm.req.serviceid.dport",
    // Reserved bits.
    "infiniband.reserved",
    "infiniband.aeth.syndrome.reserved",
    "infiniband.cm.rep.reserved",
    "infiniband.cm.rej.reserved0",
    "infiniband.cm.rej.reserved1",
    // 4.0 reads the word with flow label and rate as 3 bytes, 1 byte and 1 byte from the same place.
    "infiniband.cm.req.prim_flowlabel",
    "infiniband.cm.req.prim_pktrate",
    "infiniband.cm.req.prim_reserved0",
    "infiniband.cm.req.prim_reserved1",
    "infiniband.cm.req.prim_reserved2",
    // Bits of addresses, guesses, states of a conversation.
    "udp.payload",
];
/// The same, by their beginning.
const LEFT_OUT_PREFIXES: [&str; 26] = [
    "infiniband.cm.req.alt_reserved",
    "infiniband.cm.req.alt_flowlabel",
    "infiniband.cm.req.alt_pktrate",
    "eth.addr",
    "eth.dst.",
    "eth.src.",
    "eth.ig",
    "eth.lg",
    "ip.addr",
    "ip.checksum.status",
    "udp.checksum.",
    "ip.flags.rb",
    "ipv6.addr",
    "eth.dst_resolved",
    "eth.src_resolved",
    "infiniband.cm.req.ip_cm.reserved",
    "infiniband.rwh.",
    "ip.host",
    "ip.src_host",
    "ip.dst_host",
    "ipv6.host",
    "ipv6.src_host",
    "ipv6.dst_host",
    "udp.port",
    "udp.stream",
    "udp.time",
];

/// A field as tshark shows it, in the order of the packet.
type Shown = (String, String);

#[test]
fn wireshark_sees_the_same_fields() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("skipped: needs tshark");
        return;
    }
    let frames: Vec<Vec<u8>> = golden::names().iter().flat_map(|name| golden::frames(name)).collect();
    let file = pcap(&frames, 1, Endianness::Little, TsResolution::NanoSecond);
    let packets = tshark(&file);
    assert_eq!(packets.len(), frames.len());

    let mut source = Source::new(&file[..]).expect("a capture");
    let mut unknown = BTreeSet::new();
    let mut compared = 0;
    for shown in &packets {
        let record = source.next_record().expect("reads").expect("as many packets");
        let seen = Seen::parse(record.link_type, record.data);
        let Ok(packet) = &seen else { continue };
        // 4.0 knows neither of these two, and shows what follows the BTH as payload.
        let opcode = packet.bth.expect("a BTH").opcode;
        if [Opcode::RC_FLUSH, Opcode::RC_ATOMIC_WRITE].contains(&opcode) {
            continue;
        }
        let mut ours: BTreeMap<&str, Vec<Value<'_>>> = BTreeMap::new();
        for field in fields::layers(&record, &seen).into_iter().flat_map(|layer| layer.fields) {
            ours.entry(field.name).or_default().push(field.value);
        }
        for (name, value) in shown {
            // What no dissector wants is payload.
            let name = match name.as_str() {
                "data.data" => "infiniband.payload",
                // The version of IPv6 has both names.
                "ip.version" if ours.contains_key("ipv6.version") => "ipv6.version",
                name => name,
            };
            match ours.get(name) {
                Some(values) => {
                    let same = values.iter().any(|ours| agrees(ours, value));
                    let (number, value) = (record.number, &value[..value.len().min(80)]);
                    assert!(same, "packet {number}: {name} is {value} for tshark, not here");
                    compared += 1;
                }
                None => drop(unknown.insert(name.to_owned())),
            }
        }
    }
    assert!(unknown.is_empty(), "fields that only tshark has: {unknown:?}");
    assert!(compared > 30_000, "{compared} fields were compared");
}

fn agrees(ours: &Value<'_>, theirs: &str) -> bool {
    let number = match theirs.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => theirs.parse().ok(),
    };
    match ours {
        Value::Number(n) | Value::Hex(n, _) => number == Some(*n),
        Value::Flag(set) => matches!((theirs, set), ("1" | "True", true) | ("0" | "False", false)),
        // Wireshark adds the pad to the payload, and shows a part of what it takes for an encapsulated packet.
        Value::Bytes(_) => {
            let (ours, theirs) = (ours.to_string(), theirs.replace(':', ""));
            ours.starts_with(&theirs) || theirs.trim_end_matches('0') == ours.trim_end_matches('0')
        }
        Value::Ip(_) | Value::Mac(_) | Value::Text(_) => theirs == ours.to_string(),
    }
}

/// What tshark shows of each packet.
fn tshark(file: &[u8]) -> Vec<Vec<Shown>> {
    let path = std::env::temp_dir().join(format!("roxie-wireshark-{}.pcap", std::process::id()));
    std::fs::write(&path, file).expect("the temporary directory is writable");
    // Names and conversations are not asked for; the RPC-over-RDMA and iSER heuristics guess at payloads.
    let output = Command::new("tshark")
        .args(["-n", "-T", "pdml", "--disable-heuristic", "rpcrdma_infiniband", "-r"])
        .arg(&path)
        .output()
        .expect("tshark runs");
    std::fs::remove_file(&path).expect("it was written");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("PDML is UTF-8");
    text.split("<packet>").skip(1).map(|packet| packet.lines().filter_map(field).collect()).collect()
}

/// Name and value of a line of PDML, if it is a field to compare.
fn field(line: &str) -> Option<Shown> {
    let attribute = |name: &str| {
        let (_, rest) = line.split_once(&format!(" {name}=\""))?;
        rest.split_once('"').map(|(value, _)| value.to_owned())
    };
    let name = line.trim_start().starts_with("<field ").then(|| attribute("name"))??;
    let ours = ["infiniband.", "eth.", "ip.", "ipv6.", "udp.", "data.data"]
        .iter()
        .any(|layer| name.starts_with(layer));
    let left_out =
        LEFT_OUT.contains(&name.as_str()) || LEFT_OUT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    if !ours || left_out {
        return None;
    }
    Some((name, attribute("show")?))
}
