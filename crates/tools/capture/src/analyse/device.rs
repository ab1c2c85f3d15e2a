//! What the engines of captured processes tell (`roxie run --capture`): the peer of each queue pair before
//! its first packet, and at their end their counters, and the attributes of their queue pairs. If both ends
//! were captured, both are here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::net::IpAddr;

use serde_json::{Map, Value};
use wire::Qpn;

use crate::paint::{Colours, Tone};

/// The first words of what an engine tells (crate `roxie`, `recording.rs`).
const PEER: &str = "peer";
const QUEUE_PAIR: &str = "queue-pair";
const COUNTERS: &str = "counters";
/// Most queue pairs shown of an engine.
const SHOWN_MAX: usize = 16;

/// Names and values.
type Words = Vec<(String, String)>;

/// What one engine has told.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct EngineNotes {
    /// The process and its slot.
    pub name: String,
    /// Of each queue pair that was used, the last state, attributes, and the counters that are not zero.
    pub queue_pairs: Vec<Words>,
    /// The counters that are not zero: packets, and dropped packets by reason.
    pub counters: Words,
}

/// The peers of queue pairs, by address and number.
#[derive(Debug, Default)]
pub(super) struct Peers(HashMap<(IpAddr, Qpn), Qpn>);

impl Peers {
    /// Takes what the devices have told before a packet.
    pub(super) fn learn(&mut self, told: &[(usize, String)]) {
        for (_, text) in told {
            let Some((PEER, rest)) = text.split_once(' ') else { continue };
            let words = words(rest);
            let number = |name| {
                let digits = value(&words, name).strip_prefix("0x")?;
                u32::from_str_radix(digits, 16).ok().map(Qpn::new)
            };
            let ends = (value(&words, "local").parse(), number("number"), number("peer"));
            if let (Ok(local), Some(number), Some(peer)) = ends {
                self.0.insert((local, number), peer);
            }
        }
    }

    /// The peer of a queue pair.
    pub(super) fn of(&self, host: IpAddr, qp: Qpn) -> Option<Qpn> {
        self.0.get(&(host, qp)).copied()
    }
}

/// Collects the notes of each engine; a later one about a queue pair replaces an earlier one.
pub(super) fn engines<'a>(notes: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<EngineNotes> {
    let mut engines: Vec<EngineNotes> = Vec::new();
    // The places of the engines and of their queue pairs, by name and number.
    let (mut by_name, mut by_number) = (HashMap::new(), HashMap::new());
    for (name, text) in notes {
        let at = *by_name.entry(name).or_insert_with(|| {
            engines.push(EngineNotes { name: name.to_owned(), ..EngineNotes::default() });
            engines.len() - 1
        });
        let (kind, rest) = text.split_once(' ').unwrap_or((text, ""));
        let words = words(rest);
        match kind {
            COUNTERS => engines[at].counters = words,
            QUEUE_PAIR => {
                let known = &mut engines[at].queue_pairs;
                match by_number.entry((at, value(&words, "number").to_owned())) {
                    Entry::Occupied(place) => known[*place.get()] = words,
                    Entry::Vacant(place) => {
                        place.insert(known.len());
                        known.push(words);
                    }
                }
            }
            // A peer, see above, or a word of a newer version.
            _ => {}
        }
    }
    engines
}

fn words(text: &str) -> Words {
    let pair = |word: &str| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    text.split(' ').filter_map(pair).collect()
}

fn value<'a>(words: &'a [(String, String)], name: &str) -> &'a str {
    words.iter().find(|word| word.0 == name).map_or("", |word| &word.1)
}

/// Appends a paragraph.
pub(super) fn text(out: &mut String, engines: &[EngineNotes], colours: Colours) {
    if engines.is_empty() {
        return;
    }
    // A write to a string cannot fail.
    let _ = writeln!(out, "\n{}", colours.paint(Tone::Strong, "Devices at their end"));
    for engine in engines {
        let _ = writeln!(out, "  {}", engine.name);
        for words in engine.queue_pairs.iter().take(SHOWN_MAX) {
            let of = |name| value(words, name);
            let peer = match of("peer") {
                "" => String::new(),
                peer => format!(" {} > QP {peer} {}", of("local"), of("remote")),
            };
            let _ = writeln!(out, "    {} QP {} in {}{peer}", of("service"), of("number"), of("state"));
            let head = ["number", "service", "state", "local", "remote", "peer"];
            let rest = words.iter().filter(|word| !head.contains(&&*word.0));
            lines(out, "      ", rest);
        }
        if engine.queue_pairs.len() > SHOWN_MAX {
            let _ = writeln!(out, "    and {} more queue pairs", engine.queue_pairs.len() - SHOWN_MAX);
        }
        lines(out, "    ", engine.counters.iter());
    }
}

/// Appends words in lines of at most 100 columns.
fn lines<'a>(out: &mut String, indent: &str, words: impl Iterator<Item = &'a (String, String)>) {
    const COLUMNS: usize = 100;
    let mut line = String::new();
    for (name, value) in words {
        if !line.is_empty() && indent.len() + line.len() + name.len() + value.len() + 2 > COLUMNS {
            let _ = writeln!(out, "{indent}{line}");
            line.clear();
        }
        let space = if line.is_empty() { "" } else { " " };
        let _ = write!(line, "{space}{name}={value}");
    }
    if !line.is_empty() {
        let _ = writeln!(out, "{indent}{line}");
    }
}

/// The same for programs. Decimal numbers are numbers.
pub(super) fn json(engines: &[EngineNotes]) -> Value {
    let object = |words: &Words| -> Value {
        let number = |value: &str| value.parse::<u64>().map_or_else(|_| value.into(), Value::from);
        words.iter().map(|(name, value)| (name.clone(), number(value))).collect::<Map<_, _>>().into()
    };
    let engine = |engine: &EngineNotes| {
        serde_json::json!({
            "name": engine.name,
            "queue_pairs": engine.queue_pairs.iter().map(object).collect::<Vec<_>>(),
            "counters": object(&engine.counters),
        })
    };
    engines.iter().map(engine).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "live")]
    #[test]
    fn engines_use_these_words() {
        use roxie::recording;
        let theirs = (recording::PEER, recording::QUEUE_PAIR, recording::COUNTERS);
        assert_eq!((PEER, QUEUE_PAIR, COUNTERS), theirs);
    }

    #[test]
    fn the_last_note_about_a_queue_pair_counts() {
        let pair = |state: &str, timeout: u8| {
            let path = "local=::1 remote=::2 peer=0x000022";
            format!("queue-pair number=0x000011 service=RC state={state} {path} timeout={timeout}")
        };
        let (first, last) = (pair("RTS", 14), pair("ERR", 0));
        let notes = [
            ("one", &*first),
            ("two", "counters rx_pkts=7 rx_bad_icrc=1"),
            ("one", &*last),
            ("one", "news a=b"),
        ];
        let engines = engines(notes.into_iter());
        let mut out = String::new();
        text(&mut out, &engines, Colours::default());
        let expected = "\nDevices at their end\n  one\n    RC QP 0x000011 in ERR ::1 > QP 0x000022 ::2\n\
             \x20     timeout=0\n  two\n    rx_pkts=7 rx_bad_icrc=1\n";
        assert_eq!(out, expected);
        let json = json(&engines);
        assert_eq!(
            (&json[0]["queue_pairs"][0]["timeout"], &json[1]["counters"]["rx_pkts"]),
            (&0.into(), &7.into())
        );
    }
}
