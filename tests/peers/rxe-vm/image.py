"""Images: a Debian kernel with rdma_rxe and an initramfs with the RDMA programs, fetched with apt-get.

The packages are not installed. apt resolves them as for an empty machine; they are unpacked without their
maintainer scripts into one cpio archive, with only the wanted modules of the kernel.
"""

import gzip
import json
import lzma
import os
import re
import shutil
import stat
import struct
import subprocess
import tempfile
from pathlib import Path

import host
from host import CACHE, die, sh

HOST_PACKAGES = ["qemu-system-x86", "iproute2", "zstd", "lz4"]
GUEST_PACKAGES = """busybox-static bash dash kmod iproute2 rdmacm-utils ibverbs-utils ibverbs-providers
    perftest python3-pyverbs ethtool tcpdump nftables xdp-tools open-iscsi""".split()
# Dependencies that only an installed machine needs: not unpacked.
SKIP = re.compile(
    r"^(perl|libperl|lib(file|number|text)-.*-perl|dpkg|tar|usrmerge|udev|systemd|libsystemd-shared|debconf"
    r"|libdebconf|adduser|passwd|login|base-passwd|init-system|sysvinit|libpam(?!0g$)|initramfs|dracut|tzdata"
    r"|gcc-.*-base|libc-gconv"
    r"|mount$|base-files|debianutils|libdb5|libgdbm|libsemanage|libsepol|media-types|lsb-base|libnsl|sensible"
    r"|readline-common)"
)
# Files that no test needs.
PRUNE = """./usr/share/doc ./usr/share/man ./usr/share/locale ./usr/share/info ./usr/share/lintian
    ./usr/share/zsh ./usr/share/bash-completion ./usr/share/bug ./usr/share/misc/pci.ids*
    ./usr/share/python3/dist */python3*/test */ensurepip */idlelib */lib2to3 */tkinter */pydoc_data
    */turtledemo ./usr/lib/systemd ./lib/systemd ./usr/share/zoneinfo""".split()
# Modules that are loaded at boot, and modules that nftables, netem, `ip link`, clsact captures and iSER load
# on demand. The image has their dependencies too.
LOADED = """virtio_pci virtio_console virtio_net ib_core ib_uverbs ib_umad ib_cm rdma_cm rdma_ucm crc32c_intel
    crc32_pclmul crc32_generic rdma_rxe""".split()
ON_DEMAND = "sch_netem sch_ingress cls_bpf nf_tables nft_numgen nft_limit veth 8021q bonding bridge \
    ib_iser sd_mod target_core_file ib_isert vmxnet3"
MODULES = LOADED + ON_DEMAND.split()


class Apt:
    """apt-get with an empty dpkg status, so that it lists every package, and another release's lists."""

    def __init__(self, suite, work):
        self.work = work
        for directory in ("archives/partial", "lists/partial"):
            (work / directory).mkdir(parents=True, exist_ok=True)
        (work / "status").write_text("")
        settings = {
            "Dir::State::status": work / "status",
            "Dir::Cache": work,
            "APT::Install-Recommends": "false",
            "APT::Get::Assume-Yes": "true",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        }
        if suite != host.suite():
            sources = work / "suite.sources"
            sources.write_text(sources_for(suite))
            settings["Dir::Etc::sourcelist"] = sources
            settings["Dir::Etc::sourceparts"] = "-"
            settings["Dir::State::lists"] = work / "lists"
        self.options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        if suite != host.suite():
            self.run("update")

    def run(self, *words, **options):
        env = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C")
        return sh("apt-get", *self.options, *words, env=env, **options)

    def closure(self, packages):
        """Names and versions of the packages and of their dependencies."""
        return re.findall(r"^Inst (\S+) \((\S+)", self.run("-s", "install", *packages), re.M)

    def unpack(self, packages, root, prune):
        exclude = [f"--exclude={pattern}" for pattern in prune]
        with tempfile.TemporaryDirectory(dir=self.work) as archives:
            self.run("download", *(f"{name}={version}" for name, version in packages), cwd=archives)
            for archive in sorted(Path(archives).glob("*.deb")):
                files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE)
                tar = ["tar", "-x", "--keep-directory-symlink", "--wildcards", *exclude, "-C", root]
                subprocess.run(tar, stdin=files.stdout, check=True)
                if files.wait():
                    die(f"cannot unpack {archive.name}")


def sources_for(suite):
    """The host's Debian sources, with their mirrors and keyring, for another release."""
    own, found = host.suite(), []
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", file.read_text()):
            suites = re.search(r"^Suites:(.*)$", stanza, re.M)
            if suites and own in suites[1].split():
                found.append(re.sub(r"^Suites:.*$", f"Suites: {suite}", stanza, flags=re.M))
    one_line = Path("/etc/apt/sources.list")
    if not found and one_line.exists():
        for line in one_line.read_text().splitlines():
            source = re.match(rf"deb\s+(\[[^]]*\]\s+)?(\S+)\s+{re.escape(own)}\s", line)
            if source:
                options = dict(
                    word.split("=", 1) for word in (source[1] or "").strip(" []").split() if "=" in word
                )
                keyring = options.get("signed-by", "/usr/share/keyrings/debian-archive-keyring.gpg")
                found.append(
                    f"Types: deb\nURIs: {source[2]}\nSuites: {suite}\nComponents: main\nSigned-By: {keyring}"
                )
    return "\n\n".join(found) + "\n" if found else die("apt has no Debian source to derive the release from")


