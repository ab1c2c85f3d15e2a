//! Packets between roxie and the kernel's Soft-RoCE, recorded at the host's end of the wire: tshark must
//! show the same fields as `roxie capture`.

use roxie_tests::recording::Recording;
use roxie_tests::wireshark;

use crate::cases;
use crate::dispatcher;
use crate::machine::Machine;

/// Fewest fields, those of a few hundred packets.
const FIELDS_MIN: usize = 10_000;

pub(crate) const CASES: [dispatcher::Case; 1] = [("recorded/tshark sees the same fields", fields)];

fn fields(machine: &Machine, name: &str) -> Result<(), String> {
    let file = std::env::temp_dir().join(format!("roxie-peers-{}.pcapng", std::process::id()));
    let recording = Recording::begin(machine.record(name, &file)?)?;
    for case in cases::recorded() {
        // The result of the programs is checked by other cases; only their packets count here.
        if let Err(why) = case.run(machine) {
            println!("{}: {why:.100}", case.name());
        }
    }
    recording.end(false)?;
    match wireshark::compare(&machine.roxie(), &file)? {
        Some(compared) if compared < FIELDS_MIN => return Err(format!("only {compared} fields")),
        Some(compared) => println!("{name}: {compared} fields"),
        None => println!("skipped: needs tshark"),
    }
    std::fs::remove_file(&file).map_err(|error| error.to_string())
}
