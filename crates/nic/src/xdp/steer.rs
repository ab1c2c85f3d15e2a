//! The program that steers this process's RoCE packets to its AF_XDP sockets and passes everything else.
//!
//! What decides is in three maps, so that the program is loaded once: our addresses, the QPN slots that are ours, the
//! socket of each receive queue. A packet that finds no socket goes to the network stack, where the udp port has it.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use bpf::recipe::{ADDRESSES, SLOTS, Target, source_key};
use bpf::{MapRef, ProgramKind, Recipe};

use super::{AttachError, Attached, Mode, attach};
use crate::sys::bpf::Map;

/// A steering program on an interface; it comes off on drop.
#[derive(Debug)]
pub struct Steering {
    attached: Attached,
    maps: Maps,
    queues: u32,
}

#[derive(Clone, Copy, Debug)]
struct Maps {
    addresses: MapRef,
    slots: MapRef,
    sockets: MapRef,
}

impl Steering {
    /// Name of the program in the kernel.
    pub const NAME: &str = "roxie_steer";

    /// Puts the program on the interface, for RoCE on `udp_port` and at most `queues` receive queues. Everything passes
    /// until a slot, an address and a socket are set.
    ///
    /// # Errors
    /// See [`attach`].
    pub fn attach(ifindex: u32, udp_port: u16, queues: u32, mode: Mode) -> Result<Steering, AttachError> {
        let recipe = Recipe { frags: true, counters: true, ..Recipe::steer(udp_port, queues) };
        match Steering::with(&recipe, ifindex, queues, mode) {
            // A kernel before 5.18 does not know programs that take fragments, nor how long a packet is with them.
            Err(AttachError::Load(error)) if error.error.raw_os_error() == Some(libc::EINVAL) => {
                let recipe = Recipe { frags: false, counters: false, ..recipe };
                Steering::with(&recipe, ifindex, queues, mode)
            }
            done => done,
        }
    }

    fn with(recipe: &Recipe, ifindex: u32, queues: u32, mode: Mode) -> Result<Steering, AttachError> {
        let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
        let program = recipe.program(Steering::NAME, ProgramKind::Xdp).map_err(invalid)?;
        let map = |name| program.map(name).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL));
        let maps =
            Maps { addresses: map(ADDRESSES)?, slots: map(SLOTS)?, sockets: map(Target::Xsk.map_name())? };
        Ok(Steering { attached: attach(ifindex, &program, mode)?, maps, queues })
    }

    /// Receive queues it steers to at most.
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// The program on the interface.
    #[must_use]
    pub fn attached(&self) -> &Attached {
        &self.attached
    }

    /// Puts the program back after somebody took it off; maps and sockets are as they were.
    ///
    /// # Errors
    /// See [`attach`].
    pub fn put_back(&mut self) -> Result<(), AttachError> {
        self.attached.put_back()
    }

    /// Steers packets to `address`, or no longer.
    ///
    /// # Errors
    /// `E2BIG` for more addresses than the map holds.
    pub fn set_address(&self, address: IpAddr, ours: bool) -> io::Result<()> {
        let (map, key) = (self.map(self.maps.addresses)?, source_key(address));
        if ours { map.update(&key, &1u32.to_ne_bytes()) } else { map.delete(&key) }
    }

    /// Steers packets for QPNs of `slot`, or no longer.
    ///
    /// # Errors
    /// None at present.
    pub fn set_slot(&self, slot: u8, ours: bool) -> io::Result<()> {
        let map = self.map(self.maps.slots)?;
        map.update(&u32::from(slot).to_ne_bytes(), &u32::from(ours).to_ne_bytes())
    }

    /// Gives packets of receive queue `queue` to an AF_XDP socket bound to it. The entry goes when the socket is closed.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is no AF_XDP socket; `E2BIG` for a queue beyond those of [`Steering::attach`].
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let fd = socket.as_raw_fd().to_ne_bytes();
        self.map(self.maps.sockets)?.update(&queue.to_ne_bytes(), &fd)
    }

    fn map(&self, map: MapRef) -> io::Result<&Map> {
        self.attached.map(map).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }
}
