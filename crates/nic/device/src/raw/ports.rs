//! The sockets that frames pass: opened with the first queue pair and the first rule, closed with the last.

use std::io;
use std::os::fd::RawFd;

use super::key::{ETHERNET_LEN, VLAN_LEN};
use super::packet_port::PacketReceiver;
use super::table::{FlowRules, FlowType, Rule};
use super::xsk_port::XskFrames;
use crate::notice;
use crate::port::xsk::byte_limit::StallCounters;
use crate::port::{BadVariable, XskError};
use sys::{Netlink, PacketSocket};

/// How frames travel: the value of `ROXIE_RAW_PORT`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Choice {
    /// AF_XDP if it is possible here, else packet sockets.
    #[default]
    Auto,
    /// AF_XDP, or an error.
    Xsk,
    /// Packet sockets.
    Packet,
}

impl Choice {
    const WORDS: &[&str] = &["auto", "xsk", "packet"];

    fn from_word(word: &str) -> Result<Self, BadVariable> {
        match word {
            "" | "auto" => Ok(Self::Auto),
            "xsk" => Ok(Self::Xsk),
            "packet" => Ok(Self::Packet),
            _ => Err(BadVariable::new("ROXIE_RAW_PORT", word, Self::WORDS)),
        }
    }

    fn from_env() -> Result<Self, BadVariable> {
        Self::from_word(&std::env::var_os("ROXIE_RAW_PORT").unwrap_or_default().to_string_lossy())
    }
}

/// The sockets of the netdev.
#[derive(Debug)]
pub(crate) struct Ports {
    ifindex: u32,
    netdev: String,
    frame_max: usize,
    sender: Option<PacketSocket>,
    receiver: Option<PacketReceiver>,
    choice: Choice,
    xsk: Option<XskFrames>,
    /// AF_XDP was tried, and is not possible here.
    is_xsk_refused: bool,
    /// Which of them the last `fetch` took frames from: the first so many are those of the packet socket.
    fetched: usize,
    oversize: u64,
    /// Those of AF_XDP sockets that were closed.
    stalls: StallCounters,
}

