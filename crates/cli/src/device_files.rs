//! `roxie run --device-files`: device files in a mount namespace of the command. `need` says which commands
//! get them without the option.
//!
//! UCX (and programs on it) accepts a device only if /dev/infiniband has a character device that it may
//! open, and reads the RoCE version of the GIDs from /sys/class/infiniband. Each parent directory is
//! covered by a tmpfs that has the same entries, bind-mounted from the originals; in a sandbox without sysfs
//! this is an empty /sys. Only the command sees this, and the kernel removes it with the command.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};
use roxie::verbs::Context;

use crate::failure::{During, Failure, Outcome};
use crate::user_namespace;

const STEP: &str = "device files";
/// The directories to make; their parents are covered by copies.
const CLASS: &str = "/sys/class/infiniband";
const DEVICES: &str = "/dev/infiniband";
/// Whether all devices have their files already, as in a program that such a command started.
pub(crate) fn exist(contexts: &[Context]) -> bool {
    contexts.iter().all(|context| Path::new(CLASS).join(context.device().name()).exists())
}

/// Makes the files for this process and for the command that replaces it.
pub(crate) fn make(contexts: &[Context]) -> Outcome {
    enter_namespace()?;
    // Mounts made outside later still appear here; mounts made here do not appear outside.
    mount_at(None, Path::new("/"), MsFlags::MS_REC | MsFlags::MS_SLAVE)?;
    for ours in [CLASS, DEVICES] {
        let ours = Path::new(ours);
        let (existing, name) = existing_parent(ours)?;
        cover(existing, name)?;
        fs::create_dir_all(ours).during(STEP)?;
    }
    for (number, context) in contexts.iter().enumerate() {
        // As libibverbs reports it (`ibv_device::dev_name`).
        let node = Path::new(DEVICES).join(format!("uverbs{number}"));
        File::create(&node).during(STEP)?;
        mount_at(Some(Path::new("/dev/null")), &node, MsFlags::MS_BIND)?;
        describe(context, &Path::new(CLASS).join(context.device().name()))?;
    }
    Ok(())
}

/// The nearest parent of `path` that exists, and the next component of `path`. `/` cannot be covered.
fn existing_parent(path: &Path) -> Outcome<(&Path, &Path)> {
    let mut below = path;
    while let (Some(parent), Some(name)) = (below.parent(), below.file_name()) {
        if parent == Path::new("/") {
            break;
        }
        if parent.is_dir() {
            return Ok((parent, name.as_ref()));
        }
        below = parent;
    }
    let missing = below.display();
    Err(Failure::new(format!("{STEP}: the directory {missing} does not exist, and roxie cannot make it"))
        .hint(format!("make it when you start the container or sandbox, such as by 'bwrap --dir {missing}'")))
}

/// Enters a mount namespace, and a user namespace first where that needs one; user and group ids stay.
fn enter_namespace() -> Outcome {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Err(Errno::EPERM) => {}
        done => return done.during(STEP),
    }
    user_namespace::enter(Uid::effective(), Gid::effective()).map_err(|failure| failure.of(STEP))?;
    unshare(CloneFlags::CLONE_NEWNS).during(STEP)
}

/// Covers `dir` with a copy of itself, without the entry `ours`.
fn cover(dir: &Path, ours: &Path) -> Outcome {
    let below = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_PATH | nix::libc::O_DIRECTORY)
        .open(dir)
        .during(STEP)?;
    let entries: Vec<_> = fs::read_dir(dir).during(STEP)?.collect::<Result<_, _>>().during(STEP)?;
    // Its size has the default limit, half of the memory: 32 devices of 254 GIDs each need 32 MiB of it.
    mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=755")).during(STEP)?;
    let below = PathBuf::from(format!("/proc/self/fd/{}", below.as_raw_fd()));
    for entry in entries.iter().filter(|entry| Path::new(&entry.file_name()) != ours) {
        let (from, to) = (below.join(entry.file_name()), dir.join(entry.file_name()));
        let ty = entry.file_type().during(STEP)?;
        if ty.is_symlink() {
            symlink(fs::read_link(&from).during(STEP)?, to).during(STEP)?;
            continue;
        }
        if ty.is_dir() {
            fs::create_dir(&to).during(STEP)?;
        } else {
            File::create(&to).during(STEP)?;
        }
        mount_at(Some(&from), &to, MsFlags::MS_BIND | MsFlags::MS_REC)?;
    }
    Ok(())
}

fn mount_at(from: Option<&Path>, to: &Path, flags: MsFlags) -> Outcome {
    mount(from, to, None::<&str>, flags, None::<&str>)
        .map_err(|error| Failure::new(format!("{STEP}: {}: {error}", to.display())))
}

/// Writes the sysfs files of a RoCE device, with their current values.
fn describe(context: &Context, to: &Path) -> Outcome {
    let write = |path: &str, text: &str| {
        let path = to.join(path);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(path, format!("{text}\n"))).during(STEP)
    };
    let device = context.device();
    for path in device.sysfs_files() {
        device.sysfs_file(&path).map_or(Ok(()), |text| write(&path, &text))?;
    }
    let port = context.query_port();
    // The empty rows are names of one file: 250 files of a page each would take a megabyte.
    let rows = (0..port.gid_tbl_len).map(|index| format!("ports/1/gids/{index}"));
    let mut empty = rows.filter(|row| !to.join(row).exists());
    if let Some(first) = empty.next() {
        device.sysfs_file(&first).map_or(Ok(()), |text| write(&first, &text))?;
        empty.try_for_each(|row| fs::hard_link(to.join(&first), to.join(row))).during(STEP)?;
    }
    let active = port.active;
    write("ports/1/state", if active { "4: ACTIVE" } else { "1: DOWN" })?;
    let phys_state = match (active, port.is_enabled) {
        (true, _) => "5: LinkUp",
        (false, true) => "2: Polling",
        (false, false) => "3: Disabled",
    };
    write("ports/1/phys_state", phys_state)?;
    // The bus device of the netdev, as for a NIC. A virtual netdev has none, and that of virtio no NUMA node.
    let netdev = &device.gids().netdev;
    let class = Path::new("/sys/class/net").join(netdev);
    let bus = class.join("device").canonicalize().ok();
    if let Some(bus) = bus.as_ref().filter(|bus| bus.join("numa_node").exists()) {
        return symlink(bus, to.join("device")).during(STEP);
    }
    let above = bus.iter().flat_map(|bus| bus.ancestors());
    let node = above.filter_map(|dir| fs::read_to_string(dir.join("numa_node")).ok()).next();
    write("device/numa_node", node.as_deref().map_or("-1", str::trim))?;
    fs::create_dir_all(to.join("device/net")).during(STEP)?;
    symlink(class, to.join("device/net").join(netdev)).during(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_existing_parent_is_covered_and_never_the_root() {
        let parent = |path| existing_parent(Path::new(path)).map_err(|failure| failure.what);
        assert_eq!(parent("/proc/self/a"), Ok((Path::new("/proc/self"), Path::new("a"))));
        assert_eq!(parent("/proc/a/b/c"), Ok((Path::new("/proc"), Path::new("a"))));
        let error = parent("/roxie-is-not-here/a").expect_err("nothing to cover");
        assert!(error.contains("the directory /roxie-is-not-here does not exist"), "{error}");
    }
}
