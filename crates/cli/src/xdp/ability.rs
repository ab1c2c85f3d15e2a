//! Checks what interface, driver and this process support, before a program is attached.

use bpf::recipe::Target;
use bpf::{Action, MapDef, MapKind};
use roxie::xdp::Mode;
use sys::{Capabilities, Capability, Link, XdpFeatures, XdpMode, xdp_features};

use super::source::Source;
use crate::failure::{Failure, Outcome};

/// Checks that a program can run on the interface; warns of actions that will fail. Returns where it should
/// run.
pub(super) fn check(link: &Link, mode: Mode, source: &Source) -> Outcome<Mode> {
    if let Some(queues) = source.queues.filter(|queues| *queues > link.rx_queues) {
        let (name, has) = (&link.name, link.rx_queues);
        let plural = if has == 1 { "" } else { "s" };
        return Err(Failure::new(format!("queues={queues}: {name} has {has} receive queue{plural}"))
            .hint(format!("queues={has} at most; without it, all of them"))
            .code(2));
    }
    for ways in source.fill.iter().filter_map(|(_, fill)| fill.cpus()) {
        if let Some(cpus) = online_cpus().filter(|cpus| ways > *cpus) {
            return Err(Failure::new(format!("ways={ways}: this machine has {cpus} CPUs"))
                .hint(format!("ways={cpus} at most; without it, all of them"))
                .code(2));
        }
    }
    driver(link, mode)?;
    // Kernels before 6.3 do not report features.
    let Ok(features) = xdp_features(link.index) else { return Ok(mode) };
    let native = features.native() && mode != Mode::Only(XdpMode::Generic);
    // A veth needs the same for XDP_TX as for redirected packets; other drivers always send back what they
    // received.
    if native && source.actions.contains(&Action::Reflect) && is_veth(link) && !features.xmit() {
        let (what, to) = match mode {
            Mode::Auto => ("would drop", "; it runs in generic mode"),
            Mode::Only(_) => ("drops", ""),
        };
        say!(
            "roxie: warning: in native mode {} {what} packets that are sent back: the peer of a veth takes \
             them once it has an XDP program itself, or GRO on ('ethtool -K PEER gro on'){to}",
            link.name
        );
        if mode == Mode::Auto {
            return Ok(Mode::Only(XdpMode::Generic));
        }
    }
    let leaves = source
        .program
        .maps
        .iter()
        .any(|map| matches!(map.kind, MapKind::Devmap | MapKind::DevmapHash | MapKind::Cpumap));
    if !native && loses_segments(source, link) && is_veth(link) && leaves_segmentation(link) {
        let fate = if source.has_object {
            "drops those"
        } else {
            "leaves those to the network stack, which may have no way for them"
        };
        say!(
            "roxie: warning: {}'s peer sends several TCP or UDP packets as one (GSO), and a redirect in \
             generic mode {fate}; at the peer: ip link set PEER gso_max_segs 1",
            link.name
        );
    }
    if native && source.has_object && leaves && is_veth(link) && leaves_checksums(link) {
        say!(
            "roxie: warning: packets of {0}'s peer have no checksum yet, and receivers drop those that this \
             program redirects; at the peer: ethtool -K PEER tx off (recipes compute it)",
            link.name
        );
    }
    if native && !source.program.frags && link.mtu > SINGLE_BUFFER_MTU {
        say!(
            "roxie: warning: the program handles no multi-buffer packets (section xdp.frags), and the MTU \
             is {}",
            link.mtu
        );
    }
    Ok(mode)
}

/// Number of CPUs that packets can be redirected to; `None` where /sys is hidden.
fn online_cpus() -> Option<u32> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    list.trim().rsplit([',', '-']).next()?.parse::<u32>().ok().map(|last| last + 1)
}

/// Longest IP packet that fits in a page with XDP's headroom and the kernel's data behind it, on most
/// drivers.
const SINGLE_BUFFER_MTU: u32 = 3498;

