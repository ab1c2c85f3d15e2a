//! Hosts with several interfaces: which have devices, how options choose others, and GIDs of the interfaces
//! above. Each case has its own namespaces, made without privileges by unshare(1).

use roxie_tests::lab::Lab;

use crate::case::{Case, build, good, says, until_listening};
use crate::containers::{case, shell};

/// Three networks e0, e1 and e2 with a host p0, p1 and p2 on each.
const NETWORKS: &str = r#"
ip link set lo up
hosts=
trap 'kill $hosts' EXIT
for n in 0 1 2; do
    unshare -n sh -c 'echo; exec sleep 60' >started$n & eval host$n=$!; hosts="$hosts $!"
    until [ -s started$n ]; do sleep 0.02; done
    eval host=\$host$n
    ip link add e$n type veth peer name p$n netns $host
    ip link set e$n up
    ip address add 10.6$n.0.1/24 dev e$n
    nsenter -t $host -n sh -euc "ip link set lo up; ip link set p$n up; ip address add 10.6$n.0.2/24 dev p$n"
done
"#;

/// A macvlan on e0, a bridge over e2, a vxlan, a bridge of Docker; the default route is through e1.
const ABOVE: &str = r#"
ip link add mv0 link e0 type macvlan mode bridge; ip address add 10.70.0.1/24 dev mv0
ip address add fd70::1/64 dev mv0 nodad; ip link set mv0 up
ip link add br0 type bridge; ip link set e2 master br0; ip address add 10.72.0.1/24 dev br0
ip link set br0 up
ip route add default via 10.61.0.2
"#;
const TUNNEL: &str = r#"
ip link add vx0 type vxlan id 7 dstport 4789 dev e1 remote 10.61.0.2; ip address add 10.71.0.1/24 dev vx0
ip link set vx0 up
ip link add docker0 type bridge; ip address add 172.17.0.1/16 dev docker0; ip link set docker0 up
"#;

/// What `roxie doctor` says of these, and the devices.
const RULE: [&str; 10] = [
    "has roxie1",
    "has roxie0",
    "has roxie2",
    "its addresses are GIDs of the device on e0",
    "its addresses are GIDs of the device on e2",
    "no device on a tunnel (vxlan)",
    "no device on the bridge of a container engine or hypervisor",
    "no device on the loopback interface while others have one",
    "roxie0 on e1",
    "roxie1 on e0",
];

/// Eight devices with their files.
const EIGHT: &str = r#"
"$ROXIE" run --devices 8 --name mlx5_ --device-files -- sh -euc '
    cd /sys/class/infiniband
    for n in 0 1 2 3 4 5 6 7; do
        test -c /dev/infiniband/uverbs$n
        cat mlx5_$n/node_guid
    done | sort -u | wc -l
    cat mlx5_1/ports/1/gid_attrs/ndevs/*
    ls -d mlx5_*/device/net/*'
"$ROXIE" run --devices 8 --name mlx5_ --device-files -- "$PROGRAM"
"#;

/// As many devices as there can be: each has all files, and the tools find it.
const MANY: &str = r#"
"$ROXIE" run --devices 32 --device-files -- sh -euc '
    cd /sys/class/infiniband
    for n in $(seq 0 31); do test -c /dev/infiniband/uverbs$n; done
    ls roxie31/ports/1/gids | wc -l
    find . -type f -size 0
    find -L roxie31/ports roxie31/node_guid roxie31/fw_ver -type f -exec cat {} + >/dev/null
    ibv_devices | grep -c roxie
    ibv_devinfo -l | grep -c roxie
    ibstat -l | wc -l
    ibstat roxie31'
"#;

/// More addresses than a GID table has rows.
const ADDRESSES: &str = r#"
ip link set e0 addrgenmode none; ip address flush dev e0 scope link
for n in $(seq 200); do echo address add 10.66.0.$n/16 dev e0; done >batch
for n in $(seq 100); do printf 'address add fd66::%x/64 dev e0 nodad\n' $n; done >>batch
ip -batch batch
"$ROXIE" devinfo --netdev e0 | grep -c 'no row'
"$ROXIE" run --netdev e0 -- ibv_devinfo -v 2>&1 | grep 'GID\[\|is full' >rows; wc -l <rows; head -n 1 rows
"$ROXIE" run --netdev e0 -- rping -s -a fd66::1 2>&1 || true
"#;

/// The order of GIDs. ibstat makes the port GUID of the GID with index 0.
const ORDERS: &str = r#"
ip link set e0 down; ip link set e0 address 52:54:00:0a:08:02; ip link set e0 up
until ip -6 address show dev e0 scope link -tentative | grep -q fe80; do sleep 0.1; done
for options in '--gids ipv4' '--gids kernel' '--name mlx5_0'; do
    echo "$options" $("$ROXIE" run --netdev e0 $options --device-files -- sh -euc '
        cat /sys/class/infiniband/*/ports/1/gids/[01] | tail -c 80 | cut -c 31-
        ibstat | grep "de GUID\|rt GUID"')
