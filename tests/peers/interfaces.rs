//! VLANs and bonds, which the host's kernel may lack: the device in the machine, and Soft-RoCE there.

use crate::dispatcher::Case;
use crate::machine::Machine;

pub(crate) const CASES: [Case; 4] = [
    ("interfaces/the GIDs of a VLAN as on rxe", rows),
    ("interfaces/packets of each GID of a VLAN have its tag", traffic),
    ("interfaces/failover of a bond to another MAC as on rxe", |machine, _| failover(machine, "active")),
    ("interfaces/failover of a bond that keeps its MAC as on rxe", |machine, _| failover(machine, "none")),
];

/// A VLAN above the interface of rxe0; both have the same link-local address. Prints the GIDs of a device,
/// each with its interface.
const ROWS: &str = r#"
cat >/tmp/rows <<'END'
cd /sys/class/infiniband/$1/ports/1/gids
for row in *; do
    netdev=$(cat ../gid_attrs/ndevs/$row 2>/dev/null) && echo $(cat $row) $netdev
done | sort
END
modprobe 8021q
ip link add link eth0 name eth0.7 type vlan id 7
ip address add 10.57.0.2/24 dev eth0.7
ip address add fd57::2/64 dev eth0.7 nodad
ip link set eth0.7 up
until [ $(ip -6 address show scope link | grep fe80 | grep -vc tentative) = 2 ]; do sleep 0.1; done
sh /tmp/rows rxe0
echo and
# Soft-RoCE has the UDP port of RoCE.
ROXIE_DOMAIN=beside:14791 /root/roxie run --netdev eth0 --device-files -- sh /tmp/rows roxie0
ip link del eth0.7
"#;

fn rows(machine: &Machine, _name: &str) -> Result<(), String> {
    let printed = machine.ask(ROWS)?;
    let (rxe, roxie) = printed.split_once("and\n").unwrap_or_default();
    match rxe == roxie && rxe.lines().filter(|line| line.ends_with("eth0.7")).count() == 3 {
        true => Ok(()),
        false => Err(printed),
    }
}

/// Two hosts `va` and `vb` with a VLAN above the interface `v`. A pair for each GID of the VLAN, and one of
/// the connection manager for each family; at last the numbers of RoCE packets with the tag, and without it.
const TRAFFIC: &str = r#"
modprobe veth; modprobe 8021q
ip netns add va; ip netns add vb
ip link add v netns va type veth peer name v netns vb
n=0
for host in va vb; do
    n=$((n + 1))
    ip -n $host link set lo up; ip -n $host link set v up
    ip -n $host address add 10.5.0.$n/24 dev v
    ip -n $host link add link v name v.7 type vlan id 7
    ip -n $host address add 10.57.0.$n/24 dev v.7; ip -n $host address add fd57::$n/64 dev v.7 nodad
    ip -n $host link set v.7 up
done
for host in va vb; do
    until [ $(ip -n $host -6 address show scope link | grep fe80 | grep -vc tentative) = 2 ]; do
        sleep 0.1
    done
done
gid() { # host, start of the address
    ip netns exec $1 /root/roxie devinfo |
        awk -v ip=$2 '$1 == "GID" && index($4, ip) == 1 && $5 == "v.7" { print $2 }'
}
pair() { # arguments of the server, and of the client
    ip netns exec va /root/roxie run -- $1 >/tmp/server & server=$!
    until ip netns exec va sh -c "grep -Eqs '/svc/|:4853 [0-9A-F:]* 0A' /proc/net/unix /proc/net/tcp*"; do
        sleep 0.1
    done
    ip netns exec vb /root/roxie run -- $2
    wait $server
}
ip netns exec va tcpdump -Z root -i v -s 64 -w /tmp/packets udp port 4791 or vlan 2>/tmp/tcpdump & tcpdump=$!
until grep -q listening /tmp/tcpdump; do sleep 0.1; done
for ip in 10.57 fd57 fe80; do
    pair "ibv_rc_pingpong -g $(gid va $ip) -n 20" "ibv_rc_pingpong -g $(gid vb $ip) -n 20 10.5.0.1"
done
for ip in 10.57.0.1 fd57::1; do
    pair "rping -s -a $ip -C 5" "rping -c -a $ip -C 5"
done
kill $tcpdump; wait $tcpdump || true
count() { tcpdump -Z root -r /tmp/packets "$1" 2>/dev/null | wc -l; }
echo $(count 'vlan 7 and udp port 4791') with the tag, $(count 'udp port 4791') without
ip netns del va; ip netns del vb
"#;
/// Packets of the pairs, at least: a ping of 4 KiB, and the pong, may each be one that the kernel
/// has not segmented.
const PACKETS: u64 = 3 * 20 * 2;

fn traffic(machine: &Machine, _name: &str) -> Result<(), String> {
    let printed = machine.ask(TRAFFIC)?;
    let last = printed.lines().last().unwrap_or_default();
    let tagged = last.strip_suffix(" with the tag, 0 without").and_then(|count| count.parse::<u64>().ok());
    tagged.is_some_and(|count| count >= PACKETS).then_some(()).ok_or(printed)
}

/// A bond of two interfaces beside a bridge, in the namespace that `$in` enters.
const BOND: &str = r#"
modprobe veth; modprobe bridge; modprobe bonding max_bonds=0
$in ip link add bond0 type bond mode active-backup miimon 50 fail_over_mac $mac
ip netns add far
ip -n far link add br0 type bridge
ip -n far link set br0 up
ip -n far address add 10.70.0.2/24 dev br0
for n in 0 1; do
    $in ip link add s$n type veth peer name p$n
    $in ip link set p$n netns far
    ip -n far link set p$n master br0 up
    $in ip link set s$n master bond0
done
$in ip address add 10.70.0.1/24 dev bond0
$in ip link set bond0 up
$in ip link set bond0 type bond active_slave s0
$in ip link set lo up
$in ping -c 1 -w 10 10.70.0.2 >/dev/null
$device
"#;
/// Runs the program with a device on the bond.
const FAILOVER: &str = r#"
to="ip link set bond0 type bond active_slave"
$roxie /root/failover 10.70.0.1 10.70.0.2 true "$to s1" "$to s0" "ip link set s0 down" "ip link set s0 up"
"#;

fn failover(machine: &Machine, mac: &str) -> Result<(), String> {
    let run = |setup: &str, end: &str| machine.ask(&format!("mac={mac} {setup}\n{BOND}{FAILOVER}{end}"));
    let rxe = run(
        "in= roxie= device='rdma link add rxe1 type rxe netdev bond0'",
        "rdma link del rxe1; ip link del bond0; ip link del s0; ip link del s1; ip netns del far",
    )?;
    let roxie = run(
        "in='ip netns exec near' device= roxie=\"$in /root/roxie run --\"; ip netns add near",
        "ip netns del near; ip netns del far",
    )?;
    let told =
        rxe.lines().filter(|line| line.contains("bound 1, listening 1, wildcard 0, resolved 1")).count();
    match rxe == roxie && told == if mac == "active" { 2 } else { 0 } {
        true => Ok(()),
        false => Err(format!("rxe:\n{rxe}roxie:\n{roxie}")),
    }
}
