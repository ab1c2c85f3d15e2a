//! What a line says that a program printed: the texts, names and numbers in it.

use super::table::{Entry, number};

/// Returns the entries that a line names.
pub(super) fn find<'a>(line: &str, entries: &'a [Entry]) -> Vec<&'a Entry> {
    let line = line.to_lowercase();
    let numbers = numbers(&line);
    let is_named = |entry: &&Entry| {
        // The names of reject reasons are everyday words.
        let has_name = entry.kind != "message" && (entry.kind != "reject reason" || line.contains("reject"));
        let phrases = entry.texts.iter().chain(has_name.then_some(&entry.name));
        let is_numbered = |&(kind, number): &(&str, u32)| kind == entry.kind && Some(number) == entry.number;
        phrases.into_iter().any(|phrase| matches(&line, &phrase.to_lowercase()))
            || numbers.iter().any(is_numbered)
    };
    entries.iter().filter(is_named).collect()
}

/// Whether the line has all parts of the phrase, which ` .. ` separates, or is the phrase that stands in
/// quotation marks.
fn matches(line: &str, phrase: &str) -> bool {
    match phrase.strip_prefix('"').and_then(|phrase| phrase.strip_suffix('"')) {
        Some(whole) => line.trim() == whole,
        None => phrase.split(" .. ").all(|part| has(line, part)),
    }
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

/// The numbers of a line, each with its kind. A sign or the word before tells the kind; other numbers are
/// left out.
fn numbers(line: &str) -> Vec<(&'static str, u32)> {
    let separates = |c: char| !(c.is_alphanumeric() || c == '_' || c == '-');
    let words: Vec<&str> = line.split(separates).filter(|word| !word.is_empty()).collect();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Some((number, is_negative)) = number(word) else { continue };
        let (before, earlier) = words[..at].split_last().unwrap_or((&"", &[]));
        let earlier = &earlier[earlier.len().saturating_sub(2)..];
        let is_exit = matches!(*before, "code" | "status") && earlier.iter().any(|word| EXITS.contains(word));
        if (!is_exit || is_negative) && *word != "-1" {
            let is_all = words.len() == 2;
            found.extend(kinds(before, is_negative, is_all, line).iter().map(|kind| (*kind, number)));
        }
    }
    found
}

/// Words in front of the exit status of a process, as in `exited with code 1`.
const EXITS: [&str; 2] = ["exit", "exited"];

/// The kinds of a number behind the word `before`. `is_all`: the line has nothing else.
fn kinds(before: &str, is_negative: bool, is_all: bool, line: &str) -> &'static [&'static str] {
    match before {
        _ if is_negative => &["errno"],
        "status" | "error" | "reason" if line.contains("reject") => &["reject reason"],
        "status" => &["status"],
        // The status of the connection manager's event is an errno or a reject reason.
        "error" if is_all || line.contains("rdma_cm_event") || has(line, "cma") => {
            &["errno", "reject reason"]
        }
        // The pingpongs of rdma-core print the text of the status in front of its number.
        "error" if line.contains("failed status") => &["status"],
        "error" | "errno" | "err" | "ret" | "rc" | "code" => &["errno"],
        "syndrom" | "syndrome" | "vendor_err" | "vend_err" => &["vendor_err"],
        "event" => &["event"],
        "reason" => &["reject reason"],
        _ => &[],
    }
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
    }

    #[test]
    fn numbers_and_words_of_other_matters_are_not_explained() {
        for line in [
            "12 bytes were sent successfully in 8 s",
            "the process exited with exit code 1",
            "Primary job terminated, exit status 12",
            "mpirun: rank 1 exited with code 12",
            "it exited on status 12",
            "read returned 12 bytes",
            "IB device roxie0 opened",
            "timeout of 5 s",
            "fatal error: stop",
            "a general error of the disk",
            "connect: Success",
        ] {
            assert!(names(line).is_empty(), "{line}: {:?}", names(line));
        }
        for (line, all) in [
            ("ibv_post_send returned -12", &["ENOMEM"][..]),
            ("the program exited, errno 12", &["ENOMEM"]),
            ("open failed: error 5", &["EIO"]),
            ("error 5", &["EIO", "Unsupported request"]),
            ("cma event, error 5", &["EIO", "Unsupported request"]),
            ("IB device mlx5_9 not found", &["unknown device"]),
            ("IB device 'mlx5_9' wasn't found", &["unknown device"]),
            ("rejected: timeout", &["Timeout"]),
            ("-1", &["-1"]),
            ("rping: connect error -1", &["-1"]),
            (
                "roxie: the device cannot be used: no network interface called 'x'",
                &["device not usable", "unknown interface"],
            ),
            (
                "roxie: no private directory for links and sockets: /tmp: it is writable",
                &["no private directory"],
            ),
            (
                "ERROR: ld.so: object 'l.so': cannot allocate memory in static TLS block",
                &["ENOMEM", "thread-local memory"],
            ),
            ("fatal error", &["IBV_WC_FATAL_ERR"]),
            ("Failed status fatal error (19) for wr_id 2", &["IBV_WC_FATAL_ERR"]),
            ("Failed status local length error (1) for wr_id 2", &["IBV_WC_LOC_LEN_ERR"]),
            ("fatal error: x.h: No such file or directory", &["ENOENT"]),
        ] {
            assert_eq!(names(line), all, "{line}");
        }
    }

    #[test]
    fn each_text_of_the_troubleshooting_page_is_known() {
        let Some(page) = crate::pages_tests::page("troubleshooting.md") else { return };
        let headings = page.lines().filter_map(|line| line.strip_prefix("## "));
        for text in headings.filter(|heading| !heading.starts_with("A program waits")) {
            assert!(!names(text).is_empty(), "{text}");
        }
    }
}
