//! Prints records of ring buffers and perf event arrays, or writes those with packets to a capture file.

use std::path::Path;
use std::rc::Rc;

use bpf::Types;
use bpf::recipe::SampleHeader;
use roxie_capture::paint::Colours;
use roxie_capture::show::{Show, Style, Times};
use roxie_capture::source::Record;
use serde_json::{Value, json};
use wire::capture::{LinkType, Seen};

use super::Shape;
use super::types::{as_json, as_text, hex};
use crate::failure::{During, Failure, Outcome};
use crate::frames::{FrameOutput, print_line};
use crate::terminal::{self, Terminal};

/// What the records of a map are.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Those of the recipe and stage `sample`: a header, then a packet.
    Packets,
    /// A structure of the program.
    Typed(Shape),
    /// Bytes that only the program knows.
    Bytes,
}

impl Content {
    /// Decides it by the name of a type, or by the map's name: the map of `sample` is in no section `.maps`.
    ///
    /// # Errors
    /// The program has no such type.
    pub(crate) fn of(map: &str, types: Option<&Rc<Types>>, wanted: Option<&str>) -> Outcome<Content> {
        if let Some(name) = wanted {
            let shape = types.and_then(|types| Shape::named(types, name));
            let unknown = || {
                Failure::new(format!("its program has no type '{name}'"))
                    .hint("types are in programs that clang built with -g")
            };
            return shape.map(Content::Typed).ok_or_else(unknown);
        }
        // A structure with the name of the map describes its records.
        if let Some(shape) = types.and_then(|types| Shape::named(types, map)) {
            return Ok(Content::Typed(shape));
        }
        let is_own = map == bpf::recipe::SAMPLES && types.is_none_or(|types| !types.defines(map));
        Ok(if is_own { Content::Packets } else { Content::Bytes })
    }
}

/// Where records are written.
pub(crate) struct RecordOutput {
    frames: Option<FrameOutput>,
    is_json: bool,
    show: Show,
    number: u64,
}

/// The first words of the places of packets that a process receives and sends; a device may follow.
const INGRESS: &str = "ingress";
const EGRESS: &str = "egress";
/// Most characters of a payload or of bytes in one line.
const SHOWN: usize = 48;

/// Time of a record, if it has one, to sort those of several rings.
pub(crate) fn time_of(content: &Content, record: &[u8]) -> u64 {
    match content {
        Content::Packets => SampleHeader::parse(record).map_or(0, |(header, _)| header.time_ns),
        Content::Typed(_) | Content::Bytes => 0,
    }
}

impl RecordOutput {
    /// Opens the capture file, if one is named.
    ///
    /// # Errors
    /// It cannot be created.
    pub(crate) fn open(write: Option<&Path>, is_json: bool) -> Outcome<RecordOutput> {
        let frames = write.map(|path| FrameOutput::open(Some(path))).transpose()?;
        let colours = if is_json { Colours::None } else { Terminal::stdout().colours() };
        Ok(RecordOutput { frames, is_json, show: Show::new(Style::Line, Times::Day, colours), number: 0 })
    }

    /// Writes a record that came from `place`. `clock_ns` is the time since 1970 of CLOCK_MONOTONIC 0.
    ///
    /// # Errors
    /// The capture file cannot be written.
    pub(crate) fn put(&mut self, content: &Content, place: &str, record: &[u8], clock_ns: u64) -> Outcome {
        self.number += 1;
        match (content, SampleHeader::parse(record)) {
            (Content::Packets, Some((header, bytes))) => self.packet(place, &header, bytes, clock_ns),
            (Content::Packets, None) => Ok(()),
            _ if self.frames.is_some() => {
                Err(Failure::new("only the samples of 'sample' have packets for a capture file").code(2))
            }
            (Content::Typed(shape), _) => {
                // Records of a ring buffer may be longer than the structure.
                let len = shape.len().unwrap_or(record.len()).min(record.len());
                match shape.decode(&record[..len]) {
                    Some(typed) if self.is_json => self.json(place, "record", &as_json(&typed)),
                    Some(typed) => self.line(place, &as_text(&typed)),
                    None => self.line(place, &hex(record)),
                }
                Ok(())
            }
            (Content::Bytes, _) => {
                if self.is_json {
                    self.json(place, "record", &json!(record));
                } else {
                    let more = if record.len() > SHOWN { "..." } else { "" };
                    let text = hex(&record[..record.len().min(SHOWN)]);
                    self.line(place, &format!("{} bytes, {text}{more}", record.len()));
                }
                Ok(())
            }
        }
    }

