//! Inputs that are not captures, incomplete or unusual captures, and full outputs.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use roxie_capture::source::Source;

use crate::golden;

fn roxie(words: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
    command.arg("capture").args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("roxie runs");
    // The program may end before it has read everything.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("roxie ends")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn temporary(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("roxie-odd-{}-{name}", std::process::id()))
}

#[test]
fn an_input_that_is_not_a_capture_is_described() {
    let output = roxie(&["read", "/"], &[]);
    assert!(
        output.status.code() == Some(1) && said(&output).contains("/: this is a directory"),
        "{}",
        said(&output)
    );
    let output = roxie(&["read", "/dev/null"], &[]);
    assert!(
        output.status.code() == Some(1) && said(&output).contains("the file is empty"),
        "{}",
        said(&output)
    );
    for (magic, name, cat) in [
        (&b"BZh91AY"[..], "bzip2", "bzcat"),
        (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x -so"),
        (&[0x02, 0x21, 0x4c, 0x18, 0, 0], "lz4 -l", "lz4cat"),
    ] {
        let output = roxie(&["analyse", "-"], magic);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("compressed with {name}")) && said.contains(cat), "{said}");
    }
    for (magic, name) in [
        (&[0x1f, 0x8b, 8, 0, 0][..], "gzip"),
        (&[0x28, 0xb5, 0x2f, 0xfd, 4], "zstd"),
        (&[0xfd, b'7', b'z', b'X', b'Z', 0], "xz"),
        (&[0x04, 0x22, 0x4d, 0x18, 0], "lz4"),
    ] {
        let said = said(&roxie(&["analyse", "-"], magic));
        assert!(said.contains(&format!("the file is cut: its {name} data end early")), "{said}");
    }
    // The middle of a file, for example by `tail -c`.
    let middle = &golden::file("cm-rping-v4")[100..];
    let output = roxie(&["read", "-"], middle);
    assert!(output.status.code() == Some(1) && said(&output).contains("neither pcap nor pcapng"));
}

#[test]
fn a_cut_capture_on_standard_input_is_read_to_its_end() {
    let file = golden::file("cm-rping-v4");
    let whole = roxie(&["read", "-"], &file);
    let lines = |output: &Output| output.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!((whole.status.code(), lines(&whole), said(&whole).as_str()), (Some(0), 41, ""));
    let cut = roxie(&["read", "-"], &file[..file.len() - 10]);
    assert_eq!((cut.status.code(), lines(&cut)), (Some(0), 41));
    assert!(said(&cut).contains("standard input: the file ends inside packet 41"), "{}", said(&cut));
}

