//! The cases: each program with roxie as client and as server, over IPv4, IPv6 and a wire that loses packets.

use std::time::Duration;

use roxie_tests::pair::Ready;

use crate::rxe::{End, Rxe, good};

/// Time for a client. The other end is emulated; a lost packet that only a timer reveals costs most.
const CLIENT: Duration = Duration::from_secs(40);
/// Time for the server to end after its client.
const SERVER: Duration = Duration::from_secs(8);
/// Of so many packets towards the guest one is lost, at random.
const LOSS: u32 = 41;
/// Where `udaddy` listens; it has no option for it.
const UDADDY_PORT: u16 = 7174;

/// What a program is told about its peer.
#[derive(Clone, Copy)]
enum Style {
    /// `ibv_*_pingpong`: addresses over TCP, `-g` names the GID.
    Pingpong,
    /// perftest: addresses over TCP, `-x` names the GID.
    Perftest,
    /// perftest with rdma_cm.
    PerftestCm,
    /// `rping`: `-s` or `-c`, and the server's address.
    Rping,
    /// `ucmatose`: the server's address, behind `-s` at the client.
    Ucmatose,
    /// `udaddy`: the same, without a port.
    Udaddy,
}

/// What the queue pairs' packets travel over.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Wire {
    V4,
    V6,
    /// IPv4, and the guest loses some of what it is sent: requests or answers, as the roles are.
    Lossy,
}

type Words = &'static [&'static str];

const TABLE: [(Style, Wire, Words); 25] = [
    (Style::Pingpong, Wire::V4, &["ibv_rc_pingpong", "-c", "-n", "100"]),
    (Style::Pingpong, Wire::V6, &["ibv_rc_pingpong", "-c", "-n", "100"]),
    (Style::Pingpong, Wire::V4, &["ibv_rc_pingpong", "-c", "-e", "-n", "50", "-s", "100000", "-m", "256"]),
    (Style::Pingpong, Wire::V4, &["ibv_srq_pingpong", "-c", "-q", "4", "-n", "100"]),
    (Style::Pingpong, Wire::V4, &["ibv_uc_pingpong", "-c", "-n", "50", "-s", "100"]),
    (Style::Pingpong, Wire::V4, &["ibv_ud_pingpong", "-c", "-n", "50", "-s", "1000"]),
    (Style::Rping, Wire::V4, &["rping", "-V", "-C", "20", "-S", "5000"]),
    (Style::Rping, Wire::V6, &["rping", "-V", "-C", "20", "-S", "5000"]),
    (Style::Ucmatose, Wire::V4, &["ucmatose", "-c", "3", "-C", "5"]),
    (Style::Udaddy, Wire::V4, &["udaddy", "-C", "5"]),
    (Style::Perftest, Wire::V4, &["ib_write_bw"]),
    (Style::Perftest, Wire::V6, &["ib_write_bw"]),
    (Style::Perftest, Wire::V4, &["ib_read_bw"]),
    (Style::Perftest, Wire::V4, &["ib_send_bw"]),
    (Style::Perftest, Wire::V4, &["ib_atomic_bw"]),
    (Style::Perftest, Wire::V4, &["ib_write_lat"]),
    (Style::Perftest, Wire::V4, &["ib_read_lat"]),
    (Style::Perftest, Wire::V4, &["ib_send_lat"]),
    (Style::Perftest, Wire::Lossy, &["ib_write_bw"]),
    (Style::Perftest, Wire::Lossy, &["ib_read_bw"]),
    (Style::Perftest, Wire::Lossy, &["ib_send_bw"]),
    (Style::Perftest, Wire::Lossy, &["ib_atomic_bw"]),
    (Style::PerftestCm, Wire::V4, &["ib_write_bw"]),
    (Style::PerftestCm, Wire::V4, &["ib_read_bw"]),
    (Style::PerftestCm, Wire::V4, &["ib_send_bw"]),
];
/// Exchanges, and an ACK timeout of half a second (4.096 us << 17): emulation is slow, and starved now and then.
const PERFTEST: Words = &["-F", "-n", "200", "-u", "17"];

pub(crate) struct Case {
    style: Style,
    wire: Wire,
    words: Words,
    client: End,
}

