"""Paths on the host, and commands that run there."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(
    os.environ.get("RXE_VM_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "roxie/rxe-vm"
)
RUN = Path("/run/rxe-vm")


def die(message):
    sys.exit(f"rxe-vm: {message}")


def sh(*command, check=True, **options):
    """Runs a command and returns its output; exits if the command fails, unless `check` is false."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if check and done.returncode:
        die(f"{shlex.join(words)} failed ({done.returncode}):\n{done.stdout[-2000:]}")
    return done.stdout


def suite():
    """The name of the host's Debian release."""
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.split("=", 1)[1].strip('"')
    die("not a Debian release")
