//! The process that holds a lab: it makes the namespaces, reports them, and then sleeps until it is killed.
//! Only its descriptors refer to the namespaces, so the kernel removes the lab when it ends.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};

use nix::unistd::{Gid, Uid, close, setsid};
use serde::{Deserialize, Serialize};
use sys::{Capabilities, Capability};

use super::args::HoldArgs;
use super::net::Net;
use super::spec::{Spec, host_name};
use super::state::{self, Host};
use crate::failure::{During, Failure, Outcome};
use crate::{terminal, user_namespace};

/// The one report of the holder.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum Report {
    Up { hosts: Vec<Host>, lossy: Option<String>, user_namespace: bool },
    Failed { what: String, hint: Option<String> },
}

/// The byte that tells the holder that the lab is recorded; without it the holder ends.
pub(super) const STAY: u8 = b'!';

/// Never returns while the lab is up.
pub(crate) fn hold(args: &HoldArgs) -> Outcome {
    // Ctrl-C is for the command that started this process; its end closes the pipe.
    setsid().during("leaving the terminal")?;
    close_inherited();
    std::env::set_current_dir("/").during("going to /")?;
    let made = serde_json::from_str::<Spec>(&args.spec)
        .during("reading the lab's description")
        // Before the user namespace is entered, in which the directory is another one.
        .and_then(|spec| Ok((state::hold(&spec.name)?, make(&spec)?)));
    let (report, net) = match made {
        Ok((held, (report, net))) => (report, Some((net, held))),
        Err(Failure { what, hint, .. }) => (Report::Failed { what, hint }, None),
    };
    let line = serde_json::to_string(&report).during("describing the lab")?;
    writeln!(terminal::data(), "{line}").during("reporting")?;
    let mut answer = [0];
    let told = io::stdin().read_exact(&mut answer).is_ok() && answer == [STAY];
    while told && net.is_some() {
        std::thread::park();
    }
    Ok(())
}

/// Closes descriptors that the caller left open besides the standard streams: an inherited pipe or lock
/// would stay open as long as the lab.
fn close_inherited() {
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The descriptor of the directory itself is closed already.
        let _was_closed = close(fd);
    }
}

fn make(spec: &Spec) -> Outcome<(Report, Net)> {
    let user_namespace = !Capabilities::effective().has(Capability::SysAdmin);
    if user_namespace {
        user_namespace::enter(Uid::from_raw(0), Gid::from_raw(0))?;
    }
    let net = Net::make(spec)?;
    let hosts = spec.numbers().zip(&net.hosts).map(|(n, namespace)| {
        let addresses = spec.addresses(n).into_iter().map(|(ip, _)| ip).collect();
        Host::new(host_name(n), addresses, namespace.as_raw_fd())
    });
    let report = Report::Up { hosts: hosts.collect(), lossy: net.lossy.map(str::to_owned), user_namespace };
    Ok((report, net))
}
