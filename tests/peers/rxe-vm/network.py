"""The host's end: a namespace with a bridge of the guests' taps, and `host0`, a veth to that bridge."""

import re

from host import RUN, sh

HOST_ADDRESSES = ("10.99.0.1/24", "fd99::1/64")


def guest_addresses(number):
    return f"10.99.0.{number}", f"fd99::{number:x}"


def ip(netns, *words, **options):
    return sh("ip", "-n", netns, *words, **options)


def make(netns, mtu):
    """Creates what is missing, and records whether this program made the namespace."""
    ours = netns not in re.findall(r"^\S+", sh("ip", "netns", "list"), re.M)
    if ours:
        sh("ip", "netns", "add", netns)
        ip(netns, "link", "set", "lo", "up")
    if "rxebr" not in ip(netns, "-o", "link"):
        ip(netns, *"link add rxebr type bridge stp_state 0 forward_delay 0 mcast_snooping 0".split())
        ip(netns, *"link add host0 type veth peer name host0p".split())
        ip(netns, *"link set rxebr addrgenmode none".split())
        ip(netns, *"link set host0p addrgenmode none master rxebr".split())
        for address in HOST_ADDRESSES:
            ip(netns, "addr", "add", address, "dev", "host0", *(["nodad"] if ":" in address else []))
        mark(netns).write_text("made" if ours else "found")
    for device in ("host0p", "host0", "rxebr"):
        ip(netns, "link", "set", device, "mtu", mtu, "up")


def add_tap(netns, tap, mtu):
    ip(netns, "link", "del", tap, check=False)
    ip(netns, "tuntap", "add", tap, "mode", "tap")
    ip(netns, "link", "set", tap, "addrgenmode", "none", "mtu", mtu, "master", "rxebr", "up")


def drop(netns, tap, others):
    """Removes the tap, and everything else if there is no other machine."""
    ip(netns, "link", "del", tap, check=False)
    if any(other["netns"] == netns for other in others) or not mark(netns).exists():
        return
    if mark(netns).read_text() == "made":
        sh("ip", "netns", "del", netns, check=False)
    else:
        for device in ("host0", "rxebr"):
            ip(netns, "link", "del", device, check=False)
    mark(netns).unlink()


def mark(netns):
    return RUN / f"netns-{netns}"
