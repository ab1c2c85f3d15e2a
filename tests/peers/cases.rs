//! The cases: each program at both ends of every kind of wire.

use std::time::Duration;

use roxie_tests::pair::Ready;
use roxie_tests::place::{Family, Port};
use roxie_tests::process::Ended;

use crate::end::{End, Kind};
use crate::flows::{Ends, FLOWS, Flow, Style};
use crate::machine::{Machine, good};

/// Time limit for a client. The other end is emulated; a lost packet that only a timer detects costs most.
const CLIENT: Duration = Duration::from_secs(40);
/// Time for the server to end after its client.
const SERVER: Duration = Duration::from_secs(8);
/// One in this many packets towards the guest is dropped, at random.
const LOSS: u32 = 41;

/// Properties of the wire between the queue pairs.
#[derive(Clone, Copy)]
struct Wire {
    /// Port of roxie's ends.
    port: Port,
    family: Family,
    mtu: u32,
    /// The guest drops some received packets: requests or responses, depending on the roles.
    lossy: bool,
}

pub(crate) struct Case {
    flow: Flow,
    wire: Wire,
    client: End,
}

/// The cases, grouped by machine. With `full` over every wire, otherwise over some wires of each kind.
pub(crate) fn all(full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for wire in wires(full) {
        for flow in FLOWS {
            cases.extend([End::Roxie, End::Rxe].map(|client| Case { flow, wire, client }));
        }
    }
    for (family, client) in [(Family::V4, End::A), (Family::V6, End::B)] {
        let wire = Wire { port: Port::Native, family, mtu: 1500, lossy: false };
        cases.extend(FLOWS.map(|flow| Case { flow, wire, client }));
    }
    cases.retain(Case::makes_sense);
    cases
}

/// Cases worth a recording: few packets, of every kind, in both roles and both families.
pub(crate) fn recorded() -> Vec<Case> {
    let few = |flow: &Flow| match flow.style {
        Style::Perftest | Style::PerftestCm => flow.words == ["ib_atomic_lat"],
        // perftest sends tens of thousands of packets of 256 bytes.
        _ => !flow.words.contains(&"256"),
    };
    let roles = [(Family::V4, End::Roxie), (Family::V6, End::Rxe)];
    let of_role = |(family, client)| {
        let wire = Wire { port: Port::Udp, family, mtu: 1500, lossy: false };
        FLOWS.into_iter().filter(few).map(move |flow| Case { flow, wire, client })
    };
    roles.into_iter().flat_map(of_role).collect()
}

/// The cases between roxie and rxe.
fn wires(full: bool) -> Vec<Wire> {
    use Family::{V4, V6};
    use Port::{Generic, Native, Udp};
    let wire = |port, family, mtu| Wire { port, family, mtu, lossy: false };
    let mut wires: Vec<Wire> = [Udp, Native].map(|port| Wire { lossy: true, ..wire(port, V4, 1500) }).into();
    if full {
        for mtu in [1500, 4200, 9000] {
            for family in [V4, V6] {
                wires.extend([Udp, Native, Generic].map(|port| wire(port, family, mtu)));
            }
        }
    } else {
        wires.extend([(Udp, V4), (Udp, V6), (Native, V4)].map(|(port, family)| wire(port, family, 1500)));
        wires.extend([wire(Native, V6, 9000), wire(Generic, V4, 4200)]);
    }
    wires
}

impl Case {
    pub(crate) fn name(&self) -> String {
        let ends = match self.client {
            End::Roxie => "roxie to rxe",
            End::Rxe => "rxe to roxie",
            End::A | End::B => "roxie to roxie",
        };
        let port = match self.wire.port {
            Port::Udp | Port::Shm => "udp",
            Port::Native if self.kind() == Kind::Wire => "zerocopy",
            Port::Native => "xsk",
            Port::Generic => "xskgeneric",
        };
        let family = if self.wire.family == Family::V6 { "v6" } else { "v4" };
        let mtu = if self.wire.mtu == 1500 { String::new() } else { format!("-mtu{}", self.wire.mtu) };
        let lossy = if self.wire.lossy { "-lossy" } else { "" };
        format!("{ends}/{port}-{family}{mtu}{lossy}/{}", self.flow.words.join(" "))
    }

