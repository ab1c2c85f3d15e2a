//! Which port a device would have if it started now; nothing is opened for it.

use std::fmt;
use std::io;

use super::{PortChoice, PortKind, XskError};
use crate::gid::GidTable;
use crate::xdp::{AttachError, Mode, Steering};
use sys::{Netlink, XdpMode, xdp_features};

/// See the module documentation.
#[derive(Debug)]
pub enum Outlook {
    /// UDP sockets; AF_XDP is not possible if that was asked for.
    Udp(Option<XskError>),
    /// AF_XDP.
    Xsk {
        /// Where the program would run; `None` where only trying would tell (before 6.3).
        mode: Option<XdpMode>,
        /// The driver says that it can do without copying.
        zero_copy: bool,
    },
    /// None: AF_XDP is not possible, and nothing else was asked for.
    None(XskError),
}

impl Outlook {
    /// What a device on `netdev` would have.
    ///
    /// # Errors
    /// What the kernel says about the interface.
    pub fn new(choice: PortChoice, netdev: &GidTable) -> io::Result<Outlook> {
        if choice.kind == PortKind::Udp {
            return Ok(Outlook::Udp(None));
        }
        let link = Netlink::new()?.link(netdev.ifindex)?;
        let features = xdp_features(netdev.ifindex).ok();
        // Without the privilege to look there is none to use it either.
        let joined = match link.xdp.first() {
            Some(_) => Steering::to_join(netdev.ifindex, choice.mode).ok().flatten(),
            None => None,
        };
        let error = if !link.is_ethernet {
            XskError::NotEthernet
        } else if let Some(owned) = XskError::owned(netdev.ifindex) {
            owned
        } else if let (Some(there), None) = (link.xdp.first(), joined) {
            AttachError::occupied(*there).into()
        } else if let Some(unprivileged) = XskError::unprivileged() {
            unprivileged
        } else {
            let mode = match (choice.mode, features) {
                _ if joined.is_some() => joined,
                (Mode::Only(mode), _) => Some(mode),
                (Mode::Auto, Some(features)) if features.native() => Some(XdpMode::Native),
                (Mode::Auto, Some(_)) => Some(XdpMode::Generic),
                (Mode::Auto, None) => None,
            };
            let zero_copy = mode != Some(XdpMode::Generic) && features.is_some_and(|f| f.zero_copy());
            return Ok(Outlook::Xsk { mode, zero_copy });
        };
        Ok(match choice.kind {
            PortKind::Xsk if !matches!(error, XskError::Owned { .. }) => Outlook::None(error),
            _ => Outlook::Udp(Some(error)),
        })
    }
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outlook::Udp(None) => f.write_str("udp"),
            Outlook::Udp(Some(why)) => write!(f, "udp (no AF_XDP: {why})"),
            Outlook::Xsk { mode, zero_copy } => {
                let copying = if *zero_copy { "zero-copy if the driver keeps its word" } else { "copy" };
                match mode {
                    Some(mode) => write!(f, "xsk, {mode} mode, {copying}"),
                    None => write!(f, "xsk, native or generic mode, {copying}"),
                }
            }
            Outlook::None(why) => {
                let remedy = why.remedy();
                write!(f, "none: {why}")?;
                if remedy.is_empty() { Ok(()) } else { write!(f, " ({remedy})") }
            }
        }
    }
}
