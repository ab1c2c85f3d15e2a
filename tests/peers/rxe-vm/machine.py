"""Machines: one supervisor process each, which owns QEMU and forwards commands over a virtio-serial port.

Commands never use the network under test. A machine ends when its lifetime is over: the guest powers off,
and if it does not, the supervisor kills QEMU.
"""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import network
from host import CACHE, HERE, RUN, die
from image import Cpio, images

sys.path.append(str(HERE.parents[2] / "docs/examples"))
import pvrdma_mads

# Header of a frame between `exec`, supervisor and agent: type, session, length. guest/agent.py has the types.
HEADER = struct.Struct("!cII")
# Seconds that a guest has to power off after its lifetime.
GRACE = 20
# Time limit for this program's own commands in the guest.
COMMAND_SECONDS = 20
# Seconds until the agent replies; 6 to 12 are usual on an idle host.
BOOT_MAX = 300
GUEST_FILES = {"init": "init", "agent.py": "usr/lib/rxe-vm/agent.py"}
OFFLOADS = (
    "csum gso guest_csum guest_tso4 guest_tso6 guest_ecn guest_ufo host_tso4 host_tso6 host_ecn host_ufo"
).split()
# With these, virtio_net binds AF_XDP sockets for zero-copy: buffers use the DMA interface, without
# coalescing.
WIRE_OPTIONS = "iommu_platform=on,disable-legacy=on,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off"
# Last bytes of the MAC addresses of the wire's cards, by which guest/init recognises them.
WIRE_MACS = (0xA, 0xB)
# First bytes of the MAC address of a pvrdma; the last one is that of the guest's addresses.
PVRDMA_MAC = "52:54:00:99:02"
KERNEL_OPTIONS = (
    "console=ttyS0 quiet loglevel=5 panic=-1 mitigations=off nokaslr random.trust_cpu=on tsc=reliable"
    " rcupdate.rcu_expedited=1"
)


def directory(name):
    place = RUN / name
    return place if (place / "info.json").exists() else die(f"no machine '{name}' (see: rxe-vm status)")


def infos():
    return [json.loads(file.read_text()) for file in sorted(RUN.glob("*/info.json"))]


# ---- starting


def start(name, image, netns, number, mtu, minutes, wire, count, pvrdma, files):
    """Boots a machine and waits until it accepts commands."""
    if os.geteuid():
        die("start needs root (network namespace, tap)")
    if image not in images():
        die(f"no image '{image}'; make it with: rxe-vm prepare --suite {image}")
    place = RUN / name
    if (place / "info.json").exists():
        die(f"machine '{name}' runs already")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    tap = f"tap{number}"
    network.make(netns, mtu)
    network.add_tap(netns, tap, mtu)
    v4, v6 = network.guest_addresses(number)
    info = {"name": name, "image": image, "netns": netns, "tap": tap, "mtu": mtu, "ip": v4, "ip6": v6}
    info["wire"] = wire
    info["count"] = count
    info["pvrdma"] = pvrdma and os.path.abspath(pvrdma)
    info["until"] = time.time() + minutes * 60
    (place / "info.json").write_text(json.dumps(info))
    settings = dict(NAME=name, V4=v4, V6=v6, MTU=mtu, SECONDS=int(minutes * 60), WIRE=int(wire))
    settings["PVRDMA"] = int(bool(pvrdma))
    if pvrdma:
        files = [*files, CACHE / image / "vmw_pvrdma.ko"]
    write_initrd(place, image, settings, [Path(file) for file in files])

    since = time.time()
    sys.stdout.flush()
    detach(place, lambda: supervise(place, qemu(place, info, number), minutes))
    while time.time() - since < BOOT_MAX and (place / "info.json").exists():
        if (place / "ready").exists():
            hello = json.loads((place / "ready").read_text())
            (place / "initrd").unlink()
            devices = hello["rdma"] or "no rdma device"
            print(
                f"{name} ready after {time.time() - since:.1f} s: {hello['kernel']}, {devices}, {v4} {v6}, "
                f"mtu {mtu}, netns {netns}, off in {minutes:g} min"
            )
            return
        time.sleep(0.05)
    logs = [place / log for log in ("console.log", "qemu.log", "supervisor.log")]
    said = "".join(log.read_text(errors="replace")[-2000:] for log in logs if log.exists())
    if (place / "info.json").exists():
        stop(name)
    shutil.rmtree(place, ignore_errors=True)
    die(f"'{name}' did not come up in {BOOT_MAX} s\n{said}")


