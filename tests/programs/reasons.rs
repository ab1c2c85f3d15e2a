//! Programs that find no device: cause and remedy are printed, once.

use roxie_tests::lab::{Lab, Side};
use roxie_tests::place::{Family, Place, Topology, User};
use roxie_tests::process::Ended;

use crate::case::{Case, compile, good, roxie, says, until_listening};

/// Start of the message of the libraries.
const REASON: &str = "roxie: the device cannot be used: ";

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for user in [User::Root, User::Ordinary] {
        let place = Place::new(Topology::Loopback, Family::V4, user);
        cases.push(Case::new(place, "a program without a device says why", "rping", move |lab, name| {
            table().iter().try_for_each(|row| told(lab, &place, name, row))
        }));
        cases.push(Case::new(place, "a failed connection says why, once", "rping", move |lab, name| {
            unconnected(lab, &place, name)
        }));
        cases.push(Case::new(place, "a refused call says why", "cc", move |lab, name| {
            refusals(lab, &place, name)
        }));
        cases.push(Case::new(place, "a failed work request says why", "cc", move |lab, name| {
            failures(lab, &place, name)
        }));
    }
    let place = Place::new(Topology::Loopback, Family::V4, User::Ordinary);
    cases.push(Case::new(place, "statistics have lines of their own", "ib_write_bw", move |lab, name| {
        statistics(lab, &place, name)
    }));
    let place = Place::new(Topology::Loopback, Family::V4, User::Root);
    cases.push(Case::new(place, "another user has the address", "rping", move |lab, name| {
        strangers(lab, &place, name)
    }));
    cases.push(Case::new(
        place,
        "users that name each other share the address",
        "rping",
        move |lab, name| friends(lab, &place, name),
    ));
    cases.push(Case::new(place, "the doctor and netdevs that are down", "ip", move |lab, name| {
        down(lab, &place, name)
    }));
    cases
}

/// Runs programs in a shell with a device and wrong variables; the message must name the cause.
fn table() -> [(&'static str, &'static str); 10] {
    [
        ("ROXIE_NETDEV=nonesuch ibv_devices", "no network interface called 'nonesuch'"),
        ("ROXIE_NETDEV=nonesuch rping -c -a 127.0.0.1", "choose one of lo"),
        ("ROXIE_NAME=a/b ibv_devinfo", "'a/b' cannot name a device"),
        ("ROXIE_DOMAIN='x y' rping -c -a 127.0.0.1", "ROXIE_DOMAIN=x y is not NAME or NAME:PORT"),
        ("ROXIE_USERS=root rping -c -a 127.0.0.1", "ROXIE_USERS=root is not a list of user ids"),
        ("ROXIE_PORT=tcp rping -c -a 127.0.0.1", "ROXIE_PORT=tcp is none of udp"),
        ("ROXIE_GUARD=no rping -c -a 127.0.0.1", "ROXIE_GUARD=no is none of on, off"),
        ("ulimit -n 64; rping -c -a 127.0.0.1", "ulimit -n 1024"),
        ("ulimit -n 30; rping -c -a 127.0.0.1", "ulimit -n 1024"),
        ("ulimit -n 30; ibv_rc_pingpong", "ulimit -n 1024"),
    ]
}

fn told(lab: &Lab, place: &Place, name: &str, (script, reason): &(&str, &str)) -> Result<(), String> {
    let ended = shell(lab, place, name, script)?;
    says(&ended, reason)?;
    if ended.output.matches(REASON).count() != 1 {
        return Err(format!("one line is enough\n{}", ended.describe()));
    }
    let quiet = shell(lab, place, name, &format!("export ROXIE_QUIET=1; {script}"))?;
    if quiet.output.contains("roxie: ") {
        return Err(format!("ROXIE_QUIET had no effect\n{}", quiet.describe()));
    }
    Ok(())
}

fn unconnected(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    const WHY: &str =
        "roxie: no connection to 127.0.0.1 port 7174 (RDMA_CM_EVENT_REJECTED, 8): no program listens";
    let ended = shell(lab, place, name, "rping -c -a 127.0.0.1 -C 1")?;
    says(&ended, WHY)?;
    if ended.output.matches("no connection").count() != 1 {
        return Err(format!("one line is enough\n{}", ended.describe()));
    }
    let quiet = shell(lab, place, name, "ROXIE_QUIET=1 rping -c -a 127.0.0.1 -C 1")?;
    match quiet.output.contains("roxie: ") {
        false => says(&quiet, "RDMA_CM_EVENT_REJECTED"),
        true => Err(format!("ROXIE_QUIET had no effect\n{}", quiet.describe())),
    }
}

