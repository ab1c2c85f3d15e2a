//! Kernel software over Soft-RoCE in the machine, and its user-space end on roxie at the host: iSER, with the
//! kernel as target and as initiator, also with loss, and with a user-space end that is killed.
//! `docs/applications/kernel-consumers.md` has the commands.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use roxie_tests::binaries;
use roxie_tests::pair::{Ready, flowing};
use roxie_tests::place::Port;
use roxie_tests::process::{Running, eventually};

use crate::dispatcher::Case;
use crate::end::End;
use crate::machine::{Machine, good};

/// Programs of the host's end.
const PROGRAMS: [&str; 4] = ["tgtd", "tgtadm", "qemu-io", "qemu-img"];
/// libiscsi 1.19 cannot transfer more than 256 KiB at once.
const CHUNK: usize = 128 << 10;
const CHUNKS: usize = 64;
const BYTES: usize = CHUNKS * CHUNK;
/// Bytes of traffic that show that a transfer is running.
const RUNNING_BYTES: u64 = 1 << 20;
/// Time limit of a program: some lost packets cost rxe 2 s each.
const LIMIT: Duration = Duration::from_secs(100);
/// Time for the kernel's target to drop the connection of a killed initiator.
const DROPPED_MAX: Duration = Duration::from_secs(20);
/// One of 50 of the packets within messages, in both directions. A lost packet of the login would end
/// libiscsi 1.19, which then waits for 1 s only.
const LOSS: [&str; 2] =
    ["ROXIE_INGRESS=impair:loss=2%,opcode=middle,seed=1", "ROXIE_EGRESS=impair:loss=2%,opcode=middle,seed=2"];

#[derive(Clone, Copy, Eq, PartialEq)]
enum What {
    Plain,
    Loss,
    Kill,
}

pub(crate) const CASES: [Case; 6] = [
    ("kernel/iSER target, qemu-io here", |machine, name| target(machine, name, What::Plain)),
    ("kernel/iSER target, qemu-io here, loss", |machine, name| target(machine, name, What::Loss)),
    ("kernel/iSER target, qemu-io here is killed", |machine, name| target(machine, name, What::Kill)),
    ("kernel/iSER initiator, tgt here", |machine, name| initiator(machine, name, What::Plain)),
    ("kernel/iSER initiator, tgt here, loss", |machine, name| initiator(machine, name, What::Loss)),
    ("kernel/iSER initiator, tgt here is killed", |machine, name| initiator(machine, name, What::Kill)),
];

/// A program that the cases need and this host lacks.
pub(crate) fn missing() -> Option<&'static str> {
    PROGRAMS.into_iter().find(|program| binaries::find(program).is_none())
}

/// The kernel's target with the file /tmp/disk, unless an earlier case has enabled it. libiscsi 1.19 sends no
/// immediate data, whatever was agreed.
const TARGET: &str = r"
enable=/sys/kernel/config/target/iscsi/iqn.2026-11.example:kernel/tpgt_1/enable
[ -e $enable ] && [ $(cat $enable) = 1 ] && exit 0
set -e
modprobe -a target_core_file ib_isert
mount -t configfs configfs /sys/kernel/config || true
cd /sys/kernel/config/target
truncate -s 64M /tmp/disk
mkdir -p core/fileio_0/disk
echo fd_dev_name=/tmp/disk,fd_dev_size=67108864,fd_buffered_io=1 >core/fileio_0/disk/control
echo 1 >core/fileio_0/disk/enable
mkdir -p iscsi/iqn.2026-11.example:kernel/tpgt_1
cd iscsi/iqn.2026-11.example:kernel/tpgt_1
mkdir -p np/10.99.0.2:3260 lun/lun_0 acls/iqn.2008-11.org.linux-kvm/lun_0
echo 1 >np/10.99.0.2:3260/iser
ln -s /sys/kernel/config/target/core/fileio_0/disk lun/lun_0/disk
ln -s $PWD/lun/lun_0 acls/iqn.2008-11.org.linux-kvm/lun_0/disk
echo 60 >acls/iqn.2008-11.org.linux-kvm/attrib/dataout_timeout
echo 0 >attrib/authentication
echo No >param/ImmediateData
echo 1 >enable
";
const URL: &str = "iser://10.99.0.2/iqn.2026-11.example:kernel/0";

