//! What a line says that a program printed: the texts, names and numbers in it.

use super::table::Entry;

/// Returns the entries that a line names.
pub(super) fn find<'a>(line: &str, entries: &'a [Entry]) -> Vec<&'a Entry> {
    let line = line.to_lowercase();
    let numbers = numbers(&line);
    let is_named = |entry: &&Entry| {
        let phrases = entry.texts.iter().chain((entry.kind != "message").then_some(&entry.name));
        let is_numbered = |&(kind, number): &(&str, u32)| kind == entry.kind && Some(number) == entry.number;
        phrases.into_iter().any(|phrase| has(&line, &phrase.to_lowercase()))
            || numbers.iter().any(is_numbered)
    };
    entries.iter().filter(is_named).collect()
}

/// Whether the line has the phrase, and no other letter of a word of it.
fn has(line: &str, phrase: &str) -> bool {
    let in_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(phrase).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + phrase.len()..]);
        let goes_on = |edge, beyond| in_word(edge) && in_word(beyond);
        !goes_on(phrase.chars().next(), before.chars().next_back())
            && !goes_on(phrase.chars().next_back(), after.chars().next())
    })
}

/// The numbers of a line whose kind is known from the sign or from the word before, each with its kind.
fn numbers(line: &str) -> Vec<(&'static str, u32)> {
    let separates = |c: char| !(c.is_alphanumeric() || c == '_' || c == '-');
    let words: Vec<&str> = line.split(separates).filter(|word| !word.is_empty()).collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Some((number, is_negative)) = number(word) else { continue };
        let before = at.checked_sub(1).map_or("", |at| words[at]);
        found.extend(kinds(before, is_negative, line).iter().map(|kind| (*kind, number)));
    }
    found
}

fn kinds(before: &str, is_negative: bool, line: &str) -> &'static [&'static str] {
    match before {
        _ if is_negative => &["errno"],
        "status" | "error" | "reason" if line.contains("reject") => &["reject reason"],
        "status" => &["status"],
        "error" => &["errno", "reject reason"],
        "errno" | "err" | "ret" | "rc" | "returned" | "code" => &["errno"],
        "syndrom" | "syndrome" | "vendor_err" | "vend_err" => &["vendor_err"],
        "event" => &["event"],
        "reason" => &["reject reason"],
        _ => &[],
    }
}

/// Parses a decimal or hexadecimal number; also returns whether it has a minus sign.
pub(super) fn number(word: &str) -> Option<(u32, bool)> {
    let digits = word.strip_prefix('-');
    let (word, is_negative) = (digits.unwrap_or(word), digits.is_some());
    let number = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => word.parse(),
    };
    number.ok().map(|number| (number, is_negative))
}

#[cfg(test)]
mod tests {
    use super::super::table;
    use super::*;

    fn names(line: &str) -> Vec<String> {
        let entries = table::all();
        find(line, &entries).into_iter().map(|entry| entry.name.clone()).collect()
    }

    #[test]
    fn lines_of_programs_are_found_by_text_name_and_number() {
        for (line, name) in [
            (
                " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x51",
                "IBV_WC_RETRY_EXC_ERR",
            ),
            ("Failed status 12: wr_id 0 syndrom 0x51", "NoAnswer"),
            ("Failed status transport retry counter exceeded (12) for wr_id 2", "IBV_WC_RETRY_EXC_ERR"),
            ("cma event RDMA_CM_EVENT_REJECTED, error 8", "RDMA_CM_EVENT_REJECTED"),
            ("cma event RDMA_CM_EVENT_ADDR_ERROR, error -19", "ENODEV"),
            ("rdma_resolve_addr: Network is unreachable", "ENETUNREACH"),
            ("ibv_reg_mr failed with errno=14", "EFAULT"),
            ("local QP operation error", "IBV_WC_LOC_QP_OP_ERR"),
            ("rename: Invalid cross-device link", "EXDEV"),
        ] {
            assert!(names(line).iter().any(|found| found == name), "{line}: {:?}", names(line));
        }
        assert_eq!(names("local QP operation error"), ["IBV_WC_LOC_QP_OP_ERR"]);
        assert_eq!(names("cma event RDMA_CM_EVENT_REJECTED, error 8").len(), 2, "the event and its reason");
        assert!(names("12 bytes were sent successfully in 8 s").is_empty());
    }

    #[test]
    fn each_text_of_the_troubleshooting_page_is_known() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/troubleshooting.md");
        let Ok(page) = std::fs::read_to_string(page) else {
            return println!("skipped: needs the repository");
        };
        let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
        for text in headings.filter(|heading| !heading.starts_with("A program waits")) {
            assert!(!names(text).is_empty(), "{text}");
        }
    }
}
