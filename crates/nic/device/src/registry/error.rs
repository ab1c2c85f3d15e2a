//! Why a process cannot join a domain.

use std::fmt;
use std::io;
use std::path::Path;

use super::domain::SMALL_SLOTS;
use super::identity::{Peer, Relation};
use sys::Credentials;

/// Why a process cannot join a domain; found inside the `io::Error` of `Membership::join`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum JoinError {
    /// A program that is not a member of the domain has the UDP port.
    PortBusy {
        /// The port.
        port: u16,
    },
    /// A member has the UDP port, but it does not answer.
    Silent {
        /// The port.
        port: u16,
        /// The member.
        member: Credentials,
    },
    /// The members belong to another user.
    Foreign {
        /// The port.
        port: u16,
        /// A member.
        member: Credentials,
        /// What sets it apart from this process.
        stranger: Stranger,
    },
    /// A member refused with this error number.
    Refused {
        /// The error number in the refusal.
        errno: i32,
        /// The member.
        member: Credentials,
    },
    /// All slots are taken.
    Full,
    /// All slots with small queue pair numbers are taken.
    NoSmallSlot,
    /// All slots that exist are taken, and only the user that made the group can add some.
    OtherOwner {
        /// The number of slots.
        slots: usize,
        /// The user.
        owner: u32,
    },
    /// Another process is adding slots and does not finish.
    Growing {
        /// The process; 0 if it is not known.
        pid: i32,
        /// It is stopped.
        is_stopped: bool,
    },
    /// RLIMIT_NOFILE is too low for the descriptors of the socket set.
    TooFewDescriptors,
    /// The user has as many descriptors in flight in Unix sockets as the limit of open descriptors allows.
    TooManyInFlight,
    /// The UDP port is busy, and names of members of another version of roxie exist.
    OtherVersion {
        /// The port.
        port: u16,
    },
}

/// Descriptors that a process opens for a moment when its first engine starts: the 65 of the first page of
/// the socket set, and what it has itself.
const FOR_FIRST_START: u64 = 110;
/// Descriptors that an engine keeps, and those of its first objects.
pub(super) const FOR_ENGINE: u64 = 20;
/// A limit of descriptors that is enough for all devices of a process, with an engine each.
const USUAL_LIMIT: u64 = 1024;

/// Descriptors that a process with so many devices has open for a moment when the last one starts.
#[must_use]
pub const fn descriptors(devices: usize) -> u64 {
    FOR_FIRST_START - FOR_ENGINE + FOR_ENGINE * devices as u64
}

/// Why a process is not taken for one of this user.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stranger {
    /// It has another user id.
    User,
    /// It has this user id, but is not known to be in this user namespace.
    Namespace,
    /// Its user has no id in this user namespace.
    Unmapped,
}

impl JoinError {
    /// The members are of another user.
    pub(super) fn foreign(port: u16, peer: Peer) -> JoinError {
        let member = peer.credentials;
        let stranger = match peer.relation {
            Relation::Unknown => Stranger::Unmapped,
            _ if member.uid == sys::effective_uid() => Stranger::Namespace,
            _ => Stranger::User,
        };
        JoinError::Foreign { port, member, stranger }
    }

    /// Returns what the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        const APART: &str = "start in a network namespace of its own: unshare -rn";
        match self {
            JoinError::PortBusy { .. } if Path::new("/sys/module/rdma_rxe").exists() => {
                format!("as root: rdma link delete NAME, or modprobe -r rdma_rxe; or {APART}")
            }
            JoinError::PortBusy { .. } => format!("stop the program that has it, or {APART}"),
            JoinError::Silent { member, .. } => {
                format!("resume {} if it is stopped (kill -CONT), or end it", process(*member))
            }
            JoinError::Foreign { member, stranger: Stranger::User, .. } => {
                format!("run as user {}, or {APART}; ROXIE_USERS lets users share it", member.uid)
            }
            JoinError::Foreign { member, stranger: Stranger::Namespace, .. } => format!(
                "give both the same XDG_RUNTIME_DIR, or set ROXIE_USERS={} for both, or {APART}",
                member.uid
            ),
            JoinError::Foreign { stranger: Stranger::Unmapped, .. } => APART.to_owned(),
            JoinError::Refused { errno: libc::EPROTONOSUPPORT, member } => {
                format!("process {} runs another version of roxie; end it, or {APART}", member.pid)
            }
            JoinError::Refused { errno: libc::ETOOMANYREFS, .. } => JoinError::TooManyInFlight.remedy(),
            JoinError::Refused { .. } => "run 'roxie doctor' for details".to_owned(),
            JoinError::Full => "end some RDMA programs, or use several network namespaces".to_owned(),
            JoinError::NoSmallSlot => {
                "end some RDMA programs, or unset ROXIE_QPNS, or use several network namespaces".to_owned()
            }
            JoinError::OtherOwner { owner, .. } => {
                format!("start a program of user {owner} that takes slots, or {APART}")
            }
            JoinError::Growing { pid, is_stopped: true } => {
                format!("resume it (kill -CONT {pid}), or end it")
            }
            JoinError::Growing { .. } => {
                "end that process, or try again when the machine has less to do".to_owned()
            }
            JoinError::TooFewDescriptors => {
                let [soft, hard] = sys::descriptor_limits();
                let enough = USUAL_LIMIT.max(soft.saturating_mul(2));
                let above =
                    if hard < enough { "; as root, limits.conf or the settings of a container" } else { "" };
                format!("raise it: ulimit -n {enough}{above}")
            }
            JoinError::TooManyInFlight => "raise the hard limit (ulimit -Hn) to 8192".to_owned(),
            JoinError::OtherVersion { .. } => format!("end all programs of that version, or {APART}"),
        }
    }
}