    /// The machine that it needs.
    pub(crate) fn kind(&self) -> Kind {
        self.client.kind()
    }

    /// Leaves out what a program does not support; a lossy wire is for streams only.
    fn makes_sense(&self) -> bool {
        match self.flow.style {
            Style::Perftest => !self.wire.lossy || self.flow.words[0].ends_with("_bw"),
            // It resolves the peer as IPv4 only.
            Style::PerftestCm => !self.wire.lossy && self.wire.family == Family::V4,
            _ => !self.wire.lossy,
        }
    }

    pub(crate) fn run(&self, machine: &Machine) -> Result<(), String> {
        if self.kind() == Kind::Rxe {
            machine.set_mtu(self.wire.mtu)?;
        }
        if !self.wire.lossy {
            return self.pair(machine);
        }
        // Where few packets arrive, such as acknowledgements only, random loss may drop none.
        let once = "udp dport 4791 numgen inc mod 65536 == 10 counter drop";
        let by_chance = format!("udp dport 4791 numgen random mod {LOSS} == 0 counter drop");
        machine.command(&format!(
            "nft 'add table inet loss; add chain inet loss in {{ type filter hook input priority 0; }}; \
             add rule inet loss in {once}; add rule inet loss in {by_chance}'"
        ))?;
        let result = self.pair(machine);
        // A run without any loss tests nothing.
        let lost =
            "nft list table inet loss | grep -q 'packets [1-9]'; status=$?; nft delete table inet loss";
        result.and(machine.command(&format!("{lost}; exit $status")))
    }

    fn pair(&self, machine: &Machine) -> Result<(), String> {
        let (name, server_end) = (self.name(), self.client.other());
        let port = self.flow.port(machine.port());
        let (word, v6) = (port.to_string(), self.wire.family == Family::V6);
        let start = |end| {
            let words = self.flow.words(self.ends(end, v6), &word);
            machine.start(end, &name, self.wire.port, &words)
        };
        let mut server = start(server_end)?;
        let ready = if self.flow.uses_cm() { Ready::Cm(port) } else { Ready::Tcp(port) };
        machine.wait_ready(server_end, &mut server, ready)?;
        let mut client = start(self.client)?;
        let client_ended = good(client.wait(CLIENT), &mut server)?;
        let server_ended = good(server.wait(SERVER), &mut client)?;
        let ends = [(self.client, &client_ended), (server_end, &server_ended)];
        match ends.into_iter().find_map(|(end, ended)| self.complaint(end, ended)) {
            None => Ok(()),
            Some(complaint) => {
                Err(format!("{complaint}\n{}{}", client_ended.describe(), server_ended.describe()))
            }
        }
    }

    /// The address options of a program at `end`. TCP exchanges use IPv4; the GID selects the address of
    /// the queue pairs.
    fn ends(&self, end: End, v6: bool) -> Ends<'static> {
        let server = self.client.other();
        Ends {
            device: end.device(),
            gid_index: end.gid_index(v6),
            server: server.address(v6),
            exchange: server.address(false),
            is_client: end == self.client,
        }
    }

    /// An error in the output of a program that succeeded: its own complaints, or a port other than the
    /// expected one by the counters that roxie prints.
    fn complaint(&self, end: End, ended: &Ended) -> Option<String> {
        let said = |words: &str| ended.output.contains(words);
        if let Some(complaint) =
            ["invalid data", "ompletion with error"].into_iter().find(|words| said(words))
        {
            return Some(complaint.to_owned());
        }
        let how = match self.wire.port {
            Port::Udp | Port::Shm => return None,
            _ if end == End::Rxe => return None,
            Port::Native if self.kind() == Kind::Wire => "port xsk, native mode, zero-copy",
            Port::Native => "port xsk, native mode, copy",
            Port::Generic => "port xsk, generic mode, copy",
        };
        let wanted = [how, "xsk_tx_packets", "xsk_rx_packets"].map(|words| format!("roxie: {words}"));
        wanted.iter().find(|words| !said(words)).map(|words| format!("'{words}' is not in the output"))
    }
}
