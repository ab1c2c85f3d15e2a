"""The guest's end of `rxe-vm exec`: runs the host's commands over a virtio-serial port."""

import glob
import json
import os
import signal
import struct
import subprocess
import threading
from pathlib import Path

# Type, session, length. To the host: H hello, O standard output, E standard error, X exit.
# From the host: R run, K kill.
HEADER = struct.Struct("!cII")
# Seconds that background children of a finished command may keep its pipes open.
LINGER = 2


class Port:
    def __init__(self):
        names = glob.glob("/sys/class/virtio-ports/*/name")
        name = next(name for name in names if Path(name).read_text().strip() == "rxe-vm")
        self.descriptor = os.open("/dev/" + name.split("/")[-2], os.O_RDWR)
        self.lock = threading.Lock()

    def send(self, kind, session, data=b""):
        rest = memoryview(HEADER.pack(kind, session, len(data)) + data)
        with self.lock:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]

    def receive(self):
        kind, session, length = HEADER.unpack(self.receive_exactly(HEADER.size))
        return kind, session, self.receive_exactly(length)

    def receive_exactly(self, length):
        data = b""
        while len(data) < length:
            part = os.read(self.descriptor, length - len(data))
            if not part:
                threading.Event().wait(0.05)  # the host's end is not open
            data += part
        return data


port = Port()
# Running commands by session; None until the process has started.
sessions = {}


def copy(session, kind, pipe):
    while data := os.read(pipe.fileno(), 1 << 15):
        port.send(kind, session, data)


def run(session, words):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        process = subprocess.Popen(words, start_new_session=True, cwd="/root", **pipes)
    except OSError as error:
        port.send(b"X", session, json.dumps({"rc": 127, "error": str(error)}).encode())
        return
    sessions[session] = process
    copiers = [
        threading.Thread(target=copy, args=(session, kind, pipe), daemon=True)
        for kind, pipe in ((b"O", process.stdout), (b"E", process.stderr))
    ]
    for copier in copiers:
        copier.start()
    status = process.wait()
    for copier in copiers:
        copier.join(LINGER)
    sessions.pop(session)
    port.send(b"X", session, json.dumps({"rc": status}).encode())


def kill(process):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(2)
        except (OSError, subprocess.TimeoutExpired):
            pass  # it has ended, or needs the other signal


def main():
    links = subprocess.run(["rdma", "link"], capture_output=True, text=True).stdout
    devices = " ".join(line.split()[1] for line in links.splitlines())
    port.send(b"H", 0, json.dumps({"kernel": os.uname().release, "rdma": devices}).encode())
    while True:
        kind, session, data = port.receive()
        if kind == b"R":
            threading.Thread(target=run, args=(session, json.loads(data)), daemon=True).start()
        elif kind == b"K" and session in sessions:
            threading.Thread(target=kill, args=(sessions[session],), daemon=True).start()


main()
