"""pytest: the option --roxie and the fixture rdma_device.

The libraries must be in place before the interpreter starts. So pytest with --roxie replaces itself by
`roxie run -- pytest`. It does so when the plugin registers its option, before pytest captures the output.
"""

import os
import string
import sys
from collections.abc import Mapping

import pytest

from . import command, is_active

OPTION = "--roxie"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the option; start pytest anew if it is given."""
    parser.addoption(OPTION, action="store_true", help="run the tests on roxie's RDMA device")
    if OPTION in sys.argv[1:] and not is_active():
        # Python 3.9 does not know how it was started.
        given = getattr(sys, "orig_argv", [sys.executable, "-m", "pytest", *sys.argv[1:]])
        words = command([sys.executable, *given[1:]])
        os.execv(words[0], words)


@pytest.fixture(scope="session")
def rdma_device() -> str:
    """Return the name of the first RDMA device; skip the test without --roxie."""
    if not is_active():
        pytest.skip(f"needs an RDMA device: start pytest with {OPTION}")
    return first_device(os.environ)


def first_device(environ: Mapping[str, str]) -> str:
    """Return the name of the first device.

    With ROXIE_DEVICES the last name counts on from 0 if no number ends it.
    """
    first, *others = (environ.get("ROXIE_NAME") or "roxie0").split(",")
    is_counted = environ.get("ROXIE_DEVICES") and not others and first[-1:] not in string.digits
    return f"{first}0" if is_counted else first