/// Whether a program runs in the driver, as far as the driver says.
pub(super) fn runs_in_driver(link: &Link, mode: Mode) -> bool {
    mode != Mode::Only(XdpMode::Generic) && xdp_features(link.index).is_ok_and(|features| features.native())
}

/// Whether the peer of a veth leaves checksums to its device. True if that cannot be known: the peer may be
/// in another namespace.
fn leaves_checksums(link: &Link) -> bool {
    peer_here(link).is_none_or(|peer| sys::transmit_checksums(&peer.name).unwrap_or(true))
}

/// As [`leaves_checksums`], for the segmentation of TCP and UDP.
fn leaves_segmentation(link: &Link) -> bool {
    peer_here(link).is_none_or(|peer| peer.gso_max_segs != 1)
}

/// The peer of a veth, if it is in this network namespace.
fn peer_here(link: &Link) -> Option<Link> {
    let peer_of = |link: &Link| {
        let counters = sys::driver_counters(&link.name).unwrap_or_default();
        counters.iter().find(|(name, _)| name == "peer_ifindex").map(|(_, index)| *index)
    };
    let peer = peer_of(link);
    let links = crate::netdev::links().unwrap_or_default();
    let here = links.into_iter().find(|one| Some(u64::from(one.index)) == peer && is_veth(one));
    // An interface in another namespace may have the index of one here.
    here.filter(|one| peer_of(one) == Some(u64::from(link.index)))
}

/// Whether the program loses packets that are longer than the MTU of the interface that it redirects them to:
/// in the network stack no interface takes those. Recipes leave them to the stack, which a bridge forwards.
fn loses_segments(source: &Source, link: &Link) -> bool {
    let is_device = |map: &MapDef| matches!(map.kind, MapKind::Devmap | MapKind::DevmapHash);
    let redirects = |action: &Action| matches!(action, Action::Redirect { target: Target::Dev, .. });
    source.has_object && source.program.maps.iter().any(is_device)
        || link.master.is_none() && source.actions.iter().any(redirects)
}

pub(super) fn is_veth(link: &Link) -> bool {
    link.kind.as_deref() == Some("veth")
}

/// Checks that the driver runs programs in this mode.
pub(super) fn driver(link: &Link, mode: Mode) -> Outcome {
    let Ok(features) = xdp_features(link.index) else { return Ok(()) };
    let lacks = |what: &'static str, has: fn(XdpFeatures) -> bool| (!has(features)).then_some(what);
    let lacking = match mode {
        Mode::Only(XdpMode::Native) => lacks("native XDP", XdpFeatures::native),
        Mode::Only(XdpMode::Offload) => lacks("XDP offload", XdpFeatures::offload),
        Mode::Auto | Mode::Only(XdpMode::Generic) => None,
    };
    let Some(what) = lacking else { return Ok(()) };
    let native =
        if features.native() { format!("--mode {} works here; ", XdpMode::Native) } else { String::new() };
    Err(Failure::new(format!("{}: the driver has no {what} (it has: {features})", link.name))
        .hint(format!("{native}--mode generic works on every interface")))
}

/// Fails if this process may not do `what`.
pub(super) fn privileges(what: &str, needed: &[Capability]) -> Outcome {
    match missing(needed) {
        Some(missing) => Err(Failure::new(format!("{what} needs privileges")).hint(missing)),
        None => Ok(()),
    }
}

/// The names of those of the needed capabilities that are not held.
pub(crate) fn lacking(held: Capabilities, needed: &[Capability]) -> Vec<String> {
    // CAP_SYS_ADMIN includes the capabilities that were split off it.
    let has = |one| held.has(one) || one != Capability::NetRaw && held.has(Capability::SysAdmin);
    needed.iter().filter(|one| !has(**one)).map(|one| one.to_string()).collect()
}

/// The capabilities that this process lacks, and what to do about it.
pub(super) fn missing(needed: &[Capability]) -> Option<String> {
    let names = lacking(Capabilities::effective(), needed);
    let (last, others) = names.split_last()?;
    let all = if others.is_empty() { last.clone() } else { format!("{} and {last}", others.join(", ")) };
    Some(format!("this process lacks {all}: try with sudo"))
}
