//! Choosing the port of a device, and the notice if it is not the requested one.

use std::env;
use std::fmt;
use std::io;

use super::{BurstPath, Port, ShmPort, UdpPort, UdpPortConfig, XskError, XskPort, XskPortConfig};
use crate::gid::GidTable;
use crate::notice;
use crate::registry::Membership;
use crate::verbs::Refusal;
use crate::xdp::Mode;
use sys::XdpMode;

/// The requested kind of port, and its options.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortChoice {
    /// The kind.
    pub kind: PortKind,
    /// Where the steering program runs, if there is one.
    pub mode: Mode,
    /// How packets to other processes of this host and user travel.
    pub local: LocalPath,
}

/// How packets reach other processes of this host and user.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LocalPath {
    /// Through rings in shared memory.
    #[default]
    Shm,
    /// Through the kernel, like all other packets.
    Network,
}

/// Kinds of ports.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PortKind {
    /// UDP sockets: everywhere, without privileges.
    #[default]
    Udp,
    /// AF_XDP, or an error if that is not possible; UDP sockets if another process uses AF_XDP on the
    /// interface already.
    Xsk,
    /// AF_XDP if it is possible here, else UDP sockets.
    Auto,
}

/// An environment variable with an invalid value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BadVariable {
    name: &'static str,
    value: String,
    words: &'static [&'static str],
}

/// The words that a variable may contain, and their meanings.
type Words<T> = (&'static [&'static str], &'static [T]);

const KIND: Words<PortKind> = (&["udp", "xsk", "auto"], &[PortKind::Udp, PortKind::Xsk, PortKind::Auto]);
const MODE: Words<Mode> = (
    &["auto", "native", "generic"],
    &[Mode::Auto, Mode::Only(XdpMode::Native), Mode::Only(XdpMode::Generic)],
);

const LOCAL: Words<LocalPath> = (&["on", "off"], &[LocalPath::Shm, LocalPath::Network]);

impl PortChoice {
    /// Valid values of `ROXIE_SHM`.
    pub const SHM: &[&str] = LOCAL.0;
    /// Valid values of `ROXIE_PORT`.
    pub const KINDS: &[&str] = KIND.0;
    /// Valid values of `ROXIE_XDP_MODE`.
    pub const MODES: &[&str] = MODE.0;

    /// Reads `ROXIE_PORT`, `ROXIE_XDP_MODE` and `ROXIE_SHM`; the defaults of unset or empty ones are
    /// `udp`, `auto` and `on`.
    ///
    /// # Errors
    /// The variable that has another value.
    pub fn from_env() -> Result<PortChoice, BadVariable> {
        PortChoice::from_words(None, None, None)
    }

    /// Like [`from_env`](PortChoice::from_env), with arguments that override the variables.
    ///
    /// # Errors
    /// The variable that has another value.
    pub fn from_words(
        kind: Option<&str>,
        mode: Option<&str>,
        shm: Option<&str>,
    ) -> Result<PortChoice, BadVariable> {
        let get = |given: Option<&str>, name| match given {
            Some(word) => word.to_owned(),
            None => env::var_os(name).unwrap_or_default().to_string_lossy().into_owned(),
        };
        Ok(PortChoice {
            kind: word("ROXIE_PORT", get(kind, "ROXIE_PORT"), KIND)?,
            mode: word("ROXIE_XDP_MODE", get(mode, "ROXIE_XDP_MODE"), MODE)?,
            local: word("ROXIE_SHM", get(shm, "ROXIE_SHM"), LOCAL)?,
        })
    }
}

impl fmt::Display for LocalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LocalPath::Shm => "shared memory",
            LocalPath::Network => "the same",
        })
    }
}

fn word<T: Copy + Default>(name: &'static str, value: String, known: Words<T>) -> Result<T, BadVariable> {
    let (words, meanings) = known;
    if value.is_empty() {
        return Ok(T::default());
    }
    let found = words.iter().position(|word| *word == value).and_then(|at| meanings.get(at));
    found.copied().ok_or(BadVariable { name, value, words })
}

