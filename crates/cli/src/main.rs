//! The `roxie` program; its code is in `lib.rs`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    roxie_cli::main()
}
