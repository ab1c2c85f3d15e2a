//! The kernel's side of `tests/programs/several.rs`: Soft-RoCE on two interfaces of the machine prints the
//! lines that are kept there.

use crate::dispatcher::Case;
use crate::machine::Machine;

const KEPT: &str = include_str!("../programs/several.txt");

/// A second interface with a device, its neighbour, and an address that no device has.
const SETUP: &str = "modprobe veth && ip link add veth1 type veth peer name veth2 &&
    ip link set veth1 addrgenmode none && ip link set veth1 up && ip link set veth2 up &&
    ip addr add 10.78.0.1/24 dev veth1 && ip addr add 10.99.77.1/32 dev lo &&
    ip neigh add 10.78.0.2 lladdr 02:00:00:00:00:02 dev veth1 nud permanent &&
    rdma link add rxe1 type rxe netdev veth1";
const CLEAN_UP: &str = "rdma link del rxe1; ip link del veth1; ip addr del 10.99.77.1/32 dev lo";

pub(crate) const CASES: [Case; 1] = [("several/two devices on rxe", two_devices)];

fn two_devices(machine: &Machine, _name: &str) -> Result<(), String> {
    machine.command(SETUP)?;
    let printed = machine.ask("/root/several 10.99.0.2 10.99.0.1 veth1 10.78.0.1 10.78.0.2 10.99.77.1");
    machine.command(CLEAN_UP)?;
    let printed = printed?;
    let differs = KEPT.lines().zip(printed.lines().chain([""; 99])).find(|(kept, got)| kept != got);
    differs.map_or(Ok(()), |(kept, got)| Err(format!("'{got}' instead of '{kept}'\n{printed}")))
}
