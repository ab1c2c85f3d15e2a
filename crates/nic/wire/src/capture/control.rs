//! Frames by which neighbours on a link control it: pause frames, LLDP with DCBX, spanning tree.

use core::fmt;

use super::{DecodeAs, LinkType};
use crate::bytes::{array, u16_at};
use crate::eth::{EtherType, Mac};

const FLOW_CONTROL: EtherType = EtherType(0x8808);
const LLDP: EtherType = EtherType(0x88cc);
/// Headers of LLC in front of a BPDU: IEEE 802.1D, and SNAP of Cisco's per-VLAN spanning tree.
const SPANNING_TREE: [&[u8]; 2] = [&[0x42, 0x42, 3], &[0xaa, 0xaa, 3, 0, 0, 0x0c, 1, 0x0b]];

/// A frame that controls the link on which it was captured, and its sender.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkControl {
    /// The port that sent the frame.
    pub src: Mac,
    /// What it says.
    pub what: Control,
}

/// What a control frame says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Control {
    /// The receiver of the frame must not send for this time, in units of 512 bit times (IEEE 802.3, 31B).
    Pause(u16),
    /// The same for each priority class of which the bit is set (IEEE 802.1Qbb).
    ClassPause {
        /// Bit `n` is class `n`.
        classes: u8,
        /// Times of the classes; 0 ends the pause.
        quanta: [u16; 8],
    },
    /// An announcement of LLDP (IEEE 802.1AB).
    Neighbour {
        /// Seconds that it is valid; 0 ends the announcements: the port goes down, or LLDP is switched off.
        ttl_s: u16,
        /// Classes with flow control, if DCBX announces them (IEEE 802.1Qaz, D.2.10).
        pfc: Option<u8>,
    },
    /// A message of the spanning tree (IEEE 802.1D, 9.3), and whether it says that the topology changed.
    SpanningTree(bool),
}

impl LinkControl {
    /// Finds the control frame in a captured packet.
    #[must_use]
    pub fn find(decode_as: impl Into<DecodeAs>, bytes: &[u8]) -> Option<Self> {
        let DecodeAs { link_type, .. } = decode_as.into();
        let link = link_type.split(bytes).filter(|_| link_type != LinkType::INFINIBAND)?;
        let what = match link.ether_type {
            FLOW_CONTROL => flow_control(link.rest)?,
            LLDP => lldp(link.rest)?,
            _ => spanning_tree(link.rest).filter(|_| super::encap::is_in_llc(link.ether_type))?,
        };
        Some(Self { src: link.ethernet?.src, what })
    }
}

fn flow_control(bytes: &[u8]) -> Option<Control> {
    match u16_at(bytes.first_chunk::<2>()?, 0) {
        1 => Some(Control::Pause(u16_at(bytes.get(2..)?.first_chunk::<2>()?, 0))),
        0x101 => {
            let body = bytes.get(2..)?.first_chunk::<18>()?;
            let quanta = core::array::from_fn(|class| u16_at(body, 2 + 2 * class));
            Some(Control::ClassPause { classes: body[1], quanta })
        }
        _ => None,
    }
}

fn lldp(mut bytes: &[u8]) -> Option<Control> {
    const TTL: u16 = 3;
    const PFC: [u8; 4] = [0x00, 0x80, 0xc2, 0x0b];
    let (mut ttl_s, mut pfc) = (None, None);
    while let Some((header, rest)) = bytes.split_first_chunk::<2>() {
        let header = u16_at(header, 0);
        let Some((value, behind)) = rest.split_at_checked(usize::from(header & 0x1ff)) else { break };
        bytes = behind;
        match (header >> 9, value) {
            (0, _) => break,
            (TTL, [high, low, ..]) => ttl_s = Some(u16::from_be_bytes([*high, *low])),
            (127, value) if value.starts_with(&PFC) => pfc = value.get(5).copied().or(pfc),
            _ => {}
        }
    }
    ttl_s.map(|ttl_s| Control::Neighbour { ttl_s, pfc })
}

