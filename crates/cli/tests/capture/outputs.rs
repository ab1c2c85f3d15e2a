//! Filters, exit codes, the annotated file and the reports.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use roxie_capture::source::Source;

use crate::build::pcapng;
use crate::golden;
use pcap_file::Endianness;

fn roxie(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roxie")).arg("capture").args(words).output().expect("roxie runs")
}

fn capture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(format!("{name}.pcap"));
    path.to_string_lossy().into_owned()
}

fn lines(words: &[&str]) -> Vec<String> {
    let output = roxie(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

/// The path of a temporary file of this process.
fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("roxie-capture-{}-{name}", std::process::id()))
}

#[test]
fn filters_select_the_matching_packets() {
    let rping = capture("cm-rping-v4");
    let count = |words: &[&str]| lines(&[&["read", rping.as_str()], words].concat()).len();
    assert_eq!(count(&[]), 41);
    assert_eq!(count(&["--opcode", "write"]), 3);
    assert_eq!(count(&["--opcode", "0x0c", "--opcode", "read response"]), 6);
    assert_eq!(count(&["--psn", "8358207..8358208"]), 4);
    assert_eq!(count(&["--host", "10.99.0.9"]), 0);
    assert_eq!(count(&["-c", "5"]), 5);
    // Both queue pairs have the same number here; REQ, REP and DREQ name it as well.
    assert_eq!(count(&["--qp", "0x4d"]), 36 + 3);
    let refused = capture("nak-read-bounds-v4");
    for filter in ["--nak", "--only-errors"] {
        let lines = lines(&["read", &refused, filter]);
        assert!(lines.len() == 1 && lines[0].contains("NAK Remote access error"), "{lines:?}");
    }
    assert_eq!(lines(&["read", &refused, "--cnp"]), [] as [&str; 0]);
    let snapped = lines(&["read", &rping, "--snap", "60", "-c", "20"]);
    assert!(snapped[11].contains("64 bytes (0 captured)"), "{}", snapped[11]);
}

/// The queue pairs of the connection have different numbers; the connection setup relates them.
#[test]
fn a_queue_pair_number_selects_both_directions() {
    let file = capture("cm-ucmatose-v4");
    let all = lines(&["read", &file, "--json"]);
    let qps: std::collections::BTreeSet<String> = all
        .iter()
        .filter_map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["infiniband.bth.destqp"]
                .as_str()
                .map(str::to_owned)
        })
        .filter(|qp| qp != "0x000001")
        .collect();
    for qp in &qps {
        let lines = lines(&["read", &file, "--qp", qp, "--opcode", "send only"]);
        let of = |host: &str| {
            lines
                .iter()
                .filter(|line| line.contains(&format!("{host} > ")) && line.contains("RC SEND"))
                .count()
        };
        assert!(of("10.99.0.2") >= 2 && of("10.99.0.3") >= 2, "{qp}: {lines:#?}");
    }
    assert!(!qps.is_empty());
}

#[test]
fn the_exit_code_of_analyse_tells_whether_there_are_findings() {
    assert_eq!(roxie(&["analyse", &capture("rc-read-v4")]).status.code(), Some(0));
    assert_eq!(roxie(&["analyse", &capture("loss-ack-v4")]).status.code(), Some(3));
    assert_eq!(roxie(&["analyse", "/nonexistent"]).status.code(), Some(1));
    let output = roxie(&["analyse", &capture("loss-all-v4"), "--json"]);
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(outcome["first"]["kind"], "no-answer");
    assert_eq!(outcome["directions"][0]["resent"], 3);
}

