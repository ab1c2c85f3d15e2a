//! The `roxie` program. One file or directory per subcommand.
//!
//! It is a library for its own program and for the fuzz targets only: it has no interface for others.
//! `help/` has the examples and exit statuses that `--help` shows after the options.
#![forbid(unsafe_code)]

#[macro_use]
#[allow(unreachable_pub, reason = "a program exports nothing")]
mod terminal;

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
#[allow(unreachable_pub, reason = "as above")]
mod ending;
#[allow(unreachable_pub, reason = "as above")]
mod engines;
mod env;
mod explain;
#[allow(unreachable_pub, reason = "as above")]
mod failure;
mod frames;
#[cfg(feature = "fuzz")]
pub mod fuzz;
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
mod nic_args;
mod output;
mod own;
#[cfg(test)]
mod pages_tests;
mod pair;
mod processes;
mod program;
mod recording;
mod run;
mod run_args;
mod sim;
mod supervised;
mod top;
mod trace;
mod user_dir;
mod user_namespace;
mod words;
mod xdp;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use roxie::printable;
use roxie_capture::paint::Colours;

use args::{Args, Command};

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    sys::survive_file_size_limit();
    roxie_hook::register();
    let args = parse();
    env::warn_of_unknown();
    let result = match args.command {
        Command::Capture(args) => return exit(capture::run(&args)),
        Command::Interop(args) => return exit(interop::run(&args)),
        Command::Run(args) => return exit(run::run(&args)),
        Command::Pair(args) => return exit(pair::run(&args)),
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
        Command::Own(args) => own::run(&args, &Args::command()),
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
    let parser = std::thread::Builder::new().stack_size(PARSER_STACK).spawn(try_parse);
    let parsed = match parser.map(std::thread::JoinHandle::join) {
        Ok(Ok(parsed)) => parsed,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(_no_thread) => try_parse(),
    };
    parsed.unwrap_or_else(|error| {
        terminal::print_of_parser(&error);
        std::process::exit(error.exit_code())
    })
}

/// Parses the command line. Its errors contain no text that controls a terminal.
fn try_parse() -> Result<Args, clap::Error> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let mut parsed = Args::try_parse_from(&words);
    let joined = match &parsed {
        Ok(args) => args.command.program().and_then(|first| nic_args::with_ecn_value(&words, Some(first))),
        Err(_) => nic_args::with_ecn_value(&words, None),
    };
    if let Some(joined) = joined {
        parsed = Args::try_parse_from(&joined);
        words = joined;
    }
    let error = match parsed {
        Err(error) if error.use_stderr() => error,
        parsed => return parsed,
    };
    let shown: Vec<OsString> = words.iter().map(|word| printable(&word.to_string_lossy()).into()).collect();
    if words == shown {
        return Err(error);
    }
    // With printable words the same is wrong, unless a word is not UTF-8, which the error does not repeat.
    match Args::try_parse_from(shown) {
        Err(shown) if shown.kind() == error.kind() => Err(shown),
        _ => {
            let text = error.render().to_string();
            let text = Colours::None.lines(text.strip_prefix("error: ").unwrap_or(&text)).into_owned();
            Err(clap::Error::raw(error.kind(), text))
        }
    }
}

fn exit(result: failure::Outcome<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        failure.print();
        ExitCode::from(failure.code)
    })
}
