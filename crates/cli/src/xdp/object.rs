//! `roxie xdp object`: writes the steering program to a file, for loaders that put several programs on an
//! interface.

use std::io::Write;

use roxie::xdp::Steering;

use super::args::ObjectArgs;
use crate::failure::{During, Failure, Outcome};
use crate::output;

/// Receive queues that the program redirects from, of an interface that is not known yet. Half: no socket
/// gets the packets of the other queues of a large adapter. Double: a larger map.
const QUEUES: u32 = 64;

/// Writes the file.
pub(super) fn object(args: &ObjectArgs) -> Outcome {
    let program = Steering::loadable(QUEUES).during("program")?;
    let file = bpf::object::write(&program).map_err(|error| Failure::new(error.to_string()))?;
    output::create(&args.file)?.write_all(&file).writing(&args.file)
}
