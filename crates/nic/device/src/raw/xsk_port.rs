//! Frames through AF_XDP sockets, one for each receive queue of the netdev. An XDP program takes the frames
//! of the flow rules from the network stack (`program.rs`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use bpf::{HintKfuncs, Hints, MapRef};
use sys::{Epoll, Netlink, XdpMode, xdp_features};

use super::program::{self, RULES, SOCKETS};
use super::table::{FlowRules, FlowType, Rule};
use crate::notice;
use crate::port::xsk::byte_limit::StallCounters;
use crate::port::xsk::owner::Owner;
use crate::port::xsk::sockets::{CHUNK_LEN, Plan, QUEUES_MAX, SocketMap, Sockets, is_limited};
use crate::port::{TxRoom, XskError};
use crate::xdp::{AttachError, Attached, Mode, attach, hint_kfuncs};

/// The AF_XDP sockets of a netdev, and the program.
#[derive(Debug)]
pub(super) struct XskFrames {
    sockets: Sockets,
    program: RawProgram,
    /// The frames of the last `fetch`, one behind the other, and their ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    epoll: Epoll,
    /// Fork generation of the process that opened it.
    generation: u32,
    /// When processes that look up the owner were accepted last.
    accepted_ns: u64,
    /// Claims the netdev; released last.
    owner: Owner,
}

#[derive(Debug)]
struct RawProgram {
    attached: Attached,
    rules: MapRef,
    sockets: MapRef,
    queues: u32,
    /// The program puts hints in front of frames.
    has_hints: bool,
    /// Rules in the map.
    len: usize,
}

/// Time between two calls that accept the processes that look up the owner, as `port/xsk.rs` has it. Longer:
/// they may fill the backlog, and later ones find no owner.
const ACCEPT_NS: u64 = 10_000_000_000;
/// Frames taken from one queue at a time.
const BATCH: u32 = 64;
/// Both Ethernet addresses, in front of a VLAN tag.
const ADDRESSES_LEN: usize = 12;
/// Longest frame that is sent here.
const SEND_MAX: usize = 2 * CHUNK_LEN as usize;

impl SocketMap for RawProgram {
    fn queues(&self) -> u32 {
        self.queues
    }

    fn mode(&self) -> XdpMode {
        self.attached.mode()
    }

    fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let fd = socket.as_raw_fd().to_ne_bytes();
        self.map(self.sockets)?.update(&queue.to_ne_bytes(), &fd)
    }
}

impl RawProgram {
    fn attach(ifindex: u32, queues: u32) -> Result<Self, AttachError> {
        // The VLAN tag is the hint that belongs to the frame.
        let vlan = hint_kfuncs(ifindex).map(|hints| hints.vlan).unwrap_or_else(|error| {
            notice(format_args!(
                "raw packet queue pairs do not see VLAN tags that the driver takes out of frames: its \
                 receive hints cannot be used: {error}"
            ));
            None
        });
        let hints = HintKfuncs { vlan, ..HintKfuncs::default() };
        if hints.is_empty() {
            return Self::attach_in(ifindex, queues, &hints, Mode::Auto);
        }
        // A program that asks the driver runs in the driver only.
        match Self::attach_in(ifindex, queues, &hints, Mode::Only(XdpMode::Native)) {
            Err(error @ (AttachError::Refused { .. } | AttachError::Load(_))) => {
                notice(format_args!(
                    "raw packet queue pairs do not see VLAN tags that the driver takes out of frames: {error}"
                ));
                Self::attach_in(ifindex, queues, &HintKfuncs::default(), Mode::Auto)
            }
            done => done,
        }
    }

    fn attach_in(ifindex: u32, queues: u32, hints: &HintKfuncs, mode: Mode) -> Result<Self, AttachError> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let mut program = program::program(queues, hints).map_err(|_| invalid())?;
        let [rules, sockets] = [RULES, SOCKETS].map(|name| program.map(name));
        let (rules, sockets) = (rules.ok_or_else(invalid)?, sockets.ok_or_else(invalid)?);
        program.frags = true;
        let attached = match attach(ifindex, &program, mode) {
            // A kernel before 5.18 has no programs for frames of several fragments.
            Err(AttachError::Load(error)) if error.error.raw_os_error() == Some(libc::EINVAL) => {
                program.frags = false;
                attach(ifindex, &program, mode)?
            }
            done => done?,
        };
        Ok(Self { attached, rules, sockets, queues, has_hints: !hints.is_empty(), len: 0 })
    }

    fn map(&self, map: MapRef) -> io::Result<&sys::bpf::Map> {
        self.attached.map(map).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// Writes the rules in an order in which none of them is missing meanwhile.
    fn set_rules(&mut self, rules: &[[u8; program::RULE_LEN]]) -> io::Result<()> {
        let map = self.map(self.rules)?;
        let put = |i: usize| {
            let end = program::encode(None);
            map.update(&(i as u32).to_ne_bytes(), rules.get(i).unwrap_or(&end))
        };
        let longest = self.len.max(rules.len());
        if rules.len() >= self.len {
            (0..longest).rev().try_for_each(put)?;
        } else {
            (0..longest).try_for_each(put)?;
        }
        self.len = rules.len();
        Ok(())
    }
}

