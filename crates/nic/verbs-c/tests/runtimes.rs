//! Runtimes and tools that handle SIGSEGV themselves, with the device's handlers beside theirs: the JVM, Go,
//! Python's faulthandler, AddressSanitizer, valgrind. And programs with small stacks.

mod c_program;
mod libraries;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use c_program::{domain, run_directory};

/// The exit status of the probe when there is no usable device.
const NO_DEVICE: i32 = 77;

struct Probe {
    dir: PathBuf,
    /// The device's libraries.
    libraries: PathBuf,
}

impl Probe {
    /// Makes a scratch directory with `libprobe.so`; `None` after printing what is missing.
    fn new(name: &str) -> Option<Self> {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("runtime-{name}"));
        fs::create_dir_all(&dir).expect("a scratch directory");
        let libraries = run_directory(&dir.join("probe"))?;
        let this = Self { dir, libraries };
        let library = this.dir.join("libprobe.so");
        this.compile(&["-shared", "-fPIC", "-w"], "probe.c", &library)?;
        Some(this)
    }

    fn source(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runtimes").join(name)
    }

    fn compile(&self, options: &[&str], source: &str, to: &Path) -> Option<()> {
        let headers = Path::new("/usr/include/infiniband/verbs.h").exists();
        let Some(mut cc) = has("cc").filter(|_| headers).map(|()| Command::new("cc")) else {
            println!("skipped: needs cc and libibverbs-dev");
            return None;
        };
        cc.args(options).arg("-g").arg("-o").arg(to).arg(Self::source(source)).arg("-libverbs");
        good(&cc.output().expect("running cc"));
        Some(())
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        let paths = format!("{}:{}", self.libraries.display(), self.dir.display());
        command.env("LD_LIBRARY_PATH", paths).env("ROXIE_DOMAIN", domain()).current_dir(&self.dir);
        command
    }

    fn library(&self) -> PathBuf {
        self.dir.join("libprobe.so")
    }
}

fn has(program: &str) -> Option<()> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).any(|dir| dir.join(program).exists()).then_some(())
}

/// As [`has`]; prints what is missing.
fn needs(program: &str, package: &str) -> Option<()> {
    has(program).or_else(|| {
        println!("skipped: needs {package}");
        None
    })
}

fn text(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{:?}\n{out}\n{err}", output.status)
}

fn good(output: &Output) {
    assert!(output.status.success(), "{}", text(output));
}

/// Whether the program printed `ok`; false without a device, after printing that.
fn is_ok(output: &Output) -> bool {
    if output.status.code() == Some(NO_DEVICE) {
        println!("skipped: needs a network interface");
        return false;
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(lines.lines().any(|line| line == "ok"), "{}", text(output));
    true
}

#[test]
fn the_jvm_keeps_its_null_checks_and_safepoints() {
    if needs("java", "java").and_then(|()| needs("javac", "javac")).is_none() {
        return;
    }
    let Some(probe) = Probe::new("java") else { return };
    good(
        &Command::new("javac")
            .arg("-d")
            .arg(&probe.dir)
            .arg(Probe::source("Probe.java"))
            .output()
            .expect("running javac"),
    );
    let java = probe.command("java").arg("-cp").arg(&probe.dir).arg("Probe").arg(probe.library()).output();
    let java = java.expect("running java");
    if is_ok(&java) {
        good(&java);
    }
}

#[test]
fn go_keeps_its_nil_checks() {
    if needs("go", "go").is_none() {
        return;
    }
    let Some(probe) = Probe::new("go") else { return };
    let program = probe.dir.join("probe");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(Probe::source("probe.go"));
    build.env("CGO_LDFLAGS", format!("-L{}", probe.dir.display())).env("GOFLAGS", "-mod=mod");
    build.env("GO111MODULE", "off").env("GOCACHE", probe.dir.join("cache")).env("CGO_ENABLED", "1");
    build.env("LD_LIBRARY_PATH", &probe.libraries);
    good(&build.output().expect("running go"));
    let go = probe.command(&program).output().expect("running the program");
    if is_ok(&go) {
        good(&go);
    }
}

#[test]
fn faulthandler_reports_the_faults_of_python_only() {
    use std::os::unix::process::ExitStatusExt;

    if needs("python3", "python3").is_none() {
        return;
    }
    let Some(probe) = Probe::new("python") else { return };
    for when in ["before", "after"] {
        let mut python = probe.command("python3");
        python.arg(Probe::source("probe.py")).arg(when).arg(probe.library());
        let python = python.output().expect("running python3");
        if !is_ok(&python) {
            return;
        }
        let reports = String::from_utf8_lossy(&python.stderr).matches("Fatal Python error").count();
        assert_eq!(reports, 1, "installed {when} the device: {}", text(&python));
        assert_eq!(python.status.signal(), Some(11), "{}", text(&python));
    }
}

#[test]
fn address_sanitizer_reports_the_faults_of_the_program_only() {
    let Some(probe) = Probe::new("asan") else { return };
    let program = probe.dir.join("probe_asan");
    if probe.compile(&["-fsanitize=address", "-w"], "probe_main.c", &program).is_none() {
        return;
    }
    let mut run = probe.command(&program);
    let calm = run.env("ASAN_OPTIONS", "detect_leaks=0").output().expect("running the program");
    if !is_ok(&calm) {
        return;
    }
    good(&calm);
    assert!(!text(&calm).contains("AddressSanitizer"), "{}", text(&calm));
    let crashed = run.arg("crash").output().expect("running the program");
    assert!(is_ok(&crashed) && !crashed.status.success());
    let report = text(&crashed);
    assert!(report.contains("AddressSanitizer: SEGV on unknown address 0x000000000008"), "{report}");
}

#[test]
fn valgrind_runs_a_program_that_unmaps_memory() {
    if needs("valgrind", "valgrind").is_none() {
        return;
    }
    let Some(probe) = Probe::new("valgrind") else { return };
    let program = probe.dir.join("probe_plain");
    if probe.compile(&["-w"], "probe_main.c", &program).is_none() {
        return;
    }
    let mut run = probe.command("valgrind");
    let run = run.args(["-q", "--error-exitcode=0"]).arg(&program).output().expect("running valgrind");
    if is_ok(&run) {
        good(&run);
    }
}

/// Threads get stacks of this size too.
#[test]
fn a_program_has_a_device_with_stacks_of_64_kib() {
    let Some(probe) = Probe::new("stacks") else { return };
    let program = probe.dir.join("probe_plain");
    if probe.compile(&["-w"], "probe_main.c", &program).is_none() {
        return;
    }
    let mut run = probe.command("sh");
    let run = run.args(["-c", "ulimit -s 64; exec \"$0\""]).arg(&program).output().expect("running sh");
    if is_ok(&run) {
        good(&run);
    }
}
