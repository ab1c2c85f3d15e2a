//! The owners of a UDP port: the kernel's table names the user of each socket, and /proc its processes.

use std::collections::BTreeSet;
use std::fs;

/// A UDP socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PortHolder {
    /// Its user.
    pub uid: u32,
    inode: u64,
}

/// How long to wait for sockets that no process of this user holds.
const UNHELD_NS: u64 = 5_000_000_000;
/// How long to wait for a process that has just started. Tests, which have just started too, wait less.
pub(super) const BEGINNING_NS: u64 = if cfg!(test) { 2_000_000_000 } else { 30_000_000_000 };
/// A process that started less than this ago (seconds) may be creating a group of this user. On a busy
/// machine it waits for its CPU.
const YOUNG_S: f64 = 30.0;
/// Ticks of proc_pid_stat(5) in a second, on every Linux that this crate supports.
const TICKS: f64 = 100.0;

impl PortHolder {
    /// The sockets that are bound to `port` in this network namespace.
    #[must_use]
    pub fn of(port: u16) -> Vec<PortHolder> {
        let tables = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];
        let tables = tables.iter().filter_map(|path| fs::read_to_string(path).ok());
        tables.flat_map(|table| parse(&table, port)).collect()
    }

    /// The processes that hold one of these sockets, as far as this user may see them. A socket that only a
    /// message in flight holds, as after the end of a process, has none.
    #[must_use]
    pub fn processes(holders: &[PortHolder]) -> Vec<u32> {
        let wanted: BTreeSet<String> = holders.iter().map(|h| format!("socket:[{}]", h.inode)).collect();
        let holds = |pid: &u32| {
            let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            descriptors
                .filter_map(|fd| fs::read_link(fd.path()).ok())
                .any(|link| link.to_str().is_some_and(|link| wanted.contains(link)))
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(holds).collect()
    }

    /// How long to wait for these sockets to close or to have a member (nanoseconds): they may be of a group
    /// of this user that begins or ends.
    pub(super) fn patience_ns(holders: &[PortHolder]) -> u64 {
        if holders.iter().any(|holder| holder.uid != sys::effective_uid()) {
            return 0;
        }
        let processes = Self::processes(holders);
        match processes.is_empty() {
            // The kernel has them: it closes those of dead processes, and keeps those of rdma_rxe.
            true => UNHELD_NS,
            false if processes.into_iter().all(is_young) => BEGINNING_NS,
            false => 0,
        }
    }
}

/// Rows of /proc/net/udp with this local port (proc_net_udp(5): `sl local remote st queues tr tm retrnsmt uid
/// timeout inode`).
fn parse(table: &str, wanted: u16) -> Vec<PortHolder> {
    let holder = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = fields.get(1)?.rsplit_once(':')?;
        (u16::from_str_radix(port, 16).ok()? == wanted).then_some(())?;
        Some(PortHolder { uid: fields.get(7)?.parse().ok()?, inode: fields.get(9)?.parse().ok()? })
    };
    table.lines().skip(1).filter_map(holder).collect()
}

fn is_young(pid: u32) -> bool {
    let age = || {
        // Field 22.
        let started: f64 = sys::stat_fields(&pid.to_string())?.split(' ').nth(19)?.parse().ok()?;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        Some(uptime.split(' ').next()?.parse::<f64>().ok()? - started / TICKS)
    };
    // One that has ended meanwhile no longer has the port.
    age().is_none_or(|seconds| seconds < YOUNG_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_on_the_port_are_found() {
        let table = "\
sl local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode ref pointer drops
512: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000 1000 0 4711 2 0000000000000000 0
513: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 4712 2 0000000000000000 0
";
        assert_eq!(parse(table, 4791), [PortHolder { uid: 1000, inode: 4711 }]);
    }

    #[test]
    fn the_process_that_holds_a_socket_is_found_and_is_young() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let holders = PortHolder::of(socket.local_addr().unwrap().port());
        assert_eq!(holders.len(), 1);
        assert!(PortHolder::processes(&holders).contains(&std::process::id()));
        assert!(!is_young(1) && is_young(u32::MAX));
        let stranger = PortHolder { uid: holders[0].uid + 1, ..holders[0] };
        let patience = [&holders[..], &[], &[stranger]].map(PortHolder::patience_ns);
        assert_eq!(patience, [BEGINNING_NS, UNHELD_NS, 0]);
    }
}
