//! The kernel features that roxie uses, each tried by its system call: a kernel, a container or a sandbox may
//! lack any of them.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};
use sys::{EventFd, FilterInsn, attach_reuseport_filter, memory_file, udp_socket};

use super::Check;

/// Advice for a call that a sandbox may filter.
const SANDBOX: &str = "use a newer kernel, or let the sandbox (seccomp) of this process allow the call";
/// BPF_RET | BPF_K: a filter program that returns 0.
const RETURN: u16 = 0x06;

pub(super) fn checks() -> Vec<Check> {
    vec![
        feature("memfd", memory_file(c"roxie-doctor"), Need::Only("shared memory between processes")),
        feature("eventfd", EventFd::new(), Need::Required),
        feature("reuseport filter", reuseport(), Need::Required),
        feature("AF_UNIX names", sys::seqpacket_pair(), Need::Required),
        feature("epoll", sys::Epoll::new(), Need::Required),
    ]
}

/// What is missing without a feature.
enum Need {
    /// The device.
    Required,
    /// This only.
    Only(&'static str),
}

fn feature<T>(name: &'static str, tried: io::Result<T>, need: Need) -> Check {
    match (tried, need) {
        (Ok(_), _) => Check::ok(name, "works"),
        (Err(error), Need::Required) => Check::bad(name, format!("{error}: the device needs it"), SANDBOX),
        (Err(error), Need::Only(what)) => Check::warn(name, format!("{error}: there is no {what}"), SANDBOX),
    }
}

/// Distributes packets to the sockets of one port by a program in the kernel.
fn reuseport() -> io::Result<()> {
    let socket = udp_socket(false)?;
    setsockopt(&socket, sockopt::ReusePort, &true)?;
    attach_reuseport_filter(socket.as_fd(), &[FilterInsn { code: RETURN, jt: 0, jf: 0, k: 0 }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn a_missing_feature_has_a_remedy() {
        let missing = || Err::<(), _>(io::Error::from_raw_os_error(38));
        let bad = feature("x", missing(), Need::Required);
        assert!(bad.status == Status::Bad && bad.remedy.is_some(), "{bad:?}");
        let warn = feature("x", missing(), Need::Only("speed"));
        assert!(warn.status == Status::Warn && warn.text.contains("no speed"), "{warn:?}");
    }

    #[test]
    fn this_machine_has_all_features_that_the_tests_need() {
        assert!(checks().iter().all(|check| check.status == Status::Ok), "{:?}", checks());
    }
}
