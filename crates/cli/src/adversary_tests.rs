//! Another user of the host acts between any two system calls on names: no code of that user is loaded, and
//! no file of roxie gets into that user's hands or is lost.
//!
//! Each case runs one job of the program once for each of its calls and each act of the adversary. The
//! adversary has the rights of another user, so the kernel decides what succeeds.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use roxie::private_dir::PrivateDir;
use sys::testing::as_user;
use sys::{NamedFile, between_calls};

use crate::command_dir::{self, CommandDir, Purpose};
use crate::library::Libraries;
use crate::output;

/// The adversary.
const STRANGER: u32 = 4000;
const EVIL: &[u8] = b"code of the stranger";

/// The directory of a case; removed on drop.
struct Host {
    root: PathBuf,
    /// Where the job works: its owner and mode differ from case to case.
    place: PathBuf,
    /// What the stranger has prepared.
    stage: PathBuf,
    genuine: PathBuf,
}

/// Names of libraries that programs load.
const LOADED: [&str; 4] = ["libibverbs.so.1", "librdmacm.so.1", "libroxie_audit.so", "libroxie_preload.so"];

impl Host {
    fn new(owner: u32, mode: u32) -> Host {
        let root = Path::new("/tmp").join(format!("roxie-host-{:016x}", sys::random_u64()));
        let (place, stage, genuine) = (root.join("place"), root.join("stage"), root.join("genuine"));
        for dir in [&root, &place, &stage, &genuine, &root.join("tmp")] {
            fs::create_dir(dir).expect("a new directory");
        }
        fs::set_permissions(&root, Permissions::from_mode(0o755)).expect("mode");
        fs::set_permissions(&place, Permissions::from_mode(mode)).expect("mode");
        lchown(&place, Some(owner), Some(owner)).expect("owner");
        fs::set_permissions(&stage, Permissions::from_mode(0o777)).expect("mode");
        for name in ["libibverbs.so", "librdmacm.so", "libroxie_audit.so", "libroxie_preload.so"] {
            fs::write(genuine.join(name), b"genuine").expect("a library");
        }
        fs::write(genuine.join("precious"), b"precious").expect("a file");
        Host { root, place, stage, genuine }
    }

    fn libraries(&self) -> Libraries {
        Libraries::inside(&self.genuine).expect("all of them")
    }

    fn private_dir(&self) -> PrivateDir {
        let temporary = self.root.join("tmp");
        PrivateDir::among(None, Some(&self.place), &[&temporary], Ok).expect("there is another place")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.root));
    }
}

/// What the stranger does, with everything in a directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Act {
    /// Renames each entry, and puts a copy with evil libraries in its place.
    Swap,
    /// Renames each entry, and puts a link to a file or directory of the victim in its place.
    Link,
    /// Takes the names that the job is about to use.
    Squat,
    /// Removes what can be removed.
    Remove,
    /// Moves the whole place away, and makes it anew.
    Replace,
}

impl Act {
    const ALL: [Act; 5] = [Act::Swap, Act::Link, Act::Squat, Act::Remove, Act::Replace];

    /// Errors of the kernel are the point: the stranger does what is allowed.
    fn perform(self, place: &Path, stage: &Path, genuine: &Path) {
        let away = stage.join(format!("away-{:016x}", sys::random_u64()));
        let entries: Vec<PathBuf> =
            fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        match self {
            Act::Swap => entries.iter().for_each(|entry| {
                if fs::rename(entry, &away).is_ok() {
                    drop(fs::create_dir(entry));
                    let inside = fs::read_dir(&away).into_iter().flatten().flatten();
                    for name in inside.map(|inner| inner.file_name()) {
                        drop(fs::create_dir(entry.join(&name)));
                        plant(&entry.join(&name));
                    }
                    plant(entry);
                }
            }),
            Act::Link => entries.iter().for_each(|entry| {
                if fs::rename(entry, &away).is_ok() {
                    drop(symlink(genuine.join("precious"), entry));
                }
            }),
            Act::Squat => {
                let names = ["roxie-0", "roxie-0-2", "new", "out"];
                names.iter().for_each(|name| drop(fs::create_dir(place.join(name))));
                names.iter().for_each(|name| plant(&place.join(name)));
                drop(symlink(genuine.join("precious"), place.join("out.json")));
                drop(fs::write(place.join("out.json"), EVIL));
            }
            Act::Remove => entries.iter().for_each(|entry| {
                drop(fs::remove_file(entry));
                drop(fs::remove_dir_all(entry));
            }),
            Act::Replace => {
                if fs::rename(place, &away).is_ok() {
                    drop(fs::create_dir(place));
                    plant(place);
                }
            }
        }
    }
}

/// Puts evil files under every name that is loaded or written.
fn plant(dir: &Path) {
    for name in LOADED.into_iter().chain(["roxie", "opened"]) {
        drop(fs::write(dir.join(name), EVIL));
    }
}

