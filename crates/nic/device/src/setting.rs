//! The settings that choose devices, and what can be wrong with them.

use std::fmt;

/// Most devices of a process. Half: tests of hosts with eight NICs of four ports do not fit. Double: engines
/// of them all would take half of 4,095 slots from 64 processes.
pub const DEVICES_MAX: usize = 32;

/// A setting that chooses devices: its option and its variable.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeviceSetting {
    /// `--netdev`, `ROXIE_NETDEV`.
    Netdev,
    /// `--name`, `ROXIE_NAME`.
    Name,
    /// `--devices`, `ROXIE_DEVICES`.
    Devices,
}

/// Why the settings choose no devices.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BadSetting {
    /// The list has an empty part.
    EmptyPart(DeviceSetting, String),
    /// This part stands twice in the list, or is the name of two devices.
    Twice(DeviceSetting, String),
    /// The list has this many parts, more than [`DEVICES_MAX`].
    TooMany(DeviceSetting, usize),
    /// The number of devices is not one from 1 to [`DEVICES_MAX`].
    NoNumber(String),
    /// There are more names than devices.
    NamesLeft {
        /// The number of names.
        names: usize,
        /// The number of devices.
        devices: usize,
    },
}

impl DeviceSetting {
    /// Returns the environment variable.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            DeviceSetting::Netdev => "ROXIE_NETDEV",
            DeviceSetting::Name => "ROXIE_NAME",
            DeviceSetting::Devices => "ROXIE_DEVICES",
        }
    }
}

/// Both names of the setting: users may have set either.
impl fmt::Display for DeviceSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = match self {
            DeviceSetting::Netdev => "--netdev",
            DeviceSetting::Name => "--name",
            DeviceSetting::Devices => "--devices",
        };
        write!(f, "{option} ({})", self.variable())
    }
}

impl BadSetting {
    /// Returns what the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            BadSetting::EmptyPart(..) => "separate the parts by one comma: a,b".to_owned(),
            BadSetting::Twice(DeviceSetting::Netdev, _) => {
                "name each interface once; --devices N makes several devices on one".to_owned()
            }
            BadSetting::Twice(..) => "give each device a name of its own".to_owned(),
            BadSetting::TooMany(..) | BadSetting::NoNumber(_) => {
                format!("a process has 1 to {DEVICES_MAX} devices")
            }
            BadSetting::NamesLeft { .. } => "give at most one name for each device".to_owned(),
        }
    }
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadSetting::EmptyPart(setting, list) => {
                write!(f, "{setting} is '{list}', which has an empty part")
            }
            BadSetting::Twice(setting, part) => write!(f, "{setting} has '{part}' twice"),
            BadSetting::TooMany(setting, parts) => write!(f, "{setting} lists {parts} devices"),
            BadSetting::NoNumber(text) => {
                write!(f, "{} is '{text}', which is not a number of devices", DeviceSetting::Devices)
            }
            BadSetting::NamesLeft { names, devices } => {
                write!(f, "{} has {names} names for {devices} device(s)", DeviceSetting::Name)
            }
        }
    }
}

impl std::error::Error for BadSetting {}
