//! Our responder against the kernel's: it gets the requests of a capture and must respond as the kernel did,
//! byte for byte from the BTH to the pad. `tests/golden/` describes the captures.

#[path = "../../../../tests/golden/capture.rs"]
mod capture;
#[path = "golden_replay/memory.rs"]
mod memory;
#[path = "golden_replay/responder.rs"]
mod responder;
#[path = "golden_replay/setup.rs"]
mod setup;

use std::collections::BTreeMap;

use responder::{End, Requests, Responder};
use setup::Setup;
use wire::{Packet, Qpn, Service};

/// The packets towards one queue pair.
type Flow = (Qpn, Vec<Vec<u8>>);

/// Appends to the flow of the packet's destination.
fn push(flows: &mut Vec<Flow>, packet: &Packet<'_>, bytes: &[u8]) {
    let to = packet.bth.dest_qp;
    let index = flows.iter().position(|(qpn, _)| *qpn == to).unwrap_or_else(|| {
        flows.push((to, vec![]));
        flows.len() - 1
    });
    flows[index].1.push(bytes.to_vec());
}

/// The connections of a capture as the end `me` sees them: requests that arrive, and the responses it gives,
/// which are without ICRC.
fn connections(name: &str, me: End) -> Vec<(Requests, Vec<Vec<u8>>)> {
    let (mut requests, mut responses) = (vec![], vec![]);
    for frame in capture::frames(name) {
        let Some((ip, _, payload)) = capture::datagram(&frame) else { continue };
        let packet = Packet::parse(payload).expect("decodes");
        if packet.row().service != Service::Rc {
            continue;
        }
        match (packet.row().is_response(), ip.dst() == me.ip) {
            (false, true) => push(&mut requests, &packet, payload),
            (true, false) => push(&mut responses, &packet, &payload[..payload.len() - 4]),
            _ => {}
        }
    }
    // Each connection gets its responses before the next one begins, so the order tells them apart.
    responses.resize(requests.len(), (Qpn::default(), vec![]));
    let pair = |((qpn, packets), (from_qpn, responses))| (Requests { qpn, from_qpn, packets }, responses);
    requests.into_iter().zip(responses).map(pair).collect()
}

fn replay(name: &str, me: End, peer: End) -> usize {
    let setup = Setup::of(name);
    let mut compared = 0;
    for (index, (requests, mut theirs)) in connections(name, me).into_iter().enumerate() {
        let timer = setup.min_rnr_timers[index % setup.min_rnr_timers.len()];
        let mut responder = Responder::new(setup.clone(), timer, &requests, me, peer);
        let mut ours = Vec::new();
        let mut seen = BTreeMap::new();
        for request in &requests.packets {
            let request = Packet::parse(request).expect("decodes");
            let count: &mut usize = seen.entry(request.bth.opcode.0).or_default();
            let number = std::mem::replace(count, *count + 1);
            let lost = setup
                .lost
                .as_ref()
                .is_some_and(|(opcode, numbers)| *opcode == request.bth.opcode && numbers.contains(&number));
            if !lost {
                ours.append(&mut responder.respond(&request));
            }
        }
        if let Some(deviation) = setup.deviation {
            deviation.apply(&mut theirs);
        }
        let (got, want) = (text(&ours), text(&theirs));
        assert!(ours == theirs, "{name}, responses of {me:?}\nours:\n{got}the kernel's:\n{want}");
        compared += ours.len();
    }
    compared
}

fn text(responses: &[Vec<u8>]) -> String {
    let line = |response: &Vec<u8>| {
        let bytes = [response.as_slice(), &[0; 4]].concat();
        format!("  {}\n", Packet::parse(&bytes).expect("decodes"))
    };
    responses.iter().map(line).collect()
}

#[test]
fn our_responder_responds_as_the_kernel_did() {
    let mut compared = 0;
    for name in capture::names() {
        // Their memory has another address, they have no responses, or roxie lacks their operations.
        if ["cm-", "uc-", "ud-", "rc-flush-"].iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let addresses =
            if name.ends_with("-v6") { ["fd99::2", "fd99::3"] } else { ["10.99.0.2", "10.99.0.3"] };
        let [ip_a, ip_b] = addresses.map(|text| text.parse().expect("an address"));
        let a = End { ip: ip_a, sq_psn: 0xff_fff0, seed: 1 };
        let b = End { ip: ip_b, sq_psn: 0x100, seed: 2 };
        compared += replay(&name, b, a) + replay(&name, a, b);
    }
    println!("{compared} responses compared");
    assert!(compared > 400, "the captures were found");
}
