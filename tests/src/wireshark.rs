//! Compares every field of every packet of a capture with Wireshark's dissector.
//!
//! Every field that tshark shows as `infiniband.`, `eth.`, `ip.`, `ipv6.` or `udp.` must be a field of
//! `roxie capture read --json` with the same value, except for the names below, each with its reason.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Map, Value};

/// Wireshark's fields that are not in the packet, or that it gets wrong.
const LEFT_OUT: [&str; 26] = [
    // Whole headers; their fields are compared one by one.
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
    // Parts of the service id.
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
    // Results of its analysis of the packet.
    "ip.ttl.too_small",
    // Wireshark 4.0 takes a CNP for a manufacturer's opcode.
    "infiniband.vendor",
    // Bits of addresses, guesses, states of a conversation.
    "udp.payload",
];
/// More of these, by the beginning of the name.
const LEFT_OUT_PREFIXES: [&str; 27] = [
    // Payload bytes that look like a header of Ethernet over InfiniBand.
    "infiniband.eoib.",
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

/// Wireshark 4.0 knows neither FLUSH nor ATOMIC WRITE, and shows the bytes after the BTH as payload.
const UNKNOWN_OPCODES: [u64; 2] = [0x1c, 0x1d];

/// A field as tshark shows it, in the order of the packet.
type Shown = (String, String);

/// Compares the RoCEv2 packets of a file; returns the number of compared fields, or `None` without tshark.
///
/// # Errors
/// The first difference, or the failure of a program.
pub fn compare(roxie: &Path, file: &Path) -> Result<Option<usize>, String> {
    if Command::new("tshark").arg("--version").output().is_err() {
        return Ok(None);
    }
    let theirs = tshark(file)?;
    let mut roxie = Command::new(roxie);
    let ours = run(roxie.args(["capture", "read", "--json", "--no-pager", "--all"]).arg(file))?;
    let ours: Vec<Map<String, Value>> = ours
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    if ours.len() != theirs.len() {
        return Err(format!("{} packets here, {} for tshark", ours.len(), theirs.len()));
    }
    let (mut compared, mut unknown) = (0, BTreeSet::new());
    for (packet, shown) in ours.iter().zip(&theirs) {
        let opcode = packet.get("infiniband.bth.opcode").and_then(Value::as_u64);
        // Wireshark shows less of a packet that was truncated in flight.
        let is_cut = packet.get("roxie.icrc.status").is_some_and(|status| status == "unknown")
            && packet.get("frame.len") == packet.get("frame.cap_len");
        if is_cut || opcode.is_none_or(|opcode| UNKNOWN_OPCODES.contains(&opcode)) {
            continue;
        }
        for (name, value) in shown {
            // Bytes that no dissector handles are payload.
            let name = match name.as_str() {
                "data.data" => "infiniband.payload",
                // The version of IPv6 has two names.
                "ip.version" if packet.contains_key("ipv6.version") => "ipv6.version",
                name => name,
            };
            let same = match packet.get(name) {
                // A name that occurs twice.
                Some(Value::Array(list)) => list.iter().any(|ours| agrees(ours, value)),
                Some(ours) => agrees(ours, value),
                None => {
                    unknown.insert(name.to_owned());
                    continue;
                }
            };
            if !(same || name == "infiniband.payload" && is_part(&packet[name], value)) {
                let number = &packet["frame.number"];
                return Err(format!(
                    "packet {number}: {name} is {value:.80} for tshark, {} here",
                    packet[name]
                ));
            }
            compared += 1;
        }
    }
    if unknown.is_empty() {
        Ok(Some(compared))
    } else {
        Err(format!("fields that only tshark has: {unknown:?}"))
    }
}

/// Wireshark takes some bytes of a payload for another protocol's header, if they look like it.
fn is_part(ours: &Value, theirs: &str) -> bool {
    let shown = theirs.replace(':', "");
    let shown = shown.trim_end_matches('0');
    !shown.is_empty() && ours.as_str().is_some_and(|ours| ours.contains(shown))
}

fn agrees(ours: &Value, theirs: &str) -> bool {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    match ours {
        Value::Number(n) => n.as_u64().is_some() && n.as_u64() == number(theirs),
        Value::Bool(set) => matches!((theirs, set), ("1" | "True", true) | ("0" | "False", false)),
        Value::String(text) if text.starts_with("0x") => number(text) == number(theirs),
        // Wireshark adds the padding to the payload, and shows a part of an encapsulated packet that it
        // guesses.
        Value::String(text) => {
            let bytes = theirs.replace(':', "");
            let padded = || bytes.trim_end_matches('0') == text.trim_end_matches('0');
            let hex = !text.is_empty() && text.bytes().all(|c| c.is_ascii_hexdigit());
            text == theirs || hex && (text.starts_with(&bytes) || padded())
        }
        _ => false,
    }
}

/// The output of tshark, by packet.
fn tshark(file: &Path) -> Result<Vec<Vec<Shown>>, String> {
    // Without name resolution and conversations; the heuristics for RPC over RDMA would guess at payloads.
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-T", "pdml", "--disable-heuristic", "rpcrdma_infiniband", "-r"]).arg(file);
    let text = run(&mut tshark)?;
    Ok(text.split("<packet>").skip(1).map(|packet| packet.lines().filter_map(field).collect()).collect())
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
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
