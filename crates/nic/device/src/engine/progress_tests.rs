//! The progress thread beside an application that sleeps on a completion queue, in virtual time.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use sys::Usage;

use super::*;
use crate::engine::claims::tests::engine_in;
use crate::port::{
    DeadPort, Destination, FlowId, FlowKey, Headers, Icrc, Port, PortProperties, PortReport, RxBatch,
    RxQueue, RxScope,
};
use crate::runtime::World;

/// Other threads have the CPU for `away_ns` after each yield.
struct Cpu {
    away_ns: u64,
    now_ns: AtomicU64,
    yields: AtomicU64,
    sleeps: AtomicU64,
}

impl World for Cpu {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(SeqCst)
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn random_u64(&self) -> u64 {
        0
    }

    fn reach(&self, _: Point) {}

    fn yield_now(&self) {
        self.yields.fetch_add(1, SeqCst);
        self.now_ns.fetch_add(self.away_ns, SeqCst);
    }

    fn wait_for_lock(&self) {}

    fn sleep(&self, _: &[RawFd], _until_ns: u64) {
        self.sleeps.fetch_add(1, SeqCst);
    }

    fn spawn(&self, _: Box<dyn FnOnce() + Send>) {}
}

/// A port at which a datagram that is no packet has arrived at each look.
#[derive(Default)]
struct BusyPort(DeadPort);

impl Port for BusyPort {
    fn open_flow(&mut self, key: &FlowKey, to: Destination) -> io::Result<FlowId> {
        self.0.open_flow(key, to)
    }

    fn close_flow(&mut self, flow: FlowId) {
        self.0.close_flow(flow);
    }

    fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
        self.0.datagram_flow(key)
    }

    fn headers(&mut self, flow: FlowId) -> Option<Headers> {
        self.0.headers(flow)
    }

    fn tx_slot(&mut self) -> &mut [u8] {
        self.0.tx_slot()
    }

    fn tx_commit(&mut self, flow: FlowId, len: usize) {
        self.0.tx_commit(flow, len);
    }

    fn flush(&mut self) -> usize {
        self.0.flush()
    }

    fn recv(&mut self, _: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        f(&RxBatch {
            src: address,
            src_port: 4791,
            dst: address,
            dst_port: 4791,
            ifindex: 1,
            tos: 0,
            ttl: 64,
            segment: 1,
            macs: None,
            ip_id: None,
            bytes: &[0],
            queue: RxQueue::Slot,
            icrc: Icrc::Present,
        });
        1
    }

    fn properties(&self) -> PortProperties {
        self.0.properties()
    }

    fn report(&self) -> PortReport {
        self.0.report()
    }
}

/// Yields and sleeps of `rounds` rounds beside an armed completion queue.
fn yields_and_sleeps(away_ns: u64, rounds: usize) -> (u64, u64) {
    let none = || AtomicU64::new(0);
    let cpu = Arc::new(Cpu { away_ns, now_ns: AtomicU64::new(1), yields: none(), sleeps: none() });
    let runtime = Runtime::Virtual(Arc::clone(&cpu) as Arc<dyn World>);
    let engine = engine_in(runtime.clone(), BusyPort::default());
    engine.polling.armed_cqs().fetch_add(1, SeqCst);
    assert!(engine.has_sleeper());
    let (governor, _kick) = (Governor::new(*engine.tuning()), engine.polling.progress.kick());
    let (fds, slice, slot) = (WaitFds::default(), Slice::default(), Weak::new());
    let mut progress = Progress { runtime, slot, governor, fds, _kick, slice, spins: 0, ran_ns: 0 };
    for _ in 0..rounds {
        progress.round(Arc::clone(&engine), &Arc::downgrade(&engine));
    }
    (cpu.yields.load(SeqCst), cpu.sleeps.load(SeqCst))
}

#[test]
fn a_yield_that_takes_long_beside_an_armed_completion_queue_ends_the_spinning() {
    assert_eq!(yields_and_sleeps(3_000_000, 10), (1, 9));
}

#[test]
fn a_progress_thread_beside_an_armed_completion_queue_spins_while_its_yields_are_short() {
    assert_eq!(yields_and_sleeps(1_000, 10), (10, 0));
}
