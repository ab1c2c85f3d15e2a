"""Common parts of the benchmarks: two namespaces joined by a veth pair, and the programs that run in them."""

import itertools
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Boots emulated machines.
RXE_VM = os.path.join(HERE, "../tests/peers/rxe-vm/rxe-vm")
SERVER, CLIENT = "10.78.0.1", "10.78.0.2"
PORT = 18600
SOCKPERF_PORTS = itertools.count(PORT + 100)
# The CPUs of server and client: two processes on one core would also measure the scheduler.
CPUS = ("0", "1")
ALL_CPUS = f"0-{max(os.cpu_count() - 1, 0)}"


class Lab:
    """Two namespaces joined by a veth pair; two processes hold them until this process closes their pipes."""

    def __init__(self, mtu, cpus=CPUS):
        self.cpus = cpus
        self.holders = []
        self.running = []
        for _ in range(2):
            holder = subprocess.Popen(["unshare", "--net", "--", "cat"], stdin=subprocess.PIPE)
            self.holders.append(holder)
            own = os.readlink("/proc/self/ns/net")
            wait(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own, "unshare --net", 5)
        peer = self.holders[1].pid
        self.ip(0, f"link add veth0 type veth peer name veth0 netns {peer}")
        for side, address in enumerate((SERVER, CLIENT)):
            self.ip(side, f"address add {address}/24 dev veth0")
            self.ip(side, f"link set veth0 mtu {mtu} up")
            self.ip(side, "link set lo up")

    def enter(self, side, words, cpu=None):
        pin = ["taskset", "-c", self.cpus[side if cpu is None else cpu]] if os.cpu_count() > 1 else []
        return ["nsenter", f"--net=/proc/{self.holders[side].pid}/ns/net", "--", *pin, *words]

    def run(self, side, words):
        done = subprocess.run(self.enter(side, words), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr}")

    def ip(self, side, words):
        self.run(side, ["ip", *words.split()])

    def start(self, side, words, output=subprocess.PIPE, cpu=None):
        process = subprocess.Popen(
            self.enter(side, words, cpu),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def listens(self, side, port):
        """Whether a TCP socket listens on that side (proc_net_tcp(5): state 0A)."""
        end = f":{port:04X}"
        for name in ("tcp", "tcp6"):
            with open(f"/proc/{self.holders[side].pid}/net/{name}") as table:
                for line in table:
                    fields = line.split()
                    if fields[1].endswith(end) and fields[3] == "0A":
                        return True
        return False

    def pair(self, server, client, port, limit, grace=2):
        """Runs a server and a client; returns the client's output. The server has `grace` seconds to end by
        itself."""
        return self.pair_in(1, server, client, port, limit, grace)

    def pair_in(self, client_side, server, client, port, limit, grace=2):
        """As `pair`, with the client in the namespace of `client_side`, on the client's CPU."""
        # Into a file: the output of a server is not read while it runs, and a pipe would fill.
        said = tempfile.TemporaryFile("w+")
        serving = self.start(0, server, said)
        try:
            wait(lambda: self.listens(0, port) or serving.poll() is not None, " ".join(server), 10)
            if serving.poll() is not None:
                said.seek(0)
                raise Failed(f"{' '.join(server)}\n{said.read()}")
            driving = self.start(client_side, client, cpu=1)
            try:
                output, _ = driving.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                raise Failed(f"{' '.join(client)}: not finished in {limit} s") from None
            if driving.returncode != 0:
                raise Failed(f"{' '.join(client)}: exit code {driving.returncode}\n{output}")
            return output
        finally:
            self.end_running(grace)
            said.close()

    def end_running(self, grace=0):
        for process in self.running:
            try:
                process.wait(timeout=grace)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.running.clear()

    def close(self):
        self.end_running()
        for holder in self.holders:
            holder.stdin.close()
            holder.wait()


def compiled(directory, name, *libraries):
    """Compiles a C program of this directory; returns its path."""
    target = os.path.join(directory, name)
    source = os.path.join(HERE, f"{name}.c")
    subprocess.run(["clang", "-O2", source, "-o", target, *libraries], check=True)
    return target


def placement(unpinned=False, one_cpu=False):
    """The CPUs of each side, for `Lab`, and words for them."""
    if one_cpu:
        return (CPUS[0],) * 2, "both sides on one CPU"
    if unpinned:
        return (ALL_CPUS,) * 2, "not bound to CPUs"
    return CPUS, "one side per CPU"


def add_bin(parser):
    """Adds the option --bin, the directory of the binaries."""
    target = os.environ.get("CARGO_TARGET_DIR", f"{HERE}/../target")
    parser.add_argument(
        "--bin",
        metavar="DIR",
        default=os.path.join(target, "release"),
        help="directory of roxie and its libraries [default: target/release]",
    )


def built(directory):
    """The path of roxie in that directory; ends the program if it is not there."""
    roxie = os.path.abspath(os.path.join(directory, "roxie"))
    if not os.access(roxie, os.X_OK):
        sys.exit(f"{roxie} is not built: cargo build --release")
    return roxie


def clean_up_on_signals():
    """SIGTERM and Ctrl-C end the program as an error does: what it started and created goes with it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


class Distance:
    """How far apart the CPUs of both ends are (line.c). A hypervisor moves virtual CPUs: on one machine a
    cache line took 55 ns there and back for some seconds, then 340, and `ib_write_bw` moved 2.9 GB/s, then
    1.2."""

    # 80 s with the pauses: the CPUs were far apart for a minute and longer. Half: a row fails in such a
    # minute. Double: where the CPUs are never near, a benchmark reports that after 160 s.
    ATTEMPTS_MAX = 40
    PAUSE_SECONDS = 2

    def __init__(self, directory, limit_ns, cpus):
        """`cpus`: as of `placement`. Ends that are not bound have one distance only if there are two CPUs."""
        self.cpus = CPUS if cpus == (ALL_CPUS,) * 2 and os.cpu_count() == 2 else cpus
        has_distance = os.cpu_count() > 1 and self.cpus[0] != self.cpus[1] and shutil.which("clang")
        self.program = compiled(directory, "line", "-pthread") if has_distance else None
        self.limit_ns = limit_ns
        self.seen_ns = []
        if limit_ns and self.program is None:
            sys.exit("--near needs clang, and a CPU for each end (or two CPUs in all)")

    def now_ns(self):
        if self.program is None:
            return 0
        done = subprocess.run([self.program, *self.cpus], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            if self.limit_ns:
                raise Failed(f"line {' '.join(self.cpus)}: {done.stderr}")
            return 0
        self.seen_ns.append(int(done.stdout))
        return self.seen_ns[-1]

    def measure(self, measure):
        """The value of `measure`; if there is a limit, of one that began and ended with the CPUs near."""
        if not self.limit_ns:
            self.now_ns()
            return measure()
        for _ in range(self.ATTEMPTS_MAX):
            if self.now_ns() > self.limit_ns:
                time.sleep(self.PAUSE_SECONDS)
                continue
            value = measure()
            if self.now_ns() <= self.limit_ns:
                return value
        raise Failed(
            f"no measurement began and ended with the CPUs near (at most {self.limit_ns} ns) "
            f"in {self.ATTEMPTS_MAX} attempts"
        )

    def facts(self):
        """What the JSON of a benchmark says of it."""
        return {"cache_line_ns": self.seen_ns, "cache_line_ns_max": self.limit_ns}

    def __str__(self):
        if not self.seen_ns:
            return "distance of the CPUs not measured"
        seen = sorted(self.seen_ns)
        median = seen[len(seen) // 2]
        said = f"a cache line from CPU to CPU and back: {median} ns ({seen[0]} .. {seen[-1]})"
        if self.limit_ns:
            said += f"; only measurements with at most {self.limit_ns} ns before and after"
        return said


def add_near(parser):
    """Adds the option --near, the limit of a `Distance`."""
    parser.add_argument(
        "--near",
        metavar="NS",
        type=int,
        default=0,
        help="repeat a measurement if a cache line took over NS from CPU to CPU and back, before or after",
    )


class Failed(Exception):
    """A program failed."""


def wait(condition, what, limit):
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not ready in {limit} s")
        time.sleep(0.005)


def report_row(output):
    """The numbers of perftest's only report row."""
    lines = output.splitlines()
    at = next((n for n, line in enumerate(lines) if line.lstrip().startswith("#bytes")), None)
    if at is None or at + 1 >= len(lines):
        raise Failed(f"no report in\n{output}")
    return [float(word) for word in lines[at + 1].split()]


def rxe_vm(*words):
    done = subprocess.run([RXE_VM, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(
            f"rxe-vm {shlex.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def guest_pair(server, client):
    """A script for an emulated machine: `server` in its namespace a, then `client`. Prints its output."""
    return (
        f"{server} >/tmp/server 2>&1 & server=$!\n"
        f"until ip netns exec a ss -Hltn 'sport = :{PORT}' | grep -q . || ! kill -0 $server; do\n"
        f"    sleep 0.1\n"
        f"done\n"
        f"{client} 2>&1 || {{ cat /tmp/server; exit 1; }}; wait $server"
    )


def perftest(lab, roxie, tool, words, seconds, port="udp", mode="auto", bursts="udp"):
    base = [
        "env",
        f"ROXIE_XDP_MODE={mode}",
        f"ROXIE_XSK_BURSTS={bursts}",
        roxie,
        "run",
        "--netdev",
        "veth0",
        "--port",
        port,
        "--",
        tool,
        "-d",
        "roxie0",
        "-F",
        "-p",
        str(PORT),
        *words,
    ]
    output = lab.pair(base, [*base, SERVER], PORT, seconds + 30)
    return report_row(output)


def iperf(lab, congestion, seconds, words=()):
    """GB/s of TCP."""
    client = ["iperf3", "-c", SERVER, "-p", str(PORT), "-t", str(seconds), "-C", congestion, "-J", *words]
    output = lab.pair(["iperf3", "-s", "-1", "-p", str(PORT)], client, PORT, seconds + 30)
    return json.loads(output)["end"]["sum_received"]["bits_per_second"] / 8e9


def ucx(lab, roxie, transport, words, seconds):
    """Last line of ucx_perftest: iterations, us (typical, average, overall), 2 x MB/s, 2 x messages/s."""
    base = ["env", f"UCX_TLS={transport}", "UCX_WARN_UNUSED_ENV_VARS=n"]
    if transport == "tcp":
        # UCX looks for the interface in sysfs, which shows the network namespace of the process that
        # mounted it.
        base = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount -t sysfs none /sys && exec "$@"',
            "sh",
            *base,
            "UCX_NET_DEVICES=veth0",
        ]
    else:
        base += ["UCX_NET_DEVICES=roxie0:1", roxie, "run", "--device-files", "--netdev", "veth0", "--"]
    base += ["ucx_perftest", "-p", str(PORT)]
    output = lab.pair(base, [*base, SERVER, *words], PORT, 10 * seconds + 60)
    return [float(word) for word in line_with(output, "Final:").split()[1:]]


def qperf(lab, seconds):
    """us, one way, of 8 bytes over TCP."""
    client = ["qperf", "-lp", str(PORT), SERVER, "-m", "8", "-t", str(seconds), "-v", "-uu", "tcp_lat"]
    output = lab.pair(["qperf", "-lp", str(PORT)], client, PORT, seconds + 30)
    value, unit = re.search(r"latency += +([0-9.]+) (\w+)", output.replace(",", "")).groups()
    return float(value) * {"ns": 1e-3, "us": 1, "ms": 1e3, "sec": 1e6}[unit]


def sockperf(lab, size, seconds):
    """us, one way, over TCP: median, 99th and 99.9th percentile."""
    # Its server cannot bind a port that was in use less than a minute ago.
    port = next(SOCKPERF_PORTS)
    where = ["--tcp", "-i", SERVER, "-p", str(port)]
    client = ["sockperf", "ping-pong", *where, "-m", str(max(size, 14)), "-t", str(seconds)]
    output = lab.pair(["sockperf", "server", *where], client, port, seconds + 30)
    return [float(line_with(output, f"percentile {share}").split()[-1]) for share in ("50.0", "99.0", "99.9")]


def bare(lab, program, what, seconds):
    """The numbers that a program over UDP sockets prints: us, one way, of bursts of the kind `what`, median,
    99th and 99.9th percentile (bare.c); GB/s of messages in packets of the kind `what` (responses.c)."""
    words = [program, str(PORT), str(what)]
    # The server does not end by itself, and would use CPU time.
    output = lab.pair(words, [*words, SERVER, str(seconds)], PORT, seconds + 10, grace=0)
    return [float(word) for word in output.split()]


def fi_pingpong(lab, size, iterations):
    """us, one way, over libfabric's TCP provider; both ends spin, so each needs a CPU."""
    base = ["fi_pingpong", "-p", "tcp;ofi_rxm", "-e", "rdm", "-S", str(size), "-I", str(iterations)]
    output = lab.pair([*base, "-B", str(PORT)], [*base, "-P", str(PORT), SERVER], PORT, 30)
    return float(output.splitlines()[-1].split()[-2])


def line_with(output, text):
    found = [line for line in output.splitlines() if text in line]
    if not found:
        raise Failed(f"no {text} in\n{output}")
    return found[-1]


# MiB/s, as perftest reports.
MIB = 2**20 / 1e9


def machine():
    model = "unknown CPU"
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    commit = subprocess.run(
        ["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "congestion_default": open("/proc/sys/net/ipv4/tcp_congestion_control").read().strip(),
        "commit": commit or "unknown",
    }


def description(facts):
    """CPUs, kernel and commit of `machine()`, as a line of text."""
    return f"{facts['cpus']} CPUs ({facts['cpu']}), kernel {facts['kernel']}, commit {facts['commit']}"