/// Names a member. The pid is 0 if the member has not accepted the connection, and so has not shown its
/// credentials.
fn process(member: Credentials) -> String {
    if member.pid == 0 { "a process".to_owned() } else { format!("process {}", member.pid) }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JoinError::PortBusy { port } => {
                write!(f, "UDP port {port} is busy (rdma_rxe loaded? another user's program?)")
            }
            JoinError::Silent { port, member } => {
                let (process, uid) = (process(*member), member.uid);
                write!(f, "UDP port {port} is served by {process} of user {uid}, which does not answer")
            }
            JoinError::Foreign { port, member, stranger } => {
                let (process, uid) = (process(*member), member.uid);
                write!(f, "UDP port {port} belongs to {process} of ")?;
                match stranger {
                    Stranger::User => write!(f, "user {uid}; users do not share it"),
                    Stranger::Namespace => write!(f, "user {uid} in another user namespace"),
                    Stranger::Unmapped => f.write_str("a user that has no id in this user namespace"),
                }
            }
            JoinError::Refused { errno, member: Credentials { pid, uid } } => {
                write!(f, "process {pid} of user {uid} refused: {}", io::Error::from_raw_os_error(*errno))
            }
            JoinError::Full => write!(f, "all {} slots of the domain are taken", super::SLOTS),
            JoinError::NoSmallSlot => {
                write!(
                    f,
                    "all {SMALL_SLOTS} slots with small queue pair numbers are taken (ROXIE_QPNS=small)"
                )
            }
            JoinError::OtherOwner { slots, owner } => {
                write!(
                    f,
                    "all {slots} slots are taken, and only user {owner}, the first one here, can add some"
                )
            }
            JoinError::Growing { pid, is_stopped: true } => {
                write!(f, "process {pid}, which adds slots, is stopped")
            }
            JoinError::Growing { pid: 0, .. } => {
                f.write_str("another process adds slots and has not finished")
            }
            JoinError::Growing { pid, .. } => write!(f, "process {pid} adds slots and has not finished"),
            JoinError::TooFewDescriptors => {
                let [soft, hard] = sys::descriptor_limits();
                write!(
                    f,
                    "the limit of open descriptors (ulimit -n) is too low: it is {soft}, at most {hard}; a \
                     process needs {FOR_FIRST_START} for a moment, and {FOR_ENGINE} for each further device \
                     or engine"
                )
            }
            JoinError::TooManyInFlight => f.write_str(
                "this user has too many descriptors in flight for further slots: the hard limit of open \
                     descriptors bounds them",
            ),
            JoinError::OtherVersion { port } => {
                write!(
                    f,
                    "UDP port {port} is busy, and there are names of processes of another version of roxie"
                )
            }
        }
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> io::Error {
        let kind = match error {
            JoinError::PortBusy { .. }
            | JoinError::Silent { .. }
            | JoinError::Foreign { .. }
            | JoinError::OtherVersion { .. } => io::ErrorKind::AddrInUse,
            JoinError::Refused { .. } => io::ErrorKind::ConnectionRefused,
            JoinError::Full
            | JoinError::NoSmallSlot
            | JoinError::OtherOwner { .. }
            | JoinError::TooManyInFlight => io::ErrorKind::QuotaExceeded,
            JoinError::Growing { .. } => io::ErrorKind::TimedOut,
            JoinError::TooFewDescriptors => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_without_known_pid_is_not_called_process_0() {
        for (pid, name) in [(0, "a process"), (7, "process 7")] {
            let error = JoinError::Silent { port: 4791, member: Credentials { pid, uid: 1000 } };
            assert!(error.to_string().contains(&format!("by {name} of user 1000")), "{error}");
            assert!(error.remedy().starts_with(&format!("resume {name} if")), "{}", error.remedy());
        }
    }
}
