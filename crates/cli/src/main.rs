//! The `roxie` program: people in, the device out. One file per subcommand; nothing here touches a packet.
#![forbid(unsafe_code)]

mod args;
mod demo;
mod device;
mod devinfo;
mod doctor;
mod env;
mod failure;
mod hook;
mod library;
mod netdev;
mod run;
mod terminal;
mod xdp;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Env(args) => env::print(&args),
        Command::Devinfo(args) => devinfo::print(&args),
        Command::Doctor(args) => doctor::print(&args),
        Command::Xdp(args) => xdp::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::DemoServer(args) => demo::server(&args),
        Command::DemoClient(args) => demo::client(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("roxie: {failure}");
            ExitCode::from(failure.code)
        }
    }
}
