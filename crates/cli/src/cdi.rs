//! `roxie cdi`: gives the device to containers by the Container Device Interface (CDI), so that images need
//! not contain roxie. Podman, containerd and CRI-O read such files in /etc/cdi.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use nix::unistd::Uid;
use serde_json::{Value, json};
use sys::Dir;

use crate::env;
use crate::failure::{During, Failure, Outcome};
use crate::library::{AUDIT, Libraries};
use crate::nic_args::DeviceArgs;
use crate::{output, own, terminal};

/// Vendor and class of the device. Users write `roxie/rdma=roxie0`.
const KIND: &str = "roxie/rdma";
/// Version of the specification that has all that the file uses.
const CDI_VERSION: &str = "0.3.0";
/// Where containers find the program and the libraries.
const INSIDE: &str = "/opt/roxie";

/// Print a CDI specification, which gives containers the device
///
/// Copies the program and its libraries into a directory, and prints a specification (JSON) that mounts this
/// directory into containers at /opt/roxie and sets the variables of 'roxie env'. Images need glibc and
/// nothing of roxie. The device has the network interface of the container.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/cdi.txt"))]
pub(crate) struct CdiArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Directory for the program and the libraries [default: /var/lib/roxie for root, otherwise
    /// ~/.local/share/roxie/cdi]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the specification to this file instead of standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Copies the files and prints the specification.
pub(crate) fn run(args: &CdiArgs) -> Outcome {
    args.device.check()?;
    let device = args.device.first_name()?;
    let dir = match &args.dir {
        Some(dir) => std::path::absolute(dir).reading(dir)?,
        None => default_dir()?,
    };
    let is_new = !dir.exists();
    let dir = output::trusted_dir(&dir)?;
    if is_new {
        // Users of containers are others than this one.
        dir.set_mode(0o755).writing(dir.path())?;
    }
    fill(&dir)?;
    let text = format!("{:#}\n", specification(dir.path(), &args.device, &device));
    let Some(file) = &args.output else {
        terminal::json(&text.trim_end());
        return Ok(());
    };
    let parent = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = file.file_name().ok_or_else(|| Failure::new("--output names no file"))?;
    // Container engines take what to mount from this file.
    output::trusted_dir(parent)?.replace(name, text.as_bytes(), 0o644).writing(file)?;
    terminal::print(&format!("wrote {}: {KIND}={device}", file.display()));
    Ok(())
}

fn default_dir() -> Outcome<PathBuf> {
    if Uid::effective().is_root() {
        return Ok("/var/lib/roxie".into());
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let home = home.ok_or_else(|| Failure::new("HOME is not set").hint("give the directory with --dir"))?;
    Ok(home.join(".local/share/roxie/cdi"))
}

/// Writes the libraries under the names that programs load, and the program with its libraries inside.
fn fill(dir: &Dir) -> Outcome {
    let libraries = Libraries::find()?;
    let write = |name: &str, bytes: &[u8]| {
        dir.replace(OsStr::new(name), bytes, 0o755).writing(&dir.path().join(name))
    };
    for (names, bytes) in libraries.by_names()? {
        let (first, others) = names.split_first().expect("each library has a name");
        write(first, &bytes)?;
        for other in others {
            // Links: the loader would load a second file as a second device.
            dir.point(OsStr::new(other), Path::new(first))
                .during(&format!("linking {}", dir.path().join(other).display()))?;
        }
    }
    write("roxie", &own::with_libraries(&libraries)?)
}

/// The specification of a directory on this machine. Container engines know it by the name of the first
/// device.
fn specification(dir: &Path, device: &DeviceArgs, name: &str) -> Value {
    let mut variables = vec![
        format!("LD_LIBRARY_PATH={INSIDE}"),
        format!("LD_AUDIT={INSIDE}/{AUDIT}"),
        format!("GLIBC_TUNABLES={}", env::tunables(None, env::STATIC_TLS).to_string_lossy()),
    ];
    let named = device.words().into_iter();
    variables.extend(named.filter_map(|(variable, word)| Some(format!("{variable}={}", word?))));
    json!({
        "cdiVersion": CDI_VERSION,
        "kind": KIND,
        "devices": [{
            "name": name,
            "containerEdits": {
                "env": variables,
                "mounts": [{
                    "hostPath": dir,
                    "containerPath": INSIDE,
                    "options": ["ro", "nosuid", "nodev", "bind"],
                }],
            },
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_mounts_the_directory_and_sets_the_variables() {
        let device = DeviceArgs {
            netdev: Some("eth0".to_owned()),
            name: Some("rxe".to_owned()),
            devices: Some("2".to_owned()),
            ..DeviceArgs::default()
        };
        let value = specification(Path::new("/srv/x"), &device, &device.first_name().unwrap());
        assert_eq!(value["kind"], "roxie/rdma");
        let device = &value["devices"][0];
        assert_eq!(device["name"], "rxe0");
        let edits = &device["containerEdits"];
        assert_eq!(edits["mounts"][0]["hostPath"], "/srv/x");
        assert_eq!(edits["mounts"][0]["containerPath"], "/opt/roxie");
        let expected = [
            "LD_LIBRARY_PATH=/opt/roxie",
            "LD_AUDIT=/opt/roxie/libroxie_audit.so",
            "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=8192",
            "ROXIE_NETDEV=eth0",
            "ROXIE_NAME=rxe",
            "ROXIE_DEVICES=2",
        ];
        assert_eq!(edits["env"], json!(expected));
    }
}
