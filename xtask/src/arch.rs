//! The architectures of the packages, and their names in each format.

use std::path::PathBuf;
use std::process::Command;

use crate::shell::{Outcome, exists};

/// An architecture.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Arch {
    /// Name in `uname -m`, in .rpm and in wheels.
    pub(crate) name: &'static str,
    /// Name in .deb.
    pub(crate) deb: &'static str,
    /// Target of rustc.
    pub(crate) target: &'static str,
    /// The oldest C library on which the packages run.
    pub(crate) glibc: &'static str,
}

/// 2.28: the C library of Debian 10 and RHEL 8; `memfd_create` needs 2.27. rustc needs 2.29 on RISC-V,
/// and zig's unwinder 2.32 on Power (`__fprintfieee128`).
pub(crate) const ALL: [Arch; 4] = [
    Arch { name: "x86_64", deb: "amd64", target: "x86_64-unknown-linux-gnu", glibc: "2.28" },
    Arch { name: "aarch64", deb: "arm64", target: "aarch64-unknown-linux-gnu", glibc: "2.28" },
    Arch { name: "ppc64le", deb: "ppc64el", target: "powerpc64le-unknown-linux-gnu", glibc: "2.32" },
    Arch { name: "riscv64", deb: "riscv64", target: "riscv64gc-unknown-linux-gnu", glibc: "2.29" },
];

impl Arch {
    /// The architecture with this name.
    pub(crate) fn named(name: &str) -> Outcome<&'static Self> {
        ALL.iter().find(|arch| arch.name == name).ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|arch| arch.name).collect();
            format!("unknown architecture {name}; known are {}", names.join(", "))
        })
    }

    /// The architecture of this machine.
    pub(crate) fn host() -> Outcome<&'static Self> {
        Self::named(match std::env::consts::ARCH {
            "powerpc64" => "ppc64le",
            other => other,
        })
    }

    /// Runs a program of this architecture, emulated if necessary, with the C library of a cross package.
    pub(crate) fn command(&self, program: PathBuf) -> Outcome<Command> {
        if *self == *Self::host()? {
            return Ok(Command::new(program));
        }
        let qemu = format!("qemu-{}-static", self.name);
        if !exists(&qemu) {
            return Err(format!("packages for {} need {qemu} (Debian: qemu-user-static)", self.name));
        }
        let mut command = Command::new(qemu);
        command.arg("-L").arg(self.sysroot()).arg(program);
        Ok(command)
    }

    /// Where Debian's cross packages have the C library.
    fn sysroot(&self) -> String {
        format!("/usr/{}", self.target.replace("-unknown", "").replace("riscv64gc", "riscv64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_targets_and_to_the_sysroots_of_debian() {
        let of = |name| Arch::named(name).map(|arch| (arch.deb, arch.sysroot()));
        assert_eq!(of("aarch64"), Ok(("arm64", "/usr/aarch64-linux-gnu".to_owned())));
        assert_eq!(of("ppc64le"), Ok(("ppc64el", "/usr/powerpc64le-linux-gnu".to_owned())));
        assert_eq!(of("riscv64"), Ok(("riscv64", "/usr/riscv64-linux-gnu".to_owned())));
        let error = Arch::named("i686").expect_err("an unknown name");
        assert!(error.contains("x86_64, aarch64"), "{error}");
    }
}
