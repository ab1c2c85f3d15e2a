//! The guest's own device: QEMU's pvrdma on roxie (`docs/applications/pvrdma.md`). Programs in the guest on
//! vmw_pvrdma0, and their peers on roxie at the host's end.

use std::time::Duration;

use roxie_tests::pair::Ready;
use roxie_tests::place::Port;

use crate::dispatcher::Case;
use crate::end::End;
use crate::machine::{Machine, good};

/// The guest's link-local address, that of the MAC in rxe-vm. QEMU looks for the guest's GID among those of
/// the back end.
const GUEST: &str = "fe80::5054:ff:fe99:202/64";
/// Time limit of a program: emulation.
const LIMIT: Duration = Duration::from_secs(40);

pub(crate) const CASES: [Case; 4] = [
    ("pvrdma/ibv_rc_pingpong, the guest as client", |m, name| pair(m, name, "ibv_rc_pingpong", End::Rxe)),
    ("pvrdma/ibv_rc_pingpong, the guest as server", |m, name| pair(m, name, "ibv_rc_pingpong", End::Roxie)),
    ("pvrdma/ibv_ud_pingpong, the guest as client", |m, name| pair(m, name, "ibv_ud_pingpong", End::Rxe)),
    ("pvrdma/ibv_ud_pingpong, the guest as server", |m, name| pair(m, name, "ibv_ud_pingpong", End::Roxie)),
];

fn pair(machine: &Machine, name: &str, program: &str, client: End) -> Result<(), String> {
    machine.ip(&["address", "replace", GUEST, "dev", End::Roxie.netdev(), "nodad"])?;
    let port = machine.port();
    let word = port.to_string();
    let start = |end: End| {
        let device: &[&str] = match end {
            End::Rxe => &[program, "-d", "vmw_pvrdma0"],
            End::Roxie | End::A | End::B => &["env", "ROXIE_GIDS=kernel", program],
        };
        let server = client.other().address(false);
        let server = if end == client { &[server][..] } else { &[] };
        let words = [device, &["-g", "0", "-c", "-n", "200", "-p", &word], server].concat();
        machine.start(end, name, Port::Udp, &words)
    };
    let mut server = start(client.other())?;
    machine.wait_ready(client.other(), &mut server, Ready::Tcp(port))?;
    let mut client = start(client)?;
    good(client.wait(LIMIT), &mut server)?;
    good(server.wait(LIMIT), &mut client)?;
    // The driver stores outside of its table of `max_qp` entries if the number of a queue pair is larger.
    machine.command("log=$(dmesg) && ! echo \"$log\" | grep BUG")
}