def write_initrd(place, image, settings, files):
    """Writes the initrd: the archive of the image, then the files of this machine."""
    overlay = Cpio(place / "overlay.cpio")
    overlay.add("usr/lib/rxe-vm", 0o40755)
    for file, target in GUEST_FILES.items():
        overlay.add(target, 0o100755, (HERE / "guest" / file).read_bytes())
    overlay.add("root", 0o40755)
    for file in files:
        overlay.add(f"root/{file.name}", 0o100755, file.read_bytes())
    overlay.add("etc/rxe-vm.conf", 0o100644, "".join(f"{k}={v}\n" for k, v in settings.items()).encode())
    overlay.close()
    with open(place / "initrd", "wb") as out:
        for part in (CACHE / image / "base.cpio", place / "overlay.cpio"):
            with open(part, "rb") as archive:
                shutil.copyfileobj(archive, out, 1 << 20)


def qemu(place, info, number):
    card = (
        f"virtio-net-pci,netdev=n0,mac=52:54:00:99:00:{number:02x},romfile=,mrg_rxbuf=on,rx_queue_size=1024"
    )
    card += "".join(f",{offload}=off" for offload in OFFLOADS)
    accelerator = ("-accel", f"tcg,thread={'single' if info['count'] else 'multi'},tb-size=256")
    if info["count"]:
        accelerator += ("-icount", "shift=0,sleep=on")
    # Two spinning programs need two processors.
    processors = "2" if info["wire"] else "1"
    wire = []
    for mac in WIRE_MACS if info["wire"] else ():
        options = f"mac=52:54:00:99:01:{mac:02x},romfile=,{WIRE_OPTIONS}"
        wire += [
            "-netdev",
            f"hubport,id=w{mac},hubid=1",
            "-device",
            f"virtio-net-pci,netdev=w{mac},{options}",
        ]
    run, pvrdma = [], []
    if info["pvrdma"]:
        run = ["env", "ROXIE_QPNS=small", info["pvrdma"], "run", "--netdev", "host0", "--"]
        # The driver takes the MAC address of function 0, a vmxnet3.
        pvrdma = [
            *("-object", "memory-backend-ram,id=ram,size=1536M,share=on", "-numa", "node,memdev=ram"),
            *("-netdev", "hubport,id=p0,hubid=2", "-chardev", f"socket,id=mads,path={place}/mads.sock"),
            *("-device", f"vmxnet3,netdev=p0,mac={PVRDMA_MAC}:{number:02x},addr=10.0,multifunction=on"),
            *("-device", "pvrdma,addr=10.1,ibdev=roxie0,netdev=host0,mad-chardev=mads,dev-caps-max-qp=65535"),
        ]
    return [
        # Timers run in real time: a guest that gets no CPU time loses connections.
        *("nice", "-n", "-10"),
        *("ip", "netns", "exec", info["netns"], *run),
        *("qemu-system-x86_64", "-name", f"rxe-vm-{info['name']}"),
        *("-M", "q35,hpet=off", *accelerator, "-cpu", "max"),
        *("-smp", processors, "-m", "1536"),
        *(
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            f"file:{place}/console.log",
        ),
        *(
            "-kernel",
            f"{CACHE / info['image']}/kernel",
            "-initrd",
            f"{place}/initrd",
            "-append",
            KERNEL_OPTIONS,
        ),
        *("-netdev", f"tap,id=n0,ifname={info['tap']},script=no,downscript=no", "-device", card),
        *wire,
        *pvrdma,
        *(
            "-device",
            "virtio-serial-pci",
            "-chardev",
            f"socket,id=c0,path={place}/port.sock,server=on,wait=off",
        ),
        *("-device", "virtserialport,chardev=c0,name=rxe-vm", "-device", "virtio-rng-pci"),
    ]


def detach(place, work):
    """Runs `work` in a process that outlives this one and inherits none of its descriptors."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(place / "supervisor.log", os.O_CREAT | os.O_WRONLY, 0o644)
    for descriptor, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, target)
    os.closerange(3, 256)
    try:
        work()
    finally:
        os._exit(1)


# ---- the supervisor


def supervise(place, command, minutes):
    if json.loads((place / "info.json").read_text())["pvrdma"]:
        server = pvrdma_mads.listen(str(place / "mads.sock"))
        threading.Thread(target=pvrdma_mads.answer, args=(server,), daemon=True).start()
    log = open(place / "qemu.log", "wb")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    (place / "qemu.pid").write_text(str(process.pid))
    signal.signal(signal.SIGTERM, lambda *_: process.kill())
    killer = threading.Timer(minutes * 60 + GRACE, process.kill)
    killer.daemon = True
    killer.start()
    port = socket.socket(socket.AF_UNIX)
    while process.poll() is None:
        try:
            port.connect(str(place / "port.sock"))
            break
        except OSError:
            time.sleep(0.05)
    Switchboard(place, port).start()
    process.wait()
    forget(place)
    # Keep the logs of a machine that did not boot, for the command that waits for it.
    if (place / "ready").exists():
        shutil.rmtree(place)
    os._exit(0)


def forget(place):
    """Removes a machine's network and its directory."""
    info = json.loads((place / "info.json").read_text())
    network.drop(info["netns"], info["tap"], [other for other in infos() if other["name"] != place.name])
    (place / "info.json").unlink()


