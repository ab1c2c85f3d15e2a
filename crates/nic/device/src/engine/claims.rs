//! Further slots of an engine: when it claims one from the process registry, and what happens if that fails.
//!
//! Claims are made one at a time, because each answers the same want. A forking thread holds their lock, too:
//! a child would keep copies of the sockets of a claim that is not complete.

use std::io;
use std::sync::atomic::Ordering;

use transport::{Instant, VerbsError};
use wire::Qpn;

use super::Engine;
use super::entry::QpEntry;
use crate::notice::notice;
use crate::qp_numbers::QpIndex;
use crate::registry::FurtherSlot;

/// Interval of claims of further slots while they fail: in a full group each takes some 20 ms.
const CLAIM_INTERVAL_NS: u64 = 1_000_000_000;

impl Engine {
    /// Adds a queue pair; its QPN is in a slot of this engine.
    pub(crate) fn insert_qp(
        &self,
        build: impl FnOnce(Qpn) -> Result<QpEntry, VerbsError>,
    ) -> Result<(QpIndex, Qpn), VerbsError> {
        let now = self.now();
        if self.may_claim(now) {
            self.claim_slot(now);
        }
        self.lock().tables.insert_qp(now, build)
    }

    fn may_claim(&self, now: Instant) -> bool {
        self.lock().tables.wants_slot(now) && now.0 >= self.services.claims.from_ns.load(Ordering::Relaxed)
    }

    /// Claims a further slot. Without one, numbers of destroyed queue pairs come again soon, or queue pairs
    /// are refused.
    #[cold]
    fn claim_slot(&self, now: Instant) {
        let _one_claim = self.runtime.lock(&self.services.claims.lock);
        // Another thread may have claimed a slot, or failed, while this one waited.
        if !self.may_claim(now) {
            return;
        }
        match self.services.registry.claim_slot().and_then(|further| self.add_slot(further)) {
            // The progress thread must watch the new socket, too.
            Ok(()) => {
                self.services.claims.made.fetch_add(1, Ordering::Release);
                self.polling.progress.wake();
            }
            Err(error) => {
                self.services.claims.from_ns.store(now.plus_ns(CLAIM_INTERVAL_NS).0, Ordering::Relaxed);
                if !self.lock().tables.has_numbers() {
                    notice(format_args!("no numbers for further queue pairs: {error}"));
                }
            }
        }
    }

    /// Makes the port receive the packets of a claimed slot, or releases the slot.
    fn add_slot(&self, further: FurtherSlot) -> io::Result<()> {
        let FurtherSlot { slot, queue } = further;
        let mut core = self.lock();
        if let Err(error) = core.port.add_slot(slot, queue) {
            drop(core);
            self.services.registry.release_slot(slot);
            return Err(error);
        }
        let _without = core.hooks.with(|stages| stages.add_slot(slot));
        core.tables.add_slot(slot);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::any::Any;
    use std::net::Ipv4Addr;
    use std::os::fd::{OwnedFd, RawFd};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, Barrier};
    use std::thread;
    use std::time::{Duration, Instant as Clock};

    use transport::cm::{DisconnectNotice, JournalChange};
    use transport::numbering::SLOT_QPNS;
    use wire::Gid;

    use super::*;
    use crate::cm::SharedPorts;
    use crate::engine::Parts;
    use crate::gid::GidTable;
    use crate::netdev::Gids;
    use crate::port::{
        DeadPort, Destination, FlowId, FlowKey, Headers, Port, PortProperties, PortReport, RxBatch, RxQueue,
        RxScope,
    };
    use crate::registry::{ForwardOutcome, Membership, Registry, ServiceRequest};
    use crate::runtime::Runtime;
    use crate::sched::Tuning;
    use crate::stages::Hooks;

    const SLOT: u16 = 3;
    /// A claim lasts until all threads are in it, but at most this long.
    const CLAIM_MAX: Duration = Duration::from_millis(200);

    /// What the registry was asked for.
    #[derive(Debug, Default)]
    struct Asked {
        claimed: AtomicUsize,
        released: AtomicUsize,
    }

    /// A registry that has any number of slots.
    struct Slots(Arc<Asked>);

    impl Registry for Slots {
        fn slot(&self) -> u16 {
            SLOT
        }

        fn claim_slot(&self) -> io::Result<FurtherSlot> {
            let claims = self.0.claimed.fetch_add(1, SeqCst);
            let until = Clock::now() + CLAIM_MAX;
            while self.0.claimed.load(SeqCst) < 2 && Clock::now() < until {
                thread::yield_now();
            }
            let queue = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.into();
            Ok(FurtherSlot { slot: SLOT + 1 + claims as u16, queue })
        }

        fn release_slot(&self, slot: u16) {
            assert!(slot > SLOT);
            self.0.released.fetch_add(1, SeqCst);
        }

        fn listener_fd(&self) -> RawFd {
            -1
        }

        fn poll_listener(&self, _: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
            0
        }

        fn forward(&self, _: u16, _: &RxBatch<'_>) -> io::Result<ForwardOutcome> {
            Ok(ForwardOutcome::NoMember)
        }

        fn forward_to_all(&self, _: &RxBatch<'_>) -> usize {
            0
        }

        fn forward_to_service(&self, _: u16, _: u16, _: Gid, _: &RxBatch<'_>) -> io::Result<bool> {
            Ok(false)
        }

        fn claim_service(&self, _: u16, _: u16, _: ServiceRequest) -> io::Result<Box<dyn Any + Send>> {
            Ok(Box::new(()))
        }

        fn update_journal(&self, _: JournalChange) -> io::Result<()> {
            Ok(())
        }

        fn take_disconnect_notices(&self) -> Vec<DisconnectNotice> {
            Vec::new()
        }