done
"#;
const IN_ORDER: [&str; 3] = [
    "--gids ipv4 0a3c:0001 fe0a:0802 Node GUID: 0x505400fffe0a0802 Port GUID: 0x0000ffff0a3c0001\n",
    "--gids kernel fe0a:0802 0a3c:0001 Node GUID: 0x505400fffe0a0802 Port GUID: 0x505400fffe0a0802\n",
    "--name mlx5_0 0a3c:0001 fe0a:0802 ",
];

/// e1 is removed and created again under a program that lists the devices meanwhile.
const AGAIN: &str = r#"
add='ip link add e1 type veth peer name q1; ip link set q1 up; ip link set e1 up
ip address add 10.61.0.1/24 dev e1'
for choice in '--device A=e0,B=e1' '--netdev e0,e1 --devices 4' '--devices 6' ''; do
    "$ROXIE" run $choice -- "$PROGRAM" 'ip link delete e1' "$add"
done
"#;

/// The devices that the program sees at the start, without e1, and with it again.
const SEEN: [&str; 12] = [
    "0: A=e0 B=e1\n",
    "1: A=e0\n",
    "2: A=e0 B=e1\n",
    "0: roxie0=e0 roxie1=e1 roxie2=e0 roxie3=e1\n",
    "1: roxie0=e0 roxie2=e0\n",
    "2: roxie0=e0 roxie2=e0 roxie1=e1 roxie3=e1\n",
    "0: roxie0=e0 roxie1=e2 roxie2=e1 roxie3=e0 roxie4=e2 roxie5=e1\n",
    "1: roxie0=e0 roxie1=e2 roxie3=e0 roxie4=e2\n",
    "2: roxie0=e0 roxie1=e2 roxie3=e0 roxie4=e2 roxie2=e1 roxie5=e1\n",
    "0: roxie0=e0 roxie1=e2 roxie2=e1\n",
    "1: roxie0=e0 roxie1=e2\n",
    "2: roxie0=e0 roxie1=e2 roxie2=e1\n",
];

/// A server with three open devices is captured while clients connect to each. Any of its engines may receive
/// a request. Prints each packet that is not at the device with its address, and packets behind younger ones.
const RECORDED: &str = r#"
"$ROXIE" run -- rping -s -P -a 0.0.0.0 -p 7174 >/dev/null 2>&1 & server=$!; hosts="$hosts $server"
LISTENING
connect() {
    for n in 0 1 2; do
        eval host=\$host$n
        nsenter -t $host -n "$ROXIE" run --netdev p$n -- rping -c -a 10.6$n.0.1 -C 2 -p 7174
    done
}
connect
"$ROXIE" capture record -p $server -o three.pcapng & capture=$!
until [ -s three.pcapng ]; do sleep 0.02; done
connect; connect; connect; connect
kill $server; hosts=${hosts% *}
wait $capture
"$ROXIE" capture read three.pcapng --json >three.json
awk '{
    match($0, /on e[0-9]"/); own = "10.6" substr($0, RSTART + 4, 1) ".0.1"
    own = "\":\"" own "\""
    if (!index($0, "ip.src" own) && !index($0, "ip.dst" own)) print "wrong device:", $0
    match($0, /time_epoch":"[0-9.]*/); time = substr($0, RSTART + 13, RLENGTH - 13)
    if (time < last) print "out of order:", $0
    last = time
}' three.json
echo "$(grep -c '"infiniband.mad.attributeid":"0x0010"' three.json) requests"
"$ROXIE" capture analyse three.pcapng --no-pager | grep -E "TCP:7174: (connected|no answer)" |
    sed 's/.*: \(connected\|no answer\).*/\1/' | sort | uniq -c
