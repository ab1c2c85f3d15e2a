//! Programs that bring their own copy of libibverbs, and what `roxie run` says when its command ends.

use std::fs;
use std::path::Path;
use std::process::Command;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, compile, good, roxie, says};

/// The name that auditwheel would give the copy.
const COPY: &str = "libibverbs-1de1263b.so.1.14.48.0";
const UNUSED: &str = "did not use RDMA";

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for user in [User::Root, User::Ordinary] {
        let place = Place::new(Topology::Loopback, Family::V4, user);
        cases.push(Case::new(place, "a bundled libibverbs is replaced", "cc", move |lab, name| {
            replaced(lab, &place, name)
        }));
        cases.push(Case::new(
            place,
            "roxie run says that RDMA was not used",
            "ibv_devinfo",
            move |lab, name| unused(lab, &place, name),
        ));
    }
    cases
}

/// The copy is found without roxie, and never with it.
fn replaced(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let dir = lab.roxie().with_file_name(format!("bundled-{}", lab.port()));
    fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
    let (linked, by_path, copy) = (dir.join("linked"), dir.join("by_path"), dir.join(COPY));
    let soname = format!("-Wl,-soname,{COPY}");
    let script = dir.join("versions.map");
    fs::write(&script, "IBVERBS_1.1 { global: ibv_*; local: *; };\n").map_err(|error| error.to_string())?;
    let versions = format!("-Wl,--version-script={}", script.display());
    compile("bundled_verbs.c", &copy, &["-shared", "-fPIC", &soname, &versions])?;
    let library = copy.display().to_string();
    // The loader searches DT_RPATH before LD_LIBRARY_PATH.
    compile("bundled.c", &linked, &["-Wl,-rpath,$ORIGIN", "-Wl,--disable-new-dtags", &library])?;
    compile("bundled.c", &by_path, &["-DBY_PATH", "-ldl"])?;
    for (program, arguments) in [(&linked, &[][..]), (&by_path, &[library.as_str()][..])] {
        let plain = Command::new(program).args(arguments).output().map_err(|error| error.to_string())?;
        if plain.stdout != b"no device\n" {
            return Err(format!("without roxie: {plain:?}"));
        }
        let text = program.display().to_string();
        let words = [&["run", "--netdev", "lo", "--", &text][..], arguments].concat();
        let ended = good(roxie(lab, place, Side::Server, name, &words)?)?;
        says(&ended, "device roxie0")?;
        says(&ended, &format!("roxie: {COPY}, which {} loads, is replaced", base(program)))?;
        if ended.output.contains(UNUSED) {
            return Err(ended.describe());
        }
    }
    Ok(())
}

/// One line, unless a program opened the device or the user wants none.
fn unused(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let run = |words: &[&str]| {
        good(roxie(lab, place, Side::Server, name, &[&["run", "--netdev", "lo"], words].concat())?)
    };
    says(&run(&["--", "true"])?, "roxie: true did not use RDMA: it loaded no RDMA library\n")?;
    let other_name = run(&["--", "bash", "-c", "ib_write_bw -d none; exit 0"])?;
    says(&other_name, "roxie: bash did not use RDMA: it loaded ")?;
    says(&other_name, ", and opened none of roxie's devices ('roxie devinfo' lists them)\n")?;
    // A name that the shell makes: the words do not tell what starts.
    let opens = format!("name=devinfo; ibv_$name && {} run -- ibv_$name; exit 0", lab.roxie().display());
    let nested = format!("name=devinfo; {} run -- ibv_$name; exit 0", lab.roxie().display());
    let silent = [
        ["--quiet", "--", "true"].as_slice(),
        &["--", "ibv_devices"],
        &["--", "sh", "-c", &opens],
        &["--", "sh", "-c", &nested],
    ];
    for silent in silent {
        let ended = run(silent)?;
        if ended.output.contains(UNUSED) {
            return Err(ended.describe());
        }
    }
    Ok(())
}

fn base(program: &Path) -> String {
    program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
