//! Joining a domain: get the socket set from a member, or create the domain; then claim a slot.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use super::error::FOR_ENGINE;
use super::group::{Common, SocketSet};
use super::holder::{BEGINNING_NS, PortHolder};
use super::identity::{self, Peer, Relation};
use super::meeting::{self, Listener, Swept};
use super::names::GroupNames;
use super::record::{Record, SHORT_MAX};
use super::{DomainConfig, JoinError, slots};
use sys::{Credentials, DescriptorLimit, PollFd, now_ns};

/// What a new member has.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) group: GroupNames,
    pub(super) slot: u16,
    /// The socket of the slot.
    pub(super) queue: OwnedFd,
    pub(super) common: Common,
    pub(super) listener: Listener,
    pub(super) socket_set: SocketSet,
    /// The member that sent the socket set; `None` if this process created the domain.
    pub(super) neighbour: Option<Neighbour>,
}

/// Another member, and a connection to it.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) slot: u16,
    pub(super) connection: OwnedFd,
}

/// Result of a scan of the slots.
enum Scan {
    /// A member sent the socket set: the one that the guide names, or another one.
    SocketSet { group: GroupNames, ends: [OwnedFd; 2], neighbour: Neighbour, is_guided: bool },
    /// No member sent the socket set; the reason, if there is any member.
    NoMember(Option<JoinError>),
}

/// How long to wait for the answer of one member.
const ANSWER_NS: u64 = 200_000_000;
/// How long to retry at least while members exist but do not answer.
const SILENT_NS: u64 = 2_000_000_000;
/// How long to retry at least while the port is busy and no member of this user exists. After that the owners
/// of the port decide ([`PortHolder::patience_ns`]): the kernel closes the sockets of a dead process later,
/// and a new group needs some of its process's CPU for a name.
const BUSY_NS: u64 = 1_000_000_000;
const PAUSE: Duration = Duration::from_millis(5);
/// Pause after [`BUSY_NS`], because each look at the owners of the port reads /proc.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Length of the accept queue of a listener: the processes that may join at once.
pub(super) const BACKLOG: i32 = 1024;

/// Joins or creates the domain.
pub(super) fn join(config: &DomainConfig) -> io::Result<Claim> {
    identity::prepare();
    let start = now_ns();
    loop {
        let reason = match scan(config)? {
            Scan::SocketSet { group, ends, neighbour, is_guided } => {
                if !is_guided {
                    meeting::sweep(Swept::Network);
                    // Not this process: it may be a short one among many that stay.
                    meeting::set_guide(&config.name, &group.slot(neighbour.slot));
                }
                let opened = SocketSet::open(ends)?;
                return claim_slot(config, group, opened, Some(neighbour));
            }
            Scan::NoMember(reason) => reason,
        };
        // Fails while any group exists. So the names of another user do not matter, only its sockets.
        match SocketSet::create(config.udp_port, !config.allow_uids.is_empty()) {
            Ok(created) => {
                meeting::sweep(Swept::All);
                let claim = claim_slot(config, GroupNames::new(config), created, None)?;
                meeting::set_guide(&config.name, &claim.group.slot(claim.slot));
                return Ok(claim);
            }
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(e) if e.raw_os_error() == Some(libc::EMFILE) => {
                return Err(JoinError::TooFewDescriptors.into());
            }
            Err(e) => return Err(e),
        }
        // A process of this user may be creating the group just now.
        let port = config.udp_port;
        let is_older = || config.is_used_by_another_version();
        let error = reason.unwrap_or_else(|| match is_older() {
            true => JoinError::OtherVersion { port },
            false => JoinError::PortBusy { port },
        });
        let waited_ns = now_ns() - start;
        let ends = match error {
            JoinError::Refused { .. } => true,
            JoinError::Silent { member, .. } if waited_ns > SILENT_NS => {
                // One that waits for its CPU will answer.
                waited_ns > BEGINNING_NS || !sys::is_runnable(member.pid as u32)
            }
            JoinError::Silent { .. } => false,
            JoinError::PortBusy { .. } if waited_ns > BUSY_NS => {
                waited_ns > PortHolder::patience_ns(&PortHolder::of(port))
            }
            _ => waited_ns > BUSY_NS,
        };
        if ends {
            // A lack of descriptors looks like both.
            let may_lack = matches!(error, JoinError::PortBusy { .. } | JoinError::Silent { .. });
            let is_short = may_lack && is_short_of_descriptors();
            return Err(if is_short { JoinError::TooFewDescriptors } else { error }.into());
        }
        sys::pause(if waited_ns > BUSY_NS { BUSY_PAUSE } else { PAUSE });
    }
}

/// A process that has a name of a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Found {
    /// Its user and process.
    pub process: Credentials,
    /// True if this process may join it.
    pub is_admitted: bool,
}

/// Returns the processes that have names of members of the domain. Any user can take such a name.
#[must_use]
pub fn members(config: &DomainConfig) -> Vec<Found> {
    let connect = |(group, slot): (GroupNames, u16)| meeting::connect(&group.slot(slot)).ok();
    // Processes of root are trusted, but admit another user only if the users name each other.
    let admits_us = |peer: Peer| peer.relation == Relation::Same || !config.allow_uids.is_empty();
    let found = |(_, peer): (OwnedFd, Peer)| Found {
        process: peer.credentials,
        is_admitted: config.admits(peer) && admits_us(peer),
    };
    GroupNames::slots_in_use(config).into_iter().filter_map(connect).map(found).collect()
}