def decompress(data, what):
    if data[:6] == b"\xfd7zXZ\0":
        return lzma.LZMADecompressor().decompress(data)
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    for magic, tool in ((b"\x28\xb5\x2f\xfd", "zstd"), (b"\x02\x21\x4c\x18", "lz4")):
        if data[:4] == magic:
            command = [tool, "-dcq"]
            return subprocess.run(
                command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ).stdout
    die(f"{what}: compression {data[:6].hex()} is unknown")


def extract_vmlinux(image):
    """The ELF file in a bzImage; its PVH entry saves QEMU 3 s of emulated decompression."""
    data = image.read_bytes()
    offset, length = struct.unpack_from("<II", data, 0x248)
    start = (data[0x1F1] + 1) * 512 + offset
    elf = decompress(data[start : start + length], image.name)
    return elf if elf[:4] == b"\x7fELF" else die("no ELF file in the kernel image")


class Cpio:
    """Writes a newc archive; an initramfs is a sequence of them."""

    def __init__(self, path):
        self.file, self.inode = open(path, "wb"), 0

    def add(self, name, mode, data=b""):
        self.inode += 1
        name = name.encode() + b"\0"
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        self.file.write(b"070701" + b"".join(b"%08X" % field for field in fields) + name)
        self.file.write(b"\0" * (-(110 + len(name)) % 4) + data + b"\0" * (-len(data) % 4))

    def tree(self, top):
        for directory, below, files in os.walk(top):
            below.sort()
            for name in sorted(files) + below + ([] if directory != str(top) else ["."]):
                path = os.path.join(directory, name)
                mode, relative = os.lstat(path).st_mode, os.path.relpath(path, top)
                if stat.S_ISLNK(mode):
                    self.add(relative, mode, os.readlink(path).encode())
                elif stat.S_ISDIR(mode):
                    self.add(relative, mode)
                elif stat.S_ISREG(mode):
                    self.add(relative, mode, Path(path).read_bytes())

    def close(self):
        self.add("TRAILER!!!", 0)
        self.file.write(b"\0" * (-self.file.tell() % 512))
        self.file.close()


def take_modules(kernel, root, version):
    """Copies the modules and their dependencies, decompressed; returns the load order of the boot modules."""
    base = next(
        p for p in (kernel / "lib/modules" / version, kernel / "usr/lib/modules" / version) if p.is_dir()
    )
    files = {re.sub(r"\.ko(\.\w+)?$", "", file.name).replace("-", "_"): file for file in base.rglob("*.ko*")}
    to, order = root / "lib/modules" / version, []

    def take(name):
        # A missing module is built into the kernel, or this kernel does not need it.
        if name in order or name not in files:
            return
        file = files[name]
        data = file.read_bytes() if file.suffix == ".ko" else decompress(file.read_bytes(), file.name)
        strings = [
            text.decode("latin1") for text in data.split(b"\0") if text.startswith((b"depends=", b"softdep="))
        ]
        for text in strings:
            if text.startswith("depends="):
                needed = text.removeprefix("depends=").split(",")
            else:
                needed = text.removeprefix("softdep=pre:").split() if text.startswith("softdep=pre:") else []
            for other in needed:
                take(other.replace("-", "_"))
        order.append(name)
        target = to / re.sub(r"\.ko.*$", ".ko", str(file.relative_to(base)))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)

    for name in LOADED:
        take(name)
    at_boot = list(order)
    for name in MODULES:
        take(name)
    for name in ("modules.builtin", "modules.order", "modules.builtin.modinfo"):
        if (base / name).exists():
            shutil.copy(base / name, to / name)
    return at_boot


def fill_root(root):
    """Creates what the maintainer scripts would have created, as far as it is needed."""
    (root / "var/run").symlink_to("/run")
    (root / "usr/bin/sh").unlink(missing_ok=True)
    # The shell of busybox would prefer its applets to the real tools.
    (root / "usr/bin/sh").symlink_to("dash")
    for applet in sh("chroot", root, "/usr/bin/busybox", "--list").split():
        places = [root / directory / applet for directory in ("usr/bin", "usr/sbin")]
        if not any(place.is_symlink() or place.exists() for place in places):
            places[0].symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\ntty:x:5:\nnogroup:x:65534:\ntcpdump:x:100:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\nservices: files\n")


def install_on_host(*packages):
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C")
    sh("apt-get", "install", "-y", "--no-install-recommends", *packages, env=env)


