//! One queue pair: its attributes, counters and packets.

use std::collections::VecDeque;
use std::time::Instant;

use ::wire::Qpn;
use ::wire::capture::{LinkType, Seen};
use roxie::transport::QpCounters;
use roxie_capture::live::Splitter;
use roxie_capture::paint::Colours;
use roxie_capture::show::{Show, Style, Times};
use roxie_capture::source::Record;
use roxie_capture::write::NewPacket;
use roxie_hook::TapFilter;
use roxie_hook::control::Remote;
use sys::RecordReader;

use super::item::Key;
use super::table::{Row, Table};
use crate::engines::engines_of;

/// Bytes captured of each packet: the headers.
const SNAP_LEN: u32 = 128;
/// Memory for packets between two updates in bytes: about 80 single packets, or twice as many of a burst.
const COPIES_LEN: u32 = 16 << 10;
/// Packets kept for the screen.
const KEPT: usize = 64;

/// A queue pair that the screen shows.
pub(super) struct Detail {
    /// Its row of the table, when it last existed.
    pub(super) row: Row,
    /// The queue pair was destroyed, or its process has ended.
    pub(super) is_gone: bool,
    /// Name, total and change per second of each counter that is not zero.
    pub(super) growth: Vec<(&'static str, u64, f64)>,
    updated: Instant,
    /// The tap of its process: the connection (closing it ends the tap), the copies, and the splitter.
    tap: Option<(Remote, RecordReader, Splitter)>,
    show: Show,
    /// The latest packets, one line each, the latest last.
    pub(super) packets: VecDeque<String>,
    seen: u64,
    /// Why there are no packets.
    pub(super) note: String,
}

impl Detail {
    /// Shows the queue pair of this row.
    pub(super) fn new(row: &Row) -> Self {
        let mut detail = Self {
            row: row.clone(),
            is_gone: false,
            growth: Vec::new(),
            updated: Instant::now(),
            tap: None,
            show: Show::new(Style::Line, Times::Day, Colours::None),
            packets: VecDeque::new(),
            seen: 0,
            note: "waiting for packets".to_owned(),
        };
        detail.growth = detail.grown(&row.item.status.counters, 0.0);
        detail.start_tap();
        detail
    }

    /// Takes over the values of an updated table.
    pub(super) fn refresh(&mut self, table: &Table) {
        match table.find(&self.row.item.key) {
            Some(row) => {
                self.growth = self.grown(&row.item.status.counters, self.updated.elapsed().as_secs_f64());
                self.row = row.clone();
                self.is_gone = false;
            }
            None => self.is_gone = true,
        }
        self.updated = Instant::now();
        self.read();
    }

    /// Name, total and change per second of each counter that is not zero.
    fn grown(&self, now: &QpCounters, seconds: f64) -> Vec<(&'static str, u64, f64)> {
        let before = self.row.item.status.counters.rows();
        let grown = |value: u64, before: u64| {
            if seconds > 0.0 { value.saturating_sub(before) as f64 / seconds } else { 0.0 }
        };
        now.rows()
            .zip(before)
            .filter(|((_, value), _)| *value > 0)
            .map(|((name, value), (_, before))| (name, value, grown(value, before)))
            .collect()
    }

    /// Starts a tap. Its memory is small, so that a busy process copies only few packets for each update.
    fn start_tap(&mut self) {
        let Key::Process { pid, slot, qpn } = self.row.item.key else {
            "packets are shown for processes only; for an interface: roxie capture read -i IF"
                .clone_into(&mut self.note);
            return;
        };
        let found = engines_of(pid).unwrap_or_default();
        let Some(remote) = found.into_iter().find(|remote| remote.slot() == slot) else { return };
        let room = COPIES_LEN;
        let filter = TapFilter { snap_len: SNAP_LEN, room, qps: vec![qpn], ..TapFilter::default() };
        match remote.tap(&filter) {
            Ok(copies) => self.tap = Some((remote, copies, Splitter::new(Some(SNAP_LEN), 1))),
            Err(error) => self.note = error.to_string(),
        }
    }

    fn read(&mut self) {
        let Some((remote, mut copies, mut splitter)) = self.tap.take() else { return };
        splitter.update_clock();
        copies.read(usize::MAX, |copy| splitter.packets(copy, 0, &mut |packet| self.keep(packet)));
        self.tap = Some((remote, copies, splitter));
    }

    fn keep(&mut self, packet: &NewPacket<'_>) {
        let seen = Seen::parse(LinkType::ETHERNET, packet.data);
        let is_management =
            seen.as_ref().is_ok_and(|seen| seen.bth.is_some_and(|bth| bth.dest_qp == Qpn::GSI));
        if is_management {
            return;
        }
        self.seen += 1;
        let record = Record {
            number: self.seen,
            time_ns: packet.time_ns,
            interface: 0,
            interface_name: None,
            decode_as: LinkType::ETHERNET.into(),
            data: packet.data,
            original_len: packet.original_len,
            outbound: packet.outbound,
            verdict: None,
            comment: None,
            told: &[],
        };
        let mut line = String::new();
        self.show.packet(&mut line, &record, &seen);
        if self.packets.len() == KEPT {
            self.packets.pop_front();
        }
        // The heading has both addresses.
        if let Ok(seen) = &seen {
            line = line.replacen(&format!("{} > {} ", seen.ip.src(), seen.ip.dst()), "", 1);
        }
        let line = line.trim_start().split_once(' ').map_or("", |(_number, line)| line);
        self.packets.push_back(line.trim_end().to_owned());
    }
}
