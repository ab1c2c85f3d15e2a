//! The interfaces that a recipe redirects to. The map of the program has those that take redirected packets:
//! the program cannot see that a driver refuses them, and the kernel then drops them. Packets for an
//! interface that is not in the map go to the network stack.

use bpf::MapKind;
use sys::bpf::Map;
use sys::xdp_features;

use super::ability::is_veth;
use super::interface;
use super::source::Source;
use crate::failure::{During, Outcome};

/// The targets of a program.
#[derive(Debug)]
pub(super) struct Targets {
    rows: Vec<Target>,
    /// The program runs in the driver. In the network stack every interface takes packets.
    in_driver: bool,
}

#[derive(Debug)]
struct Target {
    name: String,
    is_veth: bool,
    map: Map,
    /// Its number in the recipe.
    at: u32,
    /// Interface index in the map.
    entered: Option<u32>,
}

impl Targets {
    /// Enters those that take redirected packets now into `maps`, which are those of the source's program.
    pub(super) fn enter(source: &Source, maps: &[Map], in_driver: bool) -> Outcome<Targets> {
        let mut rows = Vec::new();
        for (index, fill) in &source.fill {
            for (at, name) in (0u32..).zip(fill.targets()) {
                let Some(map) = maps.get(*index) else { continue };
                let (is_veth, map) = (is_veth(&interface(name)?), map.again().during("map")?);
                let mut target = Target { name: name.clone(), is_veth, map, at, entered: None };
                target.follow(in_driver).during(&format!("filling map {}", fill.map()))?;
                rows.push(target);
            }
        }
        Ok(Targets { rows, in_driver })
    }

    /// The program is attached, which may have changed what drivers take. Says which packets are not
    /// redirected, and which are lost later if this command does not stay.
    pub(super) fn attached(&mut self, stays: bool) {
        for row in &mut self.rows {
            let _retried = row.follow(self.in_driver);
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
        if self.in_driver && !stays && !fickle.is_empty() {
            say!(
                "roxie: warning: redirected packets for {fickle} are lost once the peer has neither an XDP \
                 program nor GRO on; --foreground follows such changes"
            );
        }
    }

    /// Enters and removes targets as their drivers changed, and says so.
    pub(super) fn follow(&mut self) {
        for row in &mut self.rows {
            // An interface that is being removed is looked at again.
            if let Ok(true) = row.follow(self.in_driver) {
                let now =
                    if row.entered.is_some() { "are redirected" } else { "go through the network stack" };
                say!("roxie: packets for {} {now} now", row.name);
            }
        }
    }
}

impl Target {
    /// Enters the interface if it takes redirected packets now, and removes it otherwise. Returns whether
    /// that changed the map.
    fn follow(&mut self, in_driver: bool) -> std::io::Result<bool> {
        let index = nix::net::if_::if_nametoindex(self.name.as_str()).ok();
        // Kernels before 6.3 do not report features.
        let takes = |index: &u32| !in_driver || xdp_features(*index).map_or(true, |features| features.xmit());
        let index = index.filter(takes);
        if index == self.entered {
            return Ok(false);
        }
        let is_hash = self.map.kind() == MapKind::DevmapHash;
        let key = |index: u32| if is_hash { index } else { self.at }.to_ne_bytes();
        if let Some(old) = self.entered {
            self.map.delete(&key(old))?;
        }
        self.entered = None;
        if let Some(new) = index {
            let mut value = vec![0; self.map.value_size()];
            value[..4].copy_from_slice(&new.to_ne_bytes());
            self.map.update(&key(new), &value)?;
        }
        self.entered = index;
        Ok(true)
    }
}
