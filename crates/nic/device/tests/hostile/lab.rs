//! The device under attack, and a barrier: a queue pair that is not attacked (the sentinel). Its answers
//! prove that the device has handled all earlier packets, and still answers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use roxie::transport::{Access, AsyncEventKind, QpAttr, QpState, QpType};
use roxie::verbs::{AsyncElement, Context, Device, DeviceConfig, Pd};
use roxie::wire::{Opcode, Operation, Packet, Psn, Qpn};
use sys::PollFd;

use crate::arena::Arena;
use crate::domain;
use crate::packets::Fields;
use crate::peer::Peer;
use crate::victim::{Victim, connected};

/// QPNs of the peer's imagined queue pairs; all in one slot, so that the device needs one socket for them.
const PEER_QPNS: u32 = 0x40_0000;
/// How long the device may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Retransmission interval of a barrier, which may be dropped after a storm.
const RETRANSMIT: Duration = Duration::from_millis(50);

pub(crate) struct Lab {
    pub(crate) device: Device,
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) other: Pd,
    pub(crate) arena: Arena,
    pub(crate) peer: Peer,
    sentinel: Option<Victim>,
    next_qpn: u32,
    events: HashMap<u64, Vec<AsyncEventKind>>,
    /// Packets that arrived while waiting for the sentinel.
    replies: HashMap<u32, Vec<Vec<u8>>>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let device = Device::open(&DeviceConfig::from_env()).expect("lo exists");
        let context = device.context().expect("descriptors");
        let pd = context.alloc_pd().expect("the engine starts");
        let other = context.alloc_pd().expect("the engine runs");
        let arena = Arena::new(&pd, &other);
        let peer = Peer::new(domain::port()).expect("loopback has more than one address");
        let mut lab = Self {
            device,
            context,
            pd,
            other,
            arena,
            peer,
            sentinel: None,
            next_qpn: 0,
            events: HashMap::new(),
            replies: HashMap::new(),
        };
        let attr = QpAttr { access: Access::REMOTE_WRITE, ..connected() };
        let sentinel = Victim::new(&mut lab, QpType::Rc, false, attr);
        lab.peer.exclude(sentinel.qp.qpn());
        lab.sentinel = Some(sentinel);
        lab
    }

    /// Returns a QPN for the peer's end of a connection; it repeats after 65536 calls.
    pub(crate) fn peer_qpn(&mut self) -> Qpn {
        self.next_qpn = (self.next_qpn + 1) & 0xffff;
        Qpn::new(PEER_QPNS | self.next_qpn)
    }

    /// Waits until the device has handled all packets sent to its slot so far. With `drive` this thread
    /// polls, otherwise the background thread runs the device.
    pub(crate) fn barrier(&mut self, drive: bool) {
        let Some(mut sentinel) = self.sentinel.take() else { return };
        let fields = Fields::new(sentinel.qp.qpn(), sentinel.expected);
        let packet = fields.packet(Opcode::RC_WRITE_ONLY, &[]);
        let start = Instant::now();
        let mut sent = None;
        'answered: loop {
            if sent.is_none_or(|at: Instant| at.elapsed() > RETRANSMIT) {
                self.peer.send_barrier(&packet);
                sent = Some(Instant::now());
            }
            if drive {
                assert!(sentinel.cq.poll_one().is_none());
            } else {
                std::thread::yield_now();
            }
            while let Some(bytes) = self.peer.next() {
                let packet = Packet::parse(&bytes).expect("checked when it arrived");
                let qpn = packet.bth.dest_qp;
                let is_ack = packet.row().operation == Operation::Ack && packet.bth.psn == sentinel.expected;
                if qpn != sentinel.peer_qpn {
                    self.replies.entry(qpn.value()).or_default().push(bytes);
                } else if is_ack {
                    break 'answered;
                }
            }
            let state = sentinel.qp.state();
            assert!(
                start.elapsed() < TIMEOUT,
                "the device does not answer {}, the sentinel is in {state:?}",
                sentinel.expected
            );
        }
        sentinel.expected = sentinel.expected.advance(1);
        assert_eq!(sentinel.qp.state(), QpState::Rts, "the sentinel is not attacked");
        self.sentinel = Some(sentinel);
    }

    /// Returns the packets that the device has sent to one QPN of the peer.
    pub(crate) fn replies(&mut self, qpn: Qpn) -> Vec<Vec<u8>> {
        for bytes in self.peer.drain() {
            let to = Packet::parse(&bytes).expect("checked when it arrived").bth.dest_qp;
            self.replies.entry(to.value()).or_default().push(bytes);
        }
        self.replies.remove(&qpn.value()).unwrap_or_default()
    }

    /// Drops the packets to QPNs that are not used any more.
    pub(crate) fn forget_replies(&mut self) {
        self.replies.clear();
    }

    /// Returns the asynchronous events of a queue pair that [`Lab::read_events`] has read since the last
    /// call.
    pub(crate) fn events(&mut self, cookie: u64) -> Vec<AsyncEventKind> {
        self.events.remove(&cookie).unwrap_or_default()
    }

    /// Reads all pending asynchronous events.
    pub(crate) fn read_events(&mut self) {
        while sys::poll(&mut [PollFd::readable(self.context.async_fd())], Some(0)).expect("poll") > 0 {
            let event = self.context.get_async_event().expect("it was readable");
            if let AsyncElement::Qp(cookie) = event.element {
                self.events.entry(cookie).or_default().push(event.kind);
            }
        }
    }

    /// Returns the value of a counter of the device.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        let rows = self.device.counters();
        rows.iter().find(|row| row.0 == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

/// Returns a PSN; in half of the cases one that wraps soon.
pub(crate) fn psn(random: u64) -> Psn {
    let low = random as u32 & 0xff;
    if random >> 32 & 1 == 0 { Psn::new(0xff_ff80 + low) } else { Psn::new(random as u32) }
}
