//! Joining a domain: get the socket set from a member, or create the domain; then claim a slot.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use super::group::{self, Contents};
use super::record::{Record, SHORT_MAX};
use super::{DomainConfig, JoinError, SLOTS};
use sys::{Credentials, DescriptorLimit, PollFd, now_ns};

/// What a new member has.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) slot: u8,
    pub(super) contents: Contents,
    pub(super) listener: OwnedFd,
    pub(super) socket_set: OwnedFd,
    /// The member that sent the socket set; `None` if this process created the domain.
    pub(super) neighbour: Option<Neighbour>,
}

/// Another member, and a connection to it.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) slot: u8,
    pub(super) connection: OwnedFd,
}

/// Result of a scan of the slots.
enum Scan {
    /// A member sent the socket set.
    SocketSet(OwnedFd, Neighbour),
    /// No member sent the socket set; the reason, if there is any member.
    NoMember(Option<JoinError>),
}

/// How long to wait for the answer of one member.
const ANSWER_NS: u64 = 200_000_000;
/// How long to retry while members exist but do not answer.
const SILENT_NS: u64 = 2_000_000_000;
/// How long to retry while the port is busy and no member exists: the kernel needs a moment to close a dead
/// process's sockets.
const BUSY_NS: u64 = 1_000_000_000;
const PAUSE: Duration = Duration::from_millis(5);
/// Length of the accept queue of a listener.
pub(super) const BACKLOG: i32 = 16;

/// Joins or creates the domain.
pub(super) fn join(config: &DomainConfig) -> io::Result<Claim> {
    let start = now_ns();
    loop {
        let (error, limit_ns) = match scan(config)? {
            Scan::SocketSet(socket_set, neighbour) => return claim_slot(config, socket_set, Some(neighbour)),
            Scan::NoMember(Some(error)) => (error, SILENT_NS),
            Scan::NoMember(None) => match create_domain(config)? {
                Ok(claim) => return Ok(claim),
                Err(error) => (error, BUSY_NS),
            },
        };
        let is_final = matches!(error, JoinError::Foreign { .. } | JoinError::Refused { .. });
        if is_final || now_ns() - start > limit_ns {
            return Err(error.into());
        }
        std::thread::sleep(PAUSE);
    }
}

/// Requests the socket set from the members, in random order, until one sends it.
fn scan(config: &DomainConfig) -> io::Result<Scan> {
    let mut reason = None;
    for slot in slots_at_random() {
        let connection = match sys::connect_seqpacket(&config.slot_name(slot)) {
            Ok(connection) => connection,
            Err(e) if e.raw_os_error() == Some(libc::ECONNREFUSED) => continue,
            // The member's accept queue is full: it is busy or stopped.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let member = Credentials { pid: 0, uid: sys::effective_uid() };
                reason.get_or_insert(JoinError::Silent { port: config.udp_port, member });
                continue;
            }
            Err(e) => return Err(e),
        };
        let member = sys::peer_credentials(connection.as_fd())?;
        if !config.admits(member) {
            reason.get_or_insert(JoinError::Foreign { port: config.udp_port, member });
            continue;
        }
        match request_socket_set(config, &connection, member) {
            Ok(socket_set) => return Ok(Scan::SocketSet(socket_set, Neighbour { slot, connection })),
            // A member that may answer later outweighs members that never will.
            Err(error @ JoinError::Silent { .. }) => reason = Some(error),
            Err(error) => {
                reason.get_or_insert(error);
            }
        }
    }
    Ok(Scan::NoMember(reason))
}

fn request_socket_set(
    config: &DomainConfig,
    connection: &OwnedFd,
    member: Credentials,
) -> Result<OwnedFd, JoinError> {
    let silent = JoinError::Silent { port: config.udp_port, member };
    // Members run by root admit only root, and close other connections.
    let rejected = if member.uid == sys::effective_uid() {
        silent
    } else {
        JoinError::Foreign { port: config.udp_port, member }
    };
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
    match (Record::parse(&answer[..received.len], config.udp_port), passed.pop()) {
        (Ok(Record::Welcome { udp_port }), Some(socket_set)) if udp_port == config.udp_port => Ok(socket_set),
        (Ok(Record::Welcome { .. }), None) => Err(JoinError::TooFewDescriptors),
        (Ok(Record::Refuse { errno }), _) => Err(refused(errno as i32)),
        // Another port or another version of roxie.
        _ => Err(refused(libc::EPROTONOSUPPORT)),
    }
}

/// Creates the domain while holding the boot name, which excludes other creators. The inner error permits a
/// retry.
fn create_domain(config: &DomainConfig) -> io::Result<Result<Claim, JoinError>> {
    let busy = JoinError::PortBusy { port: config.udp_port };
    let _boot = match sys::bind_seqpacket(&config.boot_name()) {
        Ok(boot) => boot,
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => return Ok(Err(busy)),
        Err(e) => return Err(e),
    };
    // Another process may have created the domain since the first scan.
    match scan(config)? {
        Scan::SocketSet(socket_set, neighbour) => {
            return claim_slot(config, socket_set, Some(neighbour)).map(Ok);
        }
        Scan::NoMember(Some(error)) => return Ok(Err(error)),
        Scan::NoMember(None) => {}
    }
    match group::create(config.udp_port) {
        Ok(socket_set) => claim_slot(config, socket_set, None).map(Ok),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Ok(Err(busy)),
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => Err(JoinError::TooFewDescriptors.into()),
        Err(e) => Err(e),
    }
}

fn claim_slot(config: &DomainConfig, socket_set: OwnedFd, neighbour: Option<Neighbour>) -> io::Result<Claim> {
    for slot in slots_at_random() {
        let listener = match sys::bind_seqpacket(&config.slot_name(slot)) {
            Ok(listener) => listener,
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => continue,
            Err(e) => return Err(e),
        };
        sys::listen(listener.as_fd(), BACKLOG)?;
        let contents = group::peek(socket_set.as_fd(), slot)?;
        return Ok(Claim { slot, contents, listener, socket_set, neighbour });
    }
    Err(JoinError::Full.into())
}

/// Returns all slots in random order. Any step reaches all of them, because their number is prime.
pub(super) fn slots_at_random() -> impl Iterator<Item = u8> {
    const { assert!(SLOTS == 251, "must be prime") };
    let random = sys::random_u64();
    let slots = u64::from(SLOTS);
    let (first, step) = (random % slots, 1 + (random >> 32) % (slots - 1));
    (0..slots).map(move |i| ((first + i * step) % slots) as u8)
}

/// Sends a WELCOME with the socket set. The kernel limits the descriptors in flight per user, and those of
/// the socket set are always in flight; so a low limit is raised during the call.
pub(super) fn send_welcome(to: &OwnedFd, slot: u8, udp_port: u16, socket_set: &OwnedFd) -> io::Result<()> {
    let send = || Record::Welcome { udp_port }.send(to, Some(slot), &[socket_set.as_fd()]);
    match send() {
        Err(e) if e.raw_os_error() == Some(libc::ETOOMANYREFS) => {
            let _limit = DescriptorLimit::raise();
            send()
        }
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_random_order_contains_every_slot_once() {
        let mut slots: Vec<_> = slots_at_random().collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..SLOTS).collect::<Vec<_>>());
    }
}
