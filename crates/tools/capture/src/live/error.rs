//! Why a live capture cannot start.

use std::error::Error;
use std::fmt;
use std::io;

use roxie_hook::control::ControlError;
use sys::bpf::LoadError;

/// Why a live capture cannot start.
#[derive(Debug)]
pub enum LiveError {
    /// There is no network interface of this name in the network namespace.
    NoInterface {
        /// The name.
        name: String,
        /// Names of the interfaces that exist.
        known: Vec<String>,
    },
    /// The interface is neither Ethernet nor loopback.
    NotEthernet(String),
    /// The driver of the interface tells programs nothing about received packets.
    NoHints {
        /// The interface.
        name: String,
    },
    /// The filter names more addresses than a tap of an interface compares.
    TooManyHosts {
        /// Largest number of addresses.
        max: usize,
    },
    /// The interface has a queueing discipline `ingress`, which excludes filters for outgoing packets.
    IngressQdisc {
        /// The interface.
        name: String,
        /// The error of the kernel.
        error: io::Error,
    },
    /// A step of the setup failed.
    Setup {
        /// What was being done.
        step: String,
        /// The error of the kernel, or of the program's assembler.
        error: Box<dyn Error + Send + Sync>,
    },
    /// No device of this process was found in the network namespace.
    NoDevice {
        /// The process.
        pid: u32,
    },
    /// No device of this process is on the interface.
    NoDeviceOn {
        /// The process.
        pid: u32,
        /// The interface.
        name: String,
        /// The interfaces that it has devices on.
        known: Vec<String>,
    },
    /// The connection to a device of the process failed.
    Connect {
        /// The process.
        pid: u32,
        /// The error of the kernel; `EPERM` if the process belongs to another user.
        error: io::Error,
    },
    /// A device of the process did not start the tap.
    Refused {
        /// The process.
        pid: u32,
        /// The answer of the device.
        error: ControlError,
    },
}

impl LiveError {
    /// What the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NoInterface { known, .. } => Some(format!("interfaces: {}", known.join(", "))),
            Self::NoDeviceOn { known, .. } => Some(format!("its devices are on {}", known.join(", "))),
            Self::IngressQdisc { .. } => Some(
                "its queueing discipline for incoming packets is 'ingress', which has no egress filters: \
                 replace it by clsact"
                    .to_owned(),
            ),
            Self::Refused { error, .. } => error.remedy(),
            Self::NoHints { .. } => Some(
                "capture without --nic-time: the times are then those of the network stack ('roxie doctor' \
                 lists the receive hints of each interface)"
                    .to_owned(),
            ),
            Self::Setup { error, .. } if lacks_privileges(&**error) => Some(
                "capture as root, read a file of 'tcpdump -w', or capture a process of yours that runs on \
                 roxie: 'roxie capture record -p PID'"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

fn lacks_privileges(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let refused = error.downcast_ref::<LoadError>();
    refused.is_some_and(|refused| refused.error.raw_os_error() == Some(nix::libc::EPERM))
}

impl fmt::Display for LiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInterface { name, .. } => write!(f, "no network interface called '{name}'"),
            Self::NotEthernet(name) => write!(f, "{name} is not an Ethernet interface"),
            Self::NoHints { name } => {
                write!(f, "{name}: its driver has no receive hints (Linux 6.3), so there is no receive time")
            }
            Self::TooManyHosts { max } => {
                write!(f, "too many addresses: a capture of an interface compares at most {max}")
            }
            Self::IngressQdisc { name, error } => write!(f, "attaching filters to {name}: {error}"),
            Self::Setup { step, error } => write!(f, "{step}: {error}"),
            Self::NoDevice { pid } => write!(f, "process {pid} has no device of roxie"),
            Self::NoDeviceOn { pid, name, .. } => write!(f, "process {pid} has no device on {name}"),
            Self::Connect { pid, error } => write!(f, "process {pid}: {error}"),
            Self::Refused { pid, error } => write!(f, "process {pid}: {error}"),
        }
    }
}

impl Error for LiveError {}

impl From<io::Error> for LiveError {
    fn from(error: io::Error) -> Self {
        Self::Setup { step: "starting the capture".to_owned(), error: error.into() }
    }
}

/// Names the step in which an error happened.
pub(super) trait During<T> {
    /// [`LiveError::Setup`] with this step.
    fn during(self, step: &str) -> Result<T, LiveError>;
}

impl<T, E: Into<Box<dyn Error + Send + Sync>>> During<T> for Result<T, E> {
    fn during(self, step: &str) -> Result<T, LiveError> {
        self.map_err(|error| LiveError::Setup { step: step.to_owned(), error: error.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_privileges_the_remedy_names_captures_that_need_none() {
        let remedy = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            let error = LoadError { map: None, error, log: String::new() };
            Err::<(), _>(error).during("loading").expect_err("an error").remedy()
        };
        assert!(remedy(nix::libc::EPERM).is_some_and(|text| text.contains("roxie capture record -p PID")));
        assert_eq!(remedy(nix::libc::EINVAL), None);
    }
}
