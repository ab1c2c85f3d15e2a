//! The client end of the control socket.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{RECORD_MAX, Reply, Request, domain_prefix};
use crate::{HookPlan, HookPoint, HookStatus, KeptFrame, TapFilter};
use roxie::registry::identity::{Peer, Relation, is_root};
use roxie::registry::{DomainConfig, meeting};
use roxie::status::{EngineStatus, ObjectKind, ObjectStatus, QpStatus};
use sys::{PollFd, RecordReader};

/// Time to wait for a reply. The engine's thread answers within a millisecond, unless it creates large
/// maps or the process is stopped.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a process has to answer while a signal or a debugger stops it.
const STOPPED_TIMEOUT: Duration = Duration::from_millis(300);
/// Time for all pages of a list: a process of another user may send page after page. Half: a busy process
/// with 100,000 queue pairs (782 pages) may not be in time. Double: such a process delays its reader longer.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);
/// Most entries of a list: no device has more completion queues, of which it has the most.
const LIST_MAX: usize = 1 << 18;

/// The entries of a page, and where the next page starts.
type Part<T> = (Vec<T>, Option<u32>);

/// The users that own the engines a client connects to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Users {
    /// Those of its own user.
    Own,
    /// If it is root, those of all users. What they report is of their making.
    All,
}

/// A connection to the engine of another process.
#[derive(Debug)]
pub struct Remote {
    pid: u32,
    slot: u16,
    connection: Mutex<OwnedFd>,
    timeout: Duration,
}

/// The engines of a domain in this network namespace, from one look at the names of all sockets. Each
/// look takes as long as there are names, and another user may have taken any number.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// By process id and slot: its own name, and those that other users may have taken.
    names: BTreeMap<(u32, u16), BTreeSet<String>>,
}

impl Listing {
    /// Lists the engines of a domain.
    #[must_use]
    pub fn read(domain: &DomainConfig) -> Listing {
        let prefix = domain_prefix(domain);
        let mut listing = Listing::default();
        // A name is listed once for the listener and once for each connection.
        for name in sys::abstract_names(&prefix) {
            let mut parts = name[prefix.len()..].split('/');
            let mut part = || parts.next();
            let engine =
                part().and_then(|pid| pid.parse().ok()).zip(part().and_then(|slot| slot.parse().ok()));
            if let Some(engine) = engine {
                listing.names.entry(engine).or_default().insert(name);
            }
        }
        listing
    }

    /// Returns process id and slot of each engine, in order.
    pub fn engines(&self) -> impl Iterator<Item = (u32, u16)> {
        self.names.keys().copied()
    }

    /// True if the engine was there.
    #[must_use]
    pub fn contains(&self, pid: u32, slot: u16) -> bool {
        self.names.contains_key(&(pid, slot))
    }

    /// Connects to an engine.
    ///
    /// # Errors
    /// `ECONNREFUSED` if there is none, or its process has ended; `EPERM` if it belongs to a user that is not
    /// among `users`.
    pub fn connect(&self, pid: u32, slot: u16, users: Users) -> io::Result<Remote> {
        let mut error = io::Error::from_raw_os_error(libc::ECONNREFUSED);
        for name in self.names.get(&(pid, slot)).into_iter().flatten() {
            let Ok((connection, peer)) = meeting::connect(name) else { continue };
            if may_query(peer, pid, users) {
                return Ok(Remote { pid, slot, connection: Mutex::new(connection), timeout: REPLY_TIMEOUT });
            }
            error = io::Error::from_raw_os_error(libc::EPERM);
        }
        Err(error)
    }
}

impl Remote {
    /// Lists the engines of a domain in this network namespace as process id and slot; only those of
    /// `pid` if given.
    #[must_use]
    pub fn find(domain: &DomainConfig, pid: Option<u32>) -> Vec<(u32, u16)> {
        let is_wanted = |engine: &(u32, u16)| pid.is_none_or(|pid| pid == engine.0);
        Listing::read(domain).engines().filter(is_wanted).collect()
    }

    /// Connects to an engine that [`find`](Remote::find) has found. For many engines use a [`Listing`].
    ///
    /// # Errors
    /// Those of [`Listing::connect`].
    pub fn connect(domain: &DomainConfig, pid: u32, slot: u16, users: Users) -> io::Result<Remote> {
        Listing::read(domain).connect(pid, slot, users)
    }

