//! Which port a device would get if it was opened now; nothing is opened to find out.

use std::fmt;
use std::io;

use super::xsk::preferred_mode;
use super::{PortChoice, PortKind, XskError};
use crate::gid::GidTable;
use crate::xdp::{AttachError, Mode, Steering};
use sys::{Netlink, XdpMode, xdp_features};

/// See the module documentation.
#[derive(Debug)]
pub enum Outlook {
    /// UDP sockets, with the reason why AF_XDP is not possible if it was requested.
    Udp(Option<XskError>),
    /// AF_XDP.
    Xsk {
        /// Where the program would run; `None` where only an attempt can tell (before 6.3).
        mode: Option<XdpMode>,
        /// The driver reports zero-copy support.
        zero_copy: bool,
    },
    /// No port: AF_XDP is not possible, and nothing else was requested.
    None(XskError),
}

impl Outlook {
    /// Returns the port that a device on `netdev` would get.
    ///
    /// # Errors
    /// What the kernel says about the interface.
    pub fn new(choice: PortChoice, netdev: &GidTable) -> io::Result<Outlook> {
        if choice.kind == PortKind::Udp {
            return Ok(Outlook::Udp(None));
        }
        let link = Netlink::new()?.link(netdev.ifindex)?;
        let features = xdp_features(netdev.ifindex).ok();
        // Without the privilege to look at programs, the process could not use one either.
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
            let mode = match (preferred_mode(choice.mode, &link, features.unwrap_or_default()), features) {
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

/// A reason without the verifier's log.
fn first_line(why: &XskError) -> String {
    why.to_string().lines().next().unwrap_or_default().to_owned()
}

impl fmt::Display for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outlook::Udp(None) => f.write_str("udp"),
            Outlook::Udp(Some(why)) => write!(f, "udp (no AF_XDP: {})", first_line(why)),
            Outlook::Xsk { mode, zero_copy } => {
                let copying = if *zero_copy { "zero-copy, as the driver reports" } else { "copy" };
                match mode {
                    Some(mode) => write!(f, "xsk, {mode} mode, {copying}"),
                    None => write!(f, "xsk, native or generic mode, {copying}"),
                }
            }
            Outlook::None(why) => {
                let remedy = why.remedy();
                write!(f, "none: {}", first_line(why))?;
                if remedy.is_empty() { Ok(()) } else { write!(f, " ({remedy})") }
            }
        }
    }
}
