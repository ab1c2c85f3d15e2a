//! The command line of `roxie`: its subcommands. Their options stand with them.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use crate::bench::BenchArgs;
use crate::capture::CaptureArgs;
use crate::cdi::CdiArgs;
use crate::check::CheckArgs;
use crate::demo::args::{DemoArgs, DemoRoleArgs};
use crate::devinfo::DevinfoArgs;
use crate::doctor::DoctorArgs;
use crate::env::EnvArgs;
use crate::explain::ExplainArgs;
use crate::hook::args::HookToolArgs;
use crate::interop::InteropArgs;
use crate::lab::args::{HoldArgs, LabArgs};
use crate::metrics::MetricsArgs;
use crate::own::args::OwnArgs;
use crate::pair::PairArgs;
use crate::run_args::RunArgs;
use crate::sim::args::SimArgs;
use crate::top::TopArgs;
use crate::trace::TraceArgs;
use crate::xdp::args::XdpArgs;

/// RDMA without RDMA hardware.
#[derive(Debug, Parser)]
#[command(
    name = "roxie",
    version,
    about = "RDMA programs on machines without RDMA hardware",
    long_about = "roxie is a RoCEv2 RDMA NIC in user space. Unmodified verbs and rdma_cm programs run on it: \
                  no RDMA hardware, no kernel module, no root. On the wire it is RoCEv2 (UDP port 4791), so \
                  Linux Soft-RoCE and real RoCE NICs are its peers.",
    after_help = "Start with 'roxie demo'. If something does not work, 'roxie doctor' says why.",
    after_long_help = include_str!("help/roxie.txt"),
    max_term_width = 100
)]
pub(crate) struct Args {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Pair(PairArgs),
    Check(CheckArgs),
    Trace(Box<TraceArgs>),
    Env(EnvArgs),
    Cdi(CdiArgs),
    Devinfo(DevinfoArgs),
    Doctor(DoctorArgs),
    Explain(ExplainArgs),
    Xdp(XdpArgs),
    Hook(HookToolArgs),
    Capture(CaptureArgs),
    Top(TopArgs),
    Metrics(MetricsArgs),
    Lab(LabArgs),
    Interop(InteropArgs),
    Sim(SimArgs),
    Demo(DemoArgs),
    Bench(BenchArgs),
    #[command(name = "self")]
    Own(OwnArgs),
    /// The process that holds a lab.
    #[command(hide = true, name = "lab-hold")]
    LabHold(HoldArgs),
    /// The passive process of the demo.
    #[command(hide = true, name = "demo-server")]
    DemoServer(DemoRoleArgs),
    /// The active process of the demo.
    #[command(hide = true, name = "demo-client")]
    DemoClient(DemoRoleArgs),
}

impl Command {
    /// The program that is to be started, with its arguments.
    pub(crate) fn program(&self) -> Option<&OsString> {
        match self {
            Command::Run(args) => args.command.first(),
            Command::Pair(args) => args.run.command.first(),
            Command::Check(args) => args.run.command.first(),
            Command::Trace(args) => args.run.command.first(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::nic_args::with_ecn_value;
    use crate::run_args::When;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    /// The terminal must not wrap these lines: a wrapped line has no indentation.
    #[test]
    fn help_below_the_options_fits_a_terminal() {
        fn check(command: &clap::Command) {
            let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines() {
                let fits = !line.starts_with(' ') || line.chars().count() <= 100;
                assert!(fits, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Args::command());
    }

    #[test]
    fn everything_after_the_command_belongs_to_it() {
        let args = Args::parse_from(["roxie", "run", "--netdev", "lo", "--", "rping", "-s", "--name", "x"]);
        let Command::Run(run) = args.command else { panic!("run") };
        assert_eq!(run.nic.device.netdev.as_deref(), Some("lo"));
        assert_eq!(run.nic.device.name, None);
        assert_eq!(run.command, ["rping", "-s", "--name", "x"]);
        let args = Args::parse_from(["roxie", "run", "rping", "-s", "--name", "x"]);
        let Command::Run(run) = args.command else { panic!("run") };
        assert_eq!(run.command, ["rping", "-s", "--name", "x"]);
        for line in ["roxie lab exec h1 --run -- prog --run", "roxie lab exec --run h1 prog --run"] {
            let Command::Lab(lab) = Args::parse_from(line.split(' ')).command else { panic!("lab") };
            let crate::lab::args::LabCommand::Exec(exec) = lab.command else { panic!("exec") };
            assert!(exec.run && exec.host == "h1" && exec.command == ["prog", "--run"], "{exec:?}");
        }
        let args = ["roxie", "run", "--device", "a=lo,b=eth0", "--", "true"];
        let Command::Run(run) = Args::parse_from(args).command else { panic!("run") };
        let pairs = run.nic.device.device.expect("given");
        assert_eq!((&*pairs.names, &*pairs.netdevs), ("a,b", "lo,eth0"));
        let when = |words: &[&str]| match Args::parse_from([&["roxie", "run"], words].concat()).command {
            Command::Run(run) => (run.device_files, run.command.len()),
            _ => panic!("run"),
        };
        assert_eq!(when(&["--device-files", "true"]), (When::On, 1), "the command is not the value");
        assert_eq!(when(&["--device-files=off", "--", "true"]), (When::Off, 1));
        assert_eq!(when(&["true"]), (When::Auto, 1));
        assert!(Args::try_parse_from(["roxie", "run", "--bogus", "--", "true"]).is_err());
        assert!(Args::try_parse_from(["roxie", "run", "--port", "tcp", "--", "true"]).is_err());
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let with_ecn =
            |line, command: Option<&str>| with_ecn_value(&words(line), command.map(OsString::from).as_ref());
        let joined = Some(words("roxie run --ecn=a=off,b=on -- true"));
        assert_eq!(with_ecn("roxie run --ecn a=off,b=on -- true", Some("a=off,b=on")), joined);
        assert_eq!(with_ecn("roxie env --ecn off", None), Some(words("roxie env --ecn=off")));
        for (line, command) in [
            ("roxie run --ecn true", "true"),
            ("roxie run --ecn -- on", "on"),
            ("roxie run ./prog --ecn on", "./prog"),
            ("roxie run -- ./prog --ecn on", "./prog"),
        ] {
            assert_eq!(with_ecn(line, Some(command)), None, "{line}");
        }
        for wrong in ["a", "a=", "=lo", "a=lo,", ",a=lo"] {
            assert!(
                Args::try_parse_from(["roxie", "run", "--device", wrong, "--", "true"]).is_err(),
                "{wrong}"
            );
        }
    }
}