    fn packet(&mut self, place: &str, header: &SampleHeader, bytes: &[u8], clock_ns: u64) -> Outcome {
        let time_ns = header.time_ns.saturating_add(clock_ns);
        if let Some(frames) = &mut self.frames {
            return frames.put(time_ns, header.len, place, bytes).during("writing samples");
        }
        // The ICRC of a packet that is sent is computed later; here it is zeros.
        let is_whole = bytes.len() == header.len as usize;
        let point = place.split(' ').next().filter(|word| [INGRESS, EGRESS].contains(word));
        let bytes =
            if point == Some(EGRESS) && is_whole { &bytes[..bytes.len().saturating_sub(4)] } else { bytes };
        let seen = Seen::parse(LinkType::ETHERNET, bytes);
        let payload = seen.as_ref().ok().and_then(|seen| Some(text(seen.packet.as_ref().ok()?.payload())));
        if self.is_json {
            let mut row = json!({
                "time_ns": time_ns,
                "place": place,
                "len": header.len,
                "bytes": hex(bytes).trim_start_matches("hex:"),
            });
            if let Some(bth) = seen.as_ref().ok().and_then(|seen| seen.bth) {
                row["opcode"] = json!(bth.opcode.row().map_or("unknown", |row| row.name));
                row["dest_qp"] = json!(bth.dest_qp.value());
                row["psn"] = json!(bth.psn.value());
            }
            if let Some(payload) = payload {
                row["payload"] = json!(payload);
            }
            terminal::json(&row);
            return Ok(());
        }
        if seen.is_err() {
            let place = match point {
                Some(_) => place.to_owned(),
                None => format!("queue {}, packet {} of its CPU", header.rx_queue, header.sequence),
            };
            print_line(time_ns, header.len, &place, bytes);
            return Ok(());
        }
        let record = Record {
            number: self.number,
            time_ns,
            interface: 0,
            interface_name: None,
            decode_as: LinkType::ETHERNET.into(),
            data: bytes,
            original_len: header.len as usize,
            outbound: None,
            verdict: None,
            comment: None,
            told: &[],
        };
        let mut line = String::new();
        self.show.packet(&mut line, &record, &seen);
        let place = match point {
            Some(_) => place.to_owned(),
            None => format!("queue {}", header.rx_queue),
        };
        self.line(&place, line.trim());
        if let Some(payload) = payload.filter(|payload| !payload.is_empty()) {
            terminal::print(&format!("{:<10}{payload}", ""));
        }
        Ok(())
    }

    fn line(&self, place: &str, text: &str) {
        Terminal::stdout().line(&format!("{place:<9} {text}"));
    }

    fn json(&self, place: &str, name: &str, value: &Value) {
        terminal::json(&json!({ "place": place, name: value }));
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// The capture file cannot be written.
    pub(crate) fn flush(&mut self) -> Outcome {
        self.frames.as_mut().map_or(Ok(()), FrameOutput::flush).during("writing samples")
    }
}

/// A payload as text if it begins with some, otherwise as digits.
fn text(payload: &[u8]) -> String {
    let len = payload.iter().take_while(|byte| (0x20..0x7f).contains(*byte)).count();
    let is_text = len >= 4 || len == payload.len();
    let shown = if is_text { &payload[..len.min(SHOWN)] } else { &payload[..payload.len().min(SHOWN / 2)] };
    if is_text { String::from_utf8_lossy(shown).into_owned() } else { hex(shown) }
}