#[test]
fn each_message_has_a_line_with_its_verb_and_latency() {
    let output = roxie(&["analyse", &capture("cm-rping-4096-v4"), "--messages"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let count = |what: &str| {
        text.lines().filter(|line| line.contains(what) && line.contains("answered after")).count()
    };
    assert_eq!(
        (count("READ of 6000 bytes"), count("WRITE of 6000 bytes"), count("SEND of 16 bytes")),
        (2, 2, 8),
        "{text}"
    );
    assert!(text.contains("\nVerdict (confidence high): No problem was found in this capture."), "{text}");
}

#[test]
fn an_annotated_capture_has_the_same_packets_and_comments_with_findings() {
    let frames = golden::frames("loss-send-middle-v4");
    let (input, output) = (temporary("in.pcapng"), temporary("out.pcapng"));
    std::fs::write(&input, pcapng(&frames, 1, &frames[..1], Endianness::Little)).expect("writable");
    let words = ["annotate", &*input.to_string_lossy(), "-o", &*output.to_string_lossy()];
    let done = roxie(&words);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    let read = |path: &Path| {
        let file = std::fs::read(path).expect("written");
        let mut source = Source::new(&file[..]).expect("a capture");
        let mut packets = Vec::new();
        while let Some(record) = source.next_record().expect("reads") {
            let comment = record.comment.map(|text| String::from_utf8_lossy(text).into_owned());
            packets.push((record.time_ns, record.interface, record.data.to_vec(), comment));
        }
        let names: Vec<_> = source.interfaces().iter().map(|interface| interface.name.clone()).collect();
        (packets, names)
    };
    let ((before, names), (after, same_names)) = (read(&input), read(&output));
    assert_eq!(names, same_names);
    assert!(before.iter().map(|p| (p.0, p.1, &p.2)).eq(after.iter().map(|p| (p.0, p.1, &p.2))));
    let comment = after[2].3.as_deref().expect("the lost packet has a comment");
    assert!(comment.contains("lost-request") && comment.contains("did not reach"), "{comment}");

    if let Ok(tshark) = Command::new("tshark")
        .args([
            "-n",
            "-T",
            "fields",
            "-e",
            "frame.number",
            "-e",
            "frame.comment",
            "-Y",
            "frame.comment",
            "-r",
        ])
        .arg(&output)
        .output()
    {
        let text = String::from_utf8_lossy(&tshark.stdout).into_owned();
        assert!(text.starts_with("3\troxie: lost-request: Packet 3 (PSN"), "{text}");
    }
    std::fs::remove_file(&input).and_then(|()| std::fs::remove_file(&output)).expect("they were written");
}

#[test]
fn the_html_report_has_plots_and_loads_no_files() {
    let output = temporary("page.html");
    let done = roxie(&["report", &capture("loss-write-middle-v4"), "-o", &output.to_string_lossy()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let page = std::fs::read_to_string(&output).expect("written");
    assert_eq!(page.matches("<svg").count(), 3, "throughput, latency, packet sequence numbers");
    assert!(
        page.contains("lost-request") && page.contains("class=\"cross\"") && page.contains("class=\"event\"")
    );
    assert!(!page.contains("http") && !page.contains("<script") && !page.contains("NaN"));
    std::fs::remove_file(&output).expect("it was written");
}

#[test]
fn the_html_report_can_be_written_to_standard_output() {
    let here = std::env::current_dir().expect("it exists").join("-");
    let done = roxie(&["report", &capture("loss-write-middle-v4"), "-o", "-"]);
    let page = String::from_utf8(done.stdout).expect("text");
    assert!(
        done.status.success() && page.starts_with("<!doctype html>") && page.ends_with("</html>\n"),
        "{page}"
    );
    assert!(!here.exists());
}

#[test]
fn an_unsupported_file_name_ending_is_refused() {
    for (name, code) in [("page.jpg", 2), ("page.pdf", 2), ("page.HTM", 0), ("page", 0)] {
        let output = temporary(name);
        let done = roxie(&["report", &capture("rc-read-v4"), "-o", &output.to_string_lossy()]);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!((done.status.code(), said.contains(".html (or .htm) or .svg")), (Some(code), code == 2));
        assert_eq!(std::fs::remove_file(&output).is_ok(), code == 0, "{name}");
    }
}

#[test]
fn the_svg_report_has_the_same_plots() {
    let output = temporary("drawing.svg");
    let done = roxie(&["report", &capture("loss-write-middle-v4"), "-o", &output.to_string_lossy()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let drawing = std::fs::read_to_string(&output).expect("written");
    assert!(drawing.starts_with("<svg xmlns=") && drawing.ends_with("</svg>\n"));
    for part in [
        "Throughput",
        "Latency",
        "Packet sequence numbers",
        "class=\"cross\"",
        "class=\"event\"",
        "First, at packet",
    ] {
        assert!(drawing.contains(part), "{part}");
    }
    assert!(!drawing.contains("NaN") && !drawing.contains("var("));
    std::fs::remove_file(&output).expect("it was written");
}

/// A temporary file, removed when the value is dropped.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, bytes: &[u8]) -> File {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("roxie-capture-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("a temporary file");
        File(path)
    }

    /// Exit code and standard error of `roxie capture read` for the file.
    fn read(&self, words: &[&str]) -> (Option<i32>, String) {
        let path = self.0.to_string_lossy();
        let output = roxie(&[&["read", &path], words].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // A file that stays in the temporary directory does no harm.
        let _left = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_count_of_zero_is_refused_and_cut_headers_are_reported() {
    let bytes = std::fs::read(capture("cm-rping-v4")).expect("a golden capture");
    let file = File::new("whole", &bytes);
    for (option, why) in [("-c", "0 is not in 1.."), ("-s", "0 bytes show nothing")] {
        let (code, said) = file.read(&[option, "0"]);
        assert!(code == Some(2) && said.contains(why), "{option}: {said}");
    }
    let (code, said) = file.read(&["-s", "20"]);
    assert!(code == Some(0) && said.contains("RoCEv2 packets are longer than --snap 20"), "{said}");
    assert_eq!(file.read(&["-s", "60", "-c", "1"]), (Some(0), String::new()));
}

#[test]
fn a_file_without_a_readable_packet_is_an_error() {
    let bytes = std::fs::read(capture("cm-rping-v4")).expect("a golden capture");
    let (code, said) = File::new("header", &bytes[..20]).read(&[]);
    assert!(code == Some(1) && said.contains("ends inside its header, after 20 of 24 bytes"), "{said}");
    let garbage: Vec<u8> = bytes[..24].iter().copied().chain([0xa5; 300]).collect();
    let (code, said) = File::new("garbage", &garbage).read(&[]);
    assert!(code == Some(1) && said.contains("damaged from its beginning"), "{said}");
    let cut = File::new("cut", &bytes[..32]);
    let path = &*cut.0.to_string_lossy();
    for words in [&["read", path][..], &["analyse", path], &["annotate", path, "-o", "/dev/null"]] {
        let output = roxie(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains("damaged from its beginning"),
            "{words:?}: {said}"
        );
    }
    let (code, said) = File::new("empty", &bytes[..24]).read(&[]);
    assert!(code == Some(0) && said.contains("the capture has no packets"), "{said}");
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    for words in [&["--help"][..], &["-h"], &["--version"], &["xdp", "--help"]] {
        let out = full.try_clone().expect("a descriptor");
        let output = Command::new(env!("CARGO_BIN_EXE_roxie")).args(words).stdout(out).output();
        let output = output.expect("roxie runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains("No space left"), "{words:?}: {said}");
    }
}
