"""One agent writes to the memory of another, reads it back and compares it.

    nixl_copy.py target IP PORT               # waits for one initiator
    nixl_copy.py initiator IP PORT [SECONDS]  # with SECONDS it also measures 1 MiB transfers

With NIXL_COPY_THREAD=off in the environment the agents have no progress thread.
"""
import os
import sys
import time

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

SIZE = 1 << 20
TIME_MAX = 60
THREAD = os.environ.get("NIXL_COPY_THREAD") != "off"


def wait(done, what):
    end = time.monotonic() + TIME_MAX
    while not (value := done()):
        if time.monotonic() > end:
            sys.exit(f"timeout: {what}")
    return value


def new_agent(name, port):
    config = nixl_agent_config(enable_prog_thread=THREAD, enable_listen_thread=True, listen_port=port)
    return nixl_agent(name, config)


def target(port):
    agent = new_agent("target", port)
    memory = np.zeros(SIZE, np.uint8)
    handle = agent.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
    described = agent.get_serialized_descs(handle.trim())
    notes = []

    def note():
        notes.extend(agent.get_new_notifs().get("initiator", []))
        return notes

    wait(note, "the initiator's first message")
    # The first message may overtake the initiator's metadata, which another thread receives.
    wait(lambda: agent.check_remote_metadata("initiator"), "the initiator's metadata")
    agent.send_notif("initiator", described)
    wait(lambda: note()[-1] == b"end", "the initiator's end")
    print("target: its memory is right:", bool(np.array_equal(memory, pattern())))


def pattern():
    return (np.arange(SIZE) * 7 % 251).astype(np.uint8)


def initiator(ip, port, seconds):
    agent = new_agent("initiator", 0)
    out, back = pattern(), np.zeros(SIZE, np.uint8)
    local = {}
    for name, memory in (("WRITE", out), ("READ", back)):
        handle = agent.register_memory([(memory.ctypes.data, SIZE, 0, "")], "DRAM")
        local[name] = handle.trim()
    agent.fetch_remote_metadata("target", ip, port)
    agent.send_local_metadata(ip, port)
    wait(lambda: agent.check_remote_metadata("target"), "the target's metadata")
    agent.send_notif("target", b"where")
    notes = wait(lambda: agent.get_new_notifs().get("target"), "the target's address")
    remote = agent.deserialize_descs(notes[0])

    def move(kind):
        handle = agent.initialize_xfer(kind, local[kind], remote, "target", b"")
        def once():
            state = agent.transfer(handle)
            end = time.monotonic() + TIME_MAX
            while state != "DONE":
                if state == "ERR" or time.monotonic() > end:
                    sys.exit(f"{kind}: {state}")
                state = agent.check_xfer_state(handle)
        once()
        return handle, once

    moves = {kind: move(kind) for kind in ("WRITE", "READ")}
    print("initiator: what was read back is right:", bool(np.array_equal(out, back)))
    for kind, (handle, once) in moves.items():
        if seconds:
            start, count = time.monotonic(), 0
            while time.monotonic() < start + seconds:
                once()
                count += 1
            took = time.monotonic() - start
            print(f"{kind} {count * SIZE / took / 1e9:.2f} GB/s")
        agent.release_xfer_handle(handle)
    agent.send_notif("target", b"end")
    time.sleep(0.2)


if sys.argv[1] == "target":
    target(int(sys.argv[3]))
else:
    initiator(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]) if len(sys.argv) > 4 else 0)
