"""Mooncake's store: one client lends memory, another one puts objects there, gets and compares them.

    mooncake_store.py lender HOST PROTOCOL MASTER FILE  # makes FILE; ends with it
    mooncake_store.py user HOST PROTOCOL MASTER FILE    # removes FILE at its end
"""
import os
import sys
import time

from mooncake.store import MooncakeDistributedStore

SIZE = 1 << 20
OBJECTS = 8
TIME_MAX = 60

role, host, protocol, master, file = sys.argv[1:6]
store = MooncakeDistributedStore()
lent = 64 << 20 if role == "lender" else 0
device = "roxie0" if protocol == "rdma" else ""
if store.setup(host, "P2PHANDSHAKE", lent, 32 << 20, protocol, device, master) != 0:
    sys.exit("setup failed")
if role == "lender":
    open(file, "w").close()
    end = time.monotonic() + TIME_MAX
    while os.path.exists(file) and time.monotonic() < end:
        time.sleep(0.05)
else:
    objects = {f"object {n}": bytes([n, 255 - n, n * 3]) * (SIZE // 3) for n in range(OBJECTS)}
    for key, value in objects.items():
        if store.put(key, value) != 0:
            sys.exit(f"put {key} failed")
    same = sum(store.get(key) == value for key, value in objects.items())
    print(f"{same} of {OBJECTS} objects are right", flush=True)
    os.remove(file)
store.close()
