//! The device and its contexts (ibv_open_device(3), ibv_get_async_event(3)).

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use transport::chaos::{Chaos, ChaosPlan};
use transport::{MAX_MSG_SZ, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE, PathMtu};

use super::hooks::EarlyHooks;
use super::quota::{AH_MAX, CQ_MAX, DM_MAX, PD_MAX, Quotas, SRQ_MAX};
use super::{
    AsyncElement, AsyncEvent, DeviceAttr, DeviceConfig, GidEntry, HookConfig, PortAttr, Refusal, Traffic,
};
use crate::chaos;
use crate::cq::CQE_MAX;
use crate::engine::Engine;
use crate::engine::group::Engines;
use crate::engine::multicast::MEMBERS_MAX;
use crate::engine::tables::QP_MAX;
use crate::fork::{self, EngineSlot};
use crate::gid::{GID_TBL_LEN, GidTable};
use crate::guard;
use crate::interfaces::Interfaces;
use crate::keys::{MR_MAX, MW_MAX};
use crate::netdev::{ContextEvents, Gids};
use crate::port::{Outlook, PortChoice, PortKind};
use crate::registry::{DomainConfig, Membership};

/// Largest amount of inline data, in bytes.
pub(super) const INLINE_MAX: u32 = 512;

/// An RDMA device. Opening one only reads the netdev. The sockets and the background thread start with the
/// first protection domain or CM identifier.
#[derive(Clone)]
pub struct Device(pub(super) Arc<DeviceInner>);

pub(super) struct DeviceInner {
    pub(super) name: String,
    pub(super) gids: Arc<Gids>,
    pub(super) port: Option<PortChoice>,
    pub(super) traffic: Option<Traffic>,
    pub(super) engines: Option<Engines>,
    pub(super) chaos_plan: Option<ChaosPlan>,
    pub(super) chaos: OnceLock<Arc<Chaos>>,
    pub(super) domain: Option<DomainConfig>,
    pub(super) hooks: EarlyHooks,
    pub(super) engine: Arc<EngineSlot>,
    pub(super) quotas: Quotas,
}

impl Device {
    /// Finds the netdev and reads its addresses.
    ///
    /// # Errors
    /// A [`Refusal`] inside; kind `NotFound` if there is no such interface, `AddrNotAvailable` if it has no
    /// address, `InvalidInput` for a name that cannot be part of a path. Errors of netlink.
    pub fn open(config: &DeviceConfig) -> io::Result<Self> {
        Self::open_on(config, &Interfaces::read()?)
    }

    /// As [`open`](Self::open), with the interfaces of this namespace.
    pub(super) fn open_on(config: &DeviceConfig, interfaces: &Interfaces) -> io::Result<Self> {
        config.check_name(String::new)?;
        let mut table = GidTable::on(interfaces, config.netdev.as_deref())?;
        if config.kernel_gids {
            table = table.in_kernel_order(interfaces);
        }
        let gids = Arc::new(Gids::new(table.of_instance(config.instance)));
        let name = if config.name.is_empty() { "roxie0".to_owned() } else { config.name.clone() };
        let hooks = EarlyHooks::new(config.hooks.clone().unwrap_or_else(HookConfig::from_env));
        let DeviceConfig { port, traffic, engines, chaos: chaos_plan, ref domain, .. } = *config;
        let (domain, engine, quotas) = (domain.clone(), fork::new_slot(&gids)?, Quotas::default());
        let chaos = OnceLock::new();
        Ok(Self(Arc::new(DeviceInner {
            name,
            gids,
            port,
            traffic,
            engines,
            chaos_plan,
            chaos,
            domain,
            hooks,
            engine,
            quotas,
        })))
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the netdev and its current addresses.
    #[must_use]
    pub fn gids(&self) -> Arc<GidTable> {
        self.follow_netdev();
        self.0.gids.get()
    }

    /// Takes the changes of the netdev, unless an engine does that.
    fn follow_netdev(&self) {
        // Locked: another thread is starting the engine, which takes them. The lock is kept, so that no
        // engine starts with the table from before.
        if let Some(engine) = self.0.engine.try_lock()
            && engine.is_none()
        {
            self.0.gids.follow(|_, _, _| {});
        }
    }

    /// True if the device notices changes of its netdev, or has an engine.
    pub(crate) fn is_followed(&self) -> bool {
        // Locked: another thread is starting the engine.
        self.0.engine.try_lock().is_none_or(|engine| engine.is_some()) || self.0.gids.is_followed()
    }

    /// True if the netdev was removed, or moved to another network namespace, while the device was open: the
    /// device does not come back.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.follow_netdev();
        self.0.gids.is_removed()
    }

