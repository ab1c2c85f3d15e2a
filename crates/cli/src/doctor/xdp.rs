//! Checks whether AF_XDP can be used: the privileges of this process, and for each interface its modes and
//! its program.

use std::fs;
use std::io;

use roxie::port::{XskError, XskStep};
use roxie::xdp::hint_kfuncs;
use roxie_hook::control::Users;
use sys::bpf::Program;
use sys::{AttachedXdp, Capabilities, Capability, Link, XdpFeatures, bound_xsks, xdp_features};

use super::Check;
use crate::losses;
use crate::netdev::links;
use crate::top::{Engine, Processes};
use crate::xdp::{decisions, lacking};

pub(super) fn checks() -> Vec<Check> {
    let links = links().unwrap_or_default();
    let mut checks = vec![privileges(Capabilities::effective(), is_initial_user_namespace())];
    checks.extend(links.iter().map(interface));
    let sockets = bound_xsks().unwrap_or_default();
    let is_used =
        |link: &&Link| !link.xdp.is_empty() || sockets.iter().any(|socket| socket.ifindex == link.index);
    checks.extend(links.iter().filter(is_used).map(lost));
    checks.extend(links.iter().filter_map(decided));
    checks.extend(devices());
    checks
}

/// What the program on an interface decided, if it counts that.
fn decided(link: &Link) -> Option<Check> {
    let rows = decisions(link).unwrap_or_default();
    let words: Vec<String> = rows.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let text = format!("{}: its program counts {}", link.name, words.join(", "));
    (!words.is_empty()).then(|| Check::note("XDP", text))
}

/// Packet memory and steering of the running devices of this user.
fn devices() -> Vec<Check> {
    let engines = Processes::new(&[], Users::Own).map(|mut processes| processes.look()).unwrap_or_default();
    let lines = engines.iter().filter_map(Engine::pressure);
    lines.map(|line| Check::note("AF_XDP", line)).collect()
}

/// Packets lost at an interface with an XDP program or an AF_XDP socket, in the order of the receive path.
fn lost(link: &Link) -> Check {
    const NAME: &str = "XDP";
    let losses = losses::of(link);
    if losses.is_empty() {
        return Check::ok(
            NAME,
            format!("{}: no packet lost at interface, driver, program or socket", link.name),
        );
    }
    let places = losses.iter().map(|loss| format!("{} {} ({})", loss.packets, loss.counter, loss.meaning));
    let places: Vec<String> = places.collect();
    let remedy = format!("'roxie xdp stats {} --watch' shows whether it goes on", link.name);
    Check {
        remedy: Some(remedy),
        ..Check::note(NAME, format!("{}: packets lost: {}", link.name, places.join("; ")))
    }
}

/// The privileges that AF_XDP sockets and their program need (capabilities(7); programs since Linux 5.8,
/// CAP_SYS_ADMIN before that).
fn privileges(held: Capabilities, initial: bool) -> Check {
    const NAME: &str = "AF_XDP";
    let missing = lacking(held, &[Capability::Bpf, Capability::NetAdmin, Capability::NetRaw]);
    if missing.is_empty() && initial {
        return Check::ok(NAME, "this process may use it: roxie run --port xsk");
    }
    let text = if missing.is_empty() {
        "not for root of a user namespace, which may not load programs".to_owned()
    } else {
        format!("not for this process, which lacks {}", missing.join(", "))
    };
    // The reason that the port would give.
    let refused = io::Error::from_raw_os_error(nix::libc::EPERM);
    let remedy = XskError::Socket { step: XskStep::Socket, error: refused }.remedy();
    Check { remedy: Some(format!("only for --port xsk: {remedy}")), ..Check::note(NAME, text) }
}

/// user_namespaces(7): the initial namespace maps every id to itself.
fn is_initial_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn interface(link: &Link) -> Check {
    const NAME: &str = "XDP";
    let modes = match xdp_features(link.index) {
        Ok(features) => modes(features, link.is_ethernet, hint_kfuncs(link.index).err()),
        Err(error) => unread(&error),
    };
    let text = format!("{}: {modes}", link.name);
    let Some(there) = link.xdp.first() else { return Check::ok(NAME, text) };
    let name = Program::by_id(there.program_id).and_then(|program| program.info()).map(|info| info.name);
    occupied(&text, there, name.ok().as_deref())
}

