//! `roxie lab exec`: replaces itself with a program on a host of the lab.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use super::args::ExecArgs;
use super::spec::NETDEV;
use super::state::{Host, State, directory, hosts_file};
use crate::failure::{During, Failure, Outcome};
use crate::nic_args::NicArgs;
use crate::{env, need, program, user_namespace};

/// Executes the command; returns only if that failed.
pub(super) fn exec(args: &ExecArgs) -> Outcome {
    let Some(state) = State::load(&args.lab)? else { return Err(super::no_lab(&args.lab)) };
    let Some(host) = state.hosts_up.iter().find(|host| host.name == args.host) else {
        let names: Vec<&str> = state.hosts_up.iter().map(|host| host.name.as_str()).collect();
        return Err(Failure::new(format!("lab '{}' has no host '{}'", args.lab, args.host))
            .hint(format!("there are: {}", names.join(", "))));
    };
    if !args.run && need::verbs(&args.command) && std::env::var_os("LD_AUDIT").is_none() {
        let hint = "has no device of roxie on this host: put --run in front of it";
        roxie::notice(format_args!("{} {hint}", args.command[0].to_string_lossy()));
    }
    // Before the namespaces are entered: the libraries' directory belongs to the user outside.
    let mut variables = if args.run { device_variables()? } else { Vec::new() };
    if state.user_namespace && !roxie::private_dir::has_runtime_dir() {
        // Inside, the user id is 0, and the default directory of user 0 is another one.
        let own = directory()?.path().parent().map(OsString::from);
        variables.extend(own.map(|own| ("XDG_RUNTIME_DIR", own)));
    }
    enter(&state, host)?;
    program::become_command(&args.command, variables)
}

fn device_variables() -> Outcome<Vec<(&'static str, OsString)>> {
    let mut variables = env::variables(&NicArgs::default())?;
    variables.push(("ROXIE_NETDEV", NETDEV.into()));
    Ok(variables)
}

fn enter(state: &State, host: &Host) -> Outcome {
    let entering = || format!("entering {}", host.name);
    let net = File::open(state.namespace(host)).during(&entering())?;
    let hosts = hosts_file(&state.spec.name)?;
    if state.user_namespace {
        let user = File::open(format!("/proc/{}/ns/user", state.pid)).during(&entering())?;
        user_namespace::wait_until_alone();
        setns(user, CloneFlags::CLONE_NEWUSER).during(&entering())?;
    }
    setns(net, CloneFlags::CLONE_NEWNET).during(&entering())?;
    unshare(CloneFlags::CLONE_NEWNS).during("making a mount namespace")?;
    const NOTHING: Option<&Path> = None;
    let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(NOTHING, "/", NOTHING, slave, NOTHING).during("making mounts private")?;
    // /sys shows the network namespace of the process that mounts it. Where mounting it is not allowed (a
    // container with parts of /sys hidden), /sys stays that of the machine, which few programs read.
    if mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), NOTHING).is_err() {
        let _busy = umount2("/sys", MntFlags::MNT_DETACH);
        let _hidden = mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), NOTHING);
    }
    if Path::new("/etc/hosts").exists() {
        mount(Some(&hosts), "/etc/hosts", NOTHING, MsFlags::MS_BIND, NOTHING)
            .during("putting the hosts' names into /etc/hosts")?;
    }
    Ok(())
}
