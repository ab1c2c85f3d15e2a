//! Tests of rings and files. They make rings directly: the switch is one for the process.

use std::fs;
use std::path::PathBuf;

use super::ring::{CHUNK, Ring};
use super::*;
use crate::{Dir, Walk};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = PathBuf::from(format!("/tmp/roxie-trace-{name}-{:016x}", crate::random_u64()));
        Dir::prove(&dir, Walk { make: Some(0o700), ..Walk::default() }).expect("a directory for the test");
        Scratch(dir)
    }

    fn recordings(&self) -> Vec<Recording> {
        let dir = Dir::own(&self.0).expect("a directory");
        let files =
            dir.names().expect("a directory").into_iter().map(|name| dir.open(&name).expect("a file"));
        files.filter_map(|file| Recording::read(file, 2 * CHUNK).expect("a ring")).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("cleaned");
    }
}

fn event(n: u64) -> Event {
    Event { time_ns: n, kind: 3, flags: 4, count: 5, id: 6, args: [n, 1, 2, 3, 4, u64::MAX] }
}

#[test]
fn the_newest_events_are_kept_in_order_and_the_others_are_counted() {
    let dir = Scratch::new("newest");
    let capacity = 2 * CHUNK;
    let mut ring = Ring::create(&dir.0, capacity).expect("a ring");
    assert!(dir.recordings()[0].events.is_empty());
    let total = 2 * capacity as u64 + 7;
    (0..total).for_each(|n| ring.push(&event(n)));
    drop(ring);
    let recording = dir.recordings().pop().expect("one");
    let kept: Vec<Event> = (total - capacity as u64..total).map(event).collect();
    assert_eq!((recording.events, recording.replaced, recording.lost), (kept, total - capacity as u64, 0));
    assert_eq!((recording.process, recording.token), (std::process::id(), crate::process_token()));
    assert!(!recording.command.is_empty() && !recording.name.is_empty());
}

#[test]
fn each_ring_has_a_file_of_its_own() {
    let dir = Scratch::new("own");
    let rings: Vec<Ring> = (0..3).map(|_| Ring::create(&dir.0, CHUNK).expect("a ring")).collect();
    assert_eq!((rings.len(), dir.recordings().len()), (3, 3));
}

#[test]
fn other_files_are_refused_and_an_empty_one_has_no_events() {
    let dir = Scratch::new("other");
    let path = dir.0.join("x");
    for (bytes, is_refused) in
        [(vec![1; HEADER_LEN + EVENT_LEN], true), (vec![0; HEADER_LEN], false), (vec![], false)]
    {
        fs::write(&path, bytes).expect("written");
        let read = Recording::read(fs::File::open(&path).expect("there"), CHUNK);
        assert!(if is_refused { read.is_err() } else { read.is_ok_and(|read| read.is_none()) });
    }
    // The length in the header does not fit the file.
    let ring = Ring::create(&dir.0, CHUNK).expect("a ring");
    drop(ring);
    let file = fs::read_dir(&dir.0).expect("a directory").flatten().find(|file| file.path() != path);
    let bytes = fs::read(file.expect("a ring").path()).expect("a ring");
    fs::write(&path, &bytes[..bytes.len() - 1]).expect("written");
    let file = |bytes: &[u8], most| Recording::parse(bytes, bytes.len() as u64, most);
    assert!(Recording::read(fs::File::open(&path).expect("there"), CHUNK).is_err());
    assert!(file(&bytes, CHUNK).is_ok_and(|read| read.is_some()));
    // The fewest that a thread keeps.
    assert!(file(&bytes, 1).is_ok_and(|read| read.is_some()));
    let ring = Ring::create(&dir.0, 2 * CHUNK).expect("a ring");
    drop(ring);
    let read = |most| {
        Dir::own(&dir.0).map(|open| {
            let names = open.names().expect("listed").into_iter();
            names.filter(|name| Recording::read(open.open(name).expect("there"), most).is_ok()).count()
        })
    };
    assert!(read(CHUNK).expect("open") < read(2 * CHUNK).expect("open"), "longer than the reader allows");
}
