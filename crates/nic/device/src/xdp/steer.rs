//! The program that steers this process's RoCE packets to its AF_XDP sockets and passes all others.
//!
//! Its decision depends on three maps, so the program is loaded once: this process's addresses, its QPN
//! slots, and the socket of each receive queue. A packet without a socket goes to the network stack,
//! where the UDP port receives it.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use bpf::recipe::{ADDRESSES, SLOTS, Target, source_key};
use bpf::{MapRef, ProgramKind, Recipe};
use transport::numbering;
use wire::ROCE_PORT;

use super::joined::Joined;
use super::{AttachError, Attached, Mode, Presence, attach};
use sys::XdpMode;
use sys::bpf::Map;

/// A steering program on an interface. Dropping it detaches the program if this process has attached it.
#[derive(Debug)]
pub struct Steering {
    program: On,
    maps: Maps,
    queues: u32,
}

#[derive(Debug)]
enum On {
    Ours(Attached),
    Joined(Joined),
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
    /// Name of a program for [`Steering::join`].
    pub const LOADED_NAME: &str = "roxie_xsk";

    /// Attaches the program to the interface, for RoCE on `udp_port` and at most `queues` receive queues.
    /// All packets pass until a slot, an address and a socket are set.
    ///
    /// # Errors
    /// See [`attach`](fn@crate::xdp::attach).
    pub fn attach(ifindex: u32, udp_port: u16, queues: u32, mode: Mode) -> Result<Steering, AttachError> {
        let recipe = recipe(udp_port, queues);
        match Steering::with(&recipe, ifindex, queues, mode) {
            // A kernel before 5.18 knows neither programs that take fragments nor the packet length with
            // fragments.
            Err(AttachError::Load(error)) if error.error.raw_os_error() == Some(libc::EINVAL) => {
                let recipe = Recipe { frags: false, counters: false, ..recipe };
                Steering::with(&recipe, ifindex, queues, mode)
            }
            done => done,
        }
    }

    fn with(recipe: &Recipe, ifindex: u32, queues: u32, mode: Mode) -> Result<Steering, AttachError> {
        let (program, maps) = define(recipe, Steering::NAME)?;
        Ok(Steering { program: On::Ours(attach(ifindex, &program, mode)?), maps, queues })
    }

    /// Returns the program for [`Steering::join`], which other tools may attach to an interface; for
    /// RoCE's own UDP port.
    ///
    /// # Errors
    /// `EINVAL` for no queues or too many.
    pub fn loadable(queues: u32) -> io::Result<bpf::Program> {
        define(&recipe(ROCE_PORT, queues), Steering::LOADED_NAME).map(|(program, _)| program)
    }

    /// Uses a program of [`Steering::loadable`] that another tool has attached to the interface, alone or
    /// with others in libxdp's dispatcher; `None` if there is none. Entries of an earlier user are
    /// removed from its maps, so it must have no other user.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN; `ENOENT` if it is removed meanwhile.
    pub fn join(ifindex: u32, queues: u32, mode: Mode) -> io::Result<Option<Steering>> {
        let (program, maps) = define(&recipe(ROCE_PORT, queues), Steering::LOADED_NAME)?;
        let Some(joined) = Joined::find(ifindex, &program, mode)? else { return Ok(None) };
        let mut steering = Steering { program: On::Joined(joined), maps, queues };
        steering.queues = queues.min(steering.map(maps.sockets)?.max_entries()?);
        steering.forget()?;
        Ok(Some(steering))
    }

    /// Returns the mode of the program that [`Steering::join`] would find, if there is one.
    ///
    /// # Errors
    /// As [`Steering::join`].
    pub fn to_join(ifindex: u32, mode: Mode) -> io::Result<Option<XdpMode>> {
        let program = Steering::loadable(1)?;
        Ok(Joined::find(ifindex, &program, mode)?.map(|joined| joined.mode))
    }

    /// Removes all slots and addresses from the maps.
    fn forget(&self) -> io::Result<()> {
        for slot in 0..=numbering::SLOTS {
            self.set_slot(slot, false)?;
        }
        let (addresses, mut key) = (self.map(self.maps.addresses)?, [0; 16]);
        while addresses.next_key(None, &mut key)? {
            addresses.delete(&key)?;
        }
        Ok(())
    }

