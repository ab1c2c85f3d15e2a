//! Initial map entries of a program made from a recipe.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use bpf::recipe::{ACCESS, ADDRESSES, Access, PORTS, SLOTS, Target, source_key};
use bpf::{ProgramKind, Recipe, XdpAction};
use sys::bpf::{Map, Program};
use sys::{Link, Netlink};

use crate::failure::{During, Outcome};

/// Initial entries of one map.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Fill {
    /// The addresses of the interface.
    OwnAddresses,
    /// QPN slots of this host's queue pairs, first and last.
    Slots(u16, u16),
    /// Prefixes that are passed (true) or dropped.
    Access(Vec<(IpAddr, u8, bool)>),
    /// Interfaces to route between.
    Ports(Vec<String>),
    /// Interfaces to redirect to, in order.
    Devices(Vec<String>),
    /// CPUs 0 to N-1, and the queue length of each.
    Cpus { count: u32, queue: u32 },
}

impl Fill {
    /// Name of the map.
    pub(super) fn map(&self) -> &'static str {
        match self {
            Fill::OwnAddresses => ADDRESSES,
            Fill::Slots(..) => SLOTS,
            Fill::Access(_) => ACCESS,
            Fill::Ports(_) => PORTS,
            Fill::Devices(_) => Target::Dev.map_name(),
            Fill::Cpus { .. } => Target::Cpu.map_name(),
        }
    }

    /// Interfaces for redirected packets.
    pub(super) fn targets(&self) -> &[String] {
        match self {
            Fill::Ports(names) | Fill::Devices(names) => names,
            Fill::OwnAddresses | Fill::Slots(..) | Fill::Access(_) | Fill::Cpus { .. } => &[],
        }
    }

    /// CPUs for redirected packets.
    pub(super) fn cpus(&self) -> Option<u32> {
        match self {
            Fill::Cpus { count, .. } => Some(*count),
            _ => None,
        }
    }

    /// Writes the entries to `map`, for a program on `link`. `frags`: it handles multi-buffer packets.
    pub(super) fn put(&self, link: &Link, map: &Map, frags: bool) -> Outcome {
        let put = |key: &[u8], word: u32| {
            let mut value = vec![0; map.value_size()];
            value[..4].copy_from_slice(&word.to_ne_bytes());
            map.update(key, &value).during(&format!("filling map {}", self.map()))
        };
        match self {
            Fill::OwnAddresses => {
                let addresses =
                    Netlink::new().and_then(|mut netlink| netlink.addresses()).during("netlink")?;
                let own = addresses.iter().filter(|address| address.ifindex == link.index);
                own.map(|address| address.ip).try_for_each(|ip| put(&source_key(ip), 1))
            }
            Fill::Slots(first, last) => {
                (*first..=*last).try_for_each(|slot| put(&u32::from(slot).to_ne_bytes(), 1))
            }
            Fill::Access(prefixes) => prefixes
                .iter()
                .try_for_each(|(address, len, let_in)| put(&Access::key(*address, *len), u32::from(*let_in))),
            // `Targets` enters those that take packets.
            Fill::Ports(_) | Fill::Devices(_) => Ok(()),
            Fill::Cpus { count, queue } => {
                let program = counter_on_cpu(frags);
                let fd = program.as_ref().map_or(0, |program| program.as_fd().as_raw_fd() as u32);
                let mut value = [queue.to_ne_bytes(), fd.to_ne_bytes()].concat();
                value.truncate(map.value_size());
                (0..*count)
                    .try_for_each(|cpu| map.update(&cpu.to_ne_bytes(), &value).during("filling map cpus"))
            }
        }
    }
}

/// Name of the program in the entries of a CPUMAP.
pub(super) const ON_CPU: &str = "roxie_on_cpu";

/// A program that counts what arrives at another CPU and passes it: the kernel counts no packets that a
/// full queue drops. `frags`: as the program that redirects to the CPUMAP. `None` on kernels before 5.9.
fn counter_on_cpu(frags: bool) -> Option<Program> {
    let recipe = Recipe { counters: true, frags, ..Recipe::verdict(XdpAction::Pass) };
    let program = recipe.program(ON_CPU, ProgramKind::XdpCpumap).ok()?;
    Program::load_with_maps(&program).ok().map(|(program, _maps)| program)
}
