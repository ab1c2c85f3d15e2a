//! UCX's performance test.

use std::time::Duration;

use crate::lab::Lab;
use crate::pair::{Both, Pair, Ready};
use crate::place::Place;
use crate::suite::says;

/// One test of `ucx_perftest`.
#[derive(Clone, Copy, Debug)]
pub struct Perftest {
    /// Its name.
    pub test: &'static str,
    /// Bytes of a message.
    pub size: u64,
    /// Number of messages.
    pub iterations: u64,
}

impl Perftest {
    /// The name of its case.
    #[must_use]
    pub fn what(&self) -> String {
        format!("ucx_perftest -t {} -s {}", self.test, self.size)
    }

    /// Runs it over RC, with UD for the connection, and requires the client's last line.
    ///
    /// # Errors
    /// As [`Pair::run`].
    pub fn run(&self, lab: &Lab, place: &Place, name: &str, limit: Duration) -> Result<Both, String> {
        let port = lab.port();
        let words = [port.to_string(), self.size.to_string(), self.iterations.to_string()];
        let common = [
            "env",
            "ROXIE_STATS=1",
            "UCX_TLS=rc_verbs,ud_verbs",
            "UCX_NET_DEVICES=roxie0:1",
            "ucx_perftest",
            "-p",
            &words[0],
        ];
        let test = [lab.address(place), "-t", self.test, "-s", &words[1], "-n", &words[2]];
        let pair = Pair {
            name,
            server: common.to_vec(),
            client: [&common[..], &test].concat(),
            ready: Ready::Tcp(port),
            limit,
        };
        let both = pair.run(lab, place)?;
        says(&both.client, "Final:")?;
        Ok(both)
    }
}
