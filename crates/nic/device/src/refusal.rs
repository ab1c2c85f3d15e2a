//! Reasons why the device cannot be opened or started, and what the user can do about them.

use std::fmt;
use std::io;

use transport::chaos::{ChaosPlan, PlanError};
use transport::refusal::Os;

use crate::port::XskError;
use crate::registry::JoinError;
use crate::setting::BadSetting;
use crate::stages::BadHook;
use crate::variable::BadVariable;

/// Longest name of a device (IBV_SYSFS_NAME_MAX with its zero).
pub(crate) const NAME_MAX: usize = 63;

/// Why the device cannot be opened or started; found inside the `io::Error` of
/// [`Device::open`](crate::verbs::Device::open) and of every call that starts the engine.
#[derive(Debug)]
pub enum Refusal {
    /// There is no such interface.
    NoNetdev {
        /// The requested name.
        name: String,
        /// The option or variable that has it, as the user gave it; empty if none has.
        given: String,
        /// The existing interfaces.
        known: Vec<String>,
    },
    /// The interface has no address.
    NoAddress {
        /// Its name.
        netdev: String,
        /// True for a loopback interface that is down, as `lo` is in a new network namespace.
        is_down_loopback: bool,
    },
    /// The interface of the device was removed, and with it the engine.
    Removed {
        /// Its name.
        netdev: String,
    },
    /// The kernel does not list the interfaces.
    NoInterfaces(io::Error),
    /// Not a valid device name.
    BadName {
        /// The name.
        name: String,
        /// As of [`NoNetdev`](Self::NoNetdev).
        given: String,
    },
    /// A list or a number of devices is invalid.
    BadSetting(BadSetting),
    /// Another variable has an invalid value.
    BadVariable(BadVariable),
    /// `ROXIE_CHAOS` is not a valid plan, with the reason.
    BadChaos(PlanError),
    /// `ROXIE_INGRESS` or `ROXIE_EGRESS` is not a valid hook.
    BadHook(BadHook),
    /// The limits of addresses or data (RLIMIT_AS, RLIMIT_DATA) do not permit an engine.
    NoMemory,
    /// The kernel refuses the thread of an engine.
    NoThread(io::Error),
    /// `--port xsk` was requested, and AF_XDP is not possible.
    NoXsk {
        /// The interface.
        netdev: String,
        /// The reason.
        error: XskError,
    },
}

impl Refusal {
    /// Bytes of memory that an engine and its first objects take, 8 MiB for ibv_rc_pingpong, and room for
    /// what the C library allocates for threads: it ends the process if it cannot. Half: so it does. Double:
    /// fewer programs with limited memory have the device.
    pub(crate) const ENGINE_MEMORY: usize = 12 << 20;

    /// Returns what the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Refusal::NoNetdev { known, .. } => format!("choose one of {}", known.join(", ")),
            Refusal::NoAddress { is_down_loopback: true, netdev } => {
                format!("as root: ip link set {netdev} up, or bring up another interface")
            }
            Refusal::NoAddress { netdev, .. } => {
                format!("as root: ip address add ADDRESS/PREFIX dev {netdev}, or choose another interface")
            }
            Refusal::Removed { .. } => {
                "list the devices again: an interface that was created since has another".to_owned()
            }
            Refusal::NoInterfaces(_) => {
                "allow this process netlink sockets, if a sandbox (seccomp) forbids them".to_owned()
            }
            Refusal::BadSetting(bad) => bad.remedy(),
            Refusal::BadName { .. } => {
                format!(
                    "use 1 to {} letters, digits, '_', '-' or '.', and begin with another than '.'",
                    NAME_MAX
                )
            }
            Refusal::NoMemory => "raise the limits: ulimit -v unlimited, ulimit -d unlimited".to_owned(),
            Refusal::NoThread(_) => {
                "raise the limit of processes and threads: ulimit -u unlimited".to_owned()
            }
            Refusal::BadVariable(_) => "correct it, or unset it".to_owned(),
            Refusal::BadChaos(_) => format!("use {}, or unset it", ChaosPlan::WORDS),
            Refusal::BadHook(bad) => bad
                .remedy
                .clone()
                .unwrap_or_else(|| "correct ROXIE_INGRESS or ROXIE_EGRESS, or unset it".to_owned()),
            Refusal::NoXsk { error, .. } => match error.remedy() {
                remedy if remedy.is_empty() => "use --port udp".to_owned(),
                remedy => format!("{remedy}, or use --port udp"),
            },
        }
    }
}