"#;

/// A device that a server opened after a hook was attached has none: attaching another one changes nothing,
/// and detaching succeeds. A device of a list without an address is left out, with the reason.
const LATER: &str = r#"
"$ROXIE" run -- rping -s -P -a 0.0.0.0 -p 7174 >/dev/null 2>&1 & server=$!; hosts="$hosts $server"
LISTENING
"$ROXIE" hook attach $server ingress count
for n in 1 2; do
    eval host=\$host$n
    nsenter -t $host -n "$ROXIE" run --netdev p$n -- rping -c -a 10.6$n.0.1 -C 1 -p 7174
done
"$ROXIE" hook attach $server ingress impair:loss=1% || true
echo "$("$ROXIE" hook list | grep -c ingress) with a hook"
"$ROXIE" hook detach $server ingress && echo detached
"$ROXIE" top --once 2>&1
"$ROXIE" run --name .. -- true 2>&1 || true
ip address flush dev e1
"$ROXIE" run --device A=e0,B=e1 -- ibv_devices 2>&1
"#;

const OPENED_LATER: [&str; 4] = [
    "ingress has a program already",
    "1 with a hook\ndetached\n",
    "'..' cannot name a device",
    "there is no device B: network interface e1 has no IP address",
];

/// Pairs over each GID of mv0 and br0. The bytes that the interfaces sent show that each pair used its own.
const TRAFFIC: &str = r#"
nsenter -t $host0 -n sh -euc 'ip address add 10.70.0.2/24 dev p0; ip address add fd70::2/64 dev p0 nodad'
nsenter -t $host2 -n ip address add 10.72.0.2/24 dev p2
gid() { # interface below, interface above, start of the address
    "$ROXIE" devinfo --netdev $1 |
        awk -v above=$2 -v ip=$3 '$1 == "GID" && index($4, ip) == 1 && $5 == above { print $2 }'
}
sent() { ip -s -j link show $1 | sed 's/.*"tx":{"bytes":\([0-9]*\).*/\1/'; }
pair() { # interface below, interface above, start of its address, host, interface there, address for TCP
    ours=$(gid $1 $2 $3)
    theirs=$(nsenter -t $4 -n "$ROXIE" devinfo --netdev $5 |
        awk -v ip=$3 '$1 == "GID" && index($4, ip) == 1 { print $2 }')
    before=$(sent $2)
    nsenter -t $4 -n "$ROXIE" run --netdev $5 -- ibv_rc_pingpong -g $theirs -n 200 & server=$!
    until nsenter -t $4 -n grep -Eqs ':4853 [0-9A-F:]* 0A' /proc/net/tcp /proc/net/tcp6; do sleep 0.02; done
    "$ROXIE" run --netdev $1 -- ibv_rc_pingpong -d roxie0 -g $ours -n 200 $6
    wait $server
    [ $(($(sent $2) - before)) -gt 800000 ]
}
# Link-local addresses come late, and move the indices of those above. Both interfaces have one at the end.
for on in e0 e2; do
    until [ "$("$ROXIE" devinfo --netdev $on | grep -c fe80)" = 2 ]; do sleep 0.05; done
done
pair e0 mv0 10.70 $host0 p0 10.70.0.2
pair e0 mv0 fd70 $host0 p0 10.70.0.2
until nsenter -t $host0 -n "$ROXIE" devinfo | grep -q fe80; do sleep 0.05; done
pair e0 mv0 fe80 $host0 p0 10.70.0.2
pair e2 br0 10.72 $host2 p2 10.72.0.2
echo each used its interface
"#;

