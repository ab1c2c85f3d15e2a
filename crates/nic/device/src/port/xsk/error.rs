//! Reasons why there is no AF_XDP port, and what the user can do about them.

use std::fmt;
use std::io;

use crate::xdp::AttachError;
use sys::bpf::LoadError;
use sys::{Capabilities, Capability, XdpMode};

/// Why an AF_XDP port could not be opened.
#[derive(Debug)]
pub enum XskError {
    /// The interface carries no Ethernet frames: `lo`, tunnels.
    NotEthernet,
    /// Another roxie process uses the interface.
    Owned {
        /// Its id, if it is visible in this pid namespace.
        pid: Option<u32>,
    },
    /// The program could not be attached.
    Attach(AttachError),
    /// Another program has an AF_XDP socket on this queue.
    QueueBusy(u32),
    /// Packets of this MTU do not fit into a chunk, and the kernel (before 6.6) or the driver lacks
    /// multi-buffer.
    MtuTooLarge(u32),
    /// A step of creating the sockets failed.
    Socket {
        /// The step.
        step: XskStep,
        /// The kernel's error.
        error: io::Error,
    },
}

/// A step of opening an AF_XDP port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum XskStep {
    /// Checking the capabilities of the process.
    Privileges,
    /// Claiming the interface among roxie processes.
    Claim,
    /// Reading the properties of the interface.
    Interface,
    /// Reading routes and addresses.
    Netlink,
    /// Watching the sockets.
    Epoll,
    /// Registering the memory of packets.
    PacketMemory,
    /// Creating a socket and its rings.
    Socket,
    /// Binding a socket to a queue: the kernel decides about the modes here.
    Bind,
    /// Reading the options of a socket.
    Options,
    /// Filling the maps of the steering program.
    Steering,
}

impl fmt::Display for XskStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Privileges => "privileges",
            Self::Claim => "claim",
            Self::Interface => "interface",
            Self::Netlink => "netlink",
            Self::Epoll => "epoll",
            Self::PacketMemory => "packet memory",
            Self::Socket => "socket",
            Self::Bind => "bind",
            Self::Options => "options",
            Self::Steering => "steering",
        })
    }
}

impl XskError {
    /// Returns the error if another roxie process uses the interface.
    pub(crate) fn owned(ifindex: u32) -> Option<XskError> {
        super::owner::is_claimed(ifindex).then(|| XskError::Owned { pid: super::owner::of(ifindex) })
    }

    /// Returns the error if this process lacks a privilege.
    pub(crate) fn unprivileged() -> Option<XskError> {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let lacks = !missing(Capabilities::effective()).is_empty();
        lacks.then_some(XskError::Socket { step: XskStep::Privileges, error })
    }

    /// Returns the error number, as a system call would.
    #[must_use]
    pub fn errno(&self) -> i32 {
        let io = match self {
            XskError::Owned { .. }
            | XskError::QueueBusy(_)
            | XskError::Attach(AttachError::Occupied { .. }) => return libc::EBUSY,
            XskError::NotEthernet | XskError::MtuTooLarge(_) => None,
            XskError::Attach(error) => error.io(),
            XskError::Socket { error, .. } => Some(error),
        };
        io.and_then(io::Error::raw_os_error).unwrap_or(libc::EOPNOTSUPP)
    }

    /// What the user can do, besides using UDP sockets; empty if nothing is known.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            XskError::NotEthernet => "choose an Ethernet interface with --netdev".to_owned(),
            XskError::Owned { .. } => "one process at a time can have it".to_owned(),
            XskError::Attach(AttachError::Occupied { name, .. }) if name == DISPATCHER => {
                "load roxie's program beside it: roxie xdp object FILE, then xdp-loader load INTERFACE FILE"
                    .to_owned()
            }
            XskError::Attach(AttachError::Occupied { .. }) => {
                "have its owner take it off, or load it and ours with xdp-loader: roxie xdp object --help"
                    .to_owned()
            }
            XskError::QueueBusy(_) => "stop the program that has it".to_owned(),
            XskError::MtuTooLarge(_) => {
                format!("lower the MTU to {} or less", super::sockets::SINGLE_MTU_MAX)
            }
            XskError::Attach(AttachError::Refused { mode: XdpMode::Native, error, .. })
                if error.raw_os_error() != Some(libc::EPERM) =>
            {
                "try --xdp-mode generic".to_owned()
            }
            XskError::Attach(_) | XskError::Socket { .. } => match self.errno() {
                libc::EPERM | libc::EACCES => privileges(Capabilities::effective()),
                libc::ENOBUFS | libc::ENOMEM => "raise RLIMIT_MEMLOCK, or add CAP_IPC_LOCK".to_owned(),
                libc::EAFNOSUPPORT => "the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)".to_owned(),
                _ => String::new(),
            },
        }
    }
}