class Switchboard:
    """Forwards the sessions of all clients over the port."""

    def __init__(self, place, port):
        self.place, self.port, self.clients, self.last = place, port, {}, 0
        self.lock = threading.Lock()
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(place / "control.sock"))
        self.server.listen(64)

    def start(self):
        for work in (self.from_guest, self.accept):
            threading.Thread(target=work, daemon=True).start()

    def from_guest(self):
        while frame := receive(self.port):
            kind, session, data = frame
            if kind == b"H":
                (self.place / "ready.new").write_bytes(data)
                (self.place / "ready.new").rename(self.place / "ready")
            elif session in self.clients:
                try:
                    send(self.clients[session], kind, session, data)
                except OSError:
                    pass  # the client has disconnected; its own thread notices
        for client in list(self.clients.values()):
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the client has disconnected

    def accept(self):
        while True:
            client, _ = self.server.accept()
            self.last += 1
            self.clients[self.last] = client
            threading.Thread(target=self.from_client, args=(client, self.last), daemon=True).start()

    def from_client(self, client, session):
        try:
            while frame := receive(client):
                self.to_guest(frame[0], session, frame[2])
            self.to_guest(b"K", session)
        except OSError:
            pass  # the machine or the client has ended
        self.clients.pop(session, None)
        client.close()

    def to_guest(self, kind, session, data=b""):
        with self.lock:
            send(self.port, kind, session, data)


def send(connection, kind, session, data=b""):
    connection.sendall(HEADER.pack(kind, session, len(data)) + data)


def receive(connection):
    """The next frame, or None at the end."""
    header = receive_exactly(connection, HEADER.size)
    if header is None:
        return None
    kind, session, length = HEADER.unpack(header)
    data = receive_exactly(connection, length)
    return None if data is None else (kind, session, data)


def receive_exactly(connection, length):
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), 1 << 16))
        if not part:
            return None
        data += part
    return bytes(data)


# ---- running commands, stopping


def run_in(name, words, timeout):
    """Runs a command in the guest with the streams of this program; returns its exit status."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(directory(name) / "control.sock"))
    except OSError as error:
        die(f"machine '{name}' does not answer: {error}")
    send(connection, b"R", 0, json.dumps(words).encode())
    # The agent kills the command when the connection is closed.
    alarm = threading.Timer(timeout or threading.TIMEOUT_MAX, lambda: connection.shutdown(socket.SHUT_RDWR))
    alarm.daemon = True
    alarm.start()
    while frame := receive(connection):
        kind, _, data = frame
        if kind == b"X":
            answer = json.loads(data)
            if "error" in answer:
                print(f"rxe-vm: {answer['error']}", file=sys.stderr, flush=True)
            return answer["rc"] if answer["rc"] >= 0 else 128 - answer["rc"]
        stream = sys.stdout.buffer if kind == b"O" else sys.stderr.buffer
        stream.write(data)
        stream.flush()
    print("rxe-vm: time is up, or the machine went away", file=sys.stderr, flush=True)
    return 124


def set_mtu(name, mtu):
    """Changes the MTU of the machine's network card and of the interfaces on the path to it."""
    info = json.loads((directory(name) / "info.json").read_text())
    network.make(info["netns"], mtu)
    network.ip(info["netns"], "link", "set", info["tap"], "mtu", mtu)
    if run_in(name, ["ip", "link", "set", "eth0", "mtu", str(mtu)], COMMAND_SECONDS):
        die(f"machine '{name}' does not take an MTU of {mtu}")


def stop(name):
    """Stops a machine; returns when its network is removed."""
    place = directory(name)
    for _ in range(100):
        try:
            os.kill(int((place / "qemu.pid").read_text()), signal.SIGKILL)
        except (OSError, ValueError):
            pass  # not started yet, or ended; the supervisor cleans up
        if not (place / "info.json").exists():
            return
        time.sleep(0.05)
    # The supervisor has ended too.
    forget(place)
    shutil.rmtree(place, ignore_errors=True)
