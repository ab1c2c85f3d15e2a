"""Mooncake's transfer engine: a target lends memory; an initiator writes it, reads it back and compares.

    mooncake_engine.py target HOST PROTOCOL FILE     # writes its address to FILE; ends with FILE
    mooncake_engine.py initiator HOST PROTOCOL FILE  # removes FILE at its end

With MOONCAKE_DEVICES=roxie0,roxie1 in the environment the transfers use both.
"""
import os
import sys
import time

import numpy as np
from mooncake.engine import TransferEngine

SIZE = 4 << 20
TIME_MAX = 60

role, host, protocol, file = sys.argv[1:5]
devices = os.environ.get("MOONCAKE_DEVICES", "roxie0")
engine = TransferEngine()
if engine.initialize(host, "P2PHANDSHAKE", protocol, devices if protocol == "rdma" else "") != 0:
    sys.exit("initialize failed")
right = (np.arange(SIZE) * 7 % 251).astype(np.uint8)
if role == "target":
    memory = np.zeros(SIZE, np.uint8)
    assert engine.register_memory(memory.ctypes.data, SIZE) == 0
    with open(file + ".new", "w") as new:
        new.write(f"{host}:{engine.get_rpc_port()} {memory.ctypes.data}")
    os.rename(file + ".new", file)
    end = time.monotonic() + TIME_MAX
    while os.path.exists(file) and time.monotonic() < end:
        time.sleep(0.05)
    print("target: its memory is right:", bool(np.array_equal(memory, right)), flush=True)
else:
    back = np.zeros(SIZE, np.uint8)
    for memory in (right, back):
        assert engine.register_memory(memory.ctypes.data, SIZE) == 0
    target, address = open(file).read().split()
    assert engine.transfer_sync_write(target, right.ctypes.data, int(address), SIZE) == 0
    assert engine.transfer_sync_read(target, back.ctypes.data, int(address), SIZE) == 0
    print("initiator: what was read back is right:", bool(np.array_equal(back, right)), flush=True)
    os.remove(file)
