//! A device in a simulation's world: its port, registry, clock and threads are the simulation's, everything
//! else is that of any device.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use wire::Gid;

use super::hooks::EarlyHooks;
use super::quota::Quotas;
use super::{Device, Due, HookConfig, Traffic};
use crate::cm::SharedPorts;
use crate::engine::progress;
use crate::engine::{Engine, Parts};
use crate::gid::{GidRow, GidTable};
use crate::netdev::Gids;
use crate::port::Port;
use crate::registry::Registry;
use crate::runtime::Runtime;
use crate::sched::Tuning;
use crate::verbs::device::DeviceInner;

/// The interface index of a simulated netdev.
const IFINDEX: u32 = 7;

/// What a simulation provides for a device.
pub struct Simulated {
    /// The address of its netdev.
    pub address: IpAddr,
    /// MTU of the netdev in bytes.
    pub mtu: u32,
    /// Where its packets go.
    pub port: Box<dyn Port>,
    /// The processes that share the address.
    pub registry: Box<dyn Registry>,
    /// Clock and threads.
    pub runtime: Runtime,
    /// Tunables of its scheduler.
    pub tuning: Tuning,
    /// What is attached from the start.
    pub hooks: HookConfig,
}

impl Device {
    /// Opens a device in a simulation and starts its progress thread there.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn open_simulated(parts: Simulated) -> io::Result<Self> {
        let Simulated { address, mtu, port, registry, runtime, tuning, hooks } = parts;
        let [slot_high, slot_low] = registry.slot().to_be_bytes();
        let table = GidTable {
            netdev: "sim0".to_owned(),
            ifindex: IFINDEX,
            mtu,
            up: true,
            has_carrier: true,
            entries: vec![GidRow { gid: Gid::from(address), ifindex: IFINDEX }],
            beyond: Vec::new(),
            removed: Vec::new(),
            above: Vec::new(),
            bonds: Vec::new(),
            has_default: false,
            loopback: [GidRow::EMPTY; 2],
            node_guid: [2, 0, 0, 0xff, 0xfe, 0, slot_high, slot_low],
        };
        let gids = Arc::new(Gids::new(table));
        let hooks = EarlyHooks::new(hooks);
        let device = Self(Arc::new(DeviceInner {
            name: "roxie0".to_owned(),
            gids: Arc::clone(&gids),
            port: None,
            traffic: Some(Traffic::default()),
            engines: None,
            chaos_plan: None,
            chaos: OnceLock::new(),
            domain: None,
            hooks,
            engine: Arc::default(),
            quotas: Quotas::default(),
        }));
        let (name, hooks) = (device.0.name.clone(), device.0.hooks.take(IFINDEX)?);
        let engine = Engine::new(
            Parts {
                device: name,
                port,
                registry,
                gids,
                ports: SharedPorts::default(),
                hooks,
                control: None,
                runtime,
                tuning,
            },
            None,
        )?;
        engine.lock().tables.number_qps_from_zero();
        progress::spawn(&engine, &device.0.engine)?;
        *device.0.engine.lock() = Some(engine);
        Ok(device)
    }

    /// The netdev was removed, as the engine would find.
    pub fn lose_simulated_netdev(&self) {
        let engine = self.0.engine.lock().clone();
        if let Some(engine) = engine {
            engine.lose_device();
        }
    }

    /// The work that the engine has; `None` while a thread holds its lock, or before it is started.
    #[must_use]
    pub fn due(&self) -> Option<Due> {
        let engine = self.0.engine.lock().clone()?;
        engine.due()
    }
}