    /// Returns the EUI-64 of the MAC that the netdev had when it was found, host byte order.
    #[must_use]
    pub fn node_guid(&self) -> u64 {
        u64::from_be_bytes(self.gids().node_guid)
    }

    /// Creates a context: it has its own asynchronous event queue, and shares the engine.
    ///
    /// # Errors
    /// `EMFILE` if the process is out of descriptors.
    pub fn context(&self) -> io::Result<Context> {
        let events = ContextEvents::new()?;
        let engine = self.0.engine.lock();
        self.0.gids.add_context(&events, engine.is_some());
        drop(engine);
        tell_command();
        Ok(Context(Arc::new(ContextInner { events, device: Opened(self.clone()) })))
    }

    /// Returns the name and value of every counter; empty if the engine has not started.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let engine = self.0.engine.lock();
        let Some(engine) = &*engine else { return Vec::new() };
        engine.sum_of_rows()
    }

    /// Describes the kind and mode of the port as text; `None` if the engine has not started.
    #[must_use]
    pub fn port(&self) -> Option<String> {
        let engine = self.0.engine.lock();
        engine.as_ref().map(|engine| engine.lock().port.report().description)
    }

    /// True if this process, and not the parent that it was forked from, has started the engine. Does not
    /// wait: false while another thread is starting it.
    #[must_use]
    pub fn is_running(&self) -> bool {
        let engine = self.0.engine.try_lock();
        engine.is_some_and(|engine| {
            engine.as_ref().is_some_and(|engine| {
                !engine.services.registry.membership().is_some_and(Membership::is_inherited)
            })
        })
    }

    /// Prepares for the end of the process while queue pairs are open: sends the ACKs that are owed to peers,
    /// then waits some milliseconds for the answers to disconnect requests.
    pub fn quiesce(&self) {
        let engine = self.0.engine.lock().clone();
        if let Some(engine) = engine {
            engine.all().for_each(Engine::release_acks);
            engine.send_disconnects();
            engine.all().for_each(Engine::release_held);
            engine.all().for_each(Engine::tell_recording);
        }
    }

    /// Returns one line about the faults that were injected so far; `None` without `--chaos`, and before the
    /// engine has started.
    #[must_use]
    pub fn chaos_report(&self) -> Option<String> {
        self.0.chaos.get().map(|chaos| chaos::report(chaos))
    }
}

impl PartialEq for Device {
    /// True for handles of the same device.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

/// An open device (`struct ibv_context`).
#[derive(Clone)]
pub struct Context(pub(super) Arc<ContextInner>);

pub(super) struct ContextInner {
    // Dropped first: from then on the context is not open.
    pub(super) events: Arc<ContextEvents>,
    device: Opened,
}

/// The device of a context. If it was removed, its engine ends with its last context, which every object has.
struct Opened(Device);

impl Drop for Opened {
    fn drop(&mut self) {
        let DeviceInner { gids, engine, .. } = &*self.0.0;
        gids.end_unused(engine);
    }
}

impl Context {
    /// Returns the number of handles of this context, with those that its objects and identifiers have.
    #[must_use]
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Returns the device of this context.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device.0
    }

    /// Returns its number, which no other context of the process has.
    pub(super) fn number(&self) -> u32 {
        self.0.events.number
    }

    pub(super) fn quotas(&self) -> &Quotas {
        &self.device().0.quotas
    }

