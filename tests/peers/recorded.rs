//! What roxie and the kernel's Soft-RoCE say to each other, recorded at the host's end of the wire: tshark sees the same fields as
//! `roxie capture`, and nothing was wrong.

use roxie_tests::recording::Recording;
use roxie_tests::wireshark;

use crate::cases;
use crate::dispatcher;
use crate::machine::Machine;

pub(crate) const CASES: [dispatcher::Case; 1] = [("recorded/tshark sees the same fields", fields)];

fn fields(machine: &Machine, name: &str) -> Result<(), String> {
    let file = std::env::temp_dir().join(format!("roxie-peers-{}.pcapng", std::process::id()));
    let recording = Recording::begin(machine.record(name, &file)?)?;
    let ran = cases::recorded().iter().try_for_each(|case| case.run(machine));
    recording.end()?;
    ran?;
    match wireshark::compare(&machine.roxie(), &file)? {
        Some(compared) => println!("{name}: {compared} fields"),
        None => println!("skipped: needs tshark"),
    }
    std::fs::remove_file(&file).map_err(|error| error.to_string())
}
