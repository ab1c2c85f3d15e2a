//! Why there is no device, in words for people, and what they can do about it.

use std::fmt;
use std::io;

use crate::hook::HookError;
use crate::port::{BadVariable, XskError};
use crate::registry::JoinError;

/// What was wrong with what the device was asked to be; found inside the `io::Error` of
/// [`Device::open`](super::Device::open) and of whatever starts the engine.
#[derive(Debug)]
pub enum Refusal {
    /// There is no such interface.
    NoNetdev {
        /// What it was said to be called.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The interface has no address.
    NoAddress {
        /// Its name.
        netdev: String,
        /// It has none because it is down, as `lo` is in a new network namespace.
        is_down_loopback: bool,
    },
    /// No name for a device.
    BadName(String),
    /// `ROXIE_DOMAIN` names no domain.
    BadDomain(String),
    /// Another variable makes no sense.
    BadVariable(BadVariable),
    /// `ROXIE_INGRESS` or `ROXIE_EGRESS` names no hook.
    BadHook(HookError),
    /// AF_XDP was asked for, and nothing else.
    NoXsk {
        /// The interface.
        netdev: String,
        /// Why not.
        error: XskError,
    },
}

impl Refusal {
    /// What can be done about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Refusal::NoNetdev { known, .. } => {
                format!("--netdev or ROXIE_NETDEV chooses; there are: {}", known.join(", "))
            }
            Refusal::NoAddress { is_down_loopback: true, netdev } => {
                format!("as root: ip link set {netdev} up, or bring up another interface")
            }
            Refusal::NoAddress { netdev, .. } => {
                format!(
                    "as root: ip address add ADDRESS/PREFIX dev {netdev}, or choose another with --netdev"
                )
            }
            Refusal::BadName(_) => {
                format!("use 1 to {} letters, digits, '_', '-' or '.'", super::DeviceConfig::NAME_MAX)
            }
            Refusal::BadDomain(_) => "use NAME or NAME:PORT, or unset it".to_owned(),
            Refusal::BadVariable(_) => "correct it, or unset it".to_owned(),
            Refusal::BadHook(error) => error.remedy().unwrap_or_else(|| "mend it, or do without".to_owned()),
            Refusal::NoXsk { error, .. } => match error.remedy() {
                remedy if remedy.is_empty() => "use --port udp".to_owned(),
                remedy => format!("{remedy}, or use --port udp"),
            },
        }
    }
}

/// What can be done about an error of [`Device::open`](super::Device::open), or of whatever starts the engine; `None`
/// if there is no general advice.
#[must_use]
pub fn remedy(error: &io::Error) -> Option<String> {
    if error.raw_os_error() == Some(libc::EMFILE) {
        return Some(JoinError::TooFewDescriptors.remedy());
    }
    let inner = error.get_ref()?;
    inner
        .downcast_ref::<Refusal>()
        .map(Refusal::remedy)
        .or_else(|| inner.downcast_ref::<JoinError>().map(JoinError::remedy))
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NoNetdev { name, .. } => write!(f, "no network interface called '{name}'"),
            Refusal::NoAddress { netdev, is_down_loopback: true } => {
                write!(f, "no network interface is up, not even {netdev}")
            }
            Refusal::NoAddress { netdev, .. } => write!(f, "network interface {netdev} has no IP address"),
            Refusal::BadName(name) => write!(f, "'{name}' cannot name a device"),
            Refusal::BadDomain(text) => write!(f, "ROXIE_DOMAIN={text} names no domain"),
            Refusal::BadVariable(bad) => bad.fmt(f),
            Refusal::BadHook(error) => write!(f, "no hook: {error}"),
            Refusal::NoXsk { netdev, error } => write!(f, "no AF_XDP on {netdev}: {error}"),
        }
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        let kind = match &refusal {
            Refusal::NoNetdev { .. } => io::ErrorKind::NotFound,
            Refusal::NoAddress { .. } => io::ErrorKind::AddrNotAvailable,
            Refusal::BadName(_) | Refusal::BadDomain(_) | Refusal::BadVariable(_) | Refusal::BadHook(_) => {
                io::ErrorKind::InvalidInput
            }
            Refusal::NoXsk { error, .. } => io::Error::from_raw_os_error(error.errno()).kind(),
        };
        io::Error::new(kind, refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_brings_its_remedy_along() {
        let down = Refusal::NoAddress { netdev: "lo".to_owned(), is_down_loopback: true };
        let error = io::Error::from(down);
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert!(remedy(&error).unwrap().contains("ip link set lo up"));
        let busy = io::Error::from(JoinError::PortBusy { port: 4791 });
        assert!(remedy(&busy).unwrap().contains("unshare -rn"));
        let full = io::Error::from_raw_os_error(libc::EMFILE);
        assert!(remedy(&full).unwrap().contains("ulimit -n"));
        assert_eq!(remedy(&io::Error::from_raw_os_error(libc::EIO)), None);
    }
}
