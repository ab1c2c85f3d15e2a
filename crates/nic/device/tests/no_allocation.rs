//! A device allocates nothing after set-up: not for posting, sending, receiving and polling, and not in its
//! progress thread. Only the first retransmission of a queue pair, a probe for example, allocates once.
//!
//! Set-up includes what the progress thread does first: it lists its descriptors and accepts rings. On a busy
//! machine it may start late, so [`finish_set_up`] waits until it has done that.
//!
//! Two devices of this process communicate over loopback. The allocator counts for all threads but libtest's,
//! so this is the only test of its binary.

#[expect(dead_code, reason = "this test does not use the port")]
#[path = "hostile/domain.rs"]
mod domain;

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use roxie::transport::{
    Access, AddressVector, Dest, QpAttr, QpAttrMask, QpCap, QpState, QpType, RecvWr, SendFlags, SendWr,
    UdDest, WcStatus, WrOp,
};
use roxie::verbs::{Buffer, CompChannel, Cq, Device, DeviceConfig, Qp, QpInitAttr};
use roxie::wire::{Psn, QKey};
use roxie_tests::main_thread::sleeps;
use sys::PollFd;

/// Counts what the threads of the process allocate and release. It omits the main thread, which is libtest's:
/// that thread allocates whenever it gets a CPU.
struct Counting {
    allocations: AtomicUsize,
    bytes: AtomicUsize,
    releases: AtomicUsize,
}

#[global_allocator]
static ALLOCATOR: Counting =
    Counting { allocations: AtomicUsize::new(0), bytes: AtomicUsize::new(0), releases: AtomicUsize::new(0) };

impl Counting {
    /// Allocations, their bytes, and releases so far. A reallocation is one of each.
    fn counts(&self) -> [usize; 3] {
        [&self.allocations, &self.bytes, &self.releases].map(|count| count.load(Ordering::SeqCst))
    }

    /// The counts since [`counts`](Self::counts) returned `before`.
    fn since(&self, before: [usize; 3]) -> [usize; 3] {
        let now = self.counts();
        std::array::from_fn(|index| now[index] - before[index])
    }
}

fn is_main_thread() -> bool {
    sys::thread_id() as u32 == std::process::id()
}

// SAFETY: every call goes to `System` unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !is_main_thread() {
            self.allocations.fetch_add(1, Ordering::SeqCst);
            self.bytes.fetch_add(layout.size(), Ordering::SeqCst);
        }
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.releases.fetch_add(usize::from(!is_main_thread()), Ordering::SeqCst);
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

const DEPTH: u32 = 16;
const MESSAGE: usize = 100_000;
const DATAGRAM: usize = 1000;
const GRH: usize = 40;
/// Rounds before counting starts: queues, tables and buffers grow to their final size.
const WARM_UP: usize = 50;
const ROUNDS: usize = 200;
const TIMEOUT: Duration = Duration::from_secs(20);

struct End {
    qp: Qp,
    cq: Cq,
    channel: CompChannel,
    buffer: Buffer,
    av: AddressVector,
}

impl End {
    fn new(ty: QpType) -> Self {
        let context = Device::open(&DeviceConfig::from_env()).and_then(|d| d.context()).expect("lo exists");
        let dgid = context.gids().first().expect("lo has addresses").gid;
        let pd = context.alloc_pd().expect("the engine starts");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let buffer = pd.alloc_buffer(MESSAGE, access).expect("memory");
        let channel = context.create_comp_channel().expect("descriptors");
        let cq = context.create_cq(2 * DEPTH, Some(&channel), 0).expect("within limits");
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let init = QpInitAttr { ty, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, cookie: 0 };
        let qp = pd.create_qp(&init).expect("within limits");
        Self {
            qp,
            cq,
            channel,
            buffer,
            av: AddressVector { dgid, hop_limit: 64, ..AddressVector::default() },
        }
    }

    /// RESET to INIT to RTR to RTS.
    fn connect(&self, peer: &Self) {
        let attr = QpAttr {
            port_num: 1,
            q_key: QKey(7),
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            path_mtu: self.qp.pd().context().query_port().active_mtu,
            dest_qp: peer.qp.qpn(),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            av: peer.av,
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr { state, ..attr.clone() };
            self.qp.modify(&attr, QpAttrMask::required(self.qp.ty(), state)).expect("permitted");
        }
    }

    /// Posts one work request of each operation; returns the number of completions.
    fn post(&self, peer: &Self) -> usize {
        let datagrams = self.qp.ty() == QpType::Ud;
        let length = if datagrams { DATAGRAM } else { MESSAGE };
        let dest = datagrams
            .then(|| Dest::Ud(UdDest { av: peer.av, remote_qpn: peer.qp.qpn(), remote_qkey: QKey(7) }));
        let (remote_addr, r_key) = (peer.buffer.addr(), peer.buffer.rkey());
        let ops = [
            (WrOp::Send, length),
            (WrOp::SendImm([1, 2, 3, 4]), 16),
            (WrOp::Write { remote_addr, r_key }, length),
            (WrOp::Read { remote_addr, r_key }, length),
            (WrOp::FetchAdd { remote_addr, r_key, add: 1 }, 8),
        ];
        let ops = if datagrams { &ops[..2] } else { &ops[..] };
        for (op, length) in ops {
            let inline = if matches!(op, WrOp::SendImm(_)) { SendFlags::INLINE } else { SendFlags::empty() };
            let sg_list = [self.buffer.sge(0, *length)];
            self.qp
                .post_send(&SendWr { wr_id: 0, op: *op, sg_list: &sg_list, flags: inline, dest })
                .expect("room");
        }
        ops.len()
    }