/// Name of libxdp's program that calls several others.
const DISPATCHER: &str = "xdp_dispatcher";

/// Names the missing capabilities: CAP_NET_RAW for the socket, CAP_BPF and CAP_NET_ADMIN for the program.
fn missing(held: Capabilities) -> Vec<String> {
    let enough = |one| held.has(one) || one != Capability::NetRaw && held.has(Capability::SysAdmin);
    let needed = [Capability::Bpf, Capability::NetAdmin, Capability::NetRaw];
    needed.into_iter().filter(|one| !enough(*one)).map(|one| one.to_string()).collect()
}

fn privileges(held: Capabilities) -> String {
    let missing = missing(held);
    if missing.is_empty() {
        // The process has all of them, and was refused nevertheless.
        return "root of a user namespace is not enough; run as root of the machine".to_owned();
    }
    format!("run as root, or add {}", missing.join(", "))
}

impl fmt::Display for XskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            XskError::NotEthernet => f.write_str("not an Ethernet interface"),
            XskError::Owned { pid: Some(pid) } => write!(f, "process {pid} has it"),
            XskError::Owned { pid: None } => f.write_str("another process has it"),
            // The verifier's log does not help a user without the privilege to load programs.
            XskError::Attach(AttachError::Load(LoadError { error, .. }))
                if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) =>
            {
                write!(f, "loading the steering program: {error}")
            }
            XskError::Attach(error) => error.fmt(f),
            XskError::QueueBusy(queue) => write!(f, "another AF_XDP socket has queue {queue}"),
            XskError::MtuTooLarge(mtu) => {
                write!(f, "packets of MTU {mtu} do not fit into one chunk, and several are not possible")
            }
            XskError::Socket { step, error } => write!(f, "AF_XDP {step}: {error}"),
        }
    }
}

impl std::error::Error for XskError {}

impl From<AttachError> for XskError {
    fn from(error: AttachError) -> XskError {
        XskError::Attach(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(errno: i32) -> XskError {
        XskError::Socket { step: XskStep::Socket, error: io::Error::from_raw_os_error(errno) }
    }

    #[test]
    fn each_reason_has_its_errno() {
        let owned = XskError::Owned { pid: Some(7) };
        assert_eq!((owned.errno(), owned.to_string().as_str()), (libc::EBUSY, "process 7 has it"));
        assert_eq!(XskError::QueueBusy(0).errno(), libc::EBUSY);
        assert_eq!(XskError::NotEthernet.errno(), libc::EOPNOTSUPP);
        assert_eq!(socket(libc::EPERM).errno(), libc::EPERM);
        assert!(socket(libc::ENOBUFS).remedy().contains("RLIMIT_MEMLOCK"));
        assert_eq!(socket(libc::EINVAL).remedy(), "");
    }

    #[test]
    fn the_missing_capabilities_are_named() {
        let held = |list: &[Capability]| Capabilities::of(list);
        use Capability::{Bpf, NetAdmin, NetRaw, SysAdmin};
        assert_eq!(privileges(held(&[])), "run as root, or add CAP_BPF, CAP_NET_ADMIN, CAP_NET_RAW");
        assert_eq!(privileges(held(&[NetAdmin, NetRaw])), "run as root, or add CAP_BPF");
        assert_eq!(privileges(held(&[SysAdmin])), "run as root, or add CAP_NET_RAW");
        assert!(privileges(held(&[Bpf, NetAdmin, NetRaw])).contains("user namespace"));
    }
}