pub(crate) fn all() -> Vec<Case> {
    let both = [End::Roxie, End::Rxe].into_iter().flat_map(|client| {
        TABLE.into_iter().map(move |(style, wire, words)| Case { style, wire, words, client })
    });
    // perftest's server with rdma_cm listens twice, and an emulated one not soon enough for the second connection.
    both.filter(|case| !matches!((case.style, case.client), (Style::PerftestCm, End::Roxie))).collect()
}

impl Case {
    pub(crate) fn name(&self) -> String {
        let ends = if self.client == End::Roxie { "roxie to rxe" } else { "rxe to roxie" };
        let wire = match self.wire {
            Wire::V4 => "v4",
            Wire::V6 => "v6",
            Wire::Lossy => "lossy",
        };
        let cm = if matches!(self.style, Style::PerftestCm) { " -R" } else { "" };
        format!("{ends}/{wire}/{}{cm}", self.words.join(" "))
    }

    pub(crate) fn run(&self, rxe: &Rxe) -> Result<(), String> {
        if self.wire != Wire::Lossy {
            return self.pair(rxe);
        }
        rxe.command(&format!(
            "nft 'add table inet loss; add chain inet loss in {{ type filter hook input priority 0; }}; \
             add rule inet loss in udp dport 4791 numgen random mod {LOSS} == 0 counter drop'"
        ))?;
        let result = self.pair(rxe);
        // A run in which nothing was lost shows nothing.
        let lost =
            "nft list table inet loss | grep -q 'packets [1-9]'; status=$?; nft delete table inet loss";
        result.and(rxe.command(&format!("{lost}; exit $status")))
    }

    fn pair(&self, rxe: &Rxe) -> Result<(), String> {
        let (name, server_end) = (self.name(), self.client.other());
        let port = if matches!(self.style, Style::Udaddy) { UDADDY_PORT } else { rxe.port() };
        let ready = match self.style {
            Style::Pingpong | Style::Perftest => Ready::Tcp(port),
            Style::PerftestCm | Style::Rping | Style::Ucmatose | Style::Udaddy => Ready::Cm(port),
        };
        let port = port.to_string();
        let mut server = rxe.start(server_end, &name, &self.words_of(server_end, &port))?;
        rxe.wait_ready(server_end, &mut server, ready)?;
        let mut client = rxe.start(self.client, &name, &self.words_of(self.client, &port))?;
        let client_ended = good(client.wait(CLIENT), &mut server)?;
        let server_ended = good(server.wait(SERVER), &mut client)?;
        let said = format!("{}{}", client_ended.output, server_ended.output);
        match ["invalid data", "ompletion with error"].iter().find(|complaint| said.contains(**complaint)) {
            None => Ok(()),
            Some(complaint) => {
                Err(format!("{complaint}\n{}{}", client_ended.describe(), server_ended.describe()))
            }
        }
    }

    /// The command line at one end.
    fn words_of<'a>(&self, end: End, port: &'a str) -> Vec<&'a str> {
        let (is_client, server) = (end == self.client, self.client.other());
        let v6 = self.wire == Wire::V6;
        // What is exchanged over TCP is exchanged over IPv4; the GID decides about the queue pairs.
        let (over_tcp, address) = (is_client.then(|| server.address(false)), server.address(v6));
        let (device, gid) = (["-d", end.device()], end.gid_index(v6));
        let mut words = self.words.to_vec();
        if !matches!(self.style, Style::Udaddy) {
            words.extend(["-p", port]);
        }
        match self.style {
            Style::Pingpong => words.extend(device.into_iter().chain(["-g", gid]).chain(over_tcp)),
            Style::Perftest => {
                words.extend(PERFTEST.iter().copied().chain(device).chain(["-x", gid]).chain(over_tcp));
            }
            Style::PerftestCm => {
                words.extend(PERFTEST.iter().copied().chain(device).chain(["-R"]).chain(over_tcp));
            }
            Style::Rping => words.extend([if is_client { "-c" } else { "-s" }, "-a", address]),
            Style::Ucmatose | Style::Udaddy => words.extend([if is_client { "-s" } else { "-b" }, address]),
        }
        words
    }
}