/// What the tools say of a process with eight devices on three interfaces.
const SHOWN: &str = r#"
export ROXIE_DEVICES=8 ROXIE_NAME=mlx5_
"$ROXIE" run -- "$PROGRAM" >started & pid=$!; hosts="$hosts $pid"
until [ -s started ]; do sleep 0.02; done
"$ROXIE" top --once --interval 0.2 --sort process -p $pid | awk 'NR > 1 { print "top", $3, $4 }' | uniq -c
"$ROXIE" hook attach $pid ingress count
"$ROXIE" hook list $pid | awk '$5 == "ingress" { print "hook of", $3, $4 }' | sort
"$ROXIE" hook attach $pid ingress count 2>&1 | grep -c 'mlx5_. on e.: process .* has a program' || true
named() {
    "$ROXIE" capture read $1 --json | grep -o '"frame.interface_name":"[^"]*"' | sort -u |
        sed 's/.*process [0-9]*/captured:/'
}
"$ROXIE" capture record -p $pid -o all.pcapng --seconds 0.3; named all.pcapng
"$ROXIE" capture record -p $pid -i e1 -o one.pcapng --seconds 0.3; named one.pcapng >of_e1; cat of_e1 | wc -l
"$ROXIE" capture read -p $pid -i p0 2>&1 | grep 'no device on p0' || true
(ulimit -Sn 64; "$ROXIE" run -- "$PROGRAM" || true) 2>&1 | grep 'of open descriptors'
for tool in "srq" "ctx"; do "$ROXIE" run -- rdma resource show $tool pid $pid; done
"#;

/// Pairs over two devices, of which the second is ECN-capable. A socket at the other end of each wire shows
/// the TOS of the first WRITE.
const MARKED: &str = r#"
SNIFF='
import socket, sys
port = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
port.bind((sys.argv[1], 0x0800))
print("listens", flush=True)
while True:
    packet, address = port.recvfrom(2048)
    if address[2] == socket.PACKET_HOST and packet[22:24] == bytes([0x12, 0xb7]) and 6 <= packet[28] <= 11:
        print(sys.argv[1], "TOS", packet[1], flush=True)
        break
'
for n in 0 1; do
    eval host=\$host$n
    nsenter -t $host -n python3 -c "$SNIFF" p$n >tos$n & sniffer=$!
    until [ -s tos$n ]; do sleep 0.02; done
    nsenter -t $host -n "$ROXIE" run --netdev p$n -- ib_write_bw -F -x 0 -n 100 & server=$!
    until nsenter -t $host -n grep -Eqs ':4853 [0-9A-F:]* 0A' /proc/net/tcp*; do sleep 0.02; done
    "$ROXIE" run --ecn=roxie1=on --rate-limit roxie1=10G -- \
        ib_write_bw -F -x 0 -n 100 -d roxie$n --tclass=$((104 + 80 * n)) 10.6$n.0.2
    wait $server $sniffer
    cat tos$n
done
"$ROXIE" run --ecn=roxie7=on -- true || echo refused
"#;