    /// Whether the other device has accepted the ring of this one.
    fn has_ring(&self) -> bool {
        let port = self.qp.pd().context().device().port().expect("the engine has started");
        port.contains("shm to 1 process")
    }

    fn post_recvs(&self) -> usize {
        let length = if self.qp.ty() == QpType::Ud { GRH + DATAGRAM } else { MESSAGE };
        for _ in 0..2 {
            self.qp.post_recv(&RecvWr { wr_id: 0, sg_list: &[self.buffer.sge(0, length)] }).expect("room");
        }
        2
    }
}

/// Waits until all progress threads sleep. Unless an application thread polls, a progress thread lists its
/// descriptors before it sleeps.
fn wait_until_progress_threads_sleep() {
    let is_awake = |task: &Path| {
        let name = fs::read_to_string(task.join("comm")).unwrap_or_default();
        name == "roxie-engine\n" && !sleeps(task)
    };
    let is_any_awake = || {
        let tasks = fs::read_dir("/proc/self/task").expect("procfs is mounted");
        tasks.flatten().any(|task| is_awake(&task.path()))
    };
    let start = Instant::now();
    while is_any_awake() {
        assert!(start.elapsed() < TIMEOUT, "a progress thread does not sleep");
        thread::yield_now();
    }
}

/// Waits until the progress threads of both devices have received a message, and have accepted the rings.
fn finish_set_up(ends: &[End; 2]) {
    for [receiver, sender] in [[0, 1], [1, 0]].map(|order| order.map(|end| &ends[end])) {
        let mut missing = receiver.post_recvs();
        receiver.cq.req_notify(false);
        missing += sender.post(receiver);
        // Only the progress thread of the receiver runs it now, because no application thread polls it.
        let mut fds = [PollFd::readable(receiver.channel.fd())];
        assert_eq!(sys::poll(&mut fds, Some(TIMEOUT.as_nanos() as u64)).expect("a descriptor"), 1);
        receiver.channel.get_event().expect("there is one");
        wait_until_progress_threads_sleep();
        let start = Instant::now();
        while missing > 0 {
            missing -= ends.iter().filter_map(|end| end.cq.poll_one()).count();
            assert!(start.elapsed() < TIMEOUT, "{missing} completions are missing");
        }
    }
    let start = Instant::now();
    while domain::through_memory() && ends[0].qp.ty() == QpType::Rc && !ends.iter().all(End::has_ring) {
        assert!(start.elapsed() < TIMEOUT, "a ring was not accepted");
        round(ends);
    }
}

/// Sends in both directions until all work requests are complete.
fn round(ends: &[End; 2]) {
    let [a, b] = ends;
    let mut missing = [a.post_recvs(), b.post_recvs()];
    missing[0] += a.post(b);
    missing[1] += b.post(a);
    let start = Instant::now();
    while missing != [0, 0] {
        for (end, missing) in ends.iter().zip(&mut missing) {
            while let Some(wc) = end.cq.poll_one() {
                assert_eq!(wc.status, WcStatus::Success);
                *missing -= 1;
            }
        }
        assert!(start.elapsed() < TIMEOUT, "{missing:?} completions are missing");
    }
}

#[test]
fn traffic_allocates_nothing() {
    domain::on_both_paths("traffic_allocates_nothing", || {
        let before = ALLOCATOR.counts();
        drop(std::hint::black_box(Box::new(1_u32)));
        assert_eq!(ALLOCATOR.since(before), [1, 4, 1], "allocations are counted");
        // A progress thread that ends late would free memory while the next devices are counted.
        let mut open = Vec::new();
        for ty in [QpType::Rc, QpType::Ud] {
            let ends = [End::new(ty), End::new(ty)];
            ends[0].connect(&ends[1]);
            ends[1].connect(&ends[0]);
            finish_set_up(&ends);
            (0..WARM_UP).for_each(|_| round(&ends));
            let before = ALLOCATOR.counts();
            (0..ROUNDS).for_each(|_| round(&ends));
            let [allocations, bytes, releases] = ALLOCATOR.since(before);
            assert_eq!(releases, 0, "{ty:?}: nothing is released");
            let most = if ty == QpType::Rc { ends.len() } else { 0 };
            assert!(allocations <= most && bytes <= 1024 * most, "{ty:?}: {allocations} of {bytes} bytes");
            open.push(ends);
        }
    });
}
