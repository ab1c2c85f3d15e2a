//! rping with the restrictions of containers (docs/containers.md), one at a time and all together. Each
//! case has its own namespaces, made without privileges by unshare(1).

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use roxie_tests::lab::Lab;
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::{Ended, Running};

use crate::case::{Case, LONG, good, says};

/// A server and a client, each started by `$IN`; `$ROXIE` is the program. The server's exit code counts as
/// well.
const RPING: &str = r#"
ip link set lo up
$IN "$ROXIE" run --netdev lo -- rping -s -a 127.0.0.1 -C 50 -V & server=$!
for try in $(seq 100); do grep -q /svc/ /proc/self/net/unix && break; sleep 0.05; done
$IN "$ROXIE" run --netdev lo -- rping -c -a 127.0.0.1 -C 50 -V
wait $server
echo both ended well
"#;

/// Only $XDG_RUNTIME_DIR is writable, and no file shows InfiniBand devices.
const READ_ONLY: &str = r#"
mount -t tmpfs -o mode=700 none /mnt
mkdir -m 700 /mnt/run
export XDG_RUNTIME_DIR=/mnt/run
mount -t tmpfs -o ro none /sys
for at in /tmp /var; do mount --rbind $at $at; mount -o remount,ro,bind $at; done
mount -o remount,ro,bind /
if touch /tmp/writable 2>/dev/null || touch /writable 2>/dev/null; then echo it can be written to; exit 1; fi
"#;

/// Two commands that are process 1 of their namespaces, and a third one that removes what killed ones left.
const SHARED_TMP: &str = r#"
ip link set lo up
unset XDG_RUNTIME_DIR
mount -t tmpfs -o mode=1777 none /mnt
export TMPDIR=/mnt
as_first="unshare --pid --fork --kill-child --mount-proc"
count() { ls -d /mnt/roxie-0/check-1-* 2>/dev/null | wc -l; }
sweep() { touch -d '1 hour ago' /mnt/roxie-0/check-1-*; "$ROXIE" run --netdev lo -- true; }
mkfifo /mnt/a /mnt/b
$as_first "$ROXIE" check --netdev lo -- sh -c 'read word </mnt/a' & a=$!
$as_first "$ROXIE" check --netdev lo -- sh -c 'read word </mnt/b' & b=$!
until [ $(count) = 2 ]; do sleep 0.05; done
sweep
[ $(count) = 2 ]
echo end >/mnt/a; wait $a
[ $(count) = 1 ]
kill -9 $b; wait $b || true
[ $(count) = 1 ]
until sweep; [ $(count) = 0 ]; do sleep 0.05; done
echo neither lost nor left
"#;

/// Device files in a sandbox without sysfs, as bubblewrap makes one: `/sys` is an empty directory.
const EMPTY_SYS: &str = r#"
ip link set lo up
mount -t tmpfs none /sys
"$ROXIE" run --netdev lo --device-files -- sh -c \
    'test -c /dev/infiniband/uverbs0 && cat /sys/class/infiniband/roxie0/ports/1/gid_attrs/types/0'
test -z "$(ls /sys)"
"#;

/// A root without the directory `/sys`.
const NO_SYS: &str = r#"
mount -t tmpfs none /mnt
for at in usr lib lib64 bin dev proc tmp; do
    [ ! -e /$at ] || { mkdir /mnt/$at; mount --rbind /$at /mnt/$at; }
done
mkdir /mnt/roxie
mount --bind "$(dirname "$ROXIE")" /mnt/roxie
ip link set lo up
chroot /mnt /roxie/roxie run --netdev lo --device-files -- true
"#;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        inside("rootless namespaces", "env", ""),
        inside("few descriptors", "prlimit --nofile=64:300", ""),
        inside("no locked memory", "prlimit --memlock=0:0", ""),
        inside("nothing to write to, no /sys", "env", READ_ONLY),
        confined("seccomp", ""),
        confined("all of it", READ_ONLY),
        inside("too few descriptors, and it says so", "", "").running(too_few),
        inside("commands of two containers that share /tmp", "", "")
            .running(|lab, name| says(&good(shell(lab, name, SHARED_TMP)?)?, "neither lost nor left")),
        inside("device files in an empty /sys", "", "")
            .running(|lab, name| says(&good(shell(lab, name, EMPTY_SYS)?)?, "RoCE v2")),
        inside("device files without /sys, and it says so", "", "").running(|lab, name| {
            let ended = shell(lab, name, NO_SYS)?;
            if ended.succeeded() {
                return Err(ended.describe());
            }
            says(&ended, "the directory /sys does not exist, and roxie cannot make it")
        }),
    ]
}

fn place() -> Place {
    Place::new(Topology::Loopback, Family::V4, User::Ordinary)
}

fn inside(what: &str, within: &'static str, before: &'static str) -> Case {
    case(&format!("in a container: {what}"), within, before)
}

/// A case in namespaces of its own.
pub(crate) fn case(what: &str, within: &'static str, before: &'static str) -> Case {
    let case = Case::new(place(), what, "rping", move |lab, name| {
        says(&good(shell(lab, name, &format!("IN='{within}'\n{before}{RPING}"))?)?, "both ended well")
    });
    case.with_programs(&["ip", "prlimit", unshare()])
}

fn confined(what: &str, before: &'static str) -> Case {
    inside(what, "", "").with_programs(&["cc"]).running(move |lab, name| {
        let confine = compile()?;
        let within = format!("prlimit --nofile=64:300 --memlock=0:0 {}", confine.display());
        says(&good(shell(lab, name, &format!("IN='{within}'\n{before}{RPING}"))?)?, "both ended well")
    })
}

fn too_few(lab: &Lab, name: &str) -> Result<(), String> {
    let script =
        "ip link set lo up\nprlimit --nofile=64:64 \"$ROXIE\" run --netdev lo -- rping -s -a 127.0.0.1";
    let ended = shell(lab, name, script)?;
    if ended.succeeded() {
        return Err(ended.describe());
    }
    says(&ended, "the limit of open descriptors (ulimit -n) is too low")
}

/// Returns the program, or what is missing where it may not create namespaces.
fn unshare() -> &'static str {
    let works =
        Command::new("unshare").args(["-Urnm", "true"]).output().is_ok_and(|made| made.status.success());
    if works { "unshare" } else { "unshare(1) that may make user namespaces" }
}

/// Runs a script as root of new namespaces.
pub(crate) fn shell(lab: &Lab, name: &str, script: &str) -> Result<Ended, String> {
    let mut command = Command::new("unshare");
    command.args(["-Urnm", "--propagation", "private", "sh", "-euc", script]).env("ROXIE", lab.roxie());
    let log = scratch().join(format!("{}.log", name.replace(['/', ' ', ':'], "-")));
    let started = Running::start(command, format!("unshare -Urnm sh -euc '{script}'"), &log, None);
    Ok(started.map_err(|error| error.to_string())?.wait(LONG))
}

fn scratch() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("containers")
}

/// Builds the program that starts another one under a seccomp filter, once: two cases at a time use it.
fn compile() -> Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        let program = scratch().join("confine");
        std::fs::create_dir_all(scratch()).map_err(|error| error.to_string())?;
        crate::case::compile("confine.c", &program, &[])?;
        Ok(program)
    });
    program.clone()
}