impl Ports {
    pub(super) fn new(ifindex: u32) -> Self {
        Self {
            ifindex,
            netdev: String::new(),
            frame_max: 0,
            sender: None,
            receiver: None,
            choice: Choice::default(),
            xsk: None,
            is_xsk_refused: false,
            fetched: 0,
            oversize: 0,
            stalls: StallCounters::default(),
        }
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
        self.choice = Choice::from_env().map_err(|error| {
            notice(format_args!("no raw packet queue pairs: {error}"));
            io::Error::from_raw_os_error(libc::EOPNOTSUPP)
        })?;
        let link = Netlink::new()?.link(self.ifindex)?;
        if !link.is_ethernet && !link.is_loopback {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.frame_max = link.mtu as usize + ETHERNET_LEN + VLAN_LEN;
        self.netdev = link.name;
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
        (self.sender, self.receiver, self.xsk) = (None, None, None);
    }

    /// Makes the sockets receive what the rules ask for.
    ///
    /// # Errors
    /// `EMFILE`, `ENODEV`, and what the kernel says.
    pub(super) fn follow(&mut self, rules: &FlowRules) -> io::Result<()> {
        if rules.iter().next().is_none() {
            self.close_receivers();
            return Ok(());
        }
        if rules.iter().any(Rule::takes) {
            self.open_xsk()?;
        }
        if let Some(xsk) = &mut self.xsk {
            xsk.follow(rules)?;
        }
        // The program takes frames from the network stack; the other rules get copies.
        if self.xsk.is_some() && rules.iter().all(Rule::takes) {
            self.close_packet_receiver();
            return Ok(());
        }
        if self.receiver.is_none() {
            self.receiver = Some(PacketReceiver::open(self.ifindex, self.frame_max)?);
        }
        if let Some(receiver) = &mut self.receiver {
            receiver.set(true, rules.iter().any(|rule| rule.ty == FlowType::Sniffer))?;
        }
        Ok(())
    }

    fn close_receivers(&mut self) {
        self.close_packet_receiver();
        if let Some(xsk) = self.xsk.take() {
            let StallCounters { stalls, stalled_ns } = xsk.stalls();
            self.stalls.stalls += stalls;
            self.stalls.stalled_ns += stalled_ns;
        }
    }

    fn close_packet_receiver(&mut self) {
        self.oversize += self.receiver.take().map_or(0, |receiver| receiver.oversize);
    }

    /// Opens the AF_XDP sockets, unless the user or an earlier attempt excludes them.
    fn open_xsk(&mut self) -> io::Result<()> {
        if self.xsk.is_some() || self.is_xsk_refused || self.choice == Choice::Packet {
            return Ok(());
        }
        let error = match XskFrames::open(self.ifindex) {
            Ok(xsk) => {
                self.xsk = Some(xsk);
                return Ok(());
            }
            Err(error) => error,
        };
        if self.choice == Choice::Xsk {
            notice(format_args!("no AF_XDP for raw packet queue pairs on {}: {error}", self.netdev));
            return Err(io::Error::from_raw_os_error(error.errno()));
        }
        self.is_xsk_refused = true;
        let is_own = matches!(error, XskError::Owned { pid } if pid == Some(std::process::id()));
        // `lo` has no AF_XDP at all, and the user chose AF_XDP for RoCE: neither is a surprise.
        if !matches!(error, XskError::NotEthernet) && !is_own {
            notice(format_args!(
                "raw packet queue pairs on {} use packet sockets, and the network stack gets their frames as \
                 well: {error}",
                self.netdev
            ));
        }
        Ok(())
    }

    /// Whether frames may arrive.
    pub(super) fn receives(&self) -> bool {
        self.receiver.is_some() || self.xsk.is_some()
    }

    /// The descriptors that are readable when frames have arrived.
    pub(super) fn fds(&self) -> Vec<RawFd> {
        let packet = self.receiver.iter().map(PacketReceiver::fd);
        packet.chain(self.xsk.iter().map(XskFrames::fd)).collect()
    }

    /// Sends frames, the first of `first_len` bytes; returns how many the kernel took.
    pub(super) fn send(
        &mut self,
        first_len: usize,
        frames: &mut dyn Iterator<Item = &[u8]>,
    ) -> io::Result<usize> {
        if let Some(xsk) = &mut self.xsk
            && XskFrames::fits(first_len)
        {
            return Ok(xsk.send(frames));
        }
        match &self.sender {
            Some(sender) => sender.send(frames),
            None => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        }
    }

    /// Takes the frames that have arrived, up to a batch; returns their number.
    pub(super) fn fetch(&mut self) -> usize {
        self.fetched = self.receiver.as_mut().map_or(0, PacketReceiver::fetch);
        self.fetched + self.xsk.as_mut().map_or(0, XskFrames::fetch)
    }

    /// Returns frame `i` of the last [`fetch`](Self::fetch), and whether this host sent it; `None` for one
    /// that a NIC would not have received.
    pub(super) fn frame(&mut self, i: usize) -> Option<(&[u8], bool)> {
        match i.checked_sub(self.fetched) {
            None => self.receiver.as_mut()?.frame(i),
            Some(i) => self.xsk.as_ref()?.frame(i).map(|frame| (frame, false)),
        }
    }

    /// Returns the number of frames that were too long to receive; 1 if AF_XDP is not possible here; how
    /// often the byte limit of AF_XDP refused frames, and for how many microseconds.
    pub(super) fn counters(&self) -> [u64; 4] {
        let oversize = self.oversize + self.receiver.as_ref().map_or(0, |receiver| receiver.oversize);
        let StallCounters { stalls, stalled_ns } = self.xsk.as_ref().map_or(self.stalls, |xsk| {
            let StallCounters { stalls, stalled_ns } = xsk.stalls();
            StallCounters {
                stalls: self.stalls.stalls + stalls,
                stalled_ns: self.stalls.stalled_ns + stalled_ns,
            }
        });
        [oversize, u64::from(self.is_xsk_refused), stalls, stalled_ns / 1000]
    }
}