fn target(machine: &Machine, name: &str, what: What) -> Result<(), String> {
    machine.command(TARGET)?;
    let before = recovered(machine)?;
    let dir = machine.roxie().with_file_name("chunks");
    let writes = writes(&dir, u64::from(machine.port()))?;
    let words: Vec<&str> = writes.iter().map(String::as_str).collect();
    if what == What::Kill {
        // It disconnects the peers of the killed process. Linux itself would not notice the end of an iSER
        // initiator.
        let port = machine.port();
        let server = ["rping", "-s", "-p", &port.to_string()];
        let mut other = machine.start(End::Roxie, &format!("{name} other"), Port::Udp, &server)?;
        machine.wait_ready(End::Roxie, &mut other, Ready::Cm(port))?;
        let mut killed = qemu(machine, name, what, &[&words[..], &words, &words, &words].concat())?;
        flowing_here(&mut killed)?;
        if connections(machine)? == 0 {
            return Err("the guest has no RC queue pair while the initiator writes".to_owned());
        }
        killed.signal(Signal::SIGKILL);
        if !eventually(DROPPED_MAX, || connections(machine) == Ok(0)) {
            return Err("the target keeps the connection of the killed initiator".to_owned());
        }
    }
    let mut writer = qemu(machine, name, what, &words)?;
    let wrote = writer.wait(LIMIT);
    if !wrote.succeeded() || wrote.output.matches("wrote 131072/131072 bytes").count() != CHUNKS {
        return Err(wrote.describe());
    }
    let (data, copy) = (dir.join("data"), dir.join("copy"));
    same(
        &sum(&data)?,
        &machine.ask(&format!("head -c {BYTES} /tmp/disk | sha256sum"))?,
        "the target's disk",
    )?;
    let to = format!("of={}", copy.display());
    let (from, count, bs) = (format!("if={URL}"), format!("count={CHUNKS}"), format!("bs={CHUNK}"));
    let reader = ["qemu-img", "dd", "-f", "raw", "-O", "raw", &bs, &count, &from, &to];
    let mut reader = machine.start(End::Roxie, name, Port::Udp, &with_loss(what, &reader))?;
    good(reader.wait(LIMIT), &mut writer)?;
    same(&sum(&data)?, &sum(&copy)?, "the copy of the target's disk")?;
    fs::remove_dir_all(&dir).map_err(|error| error.to_string())?;
    lossy_enough(machine, what, before)
}

fn qemu(machine: &Machine, name: &str, what: What, writes: &[&str]) -> Result<Running, String> {
    let words = [&["qemu-io", "-f", "raw"], writes, &[URL]].concat();
    machine.start(End::Roxie, name, Port::Udp, &with_loss(what, &words))
}

/// Number of RC queue pairs in the guest.
fn connections(machine: &Machine) -> Result<usize, String> {
    let all = machine.ask("rdma resource show qp")?;
    Ok(all.lines().filter(|line| line.contains("type RC")).count())
}

/// Makes the file `data` in `dir`, and one of each chunk; returns qemu-io's commands to write these.
fn writes(dir: &Path, seed: u64) -> Result<Vec<String>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    fs::create_dir_all(dir).map_err(failed)?;
    // Each word differs from all others (the factor is odd).
    let word = |n: u64| (n << 16 | seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let data: Vec<u8> = (0..(BYTES / 8) as u64).flat_map(word).collect();
    fs::write(dir.join("data"), &data).map_err(failed)?;
    let mut words = Vec::new();
    for (number, chunk) in data.chunks(CHUNK).enumerate() {
        let file = dir.join(number.to_string());
        fs::write(&file, chunk).map_err(failed)?;
        let write = format!("write -s {} {} {CHUNK}", file.display(), number * CHUNK);
        words.extend(["-c".to_owned(), write]);
    }
    Ok(words)
}

/// Removes the session that a failed case left, logs in to the target on roxie, and writes the disk's name to
/// /tmp/name. The guest has no udev, so the name comes from the session in sysfs.
const LOGIN: &str = r#"
modprobe -a ib_iser sd_mod
mkdir -p /run/lock/iscsi /etc/iscsi
echo InitiatorName=iqn.2026-11.example:me >/etc/iscsi/initiatorname.iscsi
pidof iscsid || iscsid
until grep -q ISCSIADM /proc/net/unix; do sleep 0.1; done
node='-m node -T iqn.2026-11.example:disk -p 10.99.0.1'
iscsiadm $node -u || true
iscsiadm $node -o delete || true
iscsiadm $node -o new -I iser || exit 1
iscsiadm $node -l || exit 1
until
    set -- /sys/class/iscsi_session/*/device/target*/*/block/*
    [ -b "/dev/${1##*/}" ]
