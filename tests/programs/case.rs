//! A named case, and small functions that most cases need.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Port, Topology, User};
use roxie_tests::process::Ended;
pub(crate) use roxie_tests::suite::{Case, good, says};

/// Time limit for a short program.
pub(crate) const SHORT: Duration = Duration::from_secs(10);
/// Time limit for a program that moves much data.
pub(crate) const LONG: Duration = Duration::from_secs(40);

/// How many variants and iterations run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Scale {
    /// Few iterations, and each variant at the places of its [`Spread`].
    Quick,
    /// Every variant at every place.
    Full,
}

/// The places of a variant at quick scale; at full scale it runs at every place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Spread {
    /// Every place.
    All,
    /// Every third place, from this one on: both families, both users, two kinds of hosts. Variants of one
    /// program begin at different ones.
    Third(usize),
    /// One privileged place on two hosts, and one unprivileged place on one host.
    Two,
    /// The privileged place of these two.
    Root,
    /// The unprivileged place.
    Ordinary,
}

/// The places of a variant.
pub(crate) fn places(scale: Scale, spread: Spread) -> Vec<Place> {
    let root = Place::new(Topology::TwoHosts, Family::V4, User::Root);
    let ordinary = Place::new(Topology::Loopback, Family::V4, User::Ordinary);
    let shm = vec![
        Place::shm(Topology::Loopback, Family::V4, User::Ordinary),
        Place::shm(Topology::SameHost, Family::V6, User::Root),
    ];
    match spread {
        _ if scale == Scale::Full => [Place::all(), shm, Place::all_xsk()].concat(),
        Spread::All => {
            let native = Place::xsk(Family::V4, 1500, Port::Native, Port::Native);
            let mixed = Place::xsk(Family::V6, 9000, Port::Generic, Port::Native);
            [Place::all(), shm, vec![native, mixed]].concat()
        }
        Spread::Third(from) => places(scale, Spread::All).into_iter().skip(from % 3).step_by(3).collect(),
        Spread::Two => vec![root, ordinary],
        Spread::Root => vec![root],
        Spread::Ordinary => vec![ordinary],
    }
}

/// The index of the GID of this side's address.
pub(crate) fn gid_index(lab: &Lab, place: &Place, side: Side) -> Result<String, String> {
    let own = lab.own_address(place, side);
    let value = devinfo(lab, place, side)?;
    let rows = value["gids"].as_array().ok_or("devinfo --json has no gids")?;
    let row = rows.iter().find(|row| row["ip"] == own).ok_or_else(|| format!("no GID for {own}: {value}"))?;
    Ok(row["index"].to_string())
}

/// `roxie devinfo --json` on one side.
pub(crate) fn devinfo(lab: &Lab, place: &Place, side: Side) -> Result<serde_json::Value, String> {
    let name = format!("{place}/devinfo {}", lab.port());
    let ended = roxie(lab, place, side, &name, &["devinfo", "--json", "--netdev", lab.netdev(place)])?;
    let ended = good(ended)?;
    serde_json::from_str(&ended.output).map_err(|error| format!("{error}\n{}", ended.describe()))
}

/// Runs `roxie` with `words` to its end. The name of its output begins with that of the case: another case
/// may run at the same time.
pub(crate) fn roxie(
    lab: &Lab,
    place: &Place,
    side: Side,
    name: &str,
    words: &[&str],
) -> Result<Ended, String> {
    assert!(name.contains('/'), "'{name}' is not the name of a case");
    let mut running = lab.roxie_command(place, side, name, words).map_err(|error| error.to_string())?;
    Ok(running.wait(LONG))
}

/// Words of a shell that wait until a server listens on this TCP port or rdma_cm port (see
/// [`Ready`](roxie_tests::pair::Ready)); a case that waits for too long is killed at its time limit.
pub(crate) fn until_listening(port: u16) -> String {
    let socket = format!(":{port:04X} [0-9A-F:]* 0A|/svc/.*/{port:04x}/");
    format!("until grep -Eqs '{socket}' /proc/net/tcp* /proc/net/unix; do sleep 0.02; done")
}

/// Compiles a C program of this directory.
pub(crate) fn compile(source: &str, to: &Path, options: &[&str]) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
    let compiled = Command::new("cc").arg("-o").arg(to).arg(&source).args(options).output();
    let compiled = compiled.map_err(|error| error.to_string())?;
    match compiled.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&compiled.stderr).into_owned()),
    }
}

/// A compiled program beside the library that it needs; it is removed with that library.
pub(crate) struct Built(String);

impl Built {
    pub(crate) fn path(&self) -> &str {
        &self.0
    }
}

/// As [`compile`], once for all cases with this source and these options.
pub(crate) fn build(lab: &Lab, source: &str, options: &[&str]) -> Result<Built, String> {
    /// The number of a program, and how its compilation ended.
    type Program = (usize, Arc<OnceLock<std::result::Result<(), String>>>);
    static PROGRAMS: Mutex<BTreeMap<String, Program>> = Mutex::new(BTreeMap::new());
    let (nth, once) = {
        let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
        let nth = programs.len();
        programs.entry([&[source], options].concat().join(" ")).or_insert((nth, Arc::default())).clone()
    };
    let stem = Path::new(source).file_stem().unwrap_or_default().display();
    let to = lab.roxie().with_file_name(format!("{stem}-{nth}"));
    once.get_or_init(|| compile(source, &to, options)).clone()?;
    Ok(Built(to.display().to_string()))
}
