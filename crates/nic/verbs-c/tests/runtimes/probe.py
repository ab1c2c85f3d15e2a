"""faulthandler prints the Python stack at a fault. It is installed before and after the device's handlers."""
import ctypes
import faulthandler
import sys

when, library = sys.argv[1:]
if when == "before":
    faulthandler.enable()
probe = ctypes.CDLL(library)
assert probe.probe_start() == 0
if when == "after":
    faulthandler.enable()
for _ in range(3):
    assert probe.probe_unmapped() == 0
print("ok", flush=True)
ctypes.string_at(8)
