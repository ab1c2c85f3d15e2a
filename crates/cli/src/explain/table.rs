//! What `roxie explain` knows: the causes of this device, and the names of verbs.h (`enum ibv_wc_status`,
//! `enum ibv_event_type`), rdma_cma.h (`enum rdma_cm_event_type`), errno(3) and IBA 9.7.5.2, which
//! `table.txt` explains.

use roxie::transport::Cause;
use roxie::wire::cm::RejReason;

/// One meaning of a name or number.
pub(super) struct Entry {
    /// What it is.
    pub(super) kind: &'static str,
    /// As headers and programs write it.
    pub(super) name: String,
    pub(super) number: Option<u32>,
    /// Whether programs print the number in hexadecimal.
    pub(super) is_hex: bool,
    /// What happened.
    pub(super) meaning: String,
    /// What to look at or to do; may be empty.
    pub(super) remedy: String,
}

impl Entry {
    /// Parses rows of `table.txt`: kind, number (`-` for none) and name; the meaning; the remedy, if any.
    fn parse(rows: &'static str) -> Self {
        let mut rows = rows.lines();
        let mut head = rows.next().unwrap_or_default().splitn(3, ' ').map(str::trim);
        let mut word = || head.next().unwrap_or_default();
        let (kind, number, name) = (word(), word().parse().ok(), word().to_owned());
        let meaning = rows.next().unwrap_or_default();
        entry(kind, name, number, meaning, &rows.collect::<Vec<_>>().join(" "))
    }

    /// Whether a word of the user names this entry.
    pub(super) fn answers(&self, word: &str) -> bool {
        let number = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => word.trim_start_matches('-').parse(),
        };
        match number {
            Ok(number) => self.number == Some(number),
            Err(_) => bare(word) == bare(&self.name),
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
    causes.into_iter().chain(named).chain(reasons).collect()
}

fn entry(kind: &'static str, name: String, number: Option<u32>, meaning: &str, remedy: &str) -> Entry {
    Entry { kind, name, number, is_hex: false, meaning: meaning.to_owned(), remedy: remedy.to_owned() }
}
