//! The interfaces that a recipe redirects to. The map of the program has those that take redirected packets:
//! the program cannot see that a driver refuses them, and the kernel then drops them. Packets for an
//! interface that is not in the map go to the network stack.

use std::io;

use bpf::MapKind;
use nix::errno::Errno;
use sys::bpf::Map;
use sys::{NetdevFamily, Netlink};

use super::ability::is_veth;
use super::interface;
use super::source::Source;
use crate::failure::{During, Outcome};

/// The targets of a program.
#[derive(Debug)]
pub(super) struct Targets {
    rows: Vec<Target>,
    kernel: Kernel,
}

/// Sockets that ask for the state of interfaces.
#[derive(Debug)]
struct Kernel {
    links: Netlink,
    /// What drivers take, if the program runs in the driver. In the network stack every interface takes
    /// packets.
    drivers: Option<NetdevFamily>,
}

#[derive(Debug)]
struct Target {
    /// Its name in the recipe.
    name: String,
    is_veth: bool,
    map: Map,
    /// Its number in the recipe.
    at: u32,
    /// Its interface index; `None` after it was removed.
    index: Option<u32>,
    /// The index in the map.
    entered: Option<u32>,
}

/// What happened to a target.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Change {
    Entered,
    Left,
    Removed,
}

impl Targets {
    /// Enters those that take redirected packets now into `maps`, which are those of the source's program.
    /// `in_driver` says that the program is for the driver: then the features of the drivers decide.
    pub(super) fn enter(source: &Source, maps: &[Map], in_driver: bool) -> Outcome<Targets> {
        let links = Netlink::new().during("netlink")?;
        let drivers = in_driver.then(NetdevFamily::new).transpose().during("XDP features")?;
        let mut targets = Targets { rows: Vec::new(), kernel: Kernel { links, drivers } };
        for (index, fill) in &source.fill {
            for (at, name) in (0u32..).zip(fill.targets()) {
                let Some(map) = maps.get(*index) else { continue };
                let (link, map) = (interface(name)?, map.again().during("map")?);
                let (is_veth, index) = (is_veth(&link), Some(link.index));
                let mut target = Target { name: name.clone(), is_veth, map, at, index, entered: None };
                target.follow(&mut targets.kernel).during(&format!("filling map {}", fill.map()))?;
                targets.rows.push(target);
            }
        }
        Ok(targets)
    }

    /// The program is attached, which may have changed what drivers take. Says which packets are not
    /// redirected, and which are lost later if this command does not stay. `in_driver`: the driver took it.
    pub(super) fn attached(&mut self, in_driver: bool, stays: bool) {
        if !in_driver {
            self.kernel.drivers = None;
        }
        for row in &mut self.rows {
            let _retried = row.follow(&mut self.kernel);
        }
        let names = |wanted: fn(&Target) -> bool| {
            let names = self.rows.iter().filter(|row| wanted(row)).map(|row| row.name.as_str());
            names.collect::<Vec<_>>().join(", ")
        };
        let (left, fickle) =
            (names(|row| row.entered.is_none()), names(|row| row.entered.is_some() && row.is_veth));
        if !left.is_empty() {
            let rest =
                if stays { "" } else { "; then attach again, or use --foreground, which follows that" };
            say!(
                "roxie: warning: packets for {left} go through the network stack: the driver takes no \
                 redirected packets now (no ndo_xmit); a veth takes them once its peer has an XDP program, \
                 or GRO on{rest}"
            );
        }
        if in_driver && !stays && !fickle.is_empty() {
            say!(
                "roxie: warning: redirected packets for {fickle} are lost once the peer has neither an XDP \
                 program nor GRO on; --foreground follows such changes"
            );
        }
    }

    /// Enters and removes targets as their drivers changed, and says so.
    pub(super) fn follow(&mut self) {
        for row in &mut self.rows {
            // After an error the target stays as it was, and is looked at again.
            let Ok(Some(change)) = row.follow(&mut self.kernel) else { continue };
            let name = &row.name;
            match change {
                Change::Entered => say!("roxie: packets for {name} are redirected now"),
                Change::Left => say!("roxie: packets for {name} go through the network stack now"),
                Change::Removed => {
                    say!("roxie: {name} was removed; the packets for it go through the network stack");
                }
            }
        }
    }
}

impl Target {
    /// Enters the interface if it takes redirected packets now, and removes it otherwise. Returns what
    /// changed.
    fn follow(&mut self, kernel: &mut Kernel) -> io::Result<Option<Change>> {
        let index = self.present(&mut kernel.links)?;
        let takes = match (index, &mut kernel.drivers) {
            (Some(index), Some(drivers)) => drivers.xdp_features(index)?.xmit(),
            _ => true,
        };
        let wanted = index.filter(|_| takes);
        let was_there = std::mem::replace(&mut self.index, index).is_some();
        if index.is_none() && was_there {
            // The kernel has removed its entry.
            self.entered = None;
            return Ok(Some(Change::Removed));
        }
        if wanted == self.entered {
            return Ok(None);
        }
        let is_hash = self.map.kind() == MapKind::DevmapHash;
        let key = |index: u32| if is_hash { index } else { self.at }.to_ne_bytes();
        if let Some(old) = self.entered {
            self.map.delete(&key(old))?;
        }
        self.entered = None;
        let Some(new) = wanted else { return Ok(Some(Change::Left)) };
        let mut value = vec![0; self.map.value_size()];
        value[..4].copy_from_slice(&new.to_ne_bytes());
        self.map.update(&key(new), &value)?;
        self.entered = wanted;
        Ok(Some(Change::Entered))
    }

    /// The index of the interface, which may have another name by now; after it was removed, of a new one
    /// with its name.
    fn present(&self, links: &mut Netlink) -> io::Result<Option<u32>> {
        match self.index.map(|index| links.link(index)).transpose() {
            Ok(Some(link)) => return Ok(Some(link.index)),
            Err(error) if error.raw_os_error() != Some(Errno::ENODEV as i32) => return Err(error),
            _ => {}
        }
        match nix::net::if_::if_nametoindex(self.name.as_str()) {
            Err(Errno::ENODEV) => Ok(None),
            index => Ok(index.map(Some)?),
        }
    }
}
