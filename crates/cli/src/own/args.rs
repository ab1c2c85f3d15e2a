//! The command line of `roxie self`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};
use clap_complete::Shell;

/// Install, check or remove roxie; make one file of it; manual pages and completions
#[derive(Debug, ClapArgs)]
#[command(after_long_help = include_str!("../help/self.txt"))]
pub(crate) struct OwnArgs {
    #[command(subcommand)]
    pub(super) command: OwnCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum OwnCommand {
    /// Install this program with its libraries, manual pages and shell completions
    ///
    /// Installs one file, bin/roxie, that contains the libraries, and share/man, share/bash-completion,
    /// share/zsh and share/fish. lib/roxie/manifest lists the files for 'check' and 'remove'. An older
    /// installation is replaced; running programs keep the libraries that they have loaded.
    Install(InstallArgs),
    /// Check that the installed files are unchanged, and that the libraries can be used
    Check(PrefixArgs),
    /// Remove the installed files, and unpacked libraries and hooks that no process uses
    Remove(RemoveArgs),
    /// Write a program file that contains the libraries: copying it is an installation
    ///
    /// Prints the oldest glibc with which the file runs: that of the machine on which it was built, or an
    /// older one. The file must not be stripped afterwards; strip the program and the libraries before.
    Bundle(BundleArgs),
    /// Write the manual pages, roxie.1 and one for each subcommand, into a directory
    Man {
        /// The directory; it is created if necessary
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
    /// Print the completion script of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, ClapArgs)]
pub(super) struct PrefixArgs {
    /// Directory of the installation [default: /usr/local for root, otherwise ~/.local]
    #[arg(long, value_name = "DIR")]
    pub(super) prefix: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct InstallArgs {
    /// Directory of the installation [default: /usr/local for root, otherwise ~/.local]
    #[arg(long, value_name = "DIR")]
    pub(super) prefix: Option<PathBuf>,
    /// Replace files that no installation of roxie has made
    #[arg(long)]
    pub(super) force: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct RemoveArgs {
    /// Directory of the installation [default: /usr/local for root, otherwise ~/.local]
    #[arg(long, value_name = "DIR")]
    pub(super) prefix: Option<PathBuf>,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct BundleArgs {
    /// The file to write
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Directory with roxie and the libraries [default: those of this program]
    #[arg(long, value_name = "DIR")]
    pub(super) from: Option<PathBuf>,
}
