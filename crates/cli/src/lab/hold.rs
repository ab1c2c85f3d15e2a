//! The process that holds a lab: it makes the namespaces, says so, and then does nothing until it is killed. Nothing of
//! a lab is anywhere but in its descriptors, so its end is the end of the lab.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use nix::unistd::{Gid, Uid, close, setsid};
use serde::{Deserialize, Serialize};
use sys::{Capabilities, Capability};

use super::args::HoldArgs;
use super::net::Net;
use super::spec::{Spec, host_name};
use super::state::Host;
use crate::failure::{During, Failure, Outcome};
use crate::user_namespace;

/// What the holder says, once.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Report {
    Up { hosts: Vec<Host>, lossy: Option<String>, user_namespace: bool },
    Failed { what: String, hint: Option<String> },
}

/// What it is told when the lab is on record; if it is told nothing, nobody knows of the lab.
pub(super) const STAY: u8 = b'!';

/// Never returns while the lab is up.
pub(crate) fn hold(args: &HoldArgs) -> Outcome {
    // Ctrl-C is meant for the command that started us, whose end we notice.
    setsid().during("leaving the terminal")?;
    close_inherited();
    std::env::set_current_dir("/").during("going to /")?;
    let made = make(&args.spec);
    let (report, net) = match made {
        Ok((report, net)) => (report, Some(net)),
        Err(Failure { what, hint, .. }) => (Report::Failed { what, hint }, None),
    };
    let line = serde_json::to_string(&report).during("describing the lab")?;
    writeln!(io::stdout(), "{line}").during("reporting")?;
    let mut answer = [0];
    let told = io::stdin().read_exact(&mut answer).is_ok() && answer == [STAY];
    while told && net.is_some() {
        std::thread::park();
    }
    Ok(())
}

/// Closes what the caller had open besides the standard streams: whoever waits for the end of a pipe, or for a lock, waits
/// for the last copy.
fn close_inherited() {
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The directory's own is among them, and closed already.
        let _was_closed = close(fd);
    }
}

fn make(spec: &str) -> Outcome<(Report, Net)> {
    let spec: Spec = serde_json::from_str(spec).during("reading the lab's description")?;
    let user_namespace = !Capabilities::effective().has(Capability::SysAdmin);
    if user_namespace {
        user_namespace::enter(Uid::from_raw(0), Gid::from_raw(0))?;
    }
    let net = Net::make(&spec)?;
    let hosts = spec.numbers().zip(&net.hosts).map(|(n, namespace)| {
        let addresses = spec.addresses(n).into_iter().map(|(ip, _)| ip).collect();
        Host::new(host_name(n), addresses, namespace.as_raw_fd())
    });
    let report = Report::Up { hosts: hosts.collect(), lossy: net.lossy.map(str::to_owned), user_namespace };
    Ok((report, net))
}