do sleep 0.1; done
[ $# = 1 ] || { echo "more than one disk: $*"; exit 1; }
echo /dev/${1##*/} >/tmp/name
"#;
const LOGOUT: &str = "iscsiadm -m node -T iqn.2026-11.example:disk -u";
/// Writes random data, several times, reads them back past the page cache, and prints both checksums.
const COPY: &str = r"
disk=$(cat /tmp/name)
head -c 8388608 /dev/urandom >/tmp/data
for pass in $PASSES; do dd if=/tmp/data of=$disk bs=1M oflag=direct conv=notrunc || exit 1; done
sha256sum </tmp/data
dd if=$disk bs=1M count=8 iflag=direct | sha256sum
";

fn initiator(machine: &Machine, name: &str, what: What) -> Result<(), String> {
    let disk = machine.roxie().with_file_name("disk");
    let control = machine.port().to_string();
    let serve = || serve(machine, name, what, &control, &disk);
    let mut server = serve()?;
    machine.command(LOGIN)?;
    let before = recovered(machine)?;
    let passes = if what == What::Kill { "1 2 3 4 5 6" } else { "1" };
    let copy = format!("PASSES='{passes}'\n{COPY}");
    let mut copying = machine.start(End::Rxe, &format!("{name} copy"), Port::Udp, &["sh", "-c", &copy])?;
    if what == What::Kill {
        flowing_here(&mut server)?;
        server.signal(Signal::SIGKILL);
        server.wait(Duration::ZERO);
        server = serve()?;
    }
    let copied = good(copying.wait(LIMIT), &mut server)?;
    machine.command(LOGOUT)?;
    let sums: Vec<&str> = copied.output.lines().filter(|line| line.ends_with("  -")).collect();
    let &[written, read] = &sums[..] else { return Err(copied.describe()) };
    same(written, read, "the disk in the guest")?;
    same(written, &sum(&disk)?, "the disk of tgt")?;
    lossy_enough(machine, what, before)
}

/// Starts tgt with a disk; `control` is the number by which tgtadm finds it.
fn serve(machine: &Machine, name: &str, what: What, control: &str, disk: &Path) -> Result<Running, String> {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(disk);
    file.and_then(|file| file.set_len(BYTES as u64)).map_err(|error| error.to_string())?;
    let words = with_loss(what, &["tgtd", "-f", "-C", control]);
    let mut server = machine.start(End::Roxie, name, Port::Udp, &words)?;
    machine.wait_ready(End::Roxie, &mut server, Ready::Cm(3260))?;
    let lun = ["logicalunit", "--op", "new", "--lun", "1", "-b"];
    for words in [
        &["target", "--op", "new", "--targetname", "iqn.2026-11.example:disk"][..],
        &[&lun[..], &[&disk.display().to_string()]].concat(),
        &["target", "--op", "bind", "-I", "ALL"],
        &["target", "--op", "bind", "-Q", "iqn.2026-11.example:me"],
    ] {
        let mut command = Command::new("tgtadm");
        run(command.args(["-C", control, "--lld", "iser", "--tid", "1", "--mode"]).args(words))?;
    }
    Ok(server)
}

/// The command line, with loss if the case has it.
fn with_loss<'a>(what: What, words: &[&'a str]) -> Vec<&'a str> {
    match what {
        What::Loss => [&["env"], &LOSS[..], words].concat(),
        What::Plain | What::Kill => words.to_vec(),
    }
}

/// Waits for traffic of a program at the host's end.
fn flowing_here(program: &mut Running) -> Result<(), String> {
    // Before that, its counters are those of the namespace that it was started from.
    let netdev = End::Roxie.netdev();
    if !eventually(LIMIT, || program.has_ended() || program.net("dev").contains(netdev)) {
        let described = program.wait(Duration::ZERO).describe();
        return Err(format!("the program did not enter the network namespace with {netdev}\n{described}"));
    }
    flowing(program, RUNNING_BYTES)
}

/// Number of packets that rxe has requested or received again.
fn recovered(machine: &Machine) -> Result<u64, String> {
    let counters = machine.ask("rdma -j statistic show link rxe0/1")?;
    let counters: serde_json::Value = serde_json::from_str(&counters).map_err(|error| error.to_string())?;
    let names = ["duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err"];
    Ok(names.iter().filter_map(|name| counters[0][name].as_u64()).sum())
}

/// Requires that rxe counted retransmissions, if the case loses packets.
fn lossy_enough(machine: &Machine, what: What, before: u64) -> Result<(), String> {
    let count = recovered(machine)? - before;
    (what != What::Loss || count > 0).then_some(()).ok_or_else(|| "rxe counted no retransmission".to_owned())
}

/// The checksum of a file's first bytes, as sha256sum prints it.
fn sum(file: &Path) -> Result<String, String> {
    run(Command::new("sh").args(["-c", &format!("head -c {BYTES} {} | sha256sum", file.display())]))
}

fn same(one: &str, other: &str, what: &str) -> Result<(), String> {
    (one.trim() == other.trim()).then_some(()).ok_or_else(|| format!("{what}: other data\n{one}\n{other}"))
}

/// The output of a program that must succeed.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(said(&output.stdout)),
        false => Err(format!("{command:?}: {}", said(&output.stderr))),
    }
}
