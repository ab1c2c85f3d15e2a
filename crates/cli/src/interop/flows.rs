//! The programs that a NIC is tested with, and how each gets the addresses of both ends.

use std::net::IpAddr;

/// Where `udaddy` listens; it has no option for it.
const UDADDY_PORT: u16 = 7174;

/// How a program gets the address of its peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Style {
    /// `ibv_*_pingpong`: exchange addresses over TCP, `-g` is the GID index.
    Pingpong,
    /// perftest: exchanges addresses over TCP, `-x` is the GID index.
    Perftest,
    /// perftest with rdma_cm.
    PerftestCm,
    /// `rping`: `-s` or `-c`, and the server's address.
    Rping,
    /// `ucmatose`: the server's address, behind `-s` at the client.
    Ucmatose,
    /// `udaddy`: the same, without a port.
    Udaddy,
    /// `rdma_server`, and `rdma_client` at the other end: `-s` and the server's address.
    Rdma,
}

type Words = &'static [&'static str];

/// A program and its options.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// How it gets the address of its peer.
    pub style: Style,
    /// Program and options, the same at both ends.
    pub words: Words,
}

/// What the command line of one end needs.
#[derive(Clone, Copy, Debug)]
pub struct Ends<'a> {
    /// Name of the device at this end.
    pub device: &'a str,
    /// Index of the GID in use there.
    pub gid_index: &'a str,
    /// Address of the server's device.
    pub server: &'a str,
    /// Where the server takes TCP connections, on which some programs exchange their addresses.
    pub exchange: &'a str,
    /// Whether this is the client.
    pub is_client: bool,
}

const fn flow(style: Style, words: Words) -> Flow {
    Flow { style, words }
}

/// Every program of rdma-core and perftest that connects two hosts, with the options that make a
/// difference.
pub const FLOWS: [Flow; 23] = [
    flow(Style::Pingpong, &["ibv_rc_pingpong", "-c", "-n", "100"]),
    flow(Style::Pingpong, &["ibv_rc_pingpong", "-c", "-e", "-n", "50", "-s", "100000", "-m", "256"]),
    flow(Style::Pingpong, &["ibv_srq_pingpong", "-c", "-q", "4", "-n", "100"]),
    flow(Style::Pingpong, &["ibv_uc_pingpong", "-c", "-n", "50", "-s", "100"]),
    flow(Style::Pingpong, &["ibv_ud_pingpong", "-c", "-n", "50", "-s", "1000"]),
    flow(Style::Rping, &["rping", "-V", "-C", "20", "-S", "5000"]),
    flow(Style::Ucmatose, &["ucmatose", "-c", "3", "-C", "5"]),
    flow(Style::Udaddy, &["udaddy", "-C", "5"]),
    flow(Style::Rdma, &["rdma_server"]),
    flow(Style::Perftest, &["ib_write_bw"]),
    flow(Style::Perftest, &["ib_read_bw"]),
    flow(Style::Perftest, &["ib_send_bw"]),
    flow(Style::Perftest, &["ib_atomic_bw"]),
    flow(Style::Perftest, &["ib_write_lat"]),
    flow(Style::Perftest, &["ib_read_lat"]),
    flow(Style::Perftest, &["ib_send_lat"]),
    flow(Style::Perftest, &["ib_atomic_lat"]),
    flow(Style::PerftestCm, &["ib_write_bw", "-R"]),
    flow(Style::PerftestCm, &["ib_read_bw", "-R"]),
    flow(Style::PerftestCm, &["ib_send_bw", "-R"]),
    flow(Style::PerftestCm, &["ib_write_lat", "-R"]),
    flow(Style::PerftestCm, &["ib_read_lat", "-R"]),
    flow(Style::PerftestCm, &["ib_send_lat", "-R"]),
];
/// Number of messages, and an ACK timeout of half a second (4.096 us << 17): an emulated peer is slow and
/// sometimes does not run for a while.
const PERFTEST: Words = &["-F", "-n", "200", "-u", "17"];

impl Flow {
    /// The port that the server listens on; no other program uses `free`.
    #[must_use]
    pub fn port(self, free: u16) -> u16 {
        if self.style == Style::Udaddy { UDADDY_PORT } else { free }
    }

    /// Whether it goes without TCP and without a GID index: rdma_cm does both.
    #[allow(dead_code, reason = "tests/peers includes this file and calls it")]
    #[must_use]
    pub fn uses_cm(self) -> bool {
        !matches!(self.style, Style::Pingpong | Style::Perftest)
    }

    /// The reason that it cannot run between hosts with these TCP addresses, if there is one.
    #[must_use]
    pub fn obstacle(self, peer: IpAddr, exchange: IpAddr) -> Option<&'static str> {
        match self.style {
            Style::PerftestCm if peer.is_ipv6() => Some("perftest resolves names over IPv4 only with -R"),
            Style::Pingpong | Style::Perftest if exchange.is_ipv6() => {
                Some("exchanges its addresses over IPv4: give an address of the peer for that by --exchange")
            }
            _ => None,
        }
    }

    /// The command line at one end.
    #[must_use]
    pub fn words<'a>(self, ends: Ends<'a>, port: &'a str) -> Vec<&'a str> {
        let Ends { device, gid_index, server, exchange, is_client } = ends;
        let (over_tcp, device) = (is_client.then_some(exchange), ["-d", device]);
        let mut words: Vec<&'a str> = self.words.to_vec();
        if self.style != Style::Udaddy {
            words.extend(["-p", port]);
        }
        match self.style {
            Style::Pingpong => words.extend(device.into_iter().chain(["-g", gid_index]).chain(over_tcp)),
            Style::Perftest => {
                words.extend(PERFTEST.iter().copied().chain(device).chain(["-x", gid_index]).chain(over_tcp));
            }
            Style::PerftestCm => words.extend(PERFTEST.iter().copied().chain(device).chain(over_tcp)),
            Style::Rping => words.extend([if is_client { "-c" } else { "-s" }, "-a", server]),
            Style::Ucmatose | Style::Udaddy => words.extend([if is_client { "-s" } else { "-b" }, server]),
            Style::Rdma => {
                words[0] = if is_client { "rdma_client" } else { words[0] };
                words.extend(["-s", server]);
            }
        }
        words
    }
}
