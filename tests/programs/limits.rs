//! Limits of a process (getrlimit(2)): a program that starts without roxie starts with it. A program that
//! uses RDMA works, or ends by itself after a sentence that says why it has no device.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};

use crate::case::{Case, good, roxie};

/// Limits as prlimit(1) calls them, and values. Those of the last column are too small for roxie itself,
/// which needs more memory than small programs (docs/limits.md), but not for its commands.
const LIMITS: [(&str, &str, &str); 9] = [
    ("fsize", "0 1 4096", ""),
    ("nofile", "3 4 5 8 16 64", ""),
    ("nproc", "0 1 2", ""),
    ("as", "33554432 67108864", "4194304 6291456 12582912 16777216"),
    ("data", "2097152 4194304 8388608", "262144 524288 1048576"),
    ("memlock", "0 1", ""),
    ("stack", "0 65536 1048576", ""),
    ("sigpending", "0 1", ""),
    ("core", "0 1", ""),
];

/// Programs that do not use RDMA: their exit codes are the same with and without roxie.
const OTHERS: [&str; 2] = ["sleep 0", "sh -c :"];

/// Programs that use RDMA, and what they print if the device works: there is no peer.
const RDMA: [(&str, &str); 3] = [
    ("ibv_devinfo", "hca_id: roxie0"),
    ("ibv_rc_pingpong -p PORT 127.0.0.1", "Couldn't connect to"),
    ("rping -c -a 127.0.0.1 -p PORT -C 1", "RDMA_CM_EVENT_REJECTED"),
];

/// Other ways to start a command.
const MODES: [&str; 3] = ["check", "trace -o $logs/trace.json", "run --capture $logs/capture.pcapng"];

/// Functions of the shell: `compare LIMIT VALUE PROGRAM PLACES [MODE [WORKS]]` runs a program without roxie
/// and with it, the limit set outside of roxie or inside its command. It prints a row that fails. The shell
/// is a command of `roxie run`, which its children must not notice.
const BEGIN: &str = r#"
unset LD_AUDIT LD_LIBRARY_PATH ROXIE_RUN ROXIE_QUIET
cd /
told() { echo "FAILED: $what: exit code $without without roxie, $with with it: $said"; }
compare() {
    what="$*"
    prlimit "--$1=$2" $3 >/dev/null 2>&1 </dev/null; without=$?
    for place in $4; do
        case $place in
            outside) said=$(prlimit "--$1=$2" $roxie ${5:-run} -- $3 2>&1 </dev/null); with=$?;;
            inside) said=$($roxie ${5:-run} -- prlimit "--$1=$2" $3 2>&1 </dev/null); with=$?;;
        esac
        what="$place: $*"
        if [ -z "$6" ]; then
            [ $with = $without ] || told
        elif [ $without -lt 126 ]; then
            case $said in
                *"$6"*|*"roxie: "*) [ $with -lt 126 -o $with = 255 ] || told;;
                *) told;;
            esac
        fi
    done
}
"#;

pub(crate) fn cases() -> Vec<Case> {
    let place = |user| Place::new(Topology::Loopback, Family::V4, user);
    let case = |user, what, run: fn(&Lab, &Place, &str) -> Result<(), String>| {
        let place = place(user);
        Case::new(place, what, "ibv_devinfo", move |lab, name| run(lab, &place, name)).with_programs(&[
            "prlimit",
            "ibv_rc_pingpong",
            "rping",
        ])
    };
    let mut cases = Vec::new();
    for user in [User::Root, User::Ordinary] {
        cases.push(case(user, "programs start with every limit", all_limits));
        cases.push(case(user, "checked, traced and captured programs start with every limit", modes));
    }
    cases.push(case(User::Ordinary, "a notice that cannot be written has no effect", unwritable));
    cases
}

fn all_limits(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let mut script = String::new();
    for (limit, values, inner_values) in LIMITS {
        let rows = values.split_whitespace().map(|value| (value, "outside inside"));
        for (value, places) in rows.chain(inner_values.split_whitespace().map(|value| (value, "inside"))) {
            for program in OTHERS {
                script += &format!("compare {limit} {value} '{program}' '{places}'\n");
            }
            for (program, works) in RDMA {
                let program = program.replace("PORT", &lab.port().to_string());
                script += &format!("compare {limit} {value} '{program}' '{places}' run \"{works}\"\n");
            }
        }
    }
    table(lab, place, name, &script)
}

/// The limits inside the command: each mode needs some descriptors and a process itself.
fn modes(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let mut script = String::new();
    for mode in MODES {
        for (limit, values) in [("fsize", "0 1"), ("nofile", "4 16"), ("nproc", "0"), ("sigpending", "0")] {
            for value in values.split(' ') {
                script += &format!("compare {limit} {value} 'sleep 0' inside \"{mode}\"\n");
                let (program, works) = RDMA[1];
                let program = program.replace("PORT", &lab.port().to_string());
                script += &format!("compare {limit} {value} '{program}' inside \"{mode}\" \"{works}\"\n");
            }
        }
    }
    // 4096 bytes are enough for what these modes write about a program without RDMA.
    script += "compare fsize 4096 'sleep 0' outside check\n";
    script += "compare fsize 4096 'sleep 0' outside \"run --capture $logs/capture.pcapng\"\n";
    table(lab, place, name, &script)
}

/// A full file, and a pipe that no process reads, as standard error.
fn unwritable(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let script = r#"
    for program in "sleep 0" ibv_devices; do
        prlimit --fsize=0 $roxie run -- $program >/dev/null 2>$logs/full; with=$?
        [ $with = 0 ] || { what="a full file: $program"; told; }
        mkfifo $logs/unread; exec 3<>$logs/unread 4>$logs/unread 3>&-; rm $logs/unread
        $roxie run -- $program >/dev/null 2>&4; with=$?
        [ $with = 0 ] || { what="an unread pipe: $program"; told; }
        exec 4>&-
    done
    "#;
    table(lab, place, name, script)
}

/// Runs the script after [`BEGIN`]; it prints the rows that failed.
fn table(lab: &Lab, place: &Place, name: &str, rows: &str) -> Result<(), String> {
    let roxie_is = lab.roxie().display().to_string();
    let script = format!(
        "roxie={roxie_is}; logs=$(mktemp -d); trap 'rm -r $logs' EXIT\n{BEGIN}\n{rows}\necho END OF TABLE"
    );
    let ended = good(roxie(lab, place, Side::Server, name, &["run", "-q", "--", "sh", "-c", &script])?)?;
    let failed: Vec<&str> = ended.output.lines().filter(|line| line.starts_with("FAILED: ")).collect();
    match failed.is_empty() && ended.output.contains("END OF TABLE") {
        true => Ok(()),
        false => Err(format!("{} rows failed\n{}\n{}", failed.len(), failed.join("\n"), ended.describe())),
    }
}