/// Returns the system's error behind an error of [`Device::open`](crate::verbs::Device::open), or of a call
/// that starts the engine.
#[must_use]
pub fn cause(error: &io::Error) -> Os {
    let inner = error.get_ref();
    match inner.and_then(|inner| inner.downcast_ref::<Refusal>()) {
        Some(Refusal::NoMemory) => return Os(libc::ENOMEM),
        Some(Refusal::NoThread(error) | Refusal::NoInterfaces(error)) => return Os::from(error),
        _ => {}
    }
    match inner.and_then(|inner| inner.downcast_ref::<JoinError>()) {
        Some(JoinError::TooFewDescriptors) => Os(libc::EMFILE),
        _ => Os::from(error),
    }
}

/// Returns what the user can do about an error of [`Device::open`](crate::verbs::Device::open), or of a call
/// that starts the engine; `None` if there is no general advice.
#[must_use]
pub fn remedy(error: &io::Error) -> Option<String> {
    if cause(error).0 == libc::EMFILE {
        return Some(JoinError::TooFewDescriptors.remedy());
    }
    let inner = error.get_ref()?;
    inner
        .downcast_ref::<Refusal>()
        .map(Refusal::remedy)
        .or_else(|| inner.downcast_ref::<JoinError>().map(JoinError::remedy))
}

fn in_brackets(given: &str) -> String {
    if given.is_empty() { String::new() } else { format!(" ({given})") }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoNetdev { name, given, .. } => {
                write!(f, "no network interface called '{name}'{}", in_brackets(given))
            }
            Refusal::NoAddress { netdev, is_down_loopback: true } => {
                write!(f, "no network interface is up, not even {netdev}")
            }
            Refusal::NoAddress { netdev, .. } => write!(f, "network interface {netdev} has no IP address"),
            Refusal::Removed { netdev } => {
                write!(f, "network interface {netdev} was removed, or moved to another network namespace")
            }
            Refusal::NoInterfaces(error) => write!(f, "the network interfaces cannot be read: {error}"),
            Refusal::BadSetting(bad) => bad.fmt(f),
            Refusal::BadName { name, given } => {
                write!(f, "'{name}' cannot name a device{}", in_brackets(given))
            }
            Refusal::NoMemory => write!(
                f,
                "the limits of memory (ulimit -v, -d) are too low: {} MiB are needed beside what the program \
                 has",
                Refusal::ENGINE_MEMORY >> 20
            ),
            Refusal::NoThread(error) => write!(f, "no thread for the engine: {error}"),
            Refusal::BadVariable(bad) => bad.fmt(f),
            Refusal::BadChaos(error) => write!(f, "ROXIE_CHAOS: {error}"),
            Refusal::BadHook(bad) => write!(f, "no hook: {}", bad.why),
            Refusal::NoXsk { netdev, error } => write!(f, "no AF_XDP on {netdev}: {error}"),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<BadSetting> for Refusal {
    fn from(bad: BadSetting) -> Refusal {
        Refusal::BadSetting(bad)
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        let kind = match &refusal {
            Refusal::NoNetdev { .. } => io::ErrorKind::NotFound,
            Refusal::NoAddress { .. } => io::ErrorKind::AddrNotAvailable,
            Refusal::NoInterfaces(error) => error.kind(),
            Refusal::BadName { .. }
            | Refusal::BadSetting(_)
            | Refusal::BadVariable(_)
            | Refusal::BadChaos(_)
            | Refusal::BadHook(_) => io::ErrorKind::InvalidInput,
            Refusal::NoMemory => io::ErrorKind::OutOfMemory,
            Refusal::NoThread(error) => error.kind(),
            Refusal::Removed { .. } => io::ErrorKind::NotFound,
            Refusal::NoXsk { error, .. } => io::Error::from_raw_os_error(error.errno()).kind(),
        };
        io::Error::new(kind, refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_carries_its_remedy() {
        let down = Refusal::NoAddress { netdev: "lo".to_owned(), is_down_loopback: true };
        let error = io::Error::from(down);
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(remedy(&error).unwrap().contains("ip link set lo up"));
        let busy = io::Error::from(JoinError::PortBusy { port: 4791 });
        assert!(remedy(&busy).unwrap().contains("unshare -rn"));
        let small = io::Error::from(Refusal::NoMemory);
        assert_eq!(small.kind(), io::ErrorKind::OutOfMemory);
        assert!(remedy(&small).unwrap().contains("ulimit -v"));
        let full = io::Error::from_raw_os_error(libc::EMFILE);
        assert!(remedy(&full).unwrap().contains("ulimit -n"));
        assert_eq!(remedy(&io::Error::from_raw_os_error(libc::EIO)), None);
    }
}
