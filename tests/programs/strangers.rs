//! Processes of other users and user namespaces in one network namespace: they cannot join, look into or
//! disturb a process, and the names that they take do not stop it (SECURITY.md, "On the same host").

use std::path::PathBuf;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::Ended;

use crate::case::{Case, good, roxie, says};

/// Runs a program as a user, in this user namespace.
macro_rules! plain {
    ($uid:literal) => {
        concat!("setpriv --reuid=", $uid, " --regid=", $uid, " --clear-groups ")
    };
}
/// The same in a user namespace without mappings, where every user appears as 65534.
macro_rules! bare {
    ($uid:literal) => {
        concat!(plain!($uid), "unshare --user ")
    };
}
/// The same in a user namespace that maps this user to itself, as `roxie run --device-files` makes one.
macro_rules! mapped {
    ($uid:literal) => {
        concat!(plain!($uid), "unshare --user --map-current-user ")
    };
}

/// A user with a server, a stranger, and why it is one.
const STRANGERS: [(&str, &str, &str); 8] = [
    (bare!(3000), bare!(4000), "both appear as 65534 to themselves, and to each other"),
    (bare!(3000), plain!(65534), "nobody, and a user without a mapping"),
    (bare!(65534), bare!(4000), "nobody without a mapping"),
    (plain!(65534), bare!(4000), "nobody, whose id a user without a mapping has"),
    (plain!(3000), bare!(65534), "a user, and nobody without a mapping"),
    (plain!(3000), plain!(4000), "two users"),
    (plain!(3000), bare!(3000), "one user, in a namespace without mappings"),
    (bare!(3000), plain!(3000), "one user, whose server has no mapping"),
];

/// Starts `$SERVER rping -s`, and waits until it listens.
const SERVE: &str = r#"
cd /; unset XDG_RUNTIME_DIR
listens() { for try in $(seq 200); do grep -q /svc/ /proc/self/net/unix && return; sleep 0.05; done; false; }
$SERVER $ROXIE run --netdev lo -- rping -s -P -a 127.0.0.1 -p 7001 & pid=$!
listens
"#;

pub(crate) fn cases() -> Vec<Case> {
    let cases = vec![
        case("a stranger cannot join, look into or disturb a process", "rping", |lab, name| {
            STRANGERS.iter().try_for_each(|row| estranged(lab, name, row))
        }),
        case("a stranger that is root of its own user namespace hears who refuses it", "rping", told),
        case("names of a stranger do not stop a new group", "rping", squatted),
        case("one user in two user namespaces with one private directory", "rping", related),
        case("processes in one user namespace without mappings", "rping", together),
        case("a temporary directory of a stranger is not used", "sh", lent),
        case("root sees the processes of others when asked", "rping", asked),
        case("the name of a program does not control the terminal", "rping", hostile_name),
    ];
    cases.into_iter().map(|case| case.with_programs(&["setpriv", "unshare", "ip", "cc"])).collect()
}

fn case(what: &str, program: &'static str, run: fn(&Lab, &str) -> Result<(), String>) -> Case {
    Case::new(place(), what, program, run)
}

fn place() -> Place {
    Place::new(Topology::Loopback, Family::V4, User::Root)
}

fn estranged(lab: &Lab, name: &str, (server, stranger, why): &(&str, &str, &str)) -> Result<(), String> {
    let script = format!(
        r#"SERVER='{server}'{SERVE}
{stranger} $STRANGER knock
{stranger} $ROXIE hook list --json
{stranger} $ROXIE top --once --interval 0.1 --json
{stranger} $ROXIE metrics --once | grep '^roxie_processes'
for what in 'hook attach '$pid' ingress impair:loss=100%' 'capture record -o /dev/null --seconds 1 -p '$pid \
    'run --netdev lo -- rping -c -a 127.0.0.1 -p 7001 -C 1'
do {stranger} $ROXIE $what && echo "done: $what"; done
kill -0 $pid; kill $pid
"#
    );
    let ended = good(shell(lab, name, &script)?).map_err(|error| format!("{why}: {error}"))?;
    for told in
        ["0 answered\n", "\n[]\n", "\"queue_pairs\":[]", "roxie_processes 0\n", "UDP port 4791 belongs to"]
    {
        says(&ended, told).map_err(|error| format!("{why}: {error}"))?;
    }
    if ended.output.contains("done: ") {
        return Err(format!("{why}: the stranger succeeded\n{}", ended.describe()));
    }
    Ok(())
}

