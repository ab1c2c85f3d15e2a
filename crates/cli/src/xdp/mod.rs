//! `roxie xdp`: programs on network interfaces.

mod ability;
pub(crate) mod args;
mod attach;
mod beside;
mod compare;
mod detach;
mod fill;
mod list;
mod log;
pub(crate) mod map;
mod object;
mod recipe;
mod samples;
mod source;
mod stats;
mod targets;
mod test;

use args::{XdpArgs, XdpCommand};
use sys::bpf::Program;

use crate::failure::Outcome;
use crate::netdev::link as interface;
pub(crate) use ability::lacking;
pub(crate) use recipe::prefix;
pub(crate) use source::entry_program;
pub(crate) use stats::decisions;

/// Runs the subcommand.
pub(crate) fn run(args: &XdpArgs) -> Outcome {
    match &args.command {
        XdpCommand::Attach(args) => attach::attach(args),
        XdpCommand::Detach(args) => detach::detach(args),
        XdpCommand::List(args) => list::list(args),
        XdpCommand::Stats(args) => stats::stats(args),
        XdpCommand::Map(args) => crate::bpf_data::run(args),
        XdpCommand::Log(args) => log::log(args),
        XdpCommand::Samples(args) => samples::samples(args),
        XdpCommand::Object(args) => object::object(args),
        XdpCommand::Diff(args) => compare::diff(args),
        XdpCommand::Bench(args) => compare::bench(args),
        XdpCommand::Test(args) => test::test(args),
        XdpCommand::Send(args) => test::send(args),
    }
}

/// Name of a program, for messages.
fn known_as(program_id: u32) -> String {
    let info = Program::by_id(program_id).and_then(|program| program.info());
    info.map_or_else(|_| "a program (only root can see its name)".to_owned(), |info| info.name)
}
