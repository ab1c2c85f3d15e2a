//! The programs, and what each is told about itself and its peer.

use roxie_tests::pair::Ready;

use crate::end::End;

/// Where `udaddy` listens; it has no option for it.
const UDADDY_PORT: u16 = 7174;

/// What a program is told about its peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Style {
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
    /// `rdma_server`, and `rdma_client` at the other end: `-s` and the server's address.
    Rdma,
}

type Words = &'static [&'static str];

/// A program and its options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) style: Style,
    pub(crate) words: Words,
}

const fn flow(style: Style, words: Words) -> Flow {
    Flow { style, words }
}

/// Every program that roxie is for, and what makes a difference to it.
pub(crate) const FLOWS: [Flow; 23] = [
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
/// Exchanges, and an ACK timeout of half a second (4.096 us << 17): emulation is slow, and starved now and then.
const PERFTEST: Words = &["-F", "-n", "200", "-u", "17"];

impl Flow {
    /// The port that the server listens on, of which `free` is used by nobody else.
    pub(crate) fn port(self, free: u16) -> u16 {
        if self.style == Style::Udaddy { UDADDY_PORT } else { free }
    }

    /// How the server on `port` shows that it listens.
    pub(crate) fn ready(self, port: u16) -> Ready {
        match self.style {
            Style::Pingpong | Style::Perftest => Ready::Tcp(port),
            _ => Ready::Cm(port),
        }
    }

    /// The command line at `end`; the queue pairs use IPv6 if `v6`.
    pub(crate) fn words(self, end: End, client: End, port: &str, v6: bool) -> Vec<&str> {
        let (is_client, server) = (end == client, client.other());
        // What is exchanged over TCP is exchanged over IPv4; the GID decides about the queue pairs.
        let (over_tcp, address) = (is_client.then(|| server.address(false)), server.address(v6));
        let (device, gid) = (["-d", end.device()], end.gid_index(v6));
        let mut words = self.words.to_vec();
        if self.style != Style::Udaddy {
            words.extend(["-p", port]);
        }
        match self.style {
            Style::Pingpong => words.extend(device.into_iter().chain(["-g", gid]).chain(over_tcp)),
            Style::Perftest => {
                words.extend(PERFTEST.iter().copied().chain(device).chain(["-x", gid]).chain(over_tcp));
            }
            Style::PerftestCm => words.extend(PERFTEST.iter().copied().chain(device).chain(over_tcp)),
            Style::Rping => words.extend([if is_client { "-c" } else { "-s" }, "-a", address]),
            Style::Ucmatose | Style::Udaddy => words.extend([if is_client { "-s" } else { "-b" }, address]),
            Style::Rdma => {
                words[0] = if is_client { "rdma_client" } else { words[0] };
                words.extend(["-s", address]);
            }
        }
        words
    }
}
