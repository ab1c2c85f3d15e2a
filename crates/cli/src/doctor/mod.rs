//! `roxie doctor`: what works on this machine and what does not, each line with a remedy. It opens the device
//! and sends a message from one queue pair to another; it changes nothing.

mod device;
mod features;
mod message;
mod port;
mod system;
mod xdp;

use clap::Args as ClapArgs;
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::nic_args::DeviceArgs;
use crate::terminal::{self, Terminal, Tone};

/// Check what works on this machine and what does not
///
/// Checks the kernel, UDP segmentation offload, UDP port 4791 and the process that uses it, the limits of
/// this process, socket buffers, network interfaces with their path MTU and XDP modes, the privileges for
/// AF_XDP, the libraries, kernel Soft-RoCE, user namespaces, and the kernel features that roxie uses, one by
/// one. Says of each interface why it has a device or not. Opens the devices, and sends a message from one
/// queue pair of the first to another. Changes nothing. Every line that is not 'ok' says what to do.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/doctor.txt"))]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Print one JSON object instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The result of one check.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    /// It works.
    Ok,
    /// It works, with a limitation.
    Warn,
    /// The device cannot work before this is fixed.
    Bad,
    /// Information only.
    Note,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Check {
    fn new(name: &'static str, status: Status, text: impl Into<String>) -> Self {
        Self { name, status, text: text.into(), remedy: None }
    }

    fn ok(name: &'static str, text: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, text)
    }

    fn note(name: &'static str, text: impl Into<String>) -> Self {
        Self::new(name, Status::Note, text)
    }

    fn warn(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Status::Warn, text).or(remedy)
    }

    fn bad(name: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(name, Status::Bad, text).or(remedy)
    }

    /// Adds a remedy, unless it is empty: none is known.
    fn or(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()).filter(|remedy| !remedy.is_empty()), ..self }
    }
}

/// Runs all checks.
#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    checks: Vec<Check>,
}

/// Prints the report; fails if the device cannot work.
pub(crate) fn print(args: &DoctorArgs) -> Outcome {
    let mut checks = system::checks(args.device.configs().map_or(1, |devices| devices.len()));
    checks.extend(port::checks());
    checks.extend(xdp::checks());
    checks.extend(features::checks());
    checks.extend(device::checks(&args.device));
    checks.push(message::check(&args.device, &checks));
    let bad = checks.iter().filter(|check| check.status == Status::Bad).count();
    let report = Report { ok: bad == 0, checks };
    if args.json {
        terminal::json_lines(&report)?;
    } else {
        show(&report);
    }
    match bad {
        0 => Ok(()),
        1 => Err(Failure::new("1 problem must be fixed first")),
        n => Err(Failure::new(format!("{n} problems must be fixed first"))),
    }
}

fn show(report: &Report) {
    let terminal = Terminal::stdout();
    for check in &report.checks {
        let (tone, word) = match check.status {
            Status::Ok => (Tone::Good, "ok  "),
            Status::Warn => (Tone::Warn, "warn"),
            Status::Bad => (Tone::Bad, "BAD "),
            Status::Note => (Tone::Faint, "--  "),
        };
        terminal.line(&format!("{}  {:<15} {}", terminal.paint(tone, word), check.name, check.text));
        if let Some(remedy) = &check.remedy {
            terminal.line(&format!("      {:<15} -> {remedy}", ""));
        }
    }
    if report.ok {
        terminal.line("The device works here. Try: roxie demo");
    }
}
