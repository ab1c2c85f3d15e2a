//! The packet sockets that frames pass: opened with the first queue pair and the first rule, closed with the
//! last.

use std::io;
use std::os::fd::RawFd;

use super::key::{ETHERNET_LEN, VLAN_LEN};
use super::packet_port::PacketReceiver;
use super::table::{FlowRules, FlowType};
use sys::{Netlink, PacketSocket};

/// The sockets of the netdev.
#[derive(Debug)]
pub(crate) struct Ports {
    ifindex: u32,
    netdev: String,
    /// Frames to this address come back, as from a NIC's internal switch. On `lo` the kernel returns frames.
    own: Option<[u8; 6]>,
    frame_max: usize,
    sender: Option<PacketSocket>,
    receiver: Option<PacketReceiver>,
    /// Of receivers that were closed.
    oversize: u64,
}

impl Ports {
    pub(super) fn new(ifindex: u32) -> Self {
        let (netdev, own) = (String::new(), None);
        Self { ifindex, netdev, own, frame_max: 0, sender: None, receiver: None, oversize: 0 }
    }

    /// Opens the socket that sends, unless it is open.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW; `EOPNOTSUPP` for a netdev without Ethernet headers.
    pub(super) fn open(&mut self) -> io::Result<()> {
        if self.sender.is_some() {
            return Ok(());
        }
        let sender = PacketSocket::sender(self.ifindex)?;
        let link = Netlink::new()?.link(self.ifindex)?;
        if !link.is_ethernet && !link.is_loopback {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.frame_max = link.mtu as usize + ETHERNET_LEN + VLAN_LEN;
        self.netdev = link.name;
        self.own = (!link.is_loopback).then_some(link.mac);
        self.sender = Some(sender);
        Ok(())
    }

    pub(super) fn netdev(&self) -> &str {
        &self.netdev
    }

    /// Longest frame in bytes.
    pub(super) fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// Closes everything, in a forked child.
    pub(super) fn close(&mut self) {
        (self.sender, self.receiver) = (None, None);
    }

    /// Receives what the rules ask for.
    ///
    /// # Errors
    /// `EMFILE`, `ENODEV`, and what the kernel says.
    pub(super) fn follow(&mut self, rules: &FlowRules) -> io::Result<()> {
        if rules.is_empty() {
            self.oversize += self.receiver.take().map_or(0, |receiver| receiver.oversize);
            return Ok(());
        }
        let receiver = match &mut self.receiver {
            Some(open) => open,
            none => none.insert(PacketReceiver::open(self.ifindex, self.frame_max)?),
        };
        receiver.set(true, rules.has(FlowType::Sniffer))
    }

    /// The address of the netdev, if frames to it come back to rules of this process.
    pub(super) fn own(&self) -> Option<[u8; 6]> {
        self.own.filter(|_| self.receives())
    }

    /// Whether frames may arrive.
    pub(super) fn receives(&self) -> bool {
        self.receiver.is_some()
    }

    /// The descriptor that is readable when frames have arrived.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.receiver.as_ref().map(PacketReceiver::fd)
    }

    /// Sends frames; returns how many the kernel took.
    pub(super) fn send(&mut self, frames: &mut dyn Iterator<Item = &[u8]>) -> io::Result<usize> {
        match &self.sender {
            Some(sender) => sender.send(frames),
            None => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        }
    }

    /// Takes the frames that have arrived, up to a batch; returns their number.
    pub(super) fn fetch(&mut self) -> usize {
        self.receiver.as_mut().map_or(0, PacketReceiver::fetch)
    }

    /// Returns frame `i` of the last [`fetch`](Self::fetch), and whether this host sent it; `None` for one
    /// that a NIC would not have received.
    pub(super) fn frame(&mut self, i: usize) -> Option<(&[u8], bool)> {
        self.receiver.as_mut()?.frame(i)
    }

    /// Returns the number of frames that were too long to receive.
    pub(super) fn oversize(&self) -> u64 {
        self.oversize + self.receiver.as_ref().map_or(0, |receiver| receiver.oversize)
    }
}