        fn rescan_at(&self) -> Option<u64> {
            None
        }

        fn set_sibling_slots(&self, _: Vec<u16>) {}

        fn connects(&self) -> u64 {
            0
        }

        fn membership(&self) -> Option<&Membership> {
            None
        }
    }

    /// A port that adds any slot, with one more descriptor then, and has received `arriving` at each look.
    #[derive(Default)]
    pub(in crate::engine) struct TestPort {
        dead: DeadPort,
        added: usize,
        /// Nothing if it is empty.
        arriving: &'static [u8],
    }

    impl TestPort {
        pub(in crate::engine) fn receiving(arriving: &'static [u8]) -> TestPort {
            TestPort { arriving, ..TestPort::default() }
        }
    }

    impl Port for TestPort {
        fn add_slot(&mut self, _: u16, _: OwnedFd) -> io::Result<()> {
            self.added += 1;
            Ok(())
        }

        fn open_flow(&mut self, key: &FlowKey, to: Destination) -> io::Result<FlowId> {
            self.dead.open_flow(key, to)
        }

        fn close_flow(&mut self, flow: FlowId) {
            self.dead.close_flow(flow);
        }

        fn datagram_flow(&mut self, key: &FlowKey) -> io::Result<FlowId> {
            self.dead.datagram_flow(key)
        }

        fn headers(&mut self, flow: FlowId) -> Option<Headers> {
            self.dead.headers(flow)
        }

        fn tx_slot(&mut self) -> &mut [u8] {
            self.dead.tx_slot()
        }

        fn tx_commit(&mut self, flow: FlowId, len: usize) {
            self.dead.tx_commit(flow, len);
        }

        fn flush(&mut self) -> usize {
            self.dead.flush()
        }

        fn recv(&mut self, _: RxScope, f: &mut dyn FnMut(&RxBatch<'_>)) -> usize {
            if !self.arriving.is_empty() {
                f(&RxBatch { queue: RxQueue::Slot, ..RxBatch::of_test(self.arriving) });
            }
            usize::from(!self.arriving.is_empty())
        }

        fn properties(&self) -> PortProperties {
            PortProperties { poll_fds: vec![-1; self.added], ..self.dead.properties() }
        }

        fn report(&self) -> PortReport {
            self.dead.report()
        }
    }

    fn engine(port: impl Port + 'static) -> (Arc<Engine>, Arc<Asked>) {
        let asked = Arc::new(Asked::default());
        (engine_of(&asked, Runtime::Kernel, port), asked)
    }

    /// An engine without a progress thread.
    pub(in crate::engine) fn engine_in(runtime: Runtime, port: impl Port + 'static) -> Arc<Engine> {
        engine_of(&Arc::default(), runtime, port)
    }

    fn engine_of(asked: &Arc<Asked>, runtime: Runtime, port: impl Port + 'static) -> Arc<Engine> {
        let parts = Parts {
            device: "test".to_owned(),
            port: Box::new(port),
            registry: Box::new(Slots(Arc::clone(asked))),
            gids: Arc::new(Gids::new(GidTable::without_addresses())),
            ports: SharedPorts::default(),
            hooks: Hooks::default(),
            control: None,
            runtime,
            tuning: Tuning::default(),
        };
        Engine::new(parts, None).expect("a descriptor")
    }

    /// Draws a number for a queue pair that is not created.
    fn draw(engine: &Engine) -> Option<Qpn> {
        let mut drawn = None;
        let result = engine.insert_qp(|qpn| {
            drawn = Some(qpn);
            let number = qpn.value();
            Err(transport::refuse!(EINVAL, "test", "number"; number; "{number} is only drawn"))
        });
        assert!(result.is_err());
        drawn
    }

    fn draw_all_of_a_slot(engine: &Engine, asked: &Asked) {
        for _ in 0..SLOT_QPNS {
            assert!(draw(engine).is_some());
        }
        assert_eq!(asked.claimed.load(SeqCst), 0);
    }

    #[test]
    fn threads_that_want_a_further_slot_at_once_claim_one() {
        let (engine, asked) = engine(TestPort::default());
        draw_all_of_a_slot(&engine, &asked);
        let both = Barrier::new(2);
        let draw_at_once = || {
            both.wait();
            draw(&engine).map(transport::numbering::slot_of)
        };
        let slots = thread::scope(|scope| {
            let other = scope.spawn(draw_at_once);
            [draw_at_once(), other.join().expect("no panic")]
        });
        assert_eq!(asked.claimed.load(SeqCst), 1);
        assert_eq!(slots, [Some(SLOT + 1); 2]);
    }

    #[test]
    fn a_thread_that_sleeps_watches_the_socket_of_a_claimed_slot() {
        let (engine, asked) = engine(TestPort::default());
        let mut fds = crate::engine::progress::WaitFds::default();
        let before = fds.of(&engine).len();
        draw_all_of_a_slot(&engine, &asked);
        assert_eq!(fds.of(&engine).len(), before);
        assert!(draw(&engine).is_some());
        assert_eq!((asked.claimed.load(SeqCst), fds.of(&engine).len()), (1, before + 1));
        assert!(engine.polling.progress.kick().take().is_ok(), "it has to leave its old descriptors");
    }

    #[test]
    fn a_slot_that_the_port_cannot_add_is_released_and_the_next_claim_waits() {
        let (engine, asked) = engine(DeadPort::default());
        draw_all_of_a_slot(&engine, &asked);
        for _ in 0..100 {
            // Numbers come again instead.
            assert_eq!(draw(&engine).map(transport::numbering::slot_of), Some(SLOT));
        }
        assert_eq!((asked.claimed.load(SeqCst), asked.released.load(SeqCst)), (1, 1));
    }
}