impl BadVariable {
    /// Reports that `value` of variable `name` is none of these words, or does not match their only
    /// description.
    pub(crate) fn new(name: &'static str, value: &str, words: &'static [&'static str]) -> BadVariable {
        BadVariable { name, value: value.to_owned(), words }
    }
}

impl fmt::Display for BadVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = if self.words.len() == 1 { "not" } else { "none of" };
        write!(f, "{}={} is {none} {}", self.name, self.value, self.words.join(", "))
    }
}

impl std::error::Error for BadVariable {}

/// Opens the port of a member of a domain. Prints a notice on standard error, once, if it is not as
/// requested.
///
/// # Errors
/// With [`PortKind::Xsk`], a [`Refusal`] with the reason: a foreign program or socket, missing
/// privileges, or the kernel's error.
pub(crate) fn open(
    choice: PortChoice,
    membership: &Membership,
    netdev: &GidTable,
) -> io::Result<Box<dyn Port>> {
    let network = open_network(choice, membership, netdev)?;
    match choice.local {
        LocalPath::Shm => Ok(Box::new(ShmPort::new(network, membership.rings()))),
        LocalPath::Network => Ok(network),
    }
}

fn open_network(choice: PortChoice, membership: &Membership, netdev: &GidTable) -> io::Result<Box<dyn Port>> {
    let (ifindex, udp_port) = (netdev.ifindex, membership.udp_port());
    let udp = UdpPort::new(UdpPortConfig {
        gsi: membership.gsi_socket()?,
        slot: membership.slot_socket()?,
        udp_port,
        ifindex,
    });
    if choice.kind == PortKind::Udp {
        return Ok(Box::new(udp));
    }
    let name = &netdev.netdev;
    let bursts = BurstPath::from_env().map_err(Refusal::BadVariable)?;
    let slot = membership.slot();
    let config = XskPortConfig { inner: udp, ifindex, slot, udp_port, mode: choice.mode, bursts };
    let (error, udp) = match XskPort::open(config) {
        Ok(port) => {
            if let Some(why) = port.not_native() {
                notice(format_args!("AF_XDP on {name} in generic mode: {why}"));
            }
            if let Some(why) = port.not_zero_copy() {
                notice(format_args!("AF_XDP on {name} with copying: {why}"));
            }
            return Ok(Box::new(port));
        }
        Err(refusal) => *refusal,
    };
    match (&error, choice.kind) {
        (XskError::Owned { .. }, _) => {
            notice(format_args!("AF_XDP on {name}: {error}, so this one uses UDP sockets"));
            Ok(Box::new(udp))
        }
        (_, PortKind::Auto) => {
            notice(format_args!("no AF_XDP on {name}, using UDP sockets: {error}"));
            Ok(Box::new(udp))
        }
        _ => Err(Refusal::NoXsk { netdev: name.clone(), error }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_words_are_parsed_and_others_are_reported_by_name() {
        let kind = |value: &str| word("ROXIE_PORT", value.to_owned(), KIND);
        let mode = |value: &str| word("ROXIE_XDP_MODE", value.to_owned(), MODE);
        assert_eq!(
            [kind(""), kind("udp"), kind("xsk"), kind("auto")],
            [Ok(PortKind::Udp), Ok(PortKind::Udp), Ok(PortKind::Xsk), Ok(PortKind::Auto)]
        );
        let shm = |value: &str| word("ROXIE_SHM", value.to_owned(), LOCAL);
        assert_eq!([shm(""), shm("off")], [Ok(LocalPath::Shm), Ok(LocalPath::Network)]);
        assert_eq!([mode(""), mode("generic")], [Ok(Mode::Auto), Ok(Mode::Only(XdpMode::Generic))]);
        assert_eq!(kind("Xsk").unwrap_err().to_string(), "ROXIE_PORT=Xsk is none of udp, xsk, auto");
        assert_eq!(
            mode("offload").unwrap_err().to_string(),
            "ROXIE_XDP_MODE=offload is none of auto, native, generic"
        );
    }
}
