//! The last step of a recipe: the verdict on the packet.

use super::emit::{Emit, eth, net16};
use super::{RecipeError, Select, forward, frame, in_range};
use crate::helper::Helper;
use crate::insn::{AluOp, Cond, Reg, Size};
use crate::map::{MapDef, MapKind, MapRef};
use crate::xdp::{XdpAction, XdpMd};

/// Last step of a program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// The same verdict for all packets. It cannot be [`XdpAction::Redirect`].
    Verdict(XdpAction),
    /// Sends the packet back: the Ethernet addresses are exchanged and, unless there is a VLAN tag, the IP
    /// addresses too, and the packet leaves through the interface it came in on. UDP ports do not change. All
    /// checksums except the ICRC stay correct.
    Reflect,
    /// Redirects the packet to an entry of a map.
    Redirect {
        /// Kind of the map.
        target: Target,
        /// Number of entries of the map, at least as many as `pick` can select.
        entries: u32,
        /// Selects the entry.
        pick: Pick,
        /// Verdict if the entry is empty. It cannot be [`XdpAction::Redirect`].
        miss: XdpAction,
    },
    /// Forwards the packet as a router does, by the kernel's routes and neighbours, but without its network
    /// stack. The outgoing interface must be in the map [`PORTS`](super::PORTS). Packets that cannot be
    /// forwarded pass to the network stack: tagged packets, IPv4 options, expired packets, unknown
    /// neighbours, and all packets if forwarding is disabled.
    Forward {
        /// Maximum number of interfaces.
        ports: u32,
    },
}

/// Kind of map to redirect to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Target {
    /// AF_XDP sockets.
    Xsk,
    /// Network interfaces.
    Dev,
    /// CPUs. They continue with the program of the entry, or in the network stack.
    Cpu,
}

impl Target {
    /// Returns the name of the map.
    #[must_use]
    pub const fn map_name(self) -> &'static str {
        match self {
            Target::Xsk => "xsks",
            Target::Dev => "devs",
            Target::Cpu => "cpus",
        }
    }

    fn map(self, entries: u32) -> MapDef {
        match self {
            Target::Xsk => MapDef::xskmap(self.map_name(), entries),
            Target::Dev => MapDef::devmap(self.map_name(), entries),
            Target::Cpu => MapDef::cpumap(self.map_name(), entries),
        }
    }
}

/// Selects the map entry to redirect to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pick {
    /// This entry.
    Fixed(u32),
    /// The entry with the number of the receive queue. An AF_XDP socket only receives packets of its own
    /// queue.
    RxQueue,
    /// One of `ways` entries, by a hash of the destination QPN, so that all packets of a QP take the same
    /// entry. Needs [`Select::Roce`].
    Qpn {
        /// Number of entries, 1..=65536.
        ways: u32,
    },
    /// `ways` consecutive entries for each receive queue, among them one by the destination QPN. Needs
    /// [`Select::Roce`].
    RxQueueQpn {
        /// Number of entries per queue, 1..=65536.
        ways: u32,
    },
}

impl Pick {
    /// 2^32 divided by the golden ratio: consecutive QPNs spread evenly (Knuth's multiplicative hash).
    const MULTIPLIER: u32 = 0x9e37_79b1;

    /// Emits code that sets R2 to the index.
    fn emit(self, select: Select, emit: &mut Emit) -> Result<(), RecipeError> {
        match self {
            Pick::Fixed(index) => {
                emit.asm.alu32(AluOp::Mov, Reg::R2, index as i32);
            }
            Pick::RxQueue => {
                emit.asm.load_ctx(Reg::R2, Reg::R6, XdpMd::RxQueueIndex);
            }
            Pick::Qpn { ways } => Self::emit_way(ways, select, emit)?,
            Pick::RxQueueQpn { ways } => {
                Self::emit_way(ways, select, emit)?;
                emit.asm.load_ctx(Reg::R3, Reg::R6, XdpMd::RxQueueIndex);
                emit.asm.alu(AluOp::Mul, Reg::R3, ways as i32).add(Reg::R2, Reg::R3);
            }
        }
        Ok(())
    }

    fn emit_way(ways: u32, select: Select, emit: &mut Emit) -> Result<(), RecipeError> {
        select.require_dest_qp("selection by QPN")?;
        in_range((1..=65536).contains(&ways), "the number of ways")?;
        emit.asm.load(Size::W, Reg::R2, Reg::R10, frame::DEST_QP);
        emit.asm.alu32(AluOp::Mul, Reg::R2, Self::MULTIPLIER as i32);
        emit.asm.alu(AluOp::Mul, Reg::R2, ways as i32).rsh(Reg::R2, 32);
        Ok(())
    }
}

