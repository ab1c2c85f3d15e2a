//! The program that steers this process's RoCE packets to its AF_XDP sockets and passes everything else.
//!
//! What decides is in three maps, so that the program is loaded once: our addresses, the QPN slots that are ours, the
//! socket of each receive queue. A packet that finds no socket goes to the network stack, where the udp port has it.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use bpf::recipe::{ADDRESSES, SLOTS, Target, source_key};
use bpf::{MapRef, ProgramKind, Recipe};
use wire::ROCE_PORT;

use super::joined::Joined;
use super::{AttachError, Attached, Mode, Presence, attach};
use sys::XdpMode;
use sys::bpf::Map;

/// A steering program on an interface. It comes off on drop if it was put there by us.
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

    /// Puts the program on the interface, for RoCE on `udp_port` and at most `queues` receive queues. Everything passes
    /// until a slot, an address and a socket are set.
    ///
    /// # Errors
    /// See [`attach`].
    pub fn attach(ifindex: u32, udp_port: u16, queues: u32, mode: Mode) -> Result<Steering, AttachError> {
        let recipe = recipe(udp_port, queues);
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
        let (program, maps) = define(recipe, Steering::NAME)?;
        Ok(Steering { program: On::Ours(attach(ifindex, &program, mode)?), maps, queues })
    }

    /// The program for [`Steering::join`], which others may put on an interface; for RoCE on its own port.
    ///
    /// # Errors
    /// `EINVAL` for no queues or too many.
    pub fn loadable(queues: u32) -> io::Result<bpf::Program> {
        define(&recipe(ROCE_PORT, queues), Steering::LOADED_NAME).map(|(program, _)| program)
    }

    /// Uses the program of [`Steering::loadable`] that somebody else has put on the interface, alone or behind others in
    /// libxdp's dispatcher; `None` if it is not there. What an earlier user has left in its maps is taken out, so there must
    /// be none beside this one.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN; `ENOENT` if it goes meanwhile.
    pub fn join(ifindex: u32, queues: u32, mode: Mode) -> io::Result<Option<Steering>> {
        let (program, maps) = define(&recipe(ROCE_PORT, queues), Steering::LOADED_NAME)?;
        let Some(joined) = Joined::find(ifindex, &program, mode)? else { return Ok(None) };
        let mut steering = Steering { program: On::Joined(joined), maps, queues };
        steering.queues = queues.min(steering.map(maps.sockets)?.max_entries()?);
        steering.forget()?;
        Ok(Some(steering))
    }

    /// Whether [`Steering::join`] would find a program, and where that runs.
    ///
    /// # Errors
    /// As [`Steering::join`].
    pub fn to_join(ifindex: u32, mode: Mode) -> io::Result<Option<XdpMode>> {
        let program = Steering::loadable(1)?;
        Ok(Joined::find(ifindex, &program, mode)?.map(|joined| joined.mode))
    }

    /// Steers nothing any more.
    fn forget(&self) -> io::Result<()> {
        for slot in 0..=u8::MAX {
            self.set_slot(slot, false)?;
        }
        let (addresses, mut key) = (self.map(self.maps.addresses)?, [0; 16]);
        while addresses.next_key(None, &mut key)? {
            addresses.delete(&key)?;
        }
        Ok(())
    }

    /// Receive queues it steers to at most.
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

    /// Where it runs.
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

    /// Whether it was there before, and stays.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        matches!(self.program, On::Joined(_))
    }

    /// Id of the dispatcher that calls it, if one does.
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

    /// Puts the program back after somebody took it off; maps and sockets are as they were.
    ///
    /// # Errors
    /// See [`attach`]; one that was joined is for others to put back.
    pub fn put_back(&mut self) -> Result<(), AttachError> {
        match &mut self.program {
            On::Ours(attached) => attached.put_back(),
            On::Joined(_) => Err(io::Error::other("others had loaded it").into()),
        }
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

/// The program, and which of its maps is which.
fn define(recipe: &Recipe, name: &str) -> io::Result<(bpf::Program, Maps)> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let program = recipe.program(name, ProgramKind::Xdp).map_err(|_| invalid())?;
    let map = |name| program.map(name).ok_or_else(invalid);
    let maps = Maps { addresses: map(ADDRESSES)?, slots: map(SLOTS)?, sockets: map(Target::Xsk.map_name())? };
    Ok((program, maps))
}
