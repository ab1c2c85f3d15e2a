//! One of the two hosts: how programs run there, and which device they use.

use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use super::flows::{Ends, Flow};
use super::program::{Ended, Program};
use crate::ending::Ending;
use crate::failure::{Failure, Outcome};

/// Time limit for a command that only lists something, including the connection to the peer.
const LIST_MAX: Duration = Duration::from_secs(15);

/// Lines of a command's output that an error message quotes.
const QUOTED: usize = 3;

/// One of the two hosts.
pub(super) struct Host {
    /// Its name in messages.
    pub(super) name: &'static str,
    /// Words in front of each command.
    prefix: Vec<String>,
    ending: Rc<Ending>,
    /// The device's address.
    address: String,
    exchange: String,
    device: String,
    gid_index: String,
}

impl Host {
    /// Finds the device that has `address`, or that has the name `device`.
    pub(super) fn find(
        name: &'static str,
        prefix: Vec<String>,
        address: IpAddr,
        exchange: IpAddr,
        ending: &Rc<Ending>,
    ) -> Outcome<Self> {
        let (address, exchange) = (address.to_string(), exchange.to_string());
        let (ending, unknown) = (Rc::clone(ending), String::new);
        let mut host =
            Self { name, prefix, ending, address, exchange, device: unknown(), gid_index: unknown() };
        let listing = host.list(&["ibv_devinfo", "-v"])?;
        let devices = devices(&listing.output);
        let wanted = gid_of(&host.address);
        let found = devices.iter().find_map(|found| {
            let (index, _) = found.gids.iter().find(|(_, gid)| Some(*gid) == wanted)?;
            Some((found.name.clone(), index.to_string()))
        });
        let Some((device, gid_index)) = found else {
            let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
            let there =
                if names.is_empty() { format!("none; {}", quote(&listing)) } else { names.join(", ") };
            let what = format!("{name}: no RoCEv2 device has the address {}", host.address);
            return Err(Failure::new(what).hint(format!("devices there: {there}")));
        };
        (host.device, host.gid_index) = (device, gid_index);
        Ok(host)
    }

    fn list(&self, words: &[&str]) -> Outcome<Ended> {
        let first = self.prefix.first().map_or(words[0], String::as_str);
        let started =
            self.start(words).map_err(|error| Failure::new(format!("{}: {first}: {error}", self.name)))?;
        let ended = started.wait(LIST_MAX);
        if ended.is_missing() {
            let failure =
                Failure::new(format!("{}: {} is not there; {}", self.name, words[0], quote(&ended)));
            return Err(failure.hint("install the packages ibverbs-utils, rdmacm-utils and perftest there"));
        }
        Ok(ended)
    }

    pub(super) fn start(&self, words: &[&str]) -> std::io::Result<Program> {
        let words: Vec<&str> = self.prefix.iter().map(String::as_str).chain(words.iter().copied()).collect();
        Program::start(&words, &self.ending)
    }

    /// Fails if programs do not find the device any more, or its port is down.
    pub(super) fn check(&self) -> Outcome {
        let listing = self.list(&["ibv_devinfo", "-d", &self.device])?;
        if listing.output.contains("PORT_ACTIVE") {
            return Ok(());
        }
        let is_down = listing.output.contains("PORT_DOWN");
        let why = if is_down { "its port is down".to_owned() } else { quote(&listing) };
        Err(Failure::new(format!("{}: {} cannot be used any more: {why}", self.name, self.device)))
    }

    /// The command line of a flow at this host.
    pub(super) fn words<'a>(&'a self, flow: Flow, server: &'a Self, port: &'a str) -> Vec<&'a str> {
        let is_client = !std::ptr::eq(self, server);
        let ends = Ends {
            device: &self.device,
            gid_index: &self.gid_index,
            server: &server.address,
            exchange: &server.exchange,
            is_client,
        };
        flow.words(ends, port)
    }

    /// `rxe0 (10.0.0.2)`.
    pub(super) fn describe(&self) -> String {
        format!("{} ({})", self.device, self.address)
    }
}

/// How a command failed, if it did, with its output.
fn quote(ended: &Ended) -> String {
    let lines: Vec<&str> = ended.last_lines(QUOTED).into_iter().map(str::trim).collect();
    let how = (!ended.succeeded()).then(|| ended.how());
    let said = (!lines.is_empty()).then(|| format!("it said: {}", lines.join(" / ")));
    [how, said].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// A device in the output of `ibv_devinfo`, with its RoCEv2 GIDs.
#[derive(Debug, Eq, PartialEq)]
struct Device {
    name: String,
    gids: Vec<(u16, Ipv6Addr)>,
}

/// The GID of an address.
fn gid_of(address: &str) -> Option<Ipv6Addr> {
    match address.parse().ok()? {
        IpAddr::V4(v4) => Some(v4.to_ipv6_mapped()),
        IpAddr::V6(v6) => Some(v6),
    }
}

/// Parses the output of `ibv_devinfo -v`: `hca_id: NAME`, and `GID[ N]: ADDRESS, RoCE v2` (without the type
/// before rdma-core 34).
fn devices(listing: &str) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for line in listing.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("hca_id:") {
            devices.push(Device { name: name.trim().to_owned(), gids: Vec::new() });
        } else if let Some((device, (index, gid))) = devices.last_mut().zip(gid(line)) {
            device.gids.push((index, gid));
        }
    }
    devices
}

fn gid(line: &str) -> Option<(u16, Ipv6Addr)> {
    let (index, rest) = line.strip_prefix("GID[")?.split_once("]:")?;
    let (address, ty) = rest.split_once(',').unwrap_or((rest, "RoCE v2"));
    (ty.trim() == "RoCE v2").then_some(())?;
    Some((index.trim().parse().ok()?, address.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_of_a_listing() {
        let listing = "hca_id:\tmlx5_0\n\ttransport:\t\tInfiniBand (0)\n\
                       \t\t\tGID[  0]:\t\tfe80::1, RoCE v1\n\t\t\tGID[  3]:\t\t::ffff:10.0.0.2, RoCE v2\n\
                       hca_id:\trxe0\n\
                       \t\t\tGID[  1]:\t\t0000:0000:0000:0000:0000:ffff:0a00:0003\n\t\tGID[x]: y\n";
        let [mlx, rxe] = &devices(listing)[..] else { panic!("two devices") };
        assert_eq!((mlx.name.as_str(), &mlx.gids[..]), ("mlx5_0", &[(3, gid_of("10.0.0.2").unwrap())][..]));
        assert_eq!((rxe.name.as_str(), &rxe.gids[..]), ("rxe0", &[(1, gid_of("10.0.0.3").unwrap())][..]));
        assert_eq!(devices("No IB devices found\n"), []);
    }
}
