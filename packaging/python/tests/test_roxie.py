"""Tests of the installed wheel: `pytest` and `pytest --roxie`."""

import subprocess
import sys

import pytest

import roxie
from roxie.pytest_plugin import first_device


def test_a_program_sees_the_device():
    done = roxie.run([sys.executable, "-c", "import os; print(os.environ['LD_AUDIT'])"],
                     netdev="lo", check=True, capture_output=True, text=True, timeout=60)
    assert "libroxie_audit.so" in done.stdout


def test_a_failed_program_raises():
    with pytest.raises(subprocess.CalledProcessError):
        roxie.run(["false"], check=True, timeout=60)


def test_options_become_words():
    words = roxie.command(["rping", "-s"], netdev="lo", device_files="off")
    assert words[1:] == ["run", "--netdev", "lo", "--device-files", "off", "--", "rping", "-s"]


def test_a_string_is_split_as_by_a_shell():
    assert roxie.command("ibv_devinfo")[1:] == ["run", "--", "ibv_devinfo"]
    assert roxie.command("echo 'a b' c")[-3:] == ["echo", "a b", "c"]


def test_the_module_is_the_program():
    done = subprocess.run([sys.executable, "-m", "roxie", "--version"], check=True, capture_output=True,
                          text=True, timeout=60)
    assert done.stdout.startswith("roxie ")


@pytest.mark.parametrize(("name", "devices", "first"), [
    ("", "", "roxie0"), ("", "8", "roxie0"), ("mlx5_", "8", "mlx5_0"), ("nic", "", "nic"), ("a,b", "8", "a"),
])
def test_the_first_device_has_the_name_that_roxie_gives_it(name, devices, first):
    assert first_device({"ROXIE_NAME": name, "ROXIE_DEVICES": devices}) == first


def test_the_fixture_names_the_device(rdma_device):
    device = pytest.importorskip("pyverbs.device")
    with device.Context(name=rdma_device) as context:
        assert context.query_device().phys_port_cnt == 1
