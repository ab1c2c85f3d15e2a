//! Classifiers for kernels before 6.6: filters of a clsact queueing discipline (tc-bpf(8),
//! linux/pkt_cls.h). Needs CAP_NET_ADMIN. They stay when the process that attached them dies.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::Netlink;
use super::message::{NLA_F_NESTED, each_attribute, put_attribute, text_of, u32_at};
use crate::bpf::{Direction, Program};

/// A classifier of an interface.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Classifier {
    /// Which packets it sees.
    pub direction: Direction,
    /// Its preference in the upper 16 bits, its protocol below. Together with the handle it identifies
    /// the classifier.
    pub info: u32,
    /// Its number among the classifiers of the same preference.
    pub handle: u32,
    /// The name given to it when it was attached; empty if it is not an eBPF classifier.
    pub name: String,
}

/// linux/pkt_sched.h
const TC_H_CLSACT: u32 = 0xffff_fff1;
const CLSACT_HANDLE: u32 = 0xffff_0000;
const TC_H_INGRESS: u32 = 0xffff_fff2;
const TC_H_EGRESS: u32 = 0xffff_fff3;
/// linux/pkt_cls.h
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
const TCA_BPF_FLAG_ACT_DIRECT: u32 = 1;
/// Every protocol, in network order. Without a preference the kernel chooses one before those it has
/// given so far.
const ETH_P_ALL: u32 = (libc::ETH_P_ALL as u16).to_be() as u32;

impl Netlink {
    /// Adds the clsact qdisc; false if the interface has it, or an ingress qdisc, already.
    ///
    /// # Errors
    /// `ENODEV`, `EPERM`; `ENOENT` without `sch_ingress` in the kernel.
    pub fn add_clsact(&mut self, index: u32) -> io::Result<bool> {
        let mut body = tcmsg(index, CLSACT_HANDLE, TC_H_CLSACT, 0);
        put_attribute(&mut body, libc::TCA_KIND, b"clsact\0");
        match self.create(libc::RTM_NEWQDISC, &body) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the clsact qdisc with all its classifiers.
    ///
    /// # Errors
    /// `ENOENT`, `EPERM`.
    pub fn remove_clsact(&mut self, index: u32) -> io::Result<()> {
        let body = tcmsg(index, CLSACT_HANDLE, TC_H_CLSACT, 0);
        self.order(libc::RTM_DELQDISC, 0, &body)
    }

    /// Attaches a program to an interface that has the clsact qdisc. Packets that it passes go on to
    /// later classifiers.
    ///
    /// # Errors
    /// `EINVAL` without a qdisc for that direction, or without `cls_bpf` in the kernel; `EPERM`.
    pub fn add_classifier(
        &mut self,
        index: u32,
        direction: Direction,
        program: &Program,
        name: &str,
    ) -> io::Result<Classifier> {
        let mut options = Vec::new();
        put_attribute(&mut options, TCA_BPF_FD, &program.as_fd().as_raw_fd().to_ne_bytes());
        put_attribute(&mut options, TCA_BPF_NAME, &[name.as_bytes(), b"\0"].concat());
        put_attribute(&mut options, TCA_BPF_FLAGS, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes());
        let mut body = tcmsg(index, 0, parent(direction), ETH_P_ALL);
        put_attribute(&mut body, libc::TCA_KIND, b"bpf\0");
        put_attribute(&mut body, libc::TCA_OPTIONS | NLA_F_NESTED, &options);
        let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL | libc::NLM_F_ECHO | libc::NLM_F_ACK) as u16;
        let mut made = None;
        // The kernel describes the new filter before it acknowledges the request.
        self.ask(libc::RTM_NEWTFILTER, flags, &body, &mut |kind, bytes| {
            if kind == libc::RTM_NEWTFILTER {
                made = parse(bytes).map(|(_, classifier)| classifier);
            }
        })?;
        if made.is_none() {
            // The filter exists: the caller must be able to remove it.
            let all = self.classifiers(index)?;
            made = all.into_iter().find(|there| there.direction == direction && there.name == name);
        }
        made.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Removes a classifier.
    ///
    /// # Errors
    /// `ENOENT` if it does not exist any more; `EPERM`.
    pub fn remove_classifier(&mut self, index: u32, classifier: &Classifier) -> io::Result<()> {
        let mut body = tcmsg(index, classifier.handle, parent(classifier.direction), classifier.info);
        put_attribute(&mut body, libc::TCA_KIND, b"bpf\0");
        self.order(libc::RTM_DELTFILTER, 0, &body)
    }

    /// Returns all classifiers of an interface in both directions, those of other programs included.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn classifiers(&mut self, index: u32) -> io::Result<Vec<Classifier>> {
        let mut all = Vec::new();
        for direction in [Direction::Ingress, Direction::Egress] {
            let body = tcmsg(index, 0, parent(direction), 0);
            match self.dump(libc::RTM_GETTFILTER, &body, libc::RTM_NEWTFILTER, parse) {
                Ok(found) => all.extend(
                    found.into_iter().filter(|(there, _)| *there == index).map(|(_, classifier)| classifier),
                ),
                // The interface has no such qdisc.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

fn parent(direction: Direction) -> u32 {
    match direction {
        Direction::Ingress => TC_H_INGRESS,
        Direction::Egress => TC_H_EGRESS,
    }
}

/// tcmsg: family, padding, i32 index, u32 handle, parent, info.
fn tcmsg(index: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    [0, index, handle, parent, info].map(u32::to_ne_bytes).concat()
}

/// Returns the index of the interface, and the classifier.
fn parse(bytes: &[u8]) -> Option<(u32, Classifier)> {
    let direction = match u32_at(bytes, 12)? {
        TC_H_INGRESS => Direction::Ingress,
        TC_H_EGRESS => Direction::Egress,
        _ => return None,
    };
    let (index, handle, info) = (u32_at(bytes, 4)?, u32_at(bytes, 8)?, u32_at(bytes, 16)?);
    // The kernel also describes the chain of the classifiers of one preference.
    if handle == 0 {
        return None;
    }
    let (mut name, mut is_bpf) = (String::new(), false);
    each_attribute(bytes.get(20..)?, |kind, value| match kind {
        libc::TCA_KIND => is_bpf = text_of(value) == "bpf",
        libc::TCA_OPTIONS if is_bpf => each_attribute(value, |kind, value| {
            if kind == TCA_BPF_NAME {
                name = text_of(value);
            }
        }),
        _ => {}
    });
    Some((index, Classifier { direction, info, handle, name }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_classifier_is_read_with_its_name() {
        // As the kernel (6.18) describes one on interface 3, preference 49152, handle 1.
        let mut bytes = tcmsg(3, 1, TC_H_EGRESS, 0xc000_0300);
        put_attribute(&mut bytes, libc::TCA_KIND, b"bpf\0");
        let mut options = Vec::new();
        put_attribute(&mut options, TCA_BPF_NAME, b"tap:7\0");
        put_attribute(&mut options, TCA_BPF_FLAGS, &1_u32.to_ne_bytes());
        put_attribute(&mut bytes, libc::TCA_OPTIONS, &options);
        let want = Classifier {
            direction: Direction::Egress,
            info: 0xc000_0300,
            handle: 1,
            name: "tap:7".to_owned(),
        };
        assert_eq!(parse(&bytes), Some((3, want)));
        assert_eq!(parse(&tcmsg(3, 1, 0, 0)), None, "of another qdisc");
        assert_eq!(parse(&bytes[..18]), None);
    }
}
