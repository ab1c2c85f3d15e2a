//! The options of `roxie run`, which `pair`, `check` and `trace` have, too, and the environment of a command.

use std::ffi::OsString;

use clap::{Args as ClapArgs, ValueEnum};

use crate::chaos::{ChaosArgs, Chosen};
use crate::elf::Elf;
use crate::failure::Outcome;
use crate::nic_args::NicArgs;
use crate::program::found;
use crate::recording::RecordingArgs;
use crate::{device_files, devinfo, env, need};

/// When a command gets device files.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum When {
    /// If it probably needs them.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Run a program that sees the devices
///
/// Starts COMMAND with roxie's libibverbs.so.1 and librdmacm.so.1 in front of the system's. roxie replaces
/// itself with the command (exec), so process id, standard streams, signals and exit status are those of
/// the command. With --capture it stays, passes signals on and ends with the command's exit status, 128 + N
/// if signal N ended it.
///
/// A program that contains its libraries ('roxie self bundle') unpacks them into a private directory under
/// XDG_RUNTIME_DIR, TMPDIR or /tmp, or under XDG_CACHE_HOME if libraries cannot be loaded there. Otherwise
/// roxie looks for them beside this executable ('cargo build --release' puts them there) and in
/// ../lib/roxie. It links their names into a private directory, which is first in LD_LIBRARY_PATH. LD_AUDIT
/// names a library that also replaces copies of
/// libibverbs and librdmacm which a program brings along: under names with a hash, as in Python wheels,
/// through RPATH or RUNPATH, or opened by path. A line on standard error says so. This has no effect on
/// setuid and statically linked programs, and with another C library than glibc; a warning says so. The
/// program rdma of iproute2 shows roxie's devices, because that library has its netlink requests answered.
/// Programs started by this command do not see real RDMA hardware.
///
/// If neither the command nor a program that it started opened the device, a line on standard error says
/// so when the command ends, with the RDMA libraries that were loaded; not for tools that only show devices
/// (ibv_devices, ibv_devinfo, ibstat), nor inside another 'roxie run'.
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("help/run.txt"))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) nic: NicArgs,
    #[command(flatten)]
    pub(crate) chaos: ChaosArgs,
    #[command(flatten)]
    pub(crate) recording: RecordingArgs,
    /// Provide /dev/infiniband and /sys/class/infiniband entries for the devices, which UCX needs
    /// [default: auto]
    ///
    /// They exist in a mount namespace of the command only. Without the privilege to create one, the
    /// command gets a user namespace as well, in which setuid programs such as sudo have no effect.
    ///
    /// auto: for programs linked to UCX or MPI, mpirun and mpiexec, Python, scripts of these, for ibstat,
    /// ibstatus, ibdev2netdev and show_gids, and if a variable UCX_... is set. on (also without a value):
    /// always. off: never.
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
          default_value = "auto", hide_default_value = true, default_missing_value = "on",
          hide_possible_values = true)]
    pub(crate) device_files: When,
    /// Do not say which library is replaced, that the command did not use RDMA, or why there is no device or
    /// no connection
    ///
    /// Also: environment variable ROXIE_QUIET, 1.
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl RunArgs {
    /// Whether `--quiet` or ROXIE_QUIET asks for fewer messages.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet || std::env::var_os("ROXIE_QUIET").is_some_and(|value| value != "0")
    }

    /// The environment of the command.
    pub(crate) fn variables(&self) -> Outcome<Vec<(&'static str, OsString)>> {
        self.chaos.check()?;
        let mut variables = env::variables(&self.nic)?;
        if let Some(Chosen::Plan(plan)) = &self.chaos.chaos {
            variables.push((roxie::chaos::VARIABLE, plan.to_string().into()));
        }
        variables.extend(self.quiet.then(|| ("ROXIE_QUIET", "1".into())));
        let elf = found(&self.command).and_then(|program| Elf::read(&program));
        if elf.is_some_and(|elf| elf.needed.iter().any(|name| is_sanitizer(name))) {
            let room = env::tunables(std::env::var_os("GLIBC_TUNABLES"), env::STATIC_TLS_OF_SANITIZER);
            variables.push(("GLIBC_TUNABLES", room));
        }
        Ok(variables)
    }

    /// Makes the files of the devices if they are wanted. Without the option a failure is not one of the
    /// command, which may do without.
    pub(crate) fn provide_device_files(&self) -> Outcome {
        let make = || device_files::make(&devinfo::open(&self.nic.device, None)?);
        match self.device_files {
            When::Off => Ok(()),
            When::On => make(),
            When::Auto => {
                let names = std::env::vars_os().map(|(name, _)| name);
                if need::device_files(&self.command, names)
                    && !device_files::exist(&devinfo::open(&self.nic.device, None)?)
                    && let Err(failure) = make()
                {
                    failure.of("no device files, which UCX and tools of NIC vendors need").print();
                }
                Ok(())
            }
        }
    }
}

fn is_sanitizer(library: &str) -> bool {
    library.starts_with("libtsan") || library.starts_with("liblsan")
}
