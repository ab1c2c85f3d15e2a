//! Where the classifiers of an interface sit: in links of the kernel's, which go with the process, or, before Linux 6.6, in a clsact
//! queueing discipline, where they stay if the process is killed.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;

use nix::net::if_::if_nametoindex;
use sys::bpf::{Direction, Program, TcxLink};
use sys::{Classifier, Link, Netlink, abstract_names, bind_seqpacket, random_u64};

use crate::failure::{During, Failure, Outcome};

/// What every name of ours in a clsact begins with; the process id follows, for people, and a number of its own.
const NAME: &str = "roxie_tap:";
/// `clsact` has it used although the kernel has links, `tcx` has it not used.
const FORCE: &str = "ROXIE_TAP";

/// Where classifiers shall sit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum How {
    /// In links where the kernel has them.
    Any,
    Links,
    Filters,
}

impl How {
    fn parse(word: Option<&OsStr>) -> Outcome<Self> {
        match word.map(OsStr::as_encoded_bytes) {
            None | Some(b"") => Ok(Self::Any),
            Some(b"tcx") => Ok(Self::Links),
            Some(b"clsact") => Ok(Self::Filters),
            Some(_) => {
                let word = word.unwrap_or_default().display();
                Err(Failure::new(format!("{FORCE}={word}: it is tcx or clsact, or not set")).code(2))
            }
        }
    }
}

/// Both classifiers of an interface. Dropping it takes them off.
pub(super) enum Attached {
    Links([TcxLink; 2]),
    Filters(Filters),
}

impl Attached {
    /// Puts the programs for incoming and outgoing packets on an interface.
    pub(super) fn new(link: &Link, inward: &Program, outward: &Program) -> Outcome<Self> {
        let how = How::parse(std::env::var_os(FORCE).as_deref())?;
        if how == How::Filters {
            return Filters::new(link, inward, outward).map(Self::Filters);
        }
        let attach = |program, direction| TcxLink::attach(program, link.index, direction);
        match attach(inward, Direction::Ingress) {
            Ok(first) => {
                let second = attach(outward, Direction::Egress);
                let second = second.during(&format!("listening on {}", link.name))?;
                Ok(Self::Links([first, second]))
            }
            Err(error) if how == How::Any && error.raw_os_error() == Some(nix::libc::EINVAL) => {
                let attached = Filters::new(link, inward, outward)?;
                eprintln!(
                    "roxie: {}: this kernel has no links for classifiers (TCX, Linux 6.6): they are filters of its clsact",
                    link.name
                );
                Ok(Self::Filters(attached))
            }
            Err(error) => Err(error).during(&format!("listening on {}", link.name)),
        }
    }

    /// Whether the interface is still there.
    pub(super) fn is_there(&self) -> io::Result<bool> {
        match self {
            Self::Links([first, _]) => first.is_attached(),
            Self::Filters(filters) => {
                Ok(if_nametoindex(filters.name.as_str()).is_ok_and(|index| index == filters.index))
            }
        }
    }
}

/// Two filters, and the clsact if it was made for them.
pub(super) struct Filters {
    name: String,
    index: u32,
    ours: Vec<Classifier>,
    /// The interface had no clsact.
    made: bool,
    /// Has the name of the filters, for as long as this process lives and wherever it does: it is the network namespace's, as the interface is.
    _mark: OwnedFd,
}

impl Filters {
    fn new(link: &Link, inward: &Program, outward: &Program) -> Outcome<Self> {
        let during = format!("listening on {} by clsact", link.name);
        let mut netlink = Netlink::new().during(&during)?;
        let index = link.index;
        remove_orphans(&mut netlink, index).during(&during)?;
        let name = format!("{NAME}{}:{:x}", std::process::id(), random_u64());
        let mark = bind_seqpacket(&name).during(&during)?;
        let made = netlink.add_clsact(index).during(&during)?;
        // From here on, whatever fails is undone when this is dropped.
        let mut filters = Self { name: link.name.clone(), index, ours: Vec::new(), made, _mark: mark };
        for (direction, program) in [(Direction::Ingress, inward), (Direction::Egress, outward)] {
            let added = netlink.add_classifier(index, direction, program, &name);
            filters.ours.push(added.map_err(|error| {
                let failure = Failure::new(format!("{during}: {error}"));
                match error.raw_os_error() {
                    Some(nix::libc::EINVAL) if !made => failure
                        .hint("its queueing discipline for incoming packets is 'ingress', which has no egress: use clsact there"),
                    _ => failure,
                }
            })?);
        }
        Ok(filters)
    }

    fn remove(&self) -> io::Result<()> {
        let mut netlink = Netlink::new()?;
        for filter in &self.ours {
            netlink.remove_classifier(self.index, filter)?;
        }
        // Somebody else may have come to use it.
        if self.made && netlink.classifiers(self.index)?.is_empty() {
            netlink.remove_clsact(self.index)?;
        }
        Ok(())
    }
}

impl Drop for Filters {
    fn drop(&mut self) {
        // An interface that has gone has taken them with it.
        if if_nametoindex(self.name.as_str()).is_ok_and(|index| index == self.index)
            && let Err(error) = self.remove()
        {
            eprintln!(
                "roxie: {}: classifiers stay ('tc filter show dev {} ingress'): {error}",
                self.name, self.name
            );
        }
    }
}

/// Takes off what processes have left that were killed: nobody has the name any more.
fn remove_orphans(netlink: &mut Netlink, index: u32) -> io::Result<()> {
    let alive = abstract_names(NAME);
    for filter in netlink.classifiers(index)? {
        if filter.name.starts_with(NAME) && !alive.contains(&filter.name) {
            netlink.remove_classifier(index, &filter)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_is_refused() {
        for (word, how) in [("", How::Any), ("tcx", How::Links), ("clsact", How::Filters)] {
            assert_eq!(How::parse(Some(OsStr::new(word))).ok(), Some(how));
        }
        assert_eq!(How::parse(None).ok(), Some(How::Any));
        let refused = How::parse(Some(OsStr::new("CLSACT"))).expect_err("it is none");
        assert!(refused.to_string().contains("ROXIE_TAP=CLSACT"), "{refused}");
    }
}
