//! The tests without AF_XDP: verdicts, redirection, transmission.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bpf::recipe::{COUNTERS, Target};
use bpf::{Action, Pick, ProgramKind, XdpAction};
use nix::sys::socket::{setsockopt, sockopt};
use sys::Link;
use sys::bpf::Program;

use super::bench::{Arrivals, Bench, Flow, nothing, of};
use super::frame;
use super::generate::Generator;
use super::report::Row;
use crate::cpu::stay_on;
use crate::failure::{During, Failure, Outcome};
use crate::xdp::recipe::redirect;
use crate::xdp::stats;

/// Length of the queue to the other CPU, in packets.
const CPU_QUEUE: u32 = 4096;
/// Receive buffer of the UDP socket that receives passed packets.
const SOCKET_BUFFER: usize = 64 << 20;

/// Passed packets reach the network stack: a UDP socket receives them, or counts them as dropped.
pub(super) fn pass(bench: &Bench, flow: Flow<'_>) -> Outcome<Row> {
    if !bench.place.has_address() {
        return Ok(Row::skipped(flow.name, "the interface has no IPv4 address"));
    }
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, frame::PORT)).during("UDP port 9 (discard)")?;
    socket.set_read_timeout(Some(Duration::from_millis(20))).during("socket")?;
    // Without CAP_NET_ADMIN the size stays, and more packets are dropped.
    let _as_it_is = setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER);
    let _program = bench.on_dut(&Bench::recipe(Action::Verdict(XdpAction::Pass)))?;
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(bench.receiver_cpu);
            let mut datagram = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                if socket.recv(&mut datagram).is_ok() {
                    received.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let dropped = || Ok(vec![("UDP socket".to_owned(), socket_drops()?)]);
        let arrivals = Arrivals { count: &of(&received), dropped: &dropped, window: 0 };
        let row = bench.run(flow, &arrivals);
        stop.store(true, Ordering::Relaxed);
        row
    })
}

/// Packets dropped because the socket's buffer was full: the last column of proc_net_udp(5).
fn socket_drops() -> Outcome<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/udp").during("/proc/net/udp")?;
    let port = format!(":{:04X}", frame::PORT);
    let row = table.lines().find(|line| line.split_whitespace().nth(1).is_some_and(|at| at.ends_with(&port)));
    let drops = row.and_then(|row| row.split_whitespace().last()?.parse().ok());
    drops.ok_or_else(|| Failure::new("no UDP socket on port 9 in /proc/net/udp"))
}

/// Dropped packets do not arrive anywhere.
pub(super) fn drop(bench: &Bench, flow: Flow<'_>) -> Outcome<Row> {
    let program = bench.on_dut(&Bench::recipe(Action::Verdict(XdpAction::Drop)))?;
    let count = || program.count(XdpAction::Drop);
    bench.run(flow, &Arrivals { count: &count, dropped: &nothing, window: 0 })
}

/// Packets sent back arrive at the sender.
pub(super) fn tx(bench: &Bench, peer: &Link, flow: Flow<'_>) -> Outcome<Row> {
    let counting = bench.count_at(peer)?;
    let program = bench.on_dut(&Bench::recipe(Action::Reflect))?;
    let count = || counting.count(XdpAction::Drop);
    let arrivals = Arrivals { count: &count, dropped: &nothing, window: 0 };
    let row = bench.run(flow, &arrivals)?;
    let sent_back = program.count(XdpAction::Tx)?;
    let (sent, holds) = (row.sent, sent_back == row.sent || !row.drops.is_empty());
    Ok(row.require(holds, format!("the program said XDP_TX {sent_back} times of {sent}")))
}

/// Redirected packets leave through the other interface.
pub(super) fn to_device(bench: &Bench, flow: Flow<'_>) -> Outcome<Row> {
    let Some([out, end]) = &bench.place.target else {
        return Ok(Row::skipped(flow.name, "no peer"));
    };
    let counting = bench.count_at(end)?;
    let action = redirect(Target::Dev, 1, Pick::Fixed(0), XdpAction::Aborted);
    let program = bench.on_dut(&Bench::recipe(action))?;
    let entry = [out.index.to_ne_bytes(), [0; 4]].concat();
    program.targets(Target::Dev)?.update(&[0; 4], &entry).during("DEVMAP")?;
    let count = || counting.count(XdpAction::Drop);
    bench.run(flow, &Arrivals { count: &count, dropped: &nothing, window: 0 })
}

/// Packets redirected to another CPU run the program of the map entry there.
pub(super) fn to_cpu(bench: &Bench, flow: Flow<'_>) -> Outcome<Row> {
    let cpu = bench.receiver_cpu;
    let action = redirect(Target::Cpu, cpu + 1, Pick::Fixed(cpu), XdpAction::Aborted);
    let program = bench.on_dut(&Bench::recipe(action))?;
    let definition =
        Bench::recipe(Action::Verdict(XdpAction::Drop)).program("roxie_on_cpu", ProgramKind::XdpCpumap);
    let definition = definition.map_err(|error| Failure::new(error.to_string()))?;
    let (on_cpu, maps) = Program::load_with_maps(&definition).during("program of the CPUMAP entry")?;
    let counters = definition.map(COUNTERS).and_then(|at| maps.get(at.index()));
    let counters = counters.ok_or_else(|| Failure::new("no counters"))?;
    let fd = on_cpu.as_fd().as_raw_fd();
    let entry = [CPU_QUEUE.to_ne_bytes(), fd.to_ne_bytes()].concat();
    program.targets(Target::Cpu)?.update(&cpu.to_ne_bytes(), &entry).during("CPUMAP")?;
    let count = || Ok(stats::pair(counters, XdpAction::Drop.number())?.packets);
    let arrivals = Arrivals { count: &count, dropped: &nothing, window: u64::from(CPU_QUEUE) / 2 };
    bench.run(flow, &arrivals)
}

/// Packets redirected to the interface under test leave through it.
pub(super) fn ndo_xdp_xmit(bench: &Bench, name: &'static str) -> Outcome<Row> {
    let link = &bench.place.dut;
    // A veth has queues for redirected packets only while a program is attached.
    let _program = bench.on_dut(&Bench::recipe(Action::Verdict(XdpAction::Drop)))?;
    let counting = bench.place.peer.as_ref().map(|peer| bench.count_at(peer)).transpose()?;
    if sys::xdp_features(link.index).is_ok_and(|features| !features.xmit()) {
        return Ok(Row::skipped(name, "the driver does not take redirected packets"));
    }
    let mut generator = Generator::live(link, &bench.place.ends())?;
    let count = || match &counting {
        Some(counting) => counting.count(XdpAction::Drop),
        None => sent_by(link).during("counters"),
    };
    let flow = Flow { name, count: bench.count, generator: &mut generator };
    bench.run(flow, &Arrivals { count: &count, dropped: &nothing, window: 0 })
}

/// Packets that the interface counts as sent.
pub(super) fn sent_by(link: &Link) -> io::Result<u64> {
    Ok(sys::Netlink::new()?.link_counters(link.index)?.tx_packets)
}