/// Requests the socket set from the member that the guide names, then from the others, in random order, until
/// one sends it.
fn scan(config: &DomainConfig) -> io::Result<Scan> {
    let mut reason = None;
    let guided = meeting::guide(&config.name).and_then(|name| GroupNames::parse_slot(config, &name));
    let others = std::iter::once_with(|| GroupNames::slots_in_use(config)).flatten();
    let marked = guided.into_iter().map(|found| (found, true)).chain(others.map(|found| (found, false)));
    for ((group, slot), is_guided) in marked {
        let (connection, peer) = match meeting::connect(&group.slot(slot)) {
            Ok(connected) => connected,
            // The member's accept queue is full: it is busy or stopped.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let member = Credentials { pid: 0, uid: sys::effective_uid() };
                reason.get_or_insert(JoinError::Silent { port: config.udp_port, member });
                continue;
            }
            Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => {
                return Err(e);
            }
            // The process has ended, or is a stranger that this process must not connect to.
            Err(_) => continue,
        };
        if !config.admits(peer) {
            reason.get_or_insert(JoinError::foreign(config.udp_port, peer));
            continue;
        }
        match request_socket_set(config, &connection, peer) {
            Ok(ends) => {
                let neighbour = Neighbour { slot, connection };
                return Ok(Scan::SocketSet { group, ends, neighbour, is_guided });
            }
            // A member that may answer later outweighs members that never will.
            Err(error @ JoinError::Silent { .. }) => reason = Some(error),
            Err(error) => {
                reason.get_or_insert(error);
            }
        }
    }
    Ok(Scan::NoMember(reason))
}

/// Whether this process has no descriptors left for another engine: it may not even accept its own
/// connection, or read the names of members.
fn is_short_of_descriptors() -> bool {
    match std::fs::read_dir("/proc/self/fd") {
        Ok(open) => open.count() as u64 + FOR_ENGINE > sys::descriptor_limit(),
        Err(error) => error.raw_os_error() == Some(libc::EMFILE),
    }
}

/// Returns both ends of the socket set.
fn request_socket_set(
    config: &DomainConfig,
    connection: &OwnedFd,
    peer: Peer,
) -> Result<[OwnedFd; 2], JoinError> {
    let member = peer.credentials;
    let silent = JoinError::Silent { port: config.udp_port, member };
    // Members run by root admit only root, and close other connections.
    let is_own = peer.relation == Relation::Same;
    let rejected = if is_own { silent } else { JoinError::foreign(config.udp_port, peer) };
    let refused = |errno| JoinError::Refused { errno, member };
    // A member that dies meanwhile counts as silent; the next scan does not find it.
    Record::Join { pid: std::process::id() }.send(connection, None, &[]).map_err(|_| rejected)?;
    let mut fds = [PollFd::readable(connection.as_raw_fd())];
    sys::poll(&mut fds, Some(ANSWER_NS)).map_err(|_| silent)?;
    let (mut answer, mut passed) = ([0; SHORT_MAX], Vec::new());
    let received =
        sys::recv_record(connection.as_fd(), &mut answer, &mut passed, false).map_err(|e| {
            match e.kind() {
                io::ErrorKind::WouldBlock => silent,
                _ => rejected,
            }
        })?;
    if received.len == 0 {
        return Err(rejected);
    }
    match (Record::parse(&answer[..received.len], config.udp_port), <[OwnedFd; 2]>::try_from(passed)) {
        (Ok(Record::Welcome { udp_port }), Ok(ends)) if udp_port == config.udp_port => Ok(ends),
        (Ok(Record::Welcome { .. }), Err(_)) => Err(JoinError::TooFewDescriptors),
        (Ok(Record::Refuse { errno }), _) => Err(refused(errno as i32)),
        // Another port or another version of roxie.
        _ => Err(refused(libc::EPROTONOSUPPORT)),
    }
}

fn claim_slot(
    config: &DomainConfig,
    group: GroupNames,
    (socket_set, common): (SocketSet, Common),
    neighbour: Option<Neighbour>,
) -> io::Result<Claim> {
    let listen = |name: &str| meeting::listen(name, BACKLOG);
    let (slot, listener, queue) = slots::take(&group, &socket_set, &common.journal_file, config, listen)?;
    Ok(Claim { group, slot, queue, common, listener, socket_set, neighbour })
}

/// Sends a WELCOME with the socket set. The kernel limits the descriptors in flight per user, and those of
/// the socket set are always in flight; so a low limit is raised during the call.
pub(super) fn send_welcome(to: &OwnedFd, slot: u16, udp_port: u16, socket_set: &SocketSet) -> io::Result<()> {
    let send = || Record::Welcome { udp_port }.send(to, Some(slot), &socket_set.ends());
    match send() {
        Err(e) if e.raw_os_error() == Some(libc::ETOOMANYREFS) => {
            let _limit = DescriptorLimit::raise();
            send()
        }
        result => result,
    }
}