/// `roxie hook attach` believes that it is root, and the process does not.
fn told(lab: &Lab, name: &str) -> Result<(), String> {
    let script = format!(
        "SERVER='{}'{SERVE}
         for try in 1 2 3; do
             {}unshare --user --map-root-user $ROXIE hook attach $pid ingress count || true
         done
         kill $pid",
        plain!(3000),
        plain!(4000),
    );
    let ended = good(shell(lab, name, &script)?)?;
    let why = ": it accepts only its own user (3000) and root, in its own user namespace\n";
    match ended.output.matches(why).count() {
        3 => says(&ended, "run roxie as that user, and outside of 'unshare' and containers"),
        _ => Err(ended.describe()),
    }
}

/// Another user has taken names, among them those of a group that does not exist.
fn squatted(lab: &Lab, name: &str) -> Result<(), String> {
    let mut names: Vec<String> =
        ["2/boot", "2/slot/0", "2/slot/1", "1/xsk/1", "1/xsk/2"].map(|n| format!("roxie/{n}")).into();
    names.extend((0..64).map(|slot| format!("roxie/2/0123456789abcdef/slot/{slot}")));
    names.extend((0..8).map(|pid| format!("roxie/2/hook/{pid}/0/0123456789abcdef")));
    let script = format!(
        "{}$STRANGER squat {} >/mnt/squat & thief=$!
         until grep -q taken /mnt/squat; do sleep 0.05; done
         SERVER='{}'{SERVE}
         $SERVER $ROXIE run --netdev lo -- rping -c -a 127.0.0.1 -p 7001 -C 5 -V
         kill $pid $thief; echo ended well",
        plain!(4000),
        names.join(" "),
        plain!(3000),
    );
    says(&good(shell(lab, name, &script)?)?, "ended well")
}

/// Both find the same directory in /tmp, which no other user can enter.
fn related(lab: &Lab, name: &str) -> Result<(), String> {
    for (server, client) in [
        (mapped!(3000), plain!(3000)),
        (plain!(3000), mapped!(3000)),
        (mapped!(3000), mapped!(3000)),
        (mapped!(65534), mapped!(65534)),
        (bare!(3000), bare!(3000)),
    ] {
        let script = format!(
            "SERVER='{server}'{SERVE}
             {client} $ROXIE run --netdev lo -- rping -c -a 127.0.0.1 -p 7001 -C 5 -V
             {client} $ROXIE hook attach $pid ingress count
             {client} $ROXIE hook list
             kill $pid"
        );
        let ended = good(shell(lab, name, &script)?)?;
        says(&ended, "ingress  count")?;
    }
    // With directories of their own they are strangers.
    let (server, client) = (mapped!(3000), plain!(3000));
    let script = format!(
        "SERVER='{server}'{SERVE}
         mkdir -m 1777 /mnt/other; export TMPDIR=/mnt/other
         {client} $STRANGER knock
         {client} $ROXIE hook list
         {client} $ROXIE run --netdev lo -- rping -c -a 127.0.0.1 -p 7001 -C 1 || true
         kill $pid"
    );
    let ended = good(shell(lab, name, &script)?)?;
    says(&ended, "0 answered\n")?;
    says(&ended, "1 process of other users hidden")?;
    says(&ended, "of user 3000 in another user namespace (give both the same XDG_RUNTIME_DIR")
}

/// As in a rootless container: the kernel compares the users, although all appear as 65534.
fn together(lab: &Lab, name: &str) -> Result<(), String> {
    let inside = format!(
        "SERVER={SERVE}
         $ROXIE run --netdev lo -- rping -c -a 127.0.0.1 -p 7001 -C 5 -V
         $ROXIE hook attach $pid ingress count; $ROXIE hook list; kill $pid"
    );
    for user in [bare!(3000), bare!(65534), plain!(65534)] {
        let script = format!("cd /; {user} sh -euc '{inside}'");
        says(&good(shell(lab, name, &script)?)?, "ingress  count")?;
    }
    Ok(())
}

/// TMPDIR of another user, as su(1) keeps it: that user could replace a library between check and use.
fn lent(lab: &Lab, name: &str) -> Result<(), String> {
    let script =
        "unset TMPDIR; mkdir /mnt/lent /mnt/deep; chown 4000 /mnt/lent /mnt/deep; mkdir /mnt/deep/own
        for dir in /mnt/lent /mnt/deep/own; do
            TMPDIR=$dir $ROXIE run --netdev lo -- sh -c 'echo loads from $LD_LIBRARY_PATH'
            XDG_RUNTIME_DIR=$dir $ROXIE run --netdev lo -- sh -c 'echo loads from $LD_LIBRARY_PATH'
        done
        ls -A /mnt/lent /mnt/deep/own | grep roxie && exit 1
        echo nothing of roxie is there";
    let ended = good(shell(lab, name, script)?)?;
    says(&ended, "TMPDIR is not used: /mnt/lent belongs to user 4000")?;
    says(&ended, "XDG_RUNTIME_DIR is not used: /mnt/deep belongs to user 4000")?;
    match ended.output.matches("loads from /tmp/roxie-0/lib-").count() {
        4 => says(&ended, "nothing of roxie is there"),
        _ => Err(ended.describe()),
    }
}