fn spanning_tree(bytes: &[u8]) -> Option<Control> {
    const NOTIFICATION: u8 = 0x80;
    let bpdu = SPANNING_TREE.iter().find_map(|llc| bytes.strip_prefix(*llc))?;
    let head: [u8; 4] = array(bpdu.first_chunk::<4>()?, 0);
    let flags = bpdu.get(4).copied().unwrap_or(0);
    Some(Control::SpanningTree(head[3] == NOTIFICATION || flags & 1 != 0))
}

impl fmt::Display for LinkControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.src)?;
        match self.what {
            Control::Pause(quanta) => write!(f, "pause frame, {quanta} quanta"),
            Control::ClassPause { classes, quanta } => {
                f.write_str("PFC pause frame")?;
                let wanted = |class: &usize| classes >> class & 1 != 0;
                (0..8)
                    .filter(wanted)
                    .try_for_each(|class| write!(f, ", class {class} {} quanta", quanta[class]))
            }
            Control::Neighbour { ttl_s, pfc } => {
                write!(f, "LLDP, {ttl_s} s")?;
                pfc.map_or(Ok(()), |classes| write!(f, ", PFC for classes {}", Classes(classes)))
            }
            Control::SpanningTree(true) => f.write_str("spanning tree, topology change"),
            Control::SpanningTree(false) => f.write_str("spanning tree"),
        }
    }
}

/// A set of priority classes: `3 and 4`, or `none`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Classes(pub u8);

impl fmt::Display for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("none");
        }
        let mut rest = self.0;
        for class in (0..8).filter(|class| self.0 >> class & 1 != 0) {
            rest &= !(1 << class);
            write!(
                f,
                "{class}{}",
                if rest == 0 {
                    ""
                } else if rest.count_ones() == 1 {
                    " and "
                } else {
                    ", "
                }
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    fn found(ether_type: u16, body: &[u8]) -> Option<LinkControl> {
        let frame: Vec<u8> =
            [&[1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 9][..], &ether_type.to_be_bytes(), body].concat();
        LinkControl::find(LinkType::ETHERNET, &frame)
    }

    #[test]
    fn pause_frames_are_decoded() {
        let pause = found(0x8808, &[0, 1, 0xff, 0xff, 0, 0]).unwrap();
        assert_eq!((pause.src, pause.what), (Mac([2, 0, 0, 0, 0, 9]), Control::Pause(0xffff)));
        let mut body = [0; 20];
        body[..4].copy_from_slice(&[1, 1, 0, 0x18]);
        body[10..12].copy_from_slice(&[0, 7]);
        let pause = found(0x8808, &body).unwrap();
        assert_eq!(
            pause.to_string(),
            "02:00:00:00:00:09: PFC pause frame, class 3 7 quanta, class 4 0 quanta"
        );
        assert!(found(0x8808, &body[..19]).is_none() && found(0x8808, &[0, 2, 0, 0]).is_none());
    }

    #[test]
    fn neighbours_and_spanning_tree_are_decoded() {
        let lldp = [2, 2, 7, 3, 6, 2, 0, 120, 0xfe, 6, 0, 0x80, 0xc2, 0x0b, 8, 0x18, 0, 0];
        let what = found(0x88cc, &lldp).unwrap().what;
        assert_eq!(what, Control::Neighbour { ttl_s: 120, pfc: Some(0x18) });
        assert_eq!(found(0x88cc, &[6, 2, 0, 0]).unwrap().what, Control::Neighbour { ttl_s: 0, pfc: None });
        for (flags, changed) in [(0x3c, false), (0x3d, true)] {
            let bpdu = [0x42, 0x42, 3, 0, 0, 2, 2, flags];
            assert_eq!(found(39, &bpdu).unwrap().what, Control::SpanningTree(changed));
        }
        assert_eq!(found(7, &[0x42, 0x42, 3, 0, 0, 0, 0x80]).unwrap().what, Control::SpanningTree(true));
        assert!(found(0x0800, &[0x42, 0x42, 3, 0, 0, 0, 0x80]).is_none());
        assert_eq!(
            [0, 8, 0x18, 0x92].map(|set| Classes(set).to_string()),
            ["none", "3", "3 and 4", "1, 4 and 7"]
        );
    }
}
