//! The program with its libraries inside: one copied file is enough, and what its directory may be.
//!
//! Each case has its own namespaces and a small file system of its own, made without privileges by
//! unshare(1).

use roxie_tests::lab::Lab;

use crate::case::{Case, good, says};
use crate::containers::{case, shell};

/// Copies one file to an empty file system. `$roxie` is the copy.
const COPY: &str = r#"
ip link set lo up
unset XDG_RUNTIME_DIR XDG_CACHE_HOME TMPDIR
mount -t tmpfs none /mnt
mkdir -m 700 /mnt/bin /mnt/home /mnt/run /mnt/tmp
"$ROXIE" self bundle /mnt/bin/roxie
roxie=/mnt/bin/roxie
export HOME=/mnt/home TMPDIR=/mnt/tmp
"#;

const RPING: &str = r#"
$roxie run --netdev lo -- rping -s -a 127.0.0.1 -C 50 -V & server=$!
for try in $(seq 100); do grep -q /svc/ /proc/self/net/unix && break; sleep 0.05; done
$roxie run --netdev lo -- rping -c -a 127.0.0.1 -C 50 -V
wait $server
"#;

/// The directory of the unpacked libraries is damaged between two starts.
const DAMAGE: &str = r#"
file=$(ls /mnt/tmp/roxie-*/files-*/libibverbs.so)
[ "$(ls /mnt/tmp/roxie-*/files-* | wc -l)" = 4 ]
printf 'damaged' > $file
$roxie run --netdev lo -- ibv_devinfo | grep -q roxie0
rm $file
$roxie run --netdev lo -- ibv_devinfo | grep -q roxie0
echo restored
"#;

/// Neither the runtime directory nor the cache is used by the other case.
const NO_EXECUTION: &str = r#"
mount -t tmpfs -o noexec,mode=700 none /mnt/run
export XDG_RUNTIME_DIR=/mnt/run
$roxie run --netdev lo -- ibv_devinfo | grep -q roxie0
ls /mnt/home/.cache/roxie/files-*/libibverbs.so
mount -t tmpfs -o noexec,mode=700 none /mnt/home
if $roxie run --netdev lo -- ibv_devinfo; then exit 1; fi
"#;

const FULL_DISK: &str = r#"
mount -t tmpfs -o size=64k,mode=700 none /mnt/run
export XDG_RUNTIME_DIR=/mnt/run
if $roxie run --netdev lo -- ibv_devinfo; then exit 1; fi
find /mnt/run -type f | grep . && exit 1
echo nothing is left
"#;

const INSTALL: &str = r#"
at="--prefix /mnt/home/.local"
$roxie self install $at
export PATH=$HOME/.local/bin:$PATH
rm $roxie
cd /mnt/home
roxie run --netdev lo -- ibv_devinfo | grep -q roxie0
roxie self check $at
[ -s .local/share/man/man1/roxie-run.1 ]
bash -c 'source .local/share/bash-completion/completions/roxie; complete -p roxie'
roxie self install $at
echo changed >> .local/share/man/man1/roxie-run.1
if roxie self check $at; then exit 1; fi
roxie self install $at
roxie self remove $at --dry-run | grep -q 'would remove .*bin/roxie'
roxie self check $at --json | grep -q '"ok":true'
roxie self remove $at
[ -z "$(find .local -type f)" ] && echo nothing is left
echo mine > file
mkdir -p .local/bin && cp file .local/bin/roxie
if "$ROXIE" self install $at; then exit 1; fi
cmp file .local/bin/roxie
"#;

/// `.local/bin` is a file at first: the pages are written, and then the program cannot be.
const FAILING_INSTALL: &str = r#"
at="--prefix /mnt/home/.local"
cd /mnt/home
fail() { mkdir .local; echo mine > .local/bin; if $roxie self install $at; then exit 1; fi; }
fail
[ -s .local/share/man/man1/roxie-run.1 ]
if $roxie self check $at; then exit 1; fi
$roxie self remove $at
[ "$(find .local -type f)" = .local/bin ]
rm -r .local
fail
rm .local/bin
$roxie self install $at
$roxie self check $at
$roxie self remove $at
[ -z "$(find .local -type f)" ] && echo nothing is left
"#;

/// The user namespace makes the user root. A directory below the prefix is a link to another one.
const LINKED_PREFIX: &str = r#"
at="--prefix /mnt/home/.local"
cd /mnt/home
$roxie self install $at
mv .local/share/man elsewhere
ln -s /mnt/home/elsewhere .local/share/man
$roxie self remove $at
[ -s elsewhere/man1/roxie-run.1 ]
[ ! -e .local/bin/roxie ]
if $roxie self install $at; then exit 1; fi
find elsewhere -type f | grep -q . && echo nothing behind the link was touched
"#;

/// What a container engine does with the specification: the directory is mounted, the variables are set.
const CDI: &str = r#"
cd /mnt/home
$roxie cdi --dir cdi --netdev lo --output etc/cdi/roxie.json
grep -q '"hostPath": "/mnt/home/cdi"' etc/cdi/roxie.json
[ "$(readlink cdi/libibverbs.so)" = libibverbs.so.1 ]
cdi/roxie cdi --dir cdi --netdev lo > again
cmp again etc/cdi/roxie.json
mkdir /mnt/opt
cp -a cdi /mnt/opt/roxie
env $(grep -o '"[A-Z_]*=[^"]*"' again | tr -d '"' | sed 's|/opt/|/mnt/opt/|') ibv_devinfo
"#;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        one_file("a copy of one file", &[RPING, DAMAGE], "restored"),
        one_file("no execution in the runtime directory", &[NO_EXECUTION], "noexec"),
        one_file("full disk", &[FULL_DISK], "free some space"),
        one_file("install, check, remove", &[INSTALL], "is not of an installation"),
        one_file("an installation that fails midway", &[FAILING_INSTALL], "nothing is left"),
        one_file("CDI", &[CDI], "roxie0"),
        one_file("an installation behind a link", &[LINKED_PREFIX], "nothing behind the link was touched"),
    ]
}

/// A case that runs `scripts`; the output must contain `said`.
fn one_file(what: &str, scripts: &[&str], said: &'static str) -> Case {
    let script = [&[COPY], scripts].concat().concat();
    let run = move |lab: &Lab, name: &str| says(&good(shell(lab, name, &script)?)?, said);
    case(&format!("one file: {what}"), "", "").with_programs(&["ibv_devinfo"]).running(run)
}
