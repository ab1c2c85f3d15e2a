//! The `roxie` program. One file or directory per subcommand.
#![forbid(unsafe_code)]

#[cfg(test)]
mod adversary_tests;
mod args;
mod bench;
mod bpf_data;
mod capture;
mod cdi;
mod chaos;
mod check;
mod command_dir;
mod cpu;
mod demo;
mod device;
mod device_files;
mod devinfo;
mod doctor;
mod elf;
#[allow(unreachable_pub, reason = "a program exports nothing")]
mod ending;
#[allow(unreachable_pub, reason = "as above")]
mod engines;
mod env;
mod explain;
#[allow(unreachable_pub, reason = "as above")]
mod failure;
mod frames;
mod hook;
#[allow(unreachable_pub, reason = "as above")]
mod interop;
mod lab;
mod library;
mod losses;
mod metrics;
mod need;
#[allow(unreachable_pub, reason = "as above")]
mod netdev;
mod output;
mod own;
mod processes;
mod recording;
mod run;
mod sim;
mod supervised;
#[allow(unreachable_pub, reason = "as above")]
mod terminal;
mod top;
mod trace;
mod user_namespace;
mod xdp;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    sys::survive_file_size_limit();
    let result = match parse().command {
        Command::Capture(args) => return exit(capture::run(&args)),
        Command::Interop(args) => return exit(interop::run(&args)),
        Command::Run(args) => return exit(run::run(&args)),
        Command::Check(args) => return exit(check::run(&args)),
        Command::Trace(args) => return exit(trace::run(&args)),
        Command::Top(args) => top::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Env(args) => env::print(&args),
        Command::Cdi(args) => cdi::run(&args),
        Command::Devinfo(args) => devinfo::print(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Doctor(args) => doctor::print(&args),
        Command::Xdp(args) => xdp::run(&args),
        Command::Hook(args) => hook::run(&args),
        Command::Lab(args) => lab::lab(&args),
        Command::LabHold(args) => lab::hold(&args),
        Command::Own(args) => own::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::DemoServer(args) => demo::server(&args),
        Command::DemoClient(args) => demo::client(&args),
    };
    exit(result.map(|()| ExitCode::SUCCESS))
}

/// Stack of the thread that parses the command line, in bytes. The parser needs 70 KiB for all commands.
const PARSER_STACK: usize = 1 << 20;

/// Parses the command line; exits after help, version and errors.
fn parse() -> Args {
    // The stack of the first thread may be too small (ulimit -s 64).
    let parser = std::thread::Builder::new().stack_size(PARSER_STACK).spawn(Args::try_parse);
    let parsed = match parser.map(std::thread::JoinHandle::join) {
        Ok(Ok(parsed)) => parsed,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(_no_thread) => Args::try_parse(),
    };
    parsed.unwrap_or_else(|error| {
        if let Err(unwritten) = error.print().and_then(|()| std::io::stdout().flush()) {
            terminal::give_up(&unwritten);
        }
        std::process::exit(error.exit_code())
    })
}

fn exit(result: failure::Outcome<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        eprintln!("roxie: {failure}");
        ExitCode::from(failure.code)
    })
}
