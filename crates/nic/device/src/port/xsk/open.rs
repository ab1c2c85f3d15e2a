//! Opening: program, sockets, maps, in an order in which no packet reaches an incomplete port.

use std::hash::RandomState;
use std::net::IpAddr;
use std::time::Duration;

use wire::ROCE_PORT;

use super::owner::Owner;
use super::paths::Paths;
use super::program::ProgramWatch;
use super::segment::Segments;
use super::sockets::{Plan, QUEUES_MAX, Sockets};
use super::{BurstPath, Extra, Place, Staging, XskError, XskPort, XskStep};
use crate::port::flow_table::FlowTable;
use crate::port::{MAX_PACKET, PortCounters, UdpPort};
use crate::xdp::{AttachError, Mode, Steering};
use sys::{Epoll, Link, Netlink, XdpFeatures, XdpMode, now_ns, xdp_features};

/// The parts of an [`XskPort`].
#[derive(Debug)]
pub struct XskPortConfig {
    /// For all packets that are not for this process alone.
    pub inner: UdpPort,
    /// Interface.
    pub ifindex: u32,
    /// This process's first slot: bits 23..12 of its QPNs.
    pub slot: u16,
    /// Destination port of all packets sent and received.
    pub udp_port: u16,
    /// Where the program runs.
    pub mode: Mode,
    /// How bursts leave in copy mode.
    pub bursts: BurstPath,
}

/// How long to wait for a roxie program that is on the interface already to disappear: the kernel
/// detaches the program of a dead process some time after its end.
const LEAVING_NS: u64 = 2_000_000_000;
const LEAVING_PAUSE: Duration = Duration::from_millis(5);

impl XskPort {
    /// Attaches the steering program to the interface and opens a socket on each of its receive queues.
    ///
    /// # Errors
    /// See [`XskError`]; the UDP port is returned with it.
    pub fn open(config: XskPortConfig) -> Result<XskPort, Box<(XskError, UdpPort)>> {
        match prepare(&config) {
            Ok(parts) => Ok(XskPort::assemble(config, parts)),
            Err(error) => Err(Box::new((error, config.inner))),
        }
    }

    fn assemble(config: XskPortConfig, parts: Parts) -> XskPort {
        let XskPortConfig { inner, slot, udp_port, bursts, .. } = config;
        let Parts { owner, steering, sockets, paths, addresses, epoll } = parts;
        let bursts_by_udp = bursts == BurstPath::Udp && !sockets.zero_copy;
        XskPort {
            inner,
            slots: vec![slot],
            udp_port,
            hasher: RandomState::new(),
            owner,
            steering: Some(steering),
            program: ProgramWatch::default(),
            sockets,
            paths,
            addresses,
            flows: Vec::new(),
            table: FlowTable::default(),
            last_inner: None,
            staging: Staging {
                chunk: None,
                scratch: vec![0; MAX_PACKET].into_boxed_slice(),
                place: Place::Scratch,
                prefers_inner: false,
                is_dry: false,
            },
            pushed: 0,
            bursts_by_udp,
            round: 0,
            segments: Segments::new(),
            joined: Vec::with_capacity(1 << 16),
            calls: 0,
            inner_busy_polls: 0,
            routes_changed: false,
            refreshed_ns: 0,
            confirmed_ns: now_ns(),
            epoll,
            counters: PortCounters::default(),
            extra: Extra::default(),
            generation: sys::generation(),
        }
    }
}

struct Parts {
    owner: Owner,
    steering: Steering,
    sockets: Sockets,
    paths: Paths,
    addresses: Vec<IpAddr>,
    epoll: Epoll,
}

fn prepare(config: &XskPortConfig) -> Result<Parts, XskError> {
    let during = |step| move |error| XskError::Socket { step, error };
    let link = Netlink::new()
        .and_then(|mut netlink| netlink.link(config.ifindex))
        .map_err(during(XskStep::Interface))?;
    if !link.is_ethernet {
        return Err(XskError::NotEthernet);
    }
    let owner = Owner::claim(config.ifindex)?;
    let queues = link.rx_queues.clamp(1, QUEUES_MAX);
    // Kernels before 6.3 do not report features; optional ones are tried anyway.
    let features = xdp_features(config.ifindex).unwrap_or_default();
    let steering = attach(config, queues, preferred_mode(config.mode, &link, features))?;
    let plan = Plan { ifindex: config.ifindex, mtu: link.mtu, features };
    let sockets = Sockets::open(&plan, &steering)?;
    let mut paths = Paths::new(config.ifindex).map_err(during(XskStep::Netlink))?;
    let epoll = Epoll::new().map_err(during(XskStep::Epoll))?;
    sockets.watch(&epoll).map_err(during(XskStep::Epoll))?;
    epoll.add(paths.events(), 0).map_err(during(XskStep::Epoll))?;
    let addresses = paths.addresses().map_err(during(XskStep::Netlink))?;
    for address in &addresses {
        steering.set_address(*address, true).map_err(during(XskStep::Steering))?;
    }
    steering.set_slot(config.slot, true).map_err(during(XskStep::Steering))?;
    Ok(Parts { owner, steering, sockets, paths, addresses, epoll })
}

/// Where the program of a port runs if the user chose no mode: in generic mode on a veth. There a burst of a
/// UDP socket arrives as one packet, and with a native program the peer would lose its segmentation offload,
/// TCP's too. Elsewhere the order of [`Mode::Auto`].
pub(crate) fn preferred_mode(mode: Mode, link: &Link, features: XdpFeatures) -> Mode {
    let is_veth = link.kind.as_deref() == Some("veth");
    if mode == Mode::Auto && is_veth && !features.zero_copy() { Mode::Only(XdpMode::Generic) } else { mode }
}

fn attach(config: &XskPortConfig, queues: u32, mode: Mode) -> Result<Steering, AttachError> {
    let start = now_ns();
    loop {
        match Steering::attach(config.ifindex, config.udp_port, queues, mode) {
            Err(AttachError::Occupied { name, .. })
                if name == Steering::NAME && now_ns() - start < LEAVING_NS =>
            {
                sys::pause(LEAVING_PAUSE);
            }
            // A roxie program that xdp-loader attached is for RoCE's own UDP port.
            Err(occupied @ AttachError::Occupied { .. }) if config.udp_port == ROCE_PORT => {
                let joined = Steering::join(config.ifindex, queues, config.mode);
                return joined.ok().flatten().ok_or(occupied);
            }
            done => return done,
        }
    }
}