    /// Returns limits and identity.
    #[must_use]
    pub fn query_device(&self) -> DeviceAttr {
        DeviceAttr {
            node_guid: self.device().node_guid(),
            vendor_id: 0x00_ffff,
            vendor_part_id: 1,
            fw_ver: env!("CARGO_PKG_VERSION"),
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            max_qp: QP_MAX as u32,
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE as u32,
            max_inline_data: INLINE_MAX,
            max_cq: CQ_MAX,
            max_cqe: CQE_MAX,
            max_mr: MR_MAX,
            on_demand_paging: guard::is_on(),
            max_mcast: MEMBERS_MAX as u32,
            max_dm_size: DM_MAX as usize,
            max_mw: MW_MAX,
            max_pd: PD_MAX,
            max_qp_rd_atom: MAX_RD_ATOMIC,
            max_srq: SRQ_MAX,
            max_srq_wr: MAX_QP_WR,
            max_srq_sge: MAX_SGE as u32,
            max_ah: AH_MAX,
            local_ca_ack_delay: 15,
        }
    }

    /// Returns the reason why the engine could not start now, as far as it is known without opening a port:
    /// AF_XDP was requested and is not possible. `None` while the engine runs.
    #[must_use]
    pub fn port_refusal(&self) -> Option<Refusal> {
        let device = self.device();
        let choice = device.choice().ok().filter(|choice| choice.kind != PortKind::Udp)?;
        if device.is_running() {
            return None;
        }
        let gids = device.gids();
        match Outlook::new(choice, &gids) {
            Ok(Outlook::None(error)) => Some(Refusal::NoXsk { netdev: gids.netdev.clone(), error }),
            _ => None,
        }
    }

    /// Returns the attributes of port 1, the only port.
    #[must_use]
    pub fn query_port(&self) -> PortAttr {
        let gids = self.device().gids();
        PortAttr {
            active: gids.has_carrier && self.port_refusal().is_none(),
            is_enabled: gids.up,
            max_mtu: PathMtu::M4096,
            active_mtu: gids.active_mtu(),
            gid_tbl_len: GID_TBL_LEN as u32,
            max_msg_sz: MAX_MSG_SZ as u32,
        }
    }

    /// Returns the current GID table; every row is a usable address. Indices may be missing.
    #[must_use]
    pub fn gids(&self) -> Vec<GidEntry> {
        let table = self.device().gids();
        table.rows().map(|(index, row)| GidEntry { index, gid: row.gid, ifindex: row.ifindex }).collect()
    }

    /// Number of completion vectors, one for each engine that the device may have (`num_comp_vectors`).
    #[must_use]
    pub fn comp_vectors(&self) -> u32 {
        // An invalid value is refused when the engines start.
        self.device().engines().unwrap_or_default().most() as u32
    }

    /// Returns the descriptor that is readable while asynchronous events are unread; for poll(2), epoll(7)
    /// and `O_NONBLOCK`. Before the device has an engine, it is also readable when the netdev has changed.
    #[must_use]
    pub fn async_fd(&self) -> RawFd {
        self.0.events.fd()
    }

    /// Returns the next asynchronous event; waits for one.
    ///
    /// # Errors
    /// `WouldBlock` if the descriptor is non-blocking and there is no event; `Interrupted` on a signal.
    pub fn get_async_event(&self) -> io::Result<AsyncEvent> {
        self.0.events.get(|| self.device().follow_netdev())
    }

    /// Drops the unread events of an object that is being destroyed.
    pub fn forget_async_events(&self, element: AsyncElement) {
        self.0.events.queue.retain(|event| event.element != element);
    }
}

/// Creates the file by which `roxie run` knows at the end of its command that a program opened the device.
fn tell_command() {
    // Not a `Once`, in which a forked child could wait for a thread that it does not have.
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    if !IS_TOLD.swap(true, Ordering::Relaxed)
        && let Some(dir) = std::env::var_os("ROXIE_RUN")
    {
        // A program of another user, or behind a chroot(2), cannot; then the command does not know.
        let made = sys::Dir::own(dir.as_ref()).map(|dir| dir.create_new("opened".as_ref(), 0o600));
        drop(made);
    }
}
