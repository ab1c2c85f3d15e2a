//! Bundles: contents survive, damage is reported, nothing is left half written.

use std::fs;
use std::path::{Path, PathBuf};

use sys::{Dir, Walk};

use super::bundle::{Bundle, make};
use crate::failure::Outcome;
use crate::output;

fn write(program: &Path, libraries: &[(String, Vec<u8>)], target: &Path) -> Outcome {
    output::replace(target, &make(program, libraries).expect("readable"), 0o755)
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("roxie-bundle-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory for the test");
        Self(dir)
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("written");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn libraries() -> Vec<(String, Vec<u8>)> {
    vec![
        ("one.so".into(), b"the first".to_vec()),
        ("two.so".into(), vec![7; 10_000]),
        ("3.so".into(), vec![]),
    ]
}

fn contents(program: &Path) -> Vec<(String, Vec<u8>)> {
    let mut bundle = Bundle::open(program).expect("readable").expect("a bundle");
    let entries = bundle.entries().to_vec();
    entries.iter().map(|entry| (entry.name.clone(), bundle.read(entry).expect("intact"))).collect()
}

#[test]
fn a_bundle_contains_what_was_written_and_can_be_written_again() {
    let scratch = Scratch::new("again");
    let program = scratch.file("program", b"ELF image");
    assert!(Bundle::open(&program).expect("readable").is_none());
    let (first, second) = (scratch.0.join("first"), scratch.0.join("second"));
    write(&program, &libraries(), &first).expect("written");
    assert_eq!(contents(&first), libraries());
    assert!(fs::read(&first).expect("there").starts_with(b"ELF image"));
    write(&first, &libraries()[..1], &second).expect("written");
    assert_eq!(contents(&second), libraries()[..1]);
    assert_eq!(fs::read_dir(&scratch.0).expect("listed").count(), 3, "no half-written file is left");
}

#[test]
fn unpacking_restores_damaged_and_missing_files() {
    let scratch = Scratch::new("unpack");
    let bundle = scratch.0.join("bundle");
    write(&scratch.file("program", b"image"), &libraries(), &bundle).expect("written");
    let dir = scratch.0.join("dir");
    let open = Dir::prove(&dir, Walk { make: Some(0o700), ..Walk::default() }).expect("made");
    let unpack = || Bundle::open(&bundle).expect("readable").expect("a bundle").unpack(&open);
    unpack().expect("unpacked");
    let inode =
        |name: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(dir.join(name)).expect("there"));
    let kept = inode("one.so");
    fs::write(dir.join("two.so"), vec![8; 10_000]).expect("damaged");
    fs::remove_file(dir.join("3.so")).expect("removed");
    unpack().expect("unpacked");
    assert_eq!(fs::read(dir.join("two.so")).expect("there"), vec![7; 10_000]);
    assert!(dir.join("3.so").exists());
    assert_eq!(inode("one.so"), kept, "an intact file is not written again");
}

#[test]
fn every_changed_byte_behind_the_image_is_noticed() {
    let scratch = Scratch::new("damage");
    let bundle = scratch.0.join("bundle");
    let small = [("a".to_owned(), b"xyz".to_vec())];
    write(&scratch.file("program", b"image"), &small, &bundle).expect("written");
    let good = fs::read(&bundle).expect("there");
    for at in b"image".len()..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        let path = scratch.file("bad", &bad);
        let noticed = match Bundle::open(&path) {
            Err(_) | Ok(None) => true,
            Ok(Some(mut bundle)) => bundle.read(&bundle.entries()[0].clone()).is_err(),
        };
        assert!(noticed, "byte {at}");
    }
    for len in 0..good.len() {
        let path = scratch.file("short", &good[..len]);
        assert!(!matches!(Bundle::open(&path), Ok(Some(_))), "{len} bytes");
    }
}