/// Runs `job` once without the stranger, and then once for each call and act; `check` judges each run when
/// the stranger has acted once more, after its end.
fn for_each_run<T>(owner: u32, mode: u32, job: impl Fn(&Host) -> T, mut check: impl FnMut(&Host, T)) {
    if sys::effective_uid() != 0 {
        eprintln!("skipped: needs root, to be two users");
        return;
    }
    let calls = Rc::new(RefCell::new(0_usize));
    let counted = Rc::clone(&calls);
    let host = Host::new(owner, mode);
    let result = between_calls(move || *counted.borrow_mut() += 1, || job(&host));
    check(&host, result);
    let calls = *calls.borrow();
    assert!(calls > 1, "the adversary has no turn");
    for (turn, act) in (0..=calls).flat_map(|turn| Act::ALL.map(|act| (turn, act))) {
        let host = Host::new(owner, mode);
        let [place, stage, genuine] = [&host.place, &host.stage, &host.genuine].map(Clone::clone);
        let strike = move || as_user(STRANGER, || act.perform(&place, &stage, &genuine));
        let (mut count, during) = (0, strike.clone());
        let adversary = move || {
            if count == turn {
                during();
            }
            count += 1;
        };
        let result = between_calls(adversary, || job(&host));
        strike();
        assert_eq!(fs::read(host.genuine.join("precious")).expect("there"), b"precious", "{turn} {act:?}");
        check(&host, result);
    }
}

/// Each name in the directory leads to a genuine library, through directories of root alone.
fn is_genuine(host: &Host, dir: &Path) {
    for name in LOADED {
        let library = dir.join(name);
        assert_eq!(fs::read(&library).expect("a library"), b"genuine", "{}", library.display());
        assert_eq!(library.canonicalize().expect("a path").parent(), Some(&*host.genuine));
    }
    for dir in dir.ancestors() {
        assert_eq!(fs::metadata(dir).expect("a directory").uid(), 0, "{}", dir.display());
    }
}

#[test]
fn the_loader_never_gets_a_library_of_a_stranger() {
    for (owner, mode) in [(0, 0o1777), (0, 0o777), (STRANGER, 0o777)] {
        for_each_run(
            owner,
            mode,
            |host| host.libraries().link_in(&host.private_dir()),
            |host, dir| {
                is_genuine(host, &dir.expect("a place is always found"));
            },
        );
    }
}

#[test]
fn the_directory_of_a_running_command_is_neither_lost_nor_shared() {
    let job = |host: &Host| {
        let base = host.private_dir();
        let dirs =
            [Purpose::Check, Purpose::Run].map(|purpose| CommandDir::in_base(host.private_dir(), purpose));
        let names = base.dir().names().expect("listed");
        command_dir::sweep(base.dir(), &names, SystemTime::now() + Duration::from_secs(7200));
        dirs.map(|dir| dir.expect("a place is always found"))
    };
    for (owner, mode) in [(0, 0o1777), (STRANGER, 0o777)] {
        for_each_run(owner, mode, job, |_, dirs| {
            for dir in dirs {
                let meta = fs::symlink_metadata(dir.path()).expect("there");
                assert!(meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o777 == 0o700);
                assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0, "nothing of a stranger");
            }
        });
    }
}

#[test]
fn what_containers_mount_is_written_into_directories_of_root_only() {
    for (owner, mode) in [(0, 0o1777), (0, 0o755), (0, 0o777), (STRANGER, 0o755)] {
        let job = |host: &Host| {
            let dir = output::trusted_dir(&host.place.join("new/deep"))?;
            dir.replace(OsStr::new("roxie"), b"genuine", 0o755).expect("written");
            Ok::<_, crate::failure::Failure>(dir.path().to_owned())
        };
        let mut is_first = true;
        for_each_run(owner, mode, job, |_, dir| {
            // Refused, or safe by its path. Without the stranger it is refused where others may write.
            if std::mem::take(&mut is_first) {
                assert_eq!(dir.is_ok(), owner == 0 && mode != 0o777, "{mode:o}");
            }
            let Ok(dir) = dir else { return };
            assert_eq!(fs::read(dir.join("roxie")).expect("there"), b"genuine");
            dir.ancestors().for_each(|dir| assert_eq!(fs::metadata(dir).expect("there").uid(), 0));
        });
    }
}

#[test]
fn an_output_goes_to_its_place_or_nowhere() {
    for (owner, mode) in [(0, 0o1777), (0, 0o777), (STRANGER, 0o777)] {
        let job = |host: &Host| {
            let place = NamedFile::at(&host.place.join("out.json"))?;
            let file = place.dir().create_new(OsStr::new("out.json.part"), 0o666)?;
            std::io::Write::write_all(&mut &file, b"output")?;
            place.dir().rename(OsStr::new("out.json.part"), place.name())?;
            std::io::Write::write_all(&mut place.create()?, b"output")
        };
        let mut is_first = true;
        // That the precious file is whole is checked for each run.
        for_each_run(owner, mode, job, |host, result| {
            if std::mem::take(&mut is_first) {
                result.expect("no other user is there");
                assert_eq!(fs::read(host.place.join("out.json")).expect("there"), b"output");
            }
        });
    }
}