/// What is known of an interface if its features cannot be read.
fn unread(error: &io::Error) -> String {
    if error.raw_os_error() == Some(nix::libc::ENOENT) {
        return "generic mode; kernels before 6.3 do not report other modes".to_owned();
    }
    format!("generic mode; other modes and hints are unknown, because asking the kernel failed: {error}")
}

/// `unusable` is why programs cannot use the receive hints that the driver has.
fn modes(features: XdpFeatures, is_ethernet: bool, unusable: Option<io::Error>) -> String {
    let af_xdp = match (is_ethernet, features.zero_copy()) {
        (false, _) => "no AF_XDP, which needs Ethernet frames",
        (true, true) => "AF_XDP zero-copy",
        (true, false) => "AF_XDP in copy mode",
    };
    let mut modes = vec!["generic"];
    if features.native() {
        modes.push("native");
    }
    if features.offload() {
        modes.push("offload");
    }
    let jumbo = if features.rx_fragments() { ", multi-buffer packets" } else { "" };
    let hints = [("receive", features.rx_hints()), ("transmit", features.tx_hints())];
    let has = |(way, names): &(&str, Vec<&str>)| match &names[..] {
        [] => format!("; no {way} hints"),
        names => format!("; {way} hints {}", names.join(", ")),
    };
    let hints: String = hints.iter().map(has).collect();
    let unusable =
        unusable.map_or_else(String::new, |error| format!("; the receive hints cannot be used: {error}"));
    format!("{} mode; {af_xdp}{jumbo}{hints}{unusable}", modes.join(", "))
}

/// The check for an interface with a program. roxie's own programs are attached and detached with
/// processes.
fn occupied(text: &str, there: &AttachedXdp, name: Option<&str>) -> Check {
    const NAME: &str = "XDP";
    let AttachedXdp { mode, program_id: id } = there;
    let program = name.map_or_else(|| format!("program {id}"), |name| format!("program {id} ({name})"));
    let text = format!("{text}; {program} is on it in {mode} mode");
    if name.is_some_and(|name| name.starts_with("roxie_")) {
        return Check::ok(NAME, text);
    }
    Check::warn(
        NAME,
        text,
        "--port xsk cannot have this interface meanwhile; 'roxie xdp list' and 'detach' help",
    )
}

#[cfg(test)]
mod tests {
    use sys::XdpMode;

    use super::super::Status;
    use super::*;

    #[test]
    fn a_program_of_another_tool_is_reported() {
        let there = AttachedXdp { mode: XdpMode::Native, program_id: 7 };
        let check = occupied("eth0: generic mode", &there, Some("xdp_filter"));
        assert_eq!(check.status, Status::Warn);
        assert_eq!(check.text, "eth0: generic mode; program 7 (xdp_filter) is on it in native mode");
        assert_eq!(occupied("eth0", &there, Some("roxie_steer")).status, Status::Ok);
        // An unprivileged user does not learn the name.
        assert_eq!(occupied("eth0", &there, None).status, Status::Warn);
    }

    #[test]
    fn missing_privileges_are_a_note() {
        let own = privileges(Capabilities::effective(), false);
        assert!(own.status == Status::Note && own.remedy.is_some(), "{own:?}");
        assert!(own.text.starts_with("not for"), "{own:?}");
    }

    #[test]
    fn an_interface_without_xdp_features_has_generic_mode() {
        let none = "no receive hints; no transmit hints";
        let ethernet = modes(XdpFeatures::default(), true, None);
        assert_eq!(ethernet, format!("generic mode; AF_XDP in copy mode; {none}"));
        let tunnel = modes(XdpFeatures::default(), false, None);
        assert_eq!(tunnel, format!("generic mode; no AF_XDP, which needs Ethernet frames; {none}"));
    }

    #[test]
    fn hints_that_cannot_be_read_are_not_called_none() {
        let error = |code| io::Error::from_raw_os_error(code);
        assert!(unread(&error(nix::libc::ENOENT)).contains("kernels before 6.3"));
        let refused = unread(&error(nix::libc::EPERM));
        assert!(refused.contains("unknown") && refused.contains("Operation not permitted"), "{refused}");
        let unusable = modes(XdpFeatures::default(), true, Some(error(nix::libc::EACCES)));
        assert!(unusable.ends_with("cannot be used: Permission denied (os error 13)"), "{unusable}");
    }
}