/// A pipe is refused before it is opened: opening this one would block, it has no writer.
#[test]
fn a_pipe_cannot_be_annotated() {
    let fifo = temporary("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("writable");
    for input in ["-", "/dev/stdin", &fifo.to_string_lossy()] {
        let output = roxie(&["annotate", input, "-o", "/dev/null"], &golden::file("cm-rping-v4"));
        let said = said(&output);
        assert!(
            output.status.code() == Some(1) && said.contains("the capture is read twice"),
            "{input}: {said}"
        );
    }
    std::fs::remove_file(&fifo).expect("it was made");
}

/// The reader uses the part of the file that exists when it reaches the end.
#[test]
fn a_growing_file_gives_more_packets_each_time() {
    let (path, file) = (temporary("grows"), golden::file("cm-rping-v4"));
    let mut last = 0;
    for len in [30, file.len() / 2, file.len()] {
        std::fs::write(&path, &file[..len]).expect("writable");
        let output = roxie(&["analyse", &path.to_string_lossy(), "--json"], &[]);
        let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let packets = outcome["packets"].as_u64().expect("a number");
        assert!(packets >= last, "{packets} of {len} bytes");
        assert_eq!(said(&output).is_empty(), len == file.len(), "{}", said(&output));
        last = packets;
    }
    assert_eq!(last, 41);
    std::fs::remove_file(&path).expect("it was written");
}

#[test]
fn a_full_disk_is_an_error() {
    let path = temporary("input.pcap");
    std::fs::write(&path, golden::file("loss-send-middle-v4")).expect("writable");
    let input = &*path.to_string_lossy();
    for words in [
        &["read", input][..],
        &["read", input, "--json"],
        &["analyse", input],
        &["analyse", input, "--messages"],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let mut command = Command::new(env!("CARGO_BIN_EXE_roxie"));
        let output = command.arg("capture").args(words).stdout(full).output().expect("roxie runs");
        assert!(
            output.status.code() == Some(1) && said(&output).contains("No space left"),
            "{words:?}: {}",
            said(&output)
        );
    }
    for command in ["annotate", "report"] {
        let output = roxie(&[command, input, "-o", "/dev/full"], &[]);
        assert!(
            output.status.code() == Some(1) && said(&output).contains("No space left"),
            "{command}: {}",
            said(&output)
        );
    }
    std::fs::remove_file(&path).expect("it was written");
}

/// Blocks of a pcapng section.
struct Section {
    big: bool,
    bytes: Vec<u8>,
}

impl Section {
    fn new(big: bool) -> Section {
        let mut section = Section { big, bytes: Vec::new() };
        let magic = section.word(0x1a2b_3c4d);
        let version = [section.half(1), section.half(0)].concat();
        section.block(0x0a0d_0d0a, &[&magic[..], &version, &[0xff; 8]].concat());
        section
    }

    fn word(&self, word: u32) -> [u8; 4] {
        if self.big { word.to_be_bytes() } else { word.to_le_bytes() }
    }

    fn half(&self, half: u16) -> [u8; 2] {
        if self.big { half.to_be_bytes() } else { half.to_le_bytes() }
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let padding = vec![0; body.len().next_multiple_of(4) - body.len()];
        let len = self.word((body.len() + padding.len() + 12) as u32);
        let kind = self.word(kind);
        self.bytes.extend([&kind[..], &len, body, &padding, &len].concat());
    }

    fn option(&self, code: u16, value: &[u8]) -> Vec<u8> {
        let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
        [&self.half(code)[..], &self.half(value.len() as u16), value, &padding].concat()
    }

    /// An Ethernet interface with these options.
    fn interface(&mut self, options: &[u8]) {
        let body = [&self.half(1)[..], &[0; 6], options].concat();
        self.block(1, &body);
    }

    /// A packet at this time in units of the interface, with these options.
    fn packet(&mut self, interface: u32, ticks: u64, frame: &[u8], options: &[u8]) {
        let len = frame.len() as u32;
        let words =
            [interface, (ticks >> 32) as u32, ticks as u32, len, len].map(|word| self.word(word)).concat();
        let padding = vec![0; frame.len().next_multiple_of(4) - frame.len()];
        self.block(6, &[&words[..], frame, &padding, options].concat());
    }
}

/// Number, time and length of each packet, and the notes about damage.
fn read(file: &[u8]) -> (Vec<(u64, u64, usize)>, Vec<String>) {
    let mut source = Source::new(file).expect("a capture");
    let mut packets = Vec::new();
    while let Some(record) = source.next_record().expect("reads") {
        packets.push((record.number, record.time_ns, record.data.len()));
    }
    (packets, source.notes().collect())
}

#[test]
fn each_interface_has_its_own_time_unit_and_offset() {
    const S: u64 = 1_000_000_000;
    let frame = &golden::frames("rc-read-v4")[0];
    for big in [false, true] {
        let mut section = Section::new(big);
        let offset = |section: &Section, seconds: i64| {
            let bytes = if big { seconds.to_be_bytes() } else { seconds.to_le_bytes() };
            section.option(14, &bytes)
        };
        // Milliseconds; 2^-10 s; seconds, 100 s later; milliseconds, a second earlier; picoseconds; and the
        // default, microseconds.
        let options = [
            section.option(9, &[3]),
            section.option(9, &[0x80 | 10]),
            [section.option(9, &[0]), offset(&section, 100)].concat(),
            [section.option(9, &[3]), offset(&section, -1)].concat(),
            section.option(9, &[12]),
            Vec::new(),
        ];
        for options in &options {
            section.interface(options);
        }
        let ticks = [2500, 512, 7, 3000, 5_000_000, 9];
        for (interface, ticks) in (0..).zip(ticks) {
            section.packet(interface, ticks, frame, &[]);
        }
        let (packets, notes) = read(&section.bytes);
        let times: Vec<u64> = packets.iter().map(|packet| packet.1).collect();
        assert_eq!(times, [2_500_000_000, S / 2, 107 * S, 2 * S, 5000, 9000], "big-endian: {big}");
        assert_eq!(notes, [] as [&str; 0]);
    }
}

/// Unknown blocks and options are skipped; sections may have either byte order.
#[test]
fn unknown_blocks_and_options_are_skipped() {
    let frame = &golden::frames("rc-read-v4")[0];
    let mut file = Vec::new();
    for big in [false, true, false] {
        let mut section = Section::new(big);
        section.block(4, b"names of addresses");
        let unknown = [section.option(0x8001, b"whatever"), section.option(1, b"a comment")].concat();
        section.interface(&unknown);
        section.block(0x0bad, &[1, 2, 3, 4, 5, 6, 7]);
        section.block(0x8000_1234, &[]);
        section.packet(0, 1, frame, &unknown);
        section.block(0x7fff_ffff, &[0; 1000]);
        section.packet(0, 2, frame, &[]);
        file.extend(section.bytes);
    }
    let (packets, notes) = read(&file);
    assert_eq!(notes, [] as [&str; 0]);
    let want: Vec<(u64, u64, usize)> =
        (1..=6).map(|n| (n, [2000, 1000][n as usize % 2], frame.len())).collect();
    assert_eq!(packets, want);
}

/// A record longer than any frame is damage. The rest of the file is read, and no memory is allocated for the
/// record.
#[test]
fn a_record_longer_than_any_frame_is_skipped() {
    let frame = &golden::frames("rc-read-v4")[0];
    let mut section = Section::new(false);
    section.interface(&[]);
    section.packet(0, 1, frame, &[]);
    section.packet(0, 2, &vec![0xa5; 20 << 20], &[]);
    section.packet(0, 3, frame, &[]);
    let (packets, notes) = read(&section.bytes);
    assert_eq!(packets.iter().map(|packet| packet.1).collect::<Vec<_>>(), [1000, 3000]);
    assert!(notes.iter().any(|note| note.contains("is damaged")), "{notes:?}");
}