    /// Sets the time to wait for a reply. After a timeout the connection must not be used again: the
    /// reply may come late.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Remote {
        Remote { timeout, ..self }
    }

    /// Process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its slot: bits 23..12 of its QPNs.
    #[must_use]
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Like [`Attach::attach_hook`](crate::Attach::attach_hook), in the other process.
    ///
    /// # Errors
    /// The process refuses, or does not answer.
    pub fn attach(&self, point: HookPoint, plan: &HookPlan, replace: bool) -> Result<(), ControlError> {
        self.attach_by(point, plan, replace, false)
    }

    /// As [`attach`](Self::attach), until this connection is closed, also if this process is killed.
    ///
    /// # Errors
    /// The process refuses, or does not answer.
    pub fn attach_held(&self, point: HookPoint, plan: &HookPlan) -> Result<(), ControlError> {
        self.attach_by(point, plan, false, true)
    }

    fn attach_by(
        &self,
        point: HookPoint,
        plan: &HookPlan,
        replace: bool,
        held: bool,
    ) -> Result<(), ControlError> {
        let request = |plan: HookPlan| Request::Attach { point, plan, replace, held };
        match self.order(&request(plan.clone())) {
            // Only readers of its maps need the types.
            Err(ControlError::TooLarge { .. }) => self.order(&request(plan.clone().without_types())),
            done => done,
        }
    }

    /// Like [`Attach::detach_hook`](crate::Attach::detach_hook).
    ///
    /// # Errors
    /// The process refuses, or does not answer.
    pub fn detach(&self, point: HookPoint) -> Result<(), ControlError> {
        self.order(&Request::Detach { point })
    }

    /// Like [`Attach::hooks`](crate::Attach::hooks).
    ///
    /// # Errors
    /// The process does not answer.
    pub fn hooks(&self) -> Result<Vec<HookStatus>, ControlError> {
        expect!(self.ask(&Request::Status)?, Reply::Status(hooks) => hooks)
    }

    /// Returns the frames that its hooks redirected to an XSKMAP since the last call, the oldest first;
    /// at most as many as fit into a reply. The process keeps such frames only for a client that calls
    /// this at least every two seconds.
    ///
    /// # Errors
    /// The process does not answer.
    pub fn frames(&self) -> Result<Vec<KeptFrame>, ControlError> {
        expect!(self.ask(&Request::Frames)?, Reply::Frames(frames) => frames)
    }

    /// Returns the status of the engine.
    ///
    /// # Errors
    /// The process does not answer.
    pub fn engine(&self) -> Result<EngineStatus, ControlError> {
        expect!(self.ask(&Request::Engine)?, Reply::Engine(engine) => engine)
    }

    /// Returns its queue pairs, in the order of their numbers. Many are read in several requests, so they
    /// are not of one instant.
    ///
    /// # Errors
    /// The process does not answer in time, or its list does not end.
    pub fn queue_pairs(&self) -> Result<Vec<QpStatus>, ControlError> {
        self.list(
            |from| Request::QueuePairs { from },
            |reply, _| if let Reply::QueuePairs(page) = reply { Some((page.qps, page.next)) } else { None },
        )
    }

    /// Returns the objects of one kind of its device, in the order of their numbers; none if this is not the
    /// first engine of the device.
    ///
    /// # Errors
    /// The process does not answer in time, its list does not end or is out of order, or it is of a version
    /// without this request.
    pub fn objects(&self, kind: ObjectKind) -> Result<Vec<ObjectStatus>, ControlError> {
        self.list(
            |from| Request::Objects { kind, from },
            |reply, from| match reply {
                Reply::Objects(page) if page.is_in_order(from) => Some((page.objects, page.next)),
                _ => None,
            },
        )
    }

    /// The entries of all pages. `part` takes a page from the reply to the request for those from a number
    /// on; each entry has a number of its own, so the next page starts at least so many numbers later.
    fn list<T>(
        &self,
        request: impl Fn(u32) -> Request,
        part: impl Fn(Reply, u32) -> Option<Part<T>>,
    ) -> Result<Vec<T>, ControlError> {
        let (deadline, mut all, mut next) = (Instant::now() + LIST_TIMEOUT, Vec::new(), Some(0));
        while let Some(from) = next {
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(ControlError::Silent);
            }
            let reply = self.ask_for(&request(from), &mut Vec::new(), rest.min(self.timeout))?;
            let (entries, then) = part(reply, from).ok_or(io::Error::from(io::ErrorKind::InvalidData))?;
            let least = u64::from(from) + entries.len().max(1) as u64;
            all.extend(entries);
            if then.is_some_and(|then| u64::from(then) < least) || all.len() > LIST_MAX {
                return Err(ControlError::Io(io::ErrorKind::InvalidData.into()));
            }
            next = then;
        }
        Ok(all)
    }

    /// Starts a tap on the packets that the process sends and receives: each record is a
    /// [`TapHeader`](bpf::TapHeader) and the first bytes of a frame. The tap ends with this connection,
    /// or with the next call of this; records written until then can still be read.
    ///
    /// # Errors
    /// The process refuses, or does not answer.
    pub fn tap(&self, filter: &TapFilter) -> Result<RecordReader, ControlError> {
        let mut passed = Vec::new();
        match self.ask_for(&Request::Tap(filter.clone()), &mut passed, self.timeout)? {
            Reply::Done => passed.pop().map_or(Err(io::ErrorKind::InvalidData.into()), RecordReader::new),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
        .map_err(ControlError::Io)
    }

    /// Whether the process has ended, or has closed this connection in favour of a new one.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let connection = self.connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let received = sys::recv_record(connection.as_fd(), &mut [0], &mut Vec::new(), true);
        !received.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    fn order(&self, request: &Request) -> Result<(), ControlError> {
        expect!(self.ask(request)?, Reply::Done => ())
    }

    pub(super) fn ask(&self, request: &Request) -> Result<Reply, ControlError> {
        // Unexpected descriptors are closed.
        self.ask_for(request, &mut Vec::new(), self.timeout)
    }

    fn ask_for(
        &self,
        request: &Request,
        passed: &mut Vec<OwnedFd>,
        timeout: Duration,
    ) -> Result<Reply, ControlError> {
        let bytes = request.to_bytes();
        if bytes.len() > RECORD_MAX {
            return Err(ControlError::TooLarge { bytes: bytes.len() });
        }
        let connection = self.connection.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        sys::send_record(connection.as_fd(), &bytes, &[], &[])
            .map_err(|error| refusal(&connection).unwrap_or(ControlError::Io(error)))?;
        let mut fds = [PollFd::readable(connection.as_raw_fd())];
        let (first, rest) = (timeout.min(STOPPED_TIMEOUT), timeout.saturating_sub(STOPPED_TIMEOUT));
        let mut answers = |wait: Duration| sys::poll(&mut fds, Some(wait.as_nanos() as u64)).map(|n| n > 0);
        if !answers(first)? && (sys::is_stopped(self.pid as i32) || !answers(rest)?) {
            return Err(ControlError::Silent);
        }
        let mut buffer = vec![0; RECORD_MAX];
        let received = sys::recv_record(connection.as_fd(), &mut buffer, passed, false)
            .map_err(|error| refusal(&connection).unwrap_or(ControlError::Io(error)))?;
        if received.len == 0 {
            return Err(ControlError::Io(io::ErrorKind::ConnectionReset.into()));
        }
        match Reply::parse(&buffer[..received.len]) {
            Some(Reply::Refused { why, remedy }) => Err(ControlError::Refused { why, remedy }),
            Some(reply) => Ok(reply),
            None => Err(ControlError::Io(io::ErrorKind::InvalidData.into())),
        }
    }
}

