//! Walks: which ways are trusted, and that no other user can change one while it is walked, or later.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::*;
use crate::testing::as_user;

/// Another user of the host.
const STRANGER: u32 = 4000;

/// A new directory of this user in /tmp, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let path = PathBuf::from(format!("/tmp/roxie-dir-{:016x}", random_u64()));
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    fn dir(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn link(&self, name: &str, target: impl AsRef<Path>) -> PathBuf {
        let path = self.0.join(name);
        symlink(target, &path).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn prove(path: &Path) -> Result<Dir, Untrusted> {
    Dir::prove(path, Walk::default())
}

fn is_root() -> bool {
    let is_root = effective_uid() == 0;
    if !is_root {
        eprintln!("skipped: needs root, to be two users");
    }
    is_root
}

fn give_away(path: &Path) {
    std::os::unix::fs::lchown(path, Some(STRANGER), Some(STRANGER)).unwrap();
}

#[test]
fn a_directory_that_others_may_write_is_trusted_only_if_it_is_sticky() {
    let scratch = Scratch::new();
    for (mode, groups, ok) in [
        (0o755, false, true),
        (0o1777, false, true),
        (0o775, false, false),
        (0o775, true, true),
        (0o757, true, false),
        (0o777, false, false),
    ] {
        let open = scratch.dir(&format!("{mode:o}-{groups}"), mode);
        let inner = open.join("inner");
        fs::create_dir(&inner).unwrap();
        // The group of this user alone would be trusted.
        if std::os::unix::fs::lchown(&open, None, Some(STRANGER)).is_err() {
            continue;
        }
        let rules = Walk { trust_groups: groups, ..Walk::default() };
        assert_eq!(Dir::prove(&inner, rules).is_ok(), ok, "{mode:o} {groups}");
    }
}

#[test]
fn the_path_of_a_proven_directory_has_no_links_and_no_dots() {
    let scratch = Scratch::new();
    let target = scratch.dir("target", 0o755);
    scratch.link("relative", "target");
    scratch.link("absolute", &target);
    scratch.link("chain", "./relative/../absolute/.");
    for name in ["target", "relative", "absolute", "chain", "chain/../chain", "./target//"] {
        assert_eq!(prove(&scratch.0.join(name)).unwrap().path(), target, "{name}");
    }
    let refused = Walk { refuse_links: true, ..Walk::default() };
    assert!(matches!(Dir::prove(&scratch.0.join("chain"), refused), Err(Untrusted::Link { .. })));
    scratch.link("loop", "loop");
    let error = prove(&scratch.0.join("loop")).unwrap_err();
    assert!(matches!(error, Untrusted::Failed { error, .. } if error.raw_os_error() == Some(libc::ELOOP)));
    fs::write(scratch.0.join("file"), "").unwrap();
    assert_eq!(prove(&scratch.0.join("file")).unwrap_err().kind(), Some(ErrorKind::NotADirectory));
    assert!(prove(&scratch.0.join("absent")).unwrap_err().is_missing());
    let made = Dir::prove(&scratch.0.join("a/b"), Walk { make: Some(0o700), ..Walk::default() }).unwrap();
    assert_eq!(made.own_metadata().unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_directory_or_link_of_another_user_is_refused_wherever_it_is_on_the_way() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let middle = scratch.dir("middle", 0o755);
    let (own, target) = (middle.join("own"), scratch.dir("target", 0o755));
    fs::create_dir(&own).unwrap();
    let link = scratch.link("link", &target);
    assert!(prove(&own).is_ok() && prove(&link).is_ok());
    give_away(&middle);
    give_away(&link);
    for path in [&own, &middle, &link, &scratch.link("to", &own)] {
        let refused = prove(path).unwrap_err();
        assert!(matches!(refused, Untrusted::Owner { owner: STRANGER, .. }), "{path:?}: {refused}");
    }
    // It is the stranger's own for the stranger.
    as_user(STRANGER, || prove(&middle).unwrap());
}

#[test]
fn a_named_file_behind_the_link_of_another_user_is_not_written() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let (shared, victim) = (scratch.dir("shared", 0o777), scratch.0.join("victim"));
    fs::write(&victim, "kept").unwrap();
    let link = shared.join("out");
    symlink(&victim, &link).unwrap();
    let create = || NamedFile::at(&link).and_then(|place| place.create());
    assert!(create().is_err(), "others may replace the link");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    give_away(&link);
    assert!(create().is_err(), "a stranger made the link");
    assert_eq!(fs::read(&victim).unwrap(), b"kept");
    std::os::unix::fs::lchown(&link, Some(0), Some(0)).unwrap();
    create().unwrap().write_all(b"new").unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"new");
    let open = fs::File::open(&victim).unwrap();
    let by_number = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open)));
    NamedFile::at(&by_number).and_then(|place| place.create()).unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"");
}

#[test]
fn a_file_that_another_user_has_put_there_is_not_written() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let (shared, open) = (scratch.dir("shared", 0o1777), scratch.dir("open", 0o755));
    for dir in [&shared, &open] {
        for name in ["file", "pipe"] {
            let path = dir.join(name);
            match name {
                "pipe" => drop(crate::testing::run("mkfifo", path.to_str().unwrap())),
                _ => fs::write(&path, "theirs").unwrap(),
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
            give_away(&path);
        }
    }
    let create = |path: PathBuf| NamedFile::at(&path).and_then(|place| place.create());
    assert!(create(shared.join("file")).is_err() && create(shared.join("pipe")).is_err());
    assert_eq!(fs::read(shared.join("file")).unwrap(), b"theirs");
    // A second name of a file of this user, made by a user that could write it once.
    fs::write(scratch.0.join("precious"), "kept").unwrap();
    fs::hard_link(scratch.0.join("precious"), shared.join("second")).unwrap();
    assert!(create(shared.join("second")).is_err());
    assert_eq!(fs::read(scratch.0.join("precious")).unwrap(), b"kept");
    // Only this user can have let it there.
    create(open.join("file")).unwrap().write_all(b"new").unwrap();
    assert_eq!(fs::read(open.join("file")).unwrap(), b"new");
}

#[test]
fn a_directory_that_this_user_named_in_the_environment_must_be_private() {
    let scratch = Scratch::new();
    let (open, closed) = (scratch.dir("open", 0o755), scratch.dir("closed", 0o700));
    assert!(matches!(Dir::own(&open), Err(Untrusted::Open { .. })));
    assert!(matches!(Dir::own(&scratch.link("link", &closed)), Err(Untrusted::Failed { .. })));
    let dir = Dir::own(&closed).unwrap();
    dir.create_new("file".as_ref(), 0o600).unwrap();
    assert!(closed.join("file").is_file());
    if is_root() {
        give_away(&closed);
        assert!(matches!(Dir::own(&closed), Err(Untrusted::Owner { owner: STRANGER, .. })));
    }
}

#[test]
fn what_is_no_regular_file_is_not_opened() {
    let scratch = Scratch::new();
    let dir = prove(&scratch.0).unwrap();
    crate::testing::run("mkfifo", scratch.0.join("pipe").to_str().unwrap());
    scratch.dir("dir", 0o700);
    scratch.link("link", "/etc/passwd");
    for name in ["pipe", "dir", "link"] {
        assert!(dir.open(name.as_ref()).is_err(), "{name}");
    }
    assert!(dir.create_new("link".as_ref(), 0o600).is_err());
    dir.replace("link".as_ref(), b"new", 0o644).unwrap();
    assert_eq!(dir.read("link".as_ref()).unwrap(), b"new");
    assert!(dir.open("../dir".as_ref()).is_err(), "a path is no name");
}