    /// Most receive queues that it steers to.
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// Id of the program.
    #[must_use]
    pub fn id(&self) -> u32 {
        match &self.program {
            On::Ours(attached) => attached.id(),
            On::Joined(joined) => joined.id,
        }
    }

    /// The mode in which it runs.
    #[must_use]
    pub fn mode(&self) -> XdpMode {
        match &self.program {
            On::Ours(attached) => attached.mode(),
            On::Joined(joined) => joined.mode,
        }
    }

    /// Why it does not run in the driver, if that was tried.
    #[must_use]
    pub fn not_native(&self) -> Option<&str> {
        match &self.program {
            On::Ours(attached) => attached.not_native(),
            On::Joined(_) => None,
        }
    }

    /// Whether another tool has attached it; then it stays.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        matches!(self.program, On::Joined(_))
    }

    /// Id of the dispatcher that calls it, if there is one.
    #[must_use]
    pub fn dispatcher(&self) -> Option<u32> {
        match &self.program {
            On::Ours(_) => None,
            On::Joined(joined) => joined.dispatcher,
        }
    }

    /// Whether the program is still on the interface.
    ///
    /// # Errors
    /// What the kernel says about the interface.
    pub fn presence(&self) -> io::Result<Presence> {
        match &self.program {
            On::Ours(attached) => attached.presence(),
            On::Joined(joined) => joined.presence(),
        }
    }

    /// Attaches the program again after it was detached; maps and sockets are unchanged.
    ///
    /// # Errors
    /// See [`attach`](fn@crate::xdp::attach); a joined program cannot be attached by this process.
    pub fn put_back(&mut self) -> Result<(), AttachError> {
        match &mut self.program {
            On::Ours(attached) => attached.put_back(),
            On::Joined(_) => Err(io::Error::other("another tool attached it").into()),
        }
    }

    /// Starts or stops steering packets to `address`.
    ///
    /// # Errors
    /// `E2BIG` for more addresses than the map holds.
    pub fn set_address(&self, address: IpAddr, ours: bool) -> io::Result<()> {
        let (map, key) = (self.map(self.maps.addresses)?, source_key(address));
        if ours { map.update(&key, &1u32.to_ne_bytes()) } else { map.delete(&key) }
    }

    /// Starts or stops steering packets for QPNs of `slot`.
    ///
    /// # Errors
    /// None at present.
    pub fn set_slot(&self, slot: u16, ours: bool) -> io::Result<()> {
        let map = self.map(self.maps.slots)?;
        map.update(&u32::from(slot).to_ne_bytes(), &u32::from(ours).to_ne_bytes())
    }

    /// Gives packets of receive queue `queue` to an AF_XDP socket bound to it. Closing the socket removes
    /// the entry.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is no AF_XDP socket; `E2BIG` for a queue beyond those of
    /// [`Steering::attach`].
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let fd = socket.as_raw_fd().to_ne_bytes();
        self.map(self.maps.sockets)?.update(&queue.to_ne_bytes(), &fd)
    }

    fn map(&self, map: MapRef) -> io::Result<&Map> {
        let map = match &self.program {
            On::Ours(attached) => attached.map(map),
            On::Joined(joined) => joined.maps.get(map.index()),
        };
        map.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }
}

fn recipe(udp_port: u16, queues: u32) -> Recipe {
    Recipe { frags: true, counters: true, ..Recipe::steer(udp_port, queues) }
}

/// Returns the program, and its maps by role.
fn define(recipe: &Recipe, name: &str) -> io::Result<(bpf::Program, Maps)> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let program = recipe.program(name, ProgramKind::Xdp).map_err(|_| invalid())?;
    let map = |name| program.map(name).ok_or_else(invalid);
    let maps = Maps { addresses: map(ADDRESSES)?, slots: map(SLOTS)?, sockets: map(Target::Xsk.map_name())? };
    Ok((program, maps))
}