pub(crate) fn cases() -> Vec<Case> {
    let networks =
        |what: &str| case(&format!("several interfaces: {what}"), "", "").with_programs(&["nsenter"]);
    vec![
        networks("the rule and the doctor").running(|lab, name| {
            let ended = run(lab, name, &format!("{ABOVE}{TUNNEL}\"$ROXIE\" doctor"))?;
            RULE.iter().try_for_each(|line| says(&ended, line))
        }),
        networks("eight devices").with_programs(&["cc"]).running(|lab, name| {
            let program = build(lab, "topology.c", &["-libverbs"])?;
            let ended = run(lab, name, &format!("PROGRAM='{}'\n{ABOVE}{EIGHT}", program.path()))?;
            ["8\n", "e0\nmv0\nmv0", "mlx5_7/device/net/e0", "mlx5_7 on e0, node -1, 100 Gb/sec (4X EDR)"]
                .iter()
                .chain(&["mlx5_0 on e1, ", "8 devices with 8 paths"])
                .try_for_each(|line| says(&ended, line))
        }),
        networks("32 devices with all files").with_programs(&["ibv_devinfo", "ibstat"]).running(
            |lab, name| {
                let ended = run(lab, name, MANY)?;
                says(&ended, "254\n32\n32\n32\nCA 'roxie31'\n")
            },
        ),
        networks("the order of GIDs").with_programs(&["ibstat"]).running(|lab, name| {
            let ended = run(lab, name, ORDERS)?;
            IN_ORDER.iter().try_for_each(|line| says(&ended, line))
        }),
        networks("more addresses than GIDs").with_programs(&["ibv_devinfo", "rping"]).running(|lab, name| {
            let ended = run(lab, name, ADDRESSES)?;
            says(
                &ended,
                "47\n255\nroxie: the GID table of e0 is full: 47 addresses, such as fd66::2f, are no",
            )?;
            says(&ended, "rdma_bind_addr: No such device")
        }),
        networks("one that is created again").with_programs(&["cc"]).running(|lab, name| {
            let program = build(lab, "again.c", &["-libverbs"])?;
            let ended = run(lab, name, &format!("PROGRAM='{}'\n{AGAIN}", program.path()))?;
            SEEN.iter().try_for_each(|line| says(&ended, line))
        }),
        networks("a capture of a process").with_programs(&["rping", "awk"]).running(|lab, name| {
            let script = RECORDED.replace("LISTENING", &until_listening(7174));
            let ended = run(lab, name, &script)?;
            let wrong = ended.output.contains("wrong device") || ended.output.contains("out of order");
            let lines = ["12 requests\n", " 12 connected\n"];
            lines.iter().try_for_each(|line| says(&ended, line))?;
            if wrong || ended.output.contains("no answer") { Err(ended.describe()) } else { Ok(()) }
        }),
        networks("a device that is opened later").with_programs(&["rping"]).running(|lab, name| {
            let ended = run(lab, name, &LATER.replace("LISTENING", &until_listening(7174)))?;
            OPENED_LATER.iter().try_for_each(|line| says(&ended, line))
        }),
        networks("tools that name devices").with_programs(&["cc", "rdma"]).running(|lab, name| {
            let program = build(lab, "each_device.c", &["-libverbs"])?;
            let ended = run(lab, name, &format!("PROGRAM='{}'\n{SHOWN}", program.path()))?;
            for n in 0..8 {
                let (device, netdev) = (format!("mlx5_{n}"), format!("e{}", n % 3));
                says(&ended, &format!("2 top {device} {netdev}\n"))?;
                says(&ended, &format!("hook of {device} {netdev}\n"))?;
                says(&ended, &format!("captured: {device} on {netdev}\""))?;
                says(&ended, &format!("\ndev {device} srqn "))?;
                says(&ended, &format!("\ndev {device} ctxn "))?;
            }
            says(&ended, "\n1\n")?;
            says(&ended, "\n3\n")?;
            says(&ended, "has no device on p0")?;
            says(&ended, "ulimit -n) is too low: it is 64, at most ")
        }),
        networks("ECN and DSCP of single devices").with_programs(&["ib_write_bw", "python3"]).running(
            |lab, name| {
                let ended = run(lab, name, MARKED)?;
                ["p0 TOS 104\n", "p1 TOS 186\n", "names 'roxie7', which is no device", "refused"]
                    .iter()
                    .try_for_each(|line| says(&ended, line))
            },
        ),
        networks("addresses of interfaces above").with_programs(&["ibv_rc_pingpong", "awk"]).running(
            |lab, name| says(&run(lab, name, &format!("{ABOVE}{TRAFFIC}"))?, "each used its interface"),
        ),
    ]
}

fn run(lab: &Lab, name: &str, script: &str) -> Result<roxie_tests::process::Ended, String> {
    good(shell(lab, name, &format!("mount -t tmpfs none /mnt; cd /mnt\n{NETWORKS}{script}"))?)
}