/// Each sentence is printed by the library, and once more by the program.
fn refusals(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = lab.roxie().with_file_name(format!("refused-{}", lab.port()));
    compile("refused.c", &program, &["-libverbs", "-lrdmacm", "-ldl"])?;
    let program = program.display().to_string();
    let ended = good(shell(lab, place, name, &format!("ROXIE_LOG=errors {program}"))?)?;
    let sentences = [
        ("ibv_modify_qp: EINVAL: the queue pair 0x", "(RC) is in RESET; RTS is reached from RTR or SQD"),
        ("ibv_modify_qp: EINVAL: RESET to INIT of the RC queue pair 0x", "needs IBV_QP_ACCESS_FLAGS, too"),
        ("ibv_post_recv: EINVAL: the queue pair 0x", "is in RESET; receives can be posted from INIT on"),
        ("ibv_post_send: EINVAL: the queue pair 0x", "is in RESET; it sends from RTS on"),
        ("ibv_reg_mr", "need IBV_ACCESS_LOCAL_WRITE, too"),
        ("ibv_create_cq: EINVAL: comp_vector is 1000, num_comp_vectors of the device is ", ""),
        ("ibv_create_qp: EINVAL: max_send_sge is 1000, the largest value is 32", ""),
        ("ibv_dealloc_pd: EBUSY: the protection domain has queue pairs", ""),
        ("rdma_resolve_route: EINVAL: the identifier has no address yet; ", "RDMA_CM_EVENT_ADDR_RESOLVED"),
        ("rdma_bind_addr: EADDRNOTAVAIL: 192.0.2.1 is not an address of this host", ""),
    ];
    for (start, end) in sentences {
        let said = |line: &&str| line.contains(start) && line.contains(end);
        let lines: Vec<_> = ended.output.lines().filter(said).collect();
        let printed = lines.iter().filter(|line| line.starts_with("roxie: ")).count();
        if (lines.len(), printed) != (2, 1) {
            return Err(format!("{start} ... {end}: {lines:?}\n{}", ended.describe()));
        }
    }
    let few = shell(lab, place, name, "ulimit -n 64; ROXIE_LOG=errors rping -s -a 127.0.0.1")?;
    says(&few, "rdma_bind_addr: ENODEV: the engine of the device does not start: Too many open files")?;
    let silent = good(shell(lab, place, name, &program)?)?;
    match silent.output.contains("roxie: ") {
        false => Ok(()),
        true => Err(format!("a line that ROXIE_LOG did not ask for\n{}", silent.describe())),
    }
}

/// Every completion in error has a cause; `ROXIE_LOG` prints it, and `roxie explain` knows it.
fn failures(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let program = lab.roxie().with_file_name(format!("failed-{}", lab.port()));
    compile("failed.c", &program, &["-libverbs"])?;
    let program = program.display().to_string();
    let ended = good(shell(lab, place, name, &format!("ROXIE_LOG=errors {program}"))?)?;
    let causes = [
        ("wr_id 1: local protection error, vendor_err 0x11", "names no memory region"),
        ("wr_id 2: Work Request Flushed Error, vendor_err 0x82", "An earlier work request"),
        ("wr_id 3: Work Request Flushed Error, vendor_err 0x81", "posted to a queue pair in the error state"),
        ("wr_id 4: local protection error, vendor_err 0x13", "reaches beyond its memory region"),
        ("wr_id 5: local protection error, vendor_err 0x14", "registered without local write access"),
        ("wr_id 6: local QP operation error, vendor_err 0x32", "whose max_rd_atomic is 0"),
        ("wr_id 7: remote invalid request error, vendor_err 0x41", "The peer refused the request"),
        ("wr_id 8: RNR retry counter exceeded, vendor_err 0x52", "The peer had no receive posted"),
        ("wr_id 9: Work Request Flushed Error, vendor_err 0x84", "moved to the error state"),
    ];
    for (completion, meaning) in causes {
        says(&ended, completion)?;
        says(&ended, meaning)?;
        let number = completion.rsplit(' ').next().unwrap_or_default();
        says(&good(roxie(lab, place, Side::Server, name, &["explain", number])?)?, number)?;
    }
    Ok(())
}

/// `roxie run -- sh -c script`.
fn shell(lab: &Lab, place: &Place, name: &str, script: &str) -> Result<Ended, String> {
    roxie(lab, place, Side::Server, name, &["run", "--", "sh", "-c", script])
}

