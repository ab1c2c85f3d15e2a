//! The settings that choose devices, and what can be wrong with them.

use std::fmt;

/// Most devices of a process. Half: tests of hosts with eight NICs of four ports do not fit. Double: engines
/// of them all would take half of 4,095 slots from 64 processes.
pub const DEVICES_MAX: usize = 32;

/// A setting that chooses devices.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DeviceSetting {
    /// Its value; an empty one is not set.
    pub value: String,
    /// What the user gave, for messages: `--device 'a=eth0'`, `ROXIE_NAME='a,b'`.
    pub given: String,
}

/// Why the settings choose no devices. The first part is what the user gave.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BadSetting {
    /// The list has an empty part.
    EmptyPart(String),
    /// This interface stands twice in the list.
    NetdevTwice(String, String),
    /// This is the name of two devices, maybe because names count on from the last.
    NameTwice(String, String),
    /// The list has this many parts, more than [`DEVICES_MAX`].
    TooMany(String, usize),
    /// The number of devices is not one from 1 to [`DEVICES_MAX`].
    NoNumber(String),
    /// There are this many names, more than this many devices.
    NamesLeft(String, usize, usize),
    /// The order of the GID table is none that there is.
    NoGidOrder(String),
}

impl DeviceSetting {
    /// Returns the setting with this value of an option.
    #[must_use]
    pub fn of_option(option: &str, value: String) -> DeviceSetting {
        DeviceSetting { given: format!("{option} '{value}'"), value }
    }

    /// Takes the setting from the environment.
    #[must_use]
    pub fn from_env(variable: &str) -> DeviceSetting {
        let value = std::env::var(variable).unwrap_or_default();
        DeviceSetting { given: format!("{variable}='{value}'"), value }
    }
}

impl BadSetting {
    /// Returns what the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            BadSetting::EmptyPart(..) => "separate the parts by one comma: a,b".to_owned(),
            BadSetting::NetdevTwice(..) => {
                "name each interface once; --netdev IF --devices N makes several devices on one".to_owned()
            }
            BadSetting::NameTwice(..) => "give each device a name of its own".to_owned(),
            BadSetting::TooMany(..) | BadSetting::NoNumber(_) => {
                format!("a process has 1 to {DEVICES_MAX} devices")
            }
            BadSetting::NamesLeft(..) => "give at most one name for each device".to_owned(),
            BadSetting::NoGidOrder(_) => "'ipv4' or 'kernel'".to_owned(),
        }
    }
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadSetting::EmptyPart(given) => write!(f, "{given} has an empty part"),
            BadSetting::NetdevTwice(given, part) => write!(f, "{given} has '{part}' twice"),
            BadSetting::NameTwice(given, part) => write!(f, "{given} gives two devices the name '{part}'"),
            BadSetting::TooMany(given, parts) => write!(f, "{given} lists {parts} devices"),
            BadSetting::NoNumber(given) => write!(f, "{given} is not a number of devices"),
            BadSetting::NoGidOrder(given) => write!(f, "{given} is no order of the GID table"),
            BadSetting::NamesLeft(given, names, devices) => {
                write!(f, "{given} has {names} names for {devices} device(s)")
            }
        }
    }
}

impl std::error::Error for BadSetting {}
