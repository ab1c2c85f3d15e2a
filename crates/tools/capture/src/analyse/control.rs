//! Causes below IP: pauses of a link, what neighbours announce, changes of the topology.

use std::fmt::Write;

use wire::Mac;
use wire::capture::{Classes, Control, LinkControl};

use super::finding::{At, Confidence, Kind, packets};
use super::{Analysis, Record};
use crate::clock;

/// Ports that are distinguished; frames of further ones are not followed.
const PORTS_MAX: usize = 256;

/// What control frames say about the links.
#[derive(Debug, Default)]
pub(super) struct Links {
    ports: Vec<Port>,
    /// The latest frame that begins or prolongs a pause.
    latest: At,
    /// Messages that were in flight during a pause, and the longest latency of one.
    paused: (u64, u64),
    /// The longest latency of other messages.
    unpaused: u64,
}

#[derive(Debug)]
struct Port {
    src: Mac,
    /// Where its frames were captured.
    interface: usize,
    /// Classes paused by PFC frames, and whether there were frames for all classes.
    classes: u8,
    all: bool,
    /// Frames that begin or prolong a pause.
    frames: u64,
    first: At,
    last: At,
    /// Classes with flow control by the latest announcement.
    pfc: Option<(u8, At)>,
    /// The latest message of the spanning tree said that the topology changed.
    changing: bool,
}

impl Links {
    fn port(&mut self, src: Mac, interface: usize) -> Option<&mut Port> {
        let is_it = |port: &Port| (port.src, port.interface) == (src, interface);
        let known = self.ports.iter().position(is_it);
        if known.is_none() && self.ports.len() < PORTS_MAX {
            let none = At::default();
            let (classes, all, frames, pfc, changing) = (0, false, 0, None, false);
            let (first, last) = (none, none);
            self.ports.push(Port { src, interface, classes, all, frames, first, last, pfc, changing });
        }
        let last = self.ports.len() - 1;
        self.ports.get_mut(known.unwrap_or(last)).filter(|port| is_it(port))
    }

    /// The latest pause frame since `ns`.
    pub(super) fn paused_since(&self, ns: u64) -> Option<At> {
        Some(self.latest).filter(|latest| latest.number != 0 && latest.ns >= ns)
    }

    /// Adds the latency of a message that was answered at `now_ns`.
    pub(super) fn add_latency(&mut self, now_ns: u64, took: u64) {
        if self.paused_since(now_ns.saturating_sub(took)).is_some() {
            self.paused = (self.paused.0 + 1, self.paused.1.max(took));
        } else {
            self.unpaused = self.unpaused.max(took);
        }
    }

    /// What the pauses did to messages.
    fn effect(&self) -> String {
        let (count, most) = self.paused;
        if count == 0 {
            return String::new();
        }
        let (s, were) = if count == 1 { ("", "was") } else { ("s", "were") };
        let mut text = format!(
            " {count} message{s} of this capture {were} in flight at a pause frame and took {} at most",
            clock::span(most)
        );
        if self.unpaused > 0 {
            let _ = write!(text, ", the others {}", clock::span(self.unpaused));
        }
        text.push('.');
        text
    }
}

impl Analysis {
    /// Adds a packet that controls its link; others are ignored.
    pub(super) fn control(&mut self, at: At, record: &Record<'_>) {
        let Some(LinkControl { src, what }) = LinkControl::find(record.decode_as, record.data) else {
            return;
        };
        let Some(port) = self.links.port(src, record.interface) else { return };
        let (mut change, mut begins) = (None, false);
        match what {
            Control::Pause(quanta) => {
                begins = quanta > 0;
                port.all |= begins;
            }
            Control::ClassPause { classes, quanta } => {
                let paused = |class: &u8| classes >> class & 1 != 0 && quanta[usize::from(*class)] > 0;
                let paused = (0..8_u8).filter(paused).fold(0, |set, class| set | 1 << class);
                begins = paused != 0;
                port.classes |= paused;
            }
            Control::Neighbour { ttl_s: 0, .. } => {
                change = Some(format!(
                    "The port {src} ended its LLDP announcements in packet {}: the port goes down, or LLDP \
                     is switched off.",
                    at.number
                ));
            }
            Control::Neighbour { pfc: None, .. } => {}
            Control::Neighbour { pfc: Some(classes), .. } => match port.pfc.replace((classes, at)) {
                Some((before, since)) if before != classes => {
                    change = Some(format!(
                        "The port {src} changed the classes with priority flow control (DCBX): {} in \
                         packet {}, {} in packet {}. Frames of a class without it are dropped, not paused.",
                        Classes(before),
                        since.number,
                        Classes(classes),
                        at.number
                    ));
                }
                _ => {}
            },
            Control::SpanningTree(changed) => {
                if changed && !port.changing {
                    change = Some(format!(
                        "The bridge port {src} says in packet {} that the topology of the spanning tree \
                         changed: meanwhile packets may be flooded, delayed or lost.",
                        at.number
                    ));
                }
                port.changing = changed;
            }
        }
        if begins {
            port.frames += 1;
            port.first = if port.first.number == 0 { at } else { port.first };
            port.last = at;
            self.links.latest = at;
        }
        if let Some(text) = change {
            self.report(Kind::LinkChange, at, at.number, format!("link of {src}"), text);
        }
    }

    /// Reports the pauses of each port, and neighbours that announce different classes.
    pub(super) fn conclude_links(&mut self) {
        let effect = self.links.effect();
        let mut pauses = Vec::new();
        for port in self.links.ports.iter().filter(|port| port.frames > 0) {
            let classes = match port.classes.count_ones() {
                0 => "802.3x, all classes".to_owned(),
                1 => format!("PFC, class {}", Classes(port.classes)),
                _ => format!("PFC, classes {}", Classes(port.classes)),
            };
            let both = if port.all && port.classes != 0 { "; and 802.3x, all classes" } else { "" };
            let s = if port.frames == 1 { "" } else { "s" };
            let lasted = clock::span(port.last.ns.saturating_sub(port.first.ns));
            let text = format!(
                "The port {} sent {} pause frame{s} ({classes}{both}) in {}, over {lasted}: its neighbour \
                 must not send meanwhile.{effect} Find why the host or switch behind that port cannot \
                 receive: a slow receiver, or congestion behind it.",
                port.src,
                port.frames,
                packets(port.first, port.last)
            );
            pauses.push((port.first, port.last.number, format!("link of {}", port.src), text));
        }
        for (at, shown, subject, text) in pauses {
            self.report(Kind::LinkPaused, at, shown, subject, text);
        }
        let announced =
            self.links.ports.iter().filter_map(|port| Some((port.interface, port.src, port.pfc?)));
        let mut announced: Vec<_> = announced.collect();
        announced.sort_by_key(|(interface, ..)| *interface);
        for ends in announced.chunk_by(|a, b| a.0 == b.0) {
            let [(_, a, (classes, at)), (_, b, (others, by))] = *ends else { continue };
            if classes == others {
                continue;
            }
            let text = format!(
                "The ports {a} and {b} announce priority flow control for different classes (DCBX): {} in \
                 packet {}, {} in packet {}. If they are the ends of one link, frames of a class that only \
                 one of them has are dropped, not paused.",
                Classes(classes),
                at.number,
                Classes(others),
                by.number
            );
            let finding = self.report(Kind::LinkChange, at, by.number, format!("link of {a}"), text);
            if let Some(finding) = self.findings.at(finding) {
                finding.confidence = Confidence::Medium;
            }
        }
    }
}
