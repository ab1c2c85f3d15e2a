//! What `roxie explain` knows: the causes of this device, and the names of verbs.h (`enum ibv_wc_status`,
//! `enum ibv_event_type`), rdma_cma.h (`enum rdma_cm_event_type`), errno(3) and IBA 9.7.5.2, which
//! `table.txt` explains, with the messages of docs/troubleshooting.md.

use std::io;

use nix::errno::Errno;
use roxie::transport::Cause;
use roxie::wire::cm::RejReason;
use roxie_capture::filter::parse_number;

/// One meaning of a name or number.
pub(super) struct Entry {
    /// What it is.
    pub(super) kind: &'static str,
    /// As headers and programs write it.
    pub(super) name: String,
    pub(super) number: Option<u32>,
    /// What programs print for it.
    pub(super) texts: Vec<String>,
    /// Whether programs print the number in hexadecimal.
    pub(super) is_hex: bool,
    /// What happened.
    pub(super) meaning: String,
    /// What to look at or to do; may be empty.
    pub(super) remedy: String,
}

impl Entry {
    /// Parses rows of `table.txt`: kind, number (`-` for none) and name; `=` and what programs print for it,
    /// if anything (see [`find`](super::text::find)); the meaning; the remedy, if any.
    fn parse(rows: &'static str) -> Self {
        let mut rows = rows.lines().peekable();
        let mut head = rows.next().unwrap_or_default().splitn(3, ' ').map(str::trim);
        let mut word = || head.next().unwrap_or_default();
        let (kind, number, name) = (word(), word().parse().ok(), word().to_owned());
        let texts = rows.next_if(|row| row.starts_with("= ")).map(|row| row[2..].split(" | "));
        let texts = texts.into_iter().flatten().map(str::to_owned).collect();
        let meaning = rows.next().unwrap_or_default();
        Self { texts, ..entry(kind, name, number, meaning, &rows.collect::<Vec<_>>().join(" ")) }
    }

    /// Whether a word of the user names this entry.
    pub(super) fn answers(&self, word: &str) -> bool {
        match number(word) {
            Some((number, is_negative)) => {
                // Programs print an errno in decimal, and it alone with a sign.
                // -1 is what calls return, see the message of that name.
                let may_be = match self.kind {
                    "errno" => !word.contains(['x', 'X']) && word != "-1",
                    _ => !is_negative,
                };
                self.number == Some(number) && may_be
            }
            None => bare(word) == bare(&self.name),
        }
    }
}

/// A name without the prefix of its header, in upper case with underscores.
pub(super) fn bare(name: &str) -> String {
    let upper: String =
        name.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect();
    let prefixes = ["IBV_WC_", "IBV_EVENT_", "RDMA_CM_EVENT_", "NAK_"];
    let stripped = prefixes.iter().find_map(|prefix| upper.strip_prefix(prefix));
    stripped.unwrap_or(&upper).to_owned()
}

/// Everything that `roxie explain` knows.
pub(super) fn all() -> Vec<Entry> {
    let mut named: Vec<Entry> = include_str!("table.txt").split("\n\n").map(Entry::parse).collect();
    let mut causes = Vec::new();
    for cause in Cause::ALL.iter() {
        let is_status =
            |entry: &&mut Entry| entry.kind == "status" && entry.number == Some(cause.status() as u32);
        let status = named.iter_mut().find(is_status).expect("a row for each status");
        let (number, words) = (cause.vendor_err(), cause.meaning());
        let meaning = format!("{words} Status {}.", bare(&status.name));
        let cause_entry = entry("vendor_err", format!("{cause:?}"), Some(number), &meaning, cause.remedy());
        causes.push(Entry { is_hex: true, ..cause_entry });
        if status.remedy.is_empty() {
            "vendor_err of the completion tells why.".clone_into(&mut status.remedy);
        }
        status.remedy += &format!(" {number:#x}: {words}");
    }
    let reasons = (1..=u16::from(u8::MAX)).map(RejReason).filter_map(|reason| {
        let words = reason.words()?;
        let meaning = format!("The peer rejected the connection: {words}.");
        let remedy = reason.usual_cause().map(|why| format!("Usual cause: {why}.")).unwrap_or_default();
        let name = words.to_owned();
        Some(entry("reject reason", name, Some(reason.0.into()), &meaning, &remedy))
    });
    let known: Vec<u32> =
        named.iter().filter(|entry| entry.kind == "errno").filter_map(|entry| entry.number).collect();
    for errno in named.iter_mut().filter(|entry| entry.kind == "errno") {
        errno.texts.extend(errno.number.map(system_text));
    }
    let others = (1..ERRNO_END).filter(|number| !known.contains(number)).filter_map(other_errno);
    let others: Vec<Entry> = others.collect();
    causes.into_iter().chain(named).chain(others).chain(reasons).collect()
}

/// Linux has no errno from here on (errno(3)).
const ERRNO_END: u32 = 134;

/// The text of strerror(3).
fn system_text(errno: u32) -> String {
    let text = io::Error::from_raw_os_error(errno as i32).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// An errno that the device never gives, or that says what its text says.
fn other_errno(number: u32) -> Option<Entry> {
    let errno = Some(Errno::from_raw(number as i32)).filter(|errno| *errno != Errno::UnknownErrno)?;
    let text = system_text(number);
    let meaning = format!("The system's text: {text}.");
    Some(Entry { texts: vec![text], ..entry("errno", format!("{errno:?}"), Some(number), &meaning, "") })
}

fn entry(kind: &'static str, name: String, number: Option<u32>, meaning: &str, remedy: &str) -> Entry {
    Entry {
        kind,
        name,
        number,
        texts: Vec::new(),
        is_hex: false,
        meaning: meaning.to_owned(),
        remedy: remedy.to_owned(),
    }
}
/// Parses a decimal or hexadecimal number; also returns whether it has a minus sign.
pub(super) fn number(word: &str) -> Option<(u32, bool)> {
    let digits = word.strip_prefix('-');
    let number = parse_number(&digits.unwrap_or(word).to_ascii_lowercase())?;
    Some((u32::try_from(number).ok()?, digits.is_some()))
}