/// The reason that a process gave before it closed the connection: it refuses some clients at once.
fn refusal(connection: &OwnedFd) -> Option<ControlError> {
    let mut buffer = vec![0; RECORD_MAX];
    let received = sys::recv_record(connection.as_fd(), &mut buffer, &mut Vec::new(), false).ok()?;
    match Reply::parse(&buffer[..received.len])? {
        Reply::Refused { why, remedy } => Some(ControlError::Refused { why, remedy }),
        _ => None,
    }
}

/// True if a client may query this process, which says by its name that it is `pid`.
fn may_query(peer: Peer, pid: u32, users: Users) -> bool {
    if peer.relation == Relation::Same {
        return true;
    }
    // In a container the process has another id than here. But it must not pose as a process of this
    // machine that belongs to another user.
    let is_own_name = u32::try_from(peer.credentials.pid) == Ok(pid);
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|process| process.uid());
    let is_impostor = !is_own_name && owner.is_ok_and(|owner| owner != peer.credentials.uid);
    users == Users::All && is_root() && !is_impostor
}

/// Why a request failed.
#[derive(Debug)]
pub enum ControlError {
    /// The process refused the request.
    Refused {
        /// The reason.
        why: String,
        /// What the user can do about it.
        remedy: Option<String>,
    },
    /// The process did not answer in time.
    Silent,
    /// The program does not fit into a request.
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The kernel's error.
    Io(io::Error),
}

impl ControlError {
    /// What the user can do about it, if anything is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            ControlError::Refused { remedy, .. } => remedy.clone(),
            ControlError::Silent => Some("see whether it is stopped (SIGSTOP, a debugger)".to_owned()),
            ControlError::TooLarge { .. } => {
                Some("name it when the process is started: roxie run --ingress".to_owned())
            }
            ControlError::Io(_) => None,
        }
    }
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Refused { why, .. } => f.write_str(why),
            ControlError::Silent => f.write_str("the process does not answer"),
            ControlError::TooLarge { bytes } => {
                write!(f, "the program takes {bytes} bytes, and a request has room for {RECORD_MAX}")
            }
            ControlError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ControlError {}

impl From<io::Error> for ControlError {
    fn from(error: io::Error) -> ControlError {
        ControlError::Io(error)
    }
}
