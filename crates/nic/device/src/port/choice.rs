//! Which port a device is to have.

use std::env;
use std::fmt;

use crate::variable::BadVariable;
use crate::xdp::Mode;
use sys::XdpMode;

/// The requested kind of port, and its options.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortChoice {
    /// The kind.
    pub kind: PortKind,
    /// Where the steering program runs, if there is one.
    pub mode: Mode,
    /// How packets to other processes of this host and user travel.
    pub local: LocalPath,
}

/// How packets reach other processes of this host and user.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LocalPath {
    /// Through rings in shared memory.
    #[default]
    Shm,
    /// Through the kernel, like all other packets.
    Network,
}

/// Kinds of ports.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PortKind {
    /// UDP sockets: everywhere, without privileges.
    #[default]
    Udp,
    /// AF_XDP, or an error if that is not possible; UDP sockets if another process uses AF_XDP on the
    /// interface already.
    Xsk,
    /// AF_XDP if it is possible here, else UDP sockets.
    Auto,
}

/// The words that a variable may contain, and their meanings.
type Words<T> = (&'static [&'static str], &'static [T]);

const KIND: Words<PortKind> = (&["udp", "xsk", "auto"], &[PortKind::Udp, PortKind::Xsk, PortKind::Auto]);
const MODE: Words<Mode> = (
    &["auto", "native", "generic"],
    &[Mode::Auto, Mode::Only(XdpMode::Native), Mode::Only(XdpMode::Generic)],
);

const LOCAL: Words<LocalPath> = (&["on", "off"], &[LocalPath::Shm, LocalPath::Network]);

impl PortChoice {
    /// Valid values of `ROXIE_SHM`.
    pub const SHM: &[&str] = LOCAL.0;
    /// Valid values of `ROXIE_PORT`.
    pub const KINDS: &[&str] = KIND.0;
    /// Valid values of `ROXIE_XDP_MODE`.
    pub const MODES: &[&str] = MODE.0;

    /// Reads `ROXIE_PORT`, `ROXIE_XDP_MODE` and `ROXIE_SHM`; the defaults of unset or empty ones are
    /// `udp`, `auto` and `on`.
    ///
    /// # Errors
    /// The variable that has another value.
    pub fn from_env() -> Result<PortChoice, BadVariable> {
        PortChoice::from_words(None, None, None)
    }

    /// Like [`from_env`](PortChoice::from_env), with arguments that override the variables.
    ///
    /// # Errors
    /// The variable that has another value.
    pub fn from_words(
        kind: Option<&str>,
        mode: Option<&str>,
        shm: Option<&str>,
    ) -> Result<PortChoice, BadVariable> {
        let get = |given: Option<&str>, name| match given {
            Some(word) => word.to_owned(),
            None => env::var_os(name).unwrap_or_default().to_string_lossy().into_owned(),
        };
        Ok(PortChoice {
            kind: word("ROXIE_PORT", &get(kind, "ROXIE_PORT"), KIND)?,
            mode: word("ROXIE_XDP_MODE", &get(mode, "ROXIE_XDP_MODE"), MODE)?,
            local: word("ROXIE_SHM", &get(shm, "ROXIE_SHM"), LOCAL)?,
        })
    }
}

impl fmt::Display for LocalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LocalPath::Shm => "shared memory",
            LocalPath::Network => "the same",
        })
    }
}

fn word<T: Copy + Default>(name: &'static str, value: &str, known: Words<T>) -> Result<T, BadVariable> {
    let (words, meanings) = known;
    if value.is_empty() {
        return Ok(T::default());
    }
    let found = words.iter().position(|word| **word == *value).and_then(|at| meanings.get(at));
    found.copied().ok_or_else(|| BadVariable::new(name, value, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_words_are_parsed_and_others_are_reported_by_name() {
        let kind = |value: &str| word("ROXIE_PORT", value, KIND);
        let mode = |value: &str| word("ROXIE_XDP_MODE", value, MODE);
        assert_eq!(
            [kind(""), kind("udp"), kind("xsk"), kind("auto")],
            [Ok(PortKind::Udp), Ok(PortKind::Udp), Ok(PortKind::Xsk), Ok(PortKind::Auto)]
        );
        let shm = |value: &str| word("ROXIE_SHM", value, LOCAL);
        assert_eq!([shm(""), shm("off")], [Ok(LocalPath::Shm), Ok(LocalPath::Network)]);
        assert_eq!([mode(""), mode("generic")], [Ok(Mode::Auto), Ok(Mode::Only(XdpMode::Generic))]);
        assert_eq!(kind("Xsk").unwrap_err().to_string(), "ROXIE_PORT=Xsk is none of udp, xsk, auto");
        assert_eq!(
            mode("offload").unwrap_err().to_string(),
            "ROXIE_XDP_MODE=offload is none of auto, native, generic"
        );
    }
}