impl XskFrames {
    /// Attaches the program, without a rule, and opens the sockets.
    pub(super) fn open(ifindex: u32) -> Result<Self, XskError> {
        let during = |step| move |error| XskError::Socket { step, error };
        let link =
            Netlink::new().and_then(|mut netlink| netlink.link(ifindex)).map_err(during("interface"))?;
        if !link.is_ethernet || link.is_loopback {
            return Err(XskError::NotEthernet);
        }
        let owner = Owner::claim(ifindex)?;
        let program = RawProgram::attach(ifindex, link.rx_queues.clamp(1, QUEUES_MAX))?;
        let features = xdp_features(ifindex).unwrap_or_default();
        let is_limited = is_limited().map_err(XskError::Variable)?;
        // Frames may have any length that two chunks hold.
        let plan = Plan { ifindex, mtu: link.mtu, features, is_limited, is_timed: false };
        let sockets = Sockets::open(&plan, &program)?;
        let epoll = Epoll::new().map_err(during("epoll"))?;
        sockets.watch(&epoll).map_err(during("epoll"))?;
        let (bytes, ends, generation) = (Vec::new(), Vec::new(), sys::generation());
        Ok(Self { sockets, program, bytes, ends, epoll, generation, accepted_ns: sys::now_ns(), owner })
    }

    /// Makes the program take the frames of the rules from the network stack.
    pub(super) fn follow(&mut self, rules: &FlowRules) -> io::Result<()> {
        // A frame that another rule sees as well must arrive here, also to be dropped.
        let has_others = rules
            .iter()
            .any(|rule| rule.ty == FlowType::Sniffer || (rule.ty == FlowType::Normal && rule.dont_trap));
        let takes = rules.iter().filter(|rule| rule.takes());
        let encoded = |rule: &Rule| program::encode(Some((&rule.matches, rule.drops && !has_others)));
        let list: Vec<_> = takes.map(encoded).collect();
        self.program.set_rules(&list)
    }

    /// How often and how long the byte limit refused frames.
    pub(super) fn stalls(&self) -> StallCounters {
        self.sockets.limits().1
    }

    pub(super) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Takes the frames that have arrived; returns their number.
    pub(super) fn fetch(&mut self) -> usize {
        self.bytes.clear();
        self.ends.clear();
        let now_ns = sys::now_ns();
        if now_ns.saturating_sub(self.accepted_ns) >= ACCEPT_NS {
            self.accepted_ns = now_ns;
            self.owner.accept_waiting();
        }
        let mut descriptors = 0;
        let has_hints = self.program.has_hints;
        for queue in &mut self.sockets.queues {
            let mut taken = 0;
            // The kernel publishes all pieces of a frame at once, so a frame that has begun is taken whole.
            while (taken < BATCH || self.ends.last().copied().unwrap_or(0) < self.bytes.len())
                && let Some(mut piece) = queue.rings.rx.pop()
            {
                taken += 1;
                let begins = self.ends.last().copied().unwrap_or(0) == self.bytes.len();
                let metadata = if begins { piece.take_metadata() } else { None };
                let hints = metadata.filter(|_| has_hints).and_then(|bytes| Hints::parse(&bytes));
                append(&mut self.bytes, piece.bytes(), hints.and_then(|hints| hints.vlan));
                let more = piece.more;
                self.sockets.rx_pool.put(piece.chunk);
                if !more {
                    self.ends.push(self.bytes.len());
                }
            }
            // A frame without its end must not become the start of a frame of the next queue.
            self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
            if taken > 0 {
                queue.release(taken);
                descriptors += taken;
            }
        }
        if descriptors > 0 {
            self.sockets.fill();
        }
        if self.sockets.is_stalled() {
            self.sockets.kick();
        }
        self.ends.len()
    }

    /// Returns frame `i` of the last [`fetch`](Self::fetch).
    pub(super) fn frame(&self, i: usize) -> Option<&[u8]> {
        let start = if i == 0 { 0 } else { *self.ends.get(i - 1)? };
        self.bytes.get(start..*self.ends.get(i)?)
    }

    /// Whether a frame of `len` bytes can be sent here.
    pub(super) fn fits(len: usize) -> bool {
        len <= SEND_MAX
    }

    /// Sends the frames before the first one that does not [fit](Self::fits); returns how many were taken.
    pub(super) fn send(&mut self, frames: &mut dyn Iterator<Item = &[u8]>) -> usize {
        let mut count = 0;
        for frame in frames.take_while(|frame| Self::fits(frame.len())) {
            if self.sockets.room(Some(0)) != TxRoom::Open {
                break;
            }
            let Some(mut chunk) = self.sockets.take() else { break };
            chunk.bytes_mut()[..frame.len()].copy_from_slice(frame);
            if let Err(chunk) = self.sockets.push(0, chunk, 0, frame.len()) {
                self.sockets.tx_pool.put(chunk);
                break;
            }
            count += 1;
        }
        self.sockets.kick();
        count
    }
}

/// Appends a frame, or a further piece of one, with the VLAN tag that the driver took out of it.
fn append(bytes: &mut Vec<u8>, piece: &[u8], vlan: Option<(u16, u16)>) {
    match (vlan, piece.split_at_checked(ADDRESSES_LEN)) {
        (Some((protocol, tci)), Some((addresses, rest))) => {
            bytes.extend_from_slice(addresses);
            bytes.extend_from_slice(&protocol.to_be_bytes());
            bytes.extend_from_slice(&tci.to_be_bytes());
            bytes.extend_from_slice(rest);
        }
        _ => bytes.extend_from_slice(piece),
    }
}

impl Drop for XskFrames {
    fn drop(&mut self) {
        // A forked child only closes its descriptors; program, maps and rings belong to the parent.
        if self.generation == sys::generation() {
            let teardown = self.sockets.close([]);
            debug_assert_eq!(teardown.lost, 0, "every chunk is accounted for");
        }
    }
}