impl Action {
    /// Emits the action, which leaves the verdict in R0.
    pub(super) fn emit(&self, select: Select, emit: &mut Emit) -> Result<(), RecipeError> {
        match *self {
            Action::Verdict(XdpAction::Redirect) | Action::Redirect { miss: XdpAction::Redirect, .. } => {
                return Err(RecipeError::NoTarget);
            }
            Action::Verdict(action) => {
                emit.asm.mov(Reg::R0, action.number() as i32);
            }
            Action::Reflect => reflect(emit),
            Action::Redirect { target, entries, pick, miss } => {
                in_range(entries > 0, "the size of the redirect map")?;
                pick.emit(select, emit)?;
                let map = emit.asm.map(target.map(entries));
                if emit.checks_mtu && target == Target::Dev {
                    check_mtu(emit, map);
                }
                emit.asm.load_map(Reg::R1, map).mov(Reg::R3, miss.number() as i32).call(Helper::RedirectMap);
            }
            Action::Forward { ports } => {
                in_range(ports > 0, "the number of ports")?;
                let map = emit.asm.map(MapDef::new(forward::PORTS, MapKind::DevmapHash, 4, 8, ports));
                forward::emit(emit, map);
            }
        }
        Ok(())
    }
}

/// Emits code that passes the packet if it is longer than the MTU of the interface in entry R2 of `devices`.
/// R2 stays. The length is that of all fragments, without the VLAN tag that the kernel allows in addition.
fn check_mtu(emit: &mut Emit, devices: MapRef) {
    let (pass, empty) = (emit.pass(), emit.asm.label());
    emit.asm.store(Size::W, Reg::R10, frame::KEY, Reg::R2);
    emit.lookup(devices, frame::KEY);
    emit.if_null(empty);
    emit.asm.load(Size::W, Reg::R7, Reg::R0, 0).mov(Reg::R1, Reg::R6).call(Helper::XdpGetBuffLen);
    emit.asm.add(Reg::R0, -(eth::LEN + 4)).store(Size::W, Reg::R10, frame::VALUE, Reg::R0);
    emit.asm.mov(Reg::R1, Reg::R6).mov(Reg::R2, Reg::R7).mov(Reg::R3, Reg::R10);
    emit.asm.add(Reg::R3, i32::from(frame::VALUE)).mov(Reg::R4, 0).mov(Reg::R5, 0).call(Helper::CheckMtu);
    emit.asm.branch(Cond::Ne, Reg::R0, 0, pass).bind(empty).load(Size::W, Reg::R2, Reg::R10, frame::KEY);
}

fn reflect(emit: &mut Emit) {
    emit.load_packet();
    let pass = emit.pass();
    let (ipv4, tx) = (emit.asm.label(), emit.asm.label());
    emit.asm.need(Reg::R2, Reg::R7, eth::LEN, Reg::R8, pass);
    for off in (0..6).step_by(2) {
        exchange(emit, Size::H, off, off + 6);
    }
    let asm = &mut emit.asm;
    asm.load(Size::H, Reg::R1, Reg::R7, eth::TYPE);
    asm.branch(Cond::Eq, Reg::R1, net16(eth::IPV4), ipv4).branch(Cond::Ne, Reg::R1, net16(eth::IPV6), tx);
    asm.need(Reg::R2, Reg::R7, eth::LEN + 40, Reg::R8, tx);
    for off in (22..38).step_by(4) {
        exchange(emit, Size::W, off, off + 16);
    }
    emit.asm.jump(tx).bind(ipv4).need(Reg::R2, Reg::R7, eth::LEN + 20, Reg::R8, tx);
    exchange(emit, Size::W, 26, 30);
    emit.asm.bind(tx).mov(Reg::R0, XdpAction::Tx.number() as i32);
}

/// Emits code that exchanges two fields of the packet at R7.
fn exchange(emit: &mut Emit, size: Size, a: i16, b: i16) {
    emit.asm.load(size, Reg::R1, Reg::R7, a).load(size, Reg::R2, Reg::R7, b);
    emit.asm.store(size, Reg::R7, a, Reg::R2).store(size, Reg::R7, b, Reg::R1);
}
