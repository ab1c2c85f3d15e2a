"""RDMA programs on machines without RDMA hardware."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from importlib.resources import files

__all__ = ["command", "is_active", "program", "run"]


def program() -> str:
    """Return the path of the program `roxie`: that of ROXIE_PROGRAM, or the one in this package."""
    return os.environ.get("ROXIE_PROGRAM") or str(files(__package__) / "bin" / "roxie")


def command(args: str | Sequence[str], **options: str) -> list[str]:
    """Return the command line that runs a program on roxie's device.

    A string is split into words as by a shell. Options are those of `roxie run`, with underscores:
    netdev="eth0", egress="impair:loss=1%".
    """
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    return [program(), "run", *words, "--", *(shlex.split(args) if isinstance(args, str) else args)]


def run(
    args: str | Sequence[str],
    *,
    netdev: str | None = None,
    ingress: str | None = None,
    egress: str | None = None,
    **kwargs,
) -> subprocess.CompletedProcess:
    """Run a program on roxie's device, and return when it has ended, as subprocess.run does.

    Further arguments are those of subprocess.run: check, timeout, capture_output, text, env.
    """
    options = {"netdev": netdev, "ingress": ingress, "egress": egress}
    return subprocess.run(command(args, **{k: v for k, v in options.items() if v is not None}), **kwargs)


def is_active() -> bool:
    """Return True if `roxie run` has started this process."""
    return "ROXIE_RUN" in os.environ
