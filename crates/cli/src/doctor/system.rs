//! Checks of the kernel, its socket features, and the limits of this process.

use std::env;
use std::net::UdpSocket;
use std::process::{Command, Stdio};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{setsockopt, sockopt};
use roxie::registry::{self, is_root};

use super::Check;
use crate::user_namespace;

/// UDP_GRO came with 5.0 (include/uapi/linux/udp.h), UDP_SEGMENT with 4.18.
const KERNEL_MIN: (u32, u32) = (5, 0);
/// Receive buffer below which bursts of six senders overflow: each has a window of 320 KiB in flight, which
/// the kernel's accounting counts twice.
const RMEM_WANTED: u64 = 4 << 20;

/// Those of a process with so many devices.
pub(super) fn checks(devices: usize) -> Vec<Check> {
    vec![kernel(), segmentation(), descriptors(devices), receive_buffer(), memlock(), user_namespaces()]
}

fn kernel() -> Check {
    let release = nix::sys::utsname::uname()
        .map(|name| name.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    match version(&release) {
        Some(version) if version >= KERNEL_MIN => Check::ok("kernel", release),
        Some(_) => Check::bad("kernel", format!("{release} has no UDP_GRO"), "use Linux 5.0 or later"),
        None => Check::note("kernel", format!("'{release}' names no version")),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn segmentation() -> Check {
    const NAME: &str = "UDP GSO/GRO";
    let socket = match UdpSocket::bind("127.0.0.1:0") {
        Ok(socket) => socket,
        Err(error) => {
            return Check::bad(NAME, format!("no UDP socket: {error}"), "allow this process to use UDP");
        }
    };
    let gso = setsockopt(&socket, sockopt::UdpGsoSegment, &1400);
    let gro = setsockopt(&socket, sockopt::UdpGroSegment, &true);
    match (gso, gro) {
        (Ok(()), Ok(())) => Check::ok(NAME, "a burst of 62 packets costs one system call on each side"),
        (gso, gro) => {
            let missing = [gso.err().map(|e| format!("GSO: {e}")), gro.err().map(|e| format!("GRO: {e}"))];
            let missing: Vec<String> = missing.into_iter().flatten().collect();
            Check::warn(
                NAME,
                format!("{}: every packet costs a system call", missing.join(", ")),
                "let this process call setsockopt at level SOL_UDP, if a sandbox filters it",
            )
        }
    }
}

fn descriptors(devices: usize) -> Check {
    let ([soft, hard], needed) = (sys::descriptor_limits(), registry::descriptors(devices));
    // For a moment a device raises the soft limit.
    let kept = needed - registry::descriptors(0);
    let text = format!("{soft}, at most {hard}");
    if hard >= needed && soft > kept {
        return Check::ok("RLIMIT_NOFILE", text);
    }
    Check::bad(
        "RLIMIT_NOFILE",
        format!("{text}; {devices} device(s) open {needed} for a moment when they start, and keep {kept}"),
        format!("raise both to {needed}: ulimit -n, limits.conf, or the container's settings"),
    )
}

fn receive_buffer() -> Check {
    const NAME: &str = "rmem_max";
    let Some(bytes) = user_namespace::setting("net.core.rmem_max") else {
        return Check::note(NAME, "not visible here (a container hides it)");
    };
    if bytes >= RMEM_WANTED {
        return Check::ok(NAME, format!("{} KiB per receive queue", bytes >> 10));
    }
    Check::warn(
        NAME,
        format!(
            "{} KiB per receive queue: many concurrent senders may overflow it (retransmissions, no errors)",
            bytes >> 10
        ),
        format!("if many peers send at once, as root: sysctl -w net.core.rmem_max={RMEM_WANTED}"),
    )
}

fn memlock() -> Check {
    let text = match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((nix::sys::resource::RLIM_INFINITY, _)) => "unlimited".to_owned(),
        Ok((soft, _)) => format!("{} KiB", soft >> 10),
        Err(error) => error.to_string(),
    };
    Check::note(
        "RLIMIT_MEMLOCK",
        format!("{text}; has no effect with UDP sockets, because memory regions are not pinned"),
    )
}

fn user_namespaces() -> Check {
    const NAME: &str = "user namespaces";
    let allowed = user_namespace::are_allowed() && (is_root() || makes_one());
    let text = if allowed {
        "allowed: 'roxie run --device-files' works without root (for UCX and other readers of \
         /sys/class/infiniband)"
    } else {
        "not allowed: 'roxie run --device-files' needs root (for UCX and other readers of \
         /sys/class/infiniband)"
    };
    Check::note(NAME, text)
}

/// Whether this user can have one here: a container or chroot(2) may refuse it.
fn makes_one() -> bool {
    let mut run = Command::new("/proc/self/exe");
    // The user's devices are not the question.
    for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ROXIE_")) {
        run.env_remove(name);
    }
    run.args(["run", "--quiet", "--device-files=on", "--", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    run.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_versions() {
        assert_eq!(version("6.18.44-custom"), Some((6, 18)));
        assert_eq!(version("4.19.0-26-amd64"), Some((4, 19)));
        assert_eq!(version("unknown"), None);
    }
}
