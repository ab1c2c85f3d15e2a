//! Attaches the capture programs to a network interface.
//!
//! On Linux 6.6 and later they are attached by TCX links, which the kernel removes when the process ends.
//! Before, they are filters of a clsact queueing discipline, which stay if the process is killed; the next
//! capture removes those.

use std::io;
use std::os::fd::OwnedFd;

use nix::net::if_::if_nametoindex;
use sys::bpf::{Direction, Program, TcxLink};
use sys::{Classifier, Link, Netlink, abstract_names, bind_seqpacket, random_u64};

use super::Options;
use super::error::{During, LiveError};

/// Prefix of the names of our filters in a clsact. The process id, for people, and a random number follow.
const NAME: &str = "roxie_tap:";

/// How programs are attached to an interface.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Attachment {
    /// By TCX links if the kernel has them (Linux 6.6), else by filters of a clsact.
    #[default]
    Any,
    /// By TCX links only.
    Tcx,
    /// By filters of a clsact queueing discipline only.
    Clsact,
}

/// Both programs of an interface, attached. Dropping it detaches them.
pub(super) enum Attached {
    Links([TcxLink; 2]),
    Filters(Filters),
}

impl Attached {
    /// Attaches the programs for incoming and outgoing packets.
    pub(super) fn new(
        link: &Link,
        ingress: &Program,
        egress: &Program,
        options: &Options,
    ) -> Result<Self, LiveError> {
        if options.attachment == Attachment::Clsact {
            return Filters::new(link, ingress, egress, options).map(Self::Filters);
        }
        let step = format!("attaching to {}", link.name);
        let attach = |program, direction| TcxLink::attach(program, link.index, direction);
        match attach(ingress, Direction::Ingress) {
            Ok(first) => Ok(Self::Links([first, attach(egress, Direction::Egress).during(&step)?])),
            Err(error)
                if options.attachment == Attachment::Any
                    && error.raw_os_error() == Some(nix::libc::EINVAL) =>
            {
                let attached = Filters::new(link, ingress, egress, options)?;
                options.notify(&format!(
                    "{}: this kernel has no TCX links (Linux 6.6): the capture uses filters of a clsact",
                    link.name
                ));
                Ok(Self::Filters(attached))
            }
            Err(error) => Err(error).during(&step),
        }
    }

    /// Whether the interface still exists.
    pub(super) fn is_there(&self) -> io::Result<bool> {
        match self {
            Self::Links([first, _]) => first.is_attached(),
            Self::Filters(filters) => Ok(filters.is_there()),
        }
    }
}

/// Two filters, and their clsact if it was created for them.
pub(super) struct Filters {
    interface: String,
    index: u32,
    added: Vec<Classifier>,
    /// The interface had no clsact.
    created_clsact: bool,
    notify: Option<fn(&str)>,
    /// An abstract socket with the name of the filters. Other captures in the network namespace see by it
    /// that the owner of the filters is alive, also from another PID namespace.
    _owner_mark: OwnedFd,
}

impl Filters {
    fn new(link: &Link, ingress: &Program, egress: &Program, options: &Options) -> Result<Self, LiveError> {
        let step = format!("attaching to {} by clsact", link.name);
        let mut netlink = Netlink::new().during(&step)?;
        let index = link.index;
        remove_orphans(&mut netlink, index).during(&step)?;
        let name = format!("{NAME}{}:{:x}", std::process::id(), random_u64());
        let owner_mark = bind_seqpacket(&name).during(&step)?;
        let created_clsact = netlink.add_clsact(index).during(&step)?;
        // From here on dropping `filters` undoes everything.
        let mut filters = Self {
            interface: link.name.clone(),
            index,
            added: Vec::new(),
            created_clsact,
            notify: options.notify,
            _owner_mark: owner_mark,
        };
        for (direction, program) in [(Direction::Ingress, ingress), (Direction::Egress, egress)] {
            match netlink.add_classifier(index, direction, program, &name) {
                Ok(filter) => filters.added.push(filter),
                Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) && !created_clsact => {
                    return Err(LiveError::IngressQdisc { name: link.name.clone(), error });
                }
                Err(error) => return Err(error).during(&step),
            }
        }
        Ok(filters)
    }

    fn is_there(&self) -> bool {
        if_nametoindex(self.interface.as_str()).is_ok_and(|index| index == self.index)
    }

    fn remove(&self) -> io::Result<()> {
        let mut netlink = Netlink::new()?;
        for filter in &self.added {
            netlink.remove_classifier(self.index, filter)?;
        }
        // Another program may have added filters to our clsact since.
        if self.created_clsact && netlink.classifiers(self.index)?.is_empty() {
            netlink.remove_clsact(self.index)?;
        }
        Ok(())
    }
}

impl Drop for Filters {
    fn drop(&mut self) {
        // The kernel has removed the filters of an interface that was deleted.
        if self.is_there()
            && let Err(error) = self.remove()
            && let Some(notify) = self.notify
        {
            notify(&format!(
                "{0}: the capture filters cannot be removed: {error} ('tc filter show dev {0} ingress' \
                 shows them)",
                self.interface
            ));
        }
    }
}

/// Removes the filters of captures that were killed: no socket has their name.
fn remove_orphans(netlink: &mut Netlink, index: u32) -> io::Result<()> {
    let alive = abstract_names(NAME);
    for filter in netlink.classifiers(index)? {
        if filter.name.starts_with(NAME) && !alive.contains(&filter.name) {
            netlink.remove_classifier(index, &filter)?;
        }
    }
    Ok(())
}