fn asked(lab: &Lab, name: &str) -> Result<(), String> {
    let script = format!(
        "SERVER='{}'{SERVE}
         $ROXIE hook list; $ROXIE hook list --json; $ROXIE top --once --interval 0.1
         $ROXIE metrics --once | grep -E '^roxie_(hidden_)?processes'
         {}$ROXIE hook list --all-users
         echo now all
         $ROXIE hook list --all-users
         $ROXIE metrics --all-users --once | grep -E '^roxie_(hidden_)?processes'
         $ROXIE hook attach $pid ingress count; $ROXIE hook stats $pid
         echo pid $pid; kill $pid",
        plain!(3000),
        plain!(4000),
    );
    let ended = good(shell(lab, name, &script)?)?;
    let (before, after) = ended.output.split_once("now all").ok_or_else(|| ended.describe())?;
    let pid = after.lines().find_map(|line| line.strip_prefix("pid ")).ok_or_else(|| ended.describe())?;
    let hidden = before.matches("1 process of other users hidden: --all-users shows them").count();
    let texts = ["roxie_processes 0", "roxie_hidden_processes 1", "hidden: only root sees them"];
    if hidden != 3 || before.contains(pid) || !texts.iter().all(|text| before.contains(text)) {
        return Err(format!("hidden {hidden} times\n{}", ended.describe()));
    }
    let texts =
        [&format!("{pid} ") as &str, "roxie_processes 1", "roxie_hidden_processes 0", "roxie0 on lo: count"];
    texts.iter().try_for_each(|text| match after.contains(text) {
        true => Ok(()),
        false => Err(format!("no '{text}'\n{}", ended.describe())),
    })
}

/// A user may give a program any name; root looks at it.
fn hostile_name(lab: &Lab, name: &str) -> Result<(), String> {
    let script = format!(
        r#"dir=$(mktemp -d); chmod 755 $dir; evil=$dir/$(printf 'e\033]0;x\007\302\2332J')
cp "$(command -v rping)" "$evil"
SERVER='{}'{}
$SERVER $ROXIE run --netdev lo -- "$evil" -c -a 127.0.0.1 -p 7001 -C 100000000 & client=$!
for try in $(seq 100); do
    $ROXIE top --all-users --once --interval 0.1 >$dir/top; grep -q RTS $dir/top && break
done
cat $dir/top
$ROXIE top --all-users --once --interval 0.1 --json
$ROXIE metrics --all-users --once --queue-pairs
$ROXIE hook list --all-users; $ROXIE doctor || true
kill $pid $client; rm -r $dir"#,
        plain!(3000),
        SERVE.replace("rping -s", "\"$evil\" -s"),
    );
    let ended = good(shell(lab, name, &script)?)?;
    let ended = &ended;
    if let Some(c) = ended.output.chars().find(|c| c.is_control() && *c != '\n') {
        return Err(format!("the output contains {c:?}\n{:?}", ended.describe()));
    }
    for shown in [r"e\u{1b}]0;x\u{7}\u{9b}2J", r#""command":"e\\u{1b}]0;x"#, r#"command="e\\u{1b}]0;x"#] {
        says(ended, shown)?;
    }
    Ok(())
}

/// Runs a script as root of the machine, in a network and mount namespace of its own.
fn shell(lab: &Lab, name: &str, script: &str) -> Result<Ended, String> {
    let program = compile(lab)?;
    // No private directory of these users is left.
    let script = &format!(
        "ip link set lo up
for dir in /mnt /var/tmp; do mount -t tmpfs -o mode=1777 none $dir; done
export TMPDIR=/var/tmp\n{script}"
    );
    let (roxie_is, stranger) = (format!("ROXIE={}", lab.roxie().display()), program.display());
    let stranger = format!("STRANGER={stranger}");
    let words = ["run", "--", "env", &roxie_is, &stranger];
    let words = [&words[..], &["unshare", "--net", "--mount", "sh", "-euc", script]].concat();
    roxie(lab, &place(), Side::Server, name, &words)
}

/// Builds the stranger beside the programs, where every user can run it.
fn compile(lab: &Lab) -> Result<PathBuf, String> {
    let program = lab.roxie().with_file_name(format!("stranger-{}", lab.port()));
    crate::case::compile("stranger.c", &program, &[])?;
    Ok(program)
}