def is_installed(package):
    status = sh("dpkg-query", "-W", "-f", "${db:Status-Status}", package, check=False)
    return status == "installed"


def build_pvrdma(version, work, to, install):
    """Builds vmw_pvrdma from Debian's source of the kernel, for the kernel `version` (6.1.0-57-amd64).

    The host needs that source, the kernel's headers and make; without `install` they must be there.
    """
    source = "linux-source-" + ".".join(version.split(".")[:2])
    packages = [source, f"linux-headers-{version}", "make"]
    missing = [package for package in packages if not is_installed(package)]
    if missing and not install:
        die(f"--no-host: the driver needs packages that are not installed: {' '.join(missing)}")
    if missing:
        install_on_host(*missing)
    print(f"driver vmw_pvrdma of {source}", flush=True)
    driver = f"{source}/drivers/infiniband/hw/vmw_pvrdma"
    sh("tar", "-x", "-f", f"/usr/src/{source}.tar.xz", "-C", work, driver)
    build = f"/lib/modules/{version}/build"
    sh("make", "-C", build, f"M={work / driver}", "CONFIG_INFINIBAND_VMWARE_PVRDMA=m", "modules")
    sh("objcopy", "--strip-debug", work / driver / "vmw_pvrdma.ko", to)


def name_of(suite, kernel_suite):
    """The name of the image with the programs of one release and the kernel of another."""
    return suite if suite == kernel_suite else f"{suite}-{kernel_suite}"


def prepare(suite, kernel_suite, install, pvrdma):
    """Makes the image of a Debian release with a kernel; `install` adds the host's packages.

    `pvrdma` builds the driver of the paravirtual RDMA device, which Debian's kernels lack. An image of that
    name stays as it is until the new one is complete.
    """
    if os.geteuid():
        die("prepare needs root")
    out = CACHE / name_of(suite, kernel_suite)
    # Not a directory in which images() looks for an image.
    work = CACHE / "work" / out.name
    shutil.rmtree(work, ignore_errors=True)
    made = work / "image"
    made.mkdir(parents=True)
    if install:
        print("host packages", flush=True)
        sh("apt-get", "update", "-q")
        install_on_host(*HOST_PACKAGES)
    apt = Apt(suite, work / "apt")
    kernel_apt = apt if kernel_suite == suite else Apt(kernel_suite, work / "apt-kernel")

    packages = kernel_apt.closure(["linux-image-amd64"])
    packages = [
        (name, version) for name, version in packages if re.match(r"linux-(image|binary|modules)-\d", name)
    ]
    print("kernel: " + " ".join(f"{name}={version}" for name, version in packages), flush=True)
    kernel = work / "kernel"
    kernel.mkdir()
    kernel_apt.unpack(packages, kernel, prune=[])
    versions = [path.name for place in ("lib", "usr/lib") for path in kernel.glob(f"{place}/modules/*")]
    images = list(kernel.glob("boot/vmlinuz-*")) + list(kernel.glob("usr/lib/modules/*/vmlinuz"))
    if not versions or not images:
        die("the kernel package has no kernel")
    if pvrdma:
        build_pvrdma(versions[0], work, made / "vmw_pvrdma.ko", install)

    tools = [(name, version) for name, version in apt.closure(GUEST_PACKAGES) if not SKIP.match(name)]
    print(f"user space: {len(tools)} packages of {suite}", flush=True)
    root = work / "root"
    for name in "usr/bin usr/sbin usr/lib usr/lib64 proc sys dev run tmp root etc var/log".split():
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    apt.unpack(tools, root, PRUNE)
    fill_root(root)
    (root / "etc/rxe-vm.modules").write_text("\n".join(take_modules(kernel, root, versions[0])) + "\n")
    sh("chroot", root, "/sbin/depmod", versions[0])
    sh(
        "chroot",
        root,
        "/bin/sh",
        "-c",
        "python3 -m compileall -q /usr/lib/python3* >/dev/null 2>&1; ldconfig; true",
    )

    archive = Cpio(made / "base.cpio")
    archive.tree(root)
    archive.close()
    (made / "kernel").write_bytes(extract_vmlinux(images[0]))
    manifest = {
        "suite": suite,
        "kernel_suite": kernel_suite,
        "kernel": versions[0],
        "packages": dict(packages + tools),
        "modules": MODULES,
        "pvrdma": pvrdma,
    }
    (made / "image.json").write_text(json.dumps(manifest, indent=1))
    shutil.rmtree(out, ignore_errors=True)
    made.rename(out)
    shutil.rmtree(work)
    size = sum(file.stat().st_size for file in out.iterdir()) >> 20
    print(f"image '{out.name}': kernel {versions[0]}, {size} MiB in {out}")


def images():
    """The existing images, by name; an image without all wanted modules must be prepared again."""
    found = {file.parent.name: json.loads(file.read_text()) for file in sorted(CACHE.glob("*/image.json"))}
    return {name: made for name, made in found.items() if made.get("modules") == MODULES}
