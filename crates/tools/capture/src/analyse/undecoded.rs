//! Counts packets that roxie does not decode, by kind. Nothing is concluded from the absence of packets that
//! may be among them.

use std::fmt::Write;

use wire::capture::NotRoce;

use super::finding::At;
use super::{Analysis, Record};

/// Kinds that are distinguished; packets of further ones are only counted.
const KINDS_MAX: usize = 64;
/// Kinds that a text names.
const NAMED_MAX: usize = 3;

/// The packets that may be RoCEv2 in a form that is not decoded.
#[derive(Clone, Debug, Default)]
pub struct Undecoded {
    kinds: Vec<(NotRoce, u64, At)>,
    /// Packets of further kinds.
    further: u64,
}

impl Undecoded {
    fn add(&mut self, kind: NotRoce, at: At) {
        let is_full = self.kinds.len() == KINDS_MAX;
        match self.kinds.iter_mut().find(|(known, ..)| *known == kind) {
            Some((_, count, _)) => *count += 1,
            None if is_full => self.further += 1,
            None => self.kinds.push((kind, 1, at)),
        }
    }

    /// The distinguished kinds with their numbers of packets and their first ones, the most frequent first.
    #[must_use]
    pub fn kinds(&self) -> Vec<(NotRoce, u64, At)> {
        let mut kinds = self.kinds.clone();
        kinds.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
        kinds
    }

    /// Number of packets of all kinds.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.kinds.iter().map(|(_, count, _)| count).sum::<u64>() + self.further
    }

    /// `8 packets of a kind that roxie does not decode: UDP port 1021, e.g. packet 3`; `None` without
    /// packets.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let kinds = self.kinds();
        let (kind, count, at) = kinds.first()?;
        if kinds.len() == 1 {
            let s = if *count == 1 { "" } else { "s" };
            return Some(format!(
                "{count} packet{s} of a kind that roxie does not decode: {kind}, e.g. packet {}",
                at.number
            ));
        }
        let mut text = format!("{} packets of kinds that roxie does not decode: ", self.count());
        for (nth, (kind, count, at)) in kinds.iter().take(NAMED_MAX).enumerate() {
            let comma = if nth > 0 { "; " } else { "" };
            // A write to a string cannot fail.
            let _ = write!(text, "{comma}{count} of {kind}, e.g. packet {}", at.number);
        }
        if kinds.len() > NAMED_MAX {
            let _ = write!(text, "; and {} more kinds", kinds.len() - NAMED_MAX);
        }
        if self.further > 0 {
            let _ = write!(text, "; and {} packets of further kinds", self.further);
        }
        Some(text)
    }

    /// The option that decodes the most frequent kind, if it is a port or a link type.
    #[must_use]
    pub fn option(&self) -> Option<String> {
        self.kinds().into_iter().find_map(|(kind, ..)| match kind {
            NotRoce::Port(port) => Some(format!("-d udp.port=={port},rocev2   # or vxlan, geneve, gtp")),
            NotRoce::LinkType(link) if link.name().is_none() => {
                Some(format!("-d linktype=={},ethernet   # or raw, sll, infiniband", link.0))
            }
            _ => None,
        })
    }
}

impl Analysis {
    /// Adds a packet that is not decoded as RoCEv2.
    pub(super) fn not_roce(&mut self, at: At, record: &Record<'_>, reason: NotRoce) {
        if record.data.len() < record.original_len && reason.is_cut() {
            self.totals.headers_cut += 1;
            self.totals.longest_cut = self.totals.longest_cut.max(record.data.len() as u64);
        } else if !reason.is_other_traffic() {
            self.totals.undecoded.add(reason, at);
        } else if matches!(reason, NotRoce::EtherType(_) | NotRoce::Llc(_) | NotRoce::Snap(_)) {
            self.control(at, record);
        }
    }
}