fn statistics(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    // Standard output is a file, so its last lines are still in the program's buffer.
    let port = lab.port();
    let bandwidth = format!("ib_write_bw -a -n 5 -F -p {port}");
    let listens = until_listening(port);
    let script = format!("{bandwidth} >/dev/null & {listens}; ROXIE_STATS=1 {bandwidth} 127.0.0.1; wait");
    let ended = good(shell(lab, place, name, &script)?)?;
    let torn = ended.output.lines().find(|line| line.find("roxie: ").is_some_and(|at| at > 0));
    says(&ended, "\nroxie: sent_pkts ")?;
    torn.map_or(Ok(()), |line| Err(format!("not on its own line: {line}\n{}", ended.describe())))
}

/// Two users on one address, root and another, in both orders: the second one is told what to do.
fn strangers(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    const UNPRIVILEGED: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let roxie_is = lab.roxie().display().to_string();
    for (owner, other, uid) in [("", UNPRIVILEGED, 0), (UNPRIVILEGED, "", 65534)] {
        let script = format!(
            "{owner} {roxie_is} run -- rping -s -a 127.0.0.1 & server=$!; sleep 0.5; cd /
             {other} {roxie_is} run -- rping -c -a 127.0.0.1 -C 1
             {other} {roxie_is} demo --no-figures
             {other} {roxie_is} doctor; kill $server"
        );
        let ended = shell(lab, place, name, &script)?;
        let reasons = [
            format!("{REASON}roxie0 on lo: UDP port 4791 belongs to process "),
            format!(
                "of user {uid}; users do not share it (run as user {uid}, or start in a network namespace"
            ),
            "roxie: server: starting the engine: UDP port 4791 belongs to process".to_owned(),
            format!("; run as user {uid}, or"),
            format!("belongs to roxie processes of user {uid}"),
            "1 problem must be fixed first".to_owned(),
        ];
        reasons.iter().try_for_each(|reason| says(&ended, reason))?;
    }
    Ok(())
}

/// Three users share the domain, whichever of them created it: every member can handle requests.
fn friends(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let servers = [("0", 7001), ("65534", 7002), ("65533", 7003)];
    friends_of(lab, place, name, servers)?;
    let [root, second, third] = servers;
    friends_of(lab, place, name, [second, root, third])
}

fn friends_of(lab: &Lab, place: &Place, name: &str, servers: [(&str, u16); 3]) -> Result<(), String> {
    let roxie_is = lab.roxie().display().to_string();
    let rping = |uid: &str, words: &str| {
        format!(
            "setpriv --reuid={uid} --regid={uid} --clear-groups \
             {roxie_is} run -- rping -a 127.0.0.1 -V {words}"
        )
    };
    let mut script = "cd /; export ROXIE_USERS=65534,65533; set -e\n".to_owned();
    for (uid, port) in servers {
        script += &format!("{} & pids=\"$pids $!\"\n", rping(uid, &format!("-s -P -p {port}")));
        script += &format!("until grep -q '/svc/.*/{port:04x}/' /proc/net/unix; do sleep 0.05; done\n");
    }
    for (uid, _) in servers {
        for (_, port) in servers {
            script += &format!("{}\n", rping(uid, &format!("-c -C 3 -p {port}")));
        }
    }
    script += "kill $pids; echo all of them";
    says(&good(shell(lab, place, name, &script)?)?, "all of them")
}

fn down(lab: &Lab, place: &Place, name: &str) -> Result<(), String> {
    let roxie_is = lab.roxie().display().to_string();
    let doctor = |script: &str| shell(lab, place, name, &format!("unshare -n sh -c '{script}'"));
    let ended = doctor(&format!("{roxie_is} doctor"))?;
    says(&ended, "no network interface is up, not even lo")?;
    says(&ended, "ip link set lo up")?;
    let ended = doctor(&format!("{roxie_is} doctor -i nonesuch"))?;
    says(&ended, "no network interface called")?;
    let dummy = "ip link set lo up; ip link add d0 type veth peer name d1; ip link set d1 up; \
                 ip address add 10.9.8.7/24 dev d0";
    let ended = doctor(&format!("{dummy}; {roxie_is} doctor -i d0"))?;
    says(&ended, "roxie0 on d0, which is down")?;
    says(&ended, "ip link set d0 up")?;
    good(doctor(&format!("{dummy}; ip link set d0 up; {roxie_is} doctor -i d0"))?).map(drop)
}
