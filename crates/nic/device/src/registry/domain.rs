//! The domain: name, port and users.

use wire::ROCE_PORT;

use super::identity::{Peer, Relation};
use crate::variable::BadVariable;

/// First part of every abstract name of the default domain. The number is that of the layout of the
/// group and of its records: processes of two versions cannot share a port.
const DOMAIN: &str = "roxie/2";

/// Name, port and users of the domain that a process joins.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DomainConfig {
    /// First part of every abstract Unix name, `roxie/2` by default.
    pub name: String,
    /// The UDP port on which the domain receives.
    pub udp_port: u16,
    /// Additional users (besides the process's own user and root) that may be members. Each user must name
    /// the others. Such users can read and disturb the traffic of this process. The process's own user may
    /// be in the list: then its processes in other user namespaces may be members, too.
    pub allow_uids: Vec<u32>,
    /// Queue pair numbers are less than 65,535, those of the first 15 slots.
    pub small_qpns: bool,
}

/// Slots with small queue pair numbers. The next one has 65,535, which drivers with tables of 65,535 entries
/// cannot keep (QEMU's `dev-caps-max-qp` is a 16-bit number).
pub(super) const SMALL_SLOTS: u16 = 15;

impl Default for DomainConfig {
    fn default() -> DomainConfig {
        DomainConfig {
            name: DOMAIN.to_owned(),
            udp_port: ROCE_PORT,
            allow_uids: Vec::new(),
            small_qpns: false,
        }
    }
}

impl DomainConfig {
    /// Returns the default domain, or a private one if `ROXIE_DOMAIN=name[:port]` is set. `ROXIE_USERS` lists
    /// the additional users; `ROXIE_QPNS=small` asks for small queue pair numbers.
    ///
    /// # Errors
    /// The variable that cannot be parsed.
    pub fn from_env() -> Result<DomainConfig, BadVariable> {
        const WORDS: &[&str] = &["NAME or NAME:PORT"];
        let text = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let domain = match text("ROXIE_DOMAIN") {
            None => DomainConfig::default(),
            Some(text) => {
                let parsed = DomainConfig::parse(&text);
                parsed.ok_or_else(|| BadVariable::new("ROXIE_DOMAIN", &text, WORDS))?
            }
        };
        let allow_uids = parse_users(&text("ROXIE_USERS").unwrap_or_default())?;
        let small_qpns = match text("ROXIE_QPNS").as_deref() {
            None | Some("" | "any") => false,
            Some("small") => true,
            Some(other) => return Err(BadVariable::new("ROXIE_QPNS", other, &["any", "small"])),
        };
        Ok(DomainConfig { allow_uids, small_qpns, ..domain })
    }

    /// Parses `name[:port]`; the name is 1 to 32 letters, digits, `-`, `_` or `.`.
    #[must_use]
    pub fn parse(text: &str) -> Option<DomainConfig> {
        let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 32 || !name.chars().all(is_plain) {
            return None;
        }
        let udp_port = match port {
            None => ROCE_PORT,
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        };
        Some(DomainConfig { name: format!("{DOMAIN}:{name}"), udp_port, ..DomainConfig::default() })
    }

    /// True if names show members of another version of roxie in this network namespace.
    pub(super) fn is_used_by_another_version(&self) -> bool {
        let Some(suffix) = self.name.strip_prefix(DOMAIN) else { return false };
        let is_member = |name: &String| {
            let rest = name.strip_prefix("roxie/").and_then(|rest| rest.split_once('/'));
            let Some((domain, _)) = rest.filter(|(_, rest)| rest.contains("/slot/")) else { return false };
            let is_number = |version: &str| version.parse::<u32>().is_ok();
            let has_suffix = domain.strip_suffix(suffix).is_some_and(is_number);
            has_suffix && !name.starts_with(&format!("{}/", self.name))
        };
        sys::abstract_names("roxie/").iter().any(is_member)
    }

    /// True if this process may claim the slot.
    pub(super) fn takes(&self, slot: u16) -> bool {
        !self.small_qpns || slot < SMALL_SLOTS
    }

    /// True if this process may be a member.
    pub(super) fn admits(&self, peer: Peer) -> bool {
        match peer.relation {
            Relation::Same | Relation::Root => true,
            Relation::Other => self.allow_uids.contains(&peer.credentials.uid),
            Relation::Unknown => false,
        }
    }
}

/// Parses user ids separated by commas; an empty text is an empty list.
fn parse_users(text: &str) -> Result<Vec<u32>, BadVariable> {
    const WORDS: &[&str] = &["a list of user ids, such as 1000,1001"];
    let words = text.split(',').map(str::trim).filter(|_| !text.is_empty());
    let users = words.map(|word| word.parse::<u32>().ok()).collect::<Option<_>>();
    users.ok_or_else(|| BadVariable::new("ROXIE_USERS", text, WORDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_user_ids_separated_by_commas() {
        let users = |text| parse_users(text).ok();
        assert_eq!(
            [users(""), users("0"), users("1000, 1001")],
            [vec![], vec![0], vec![1000, 1001]].map(Some)
        );
        for bad in [",", "1000,", "root", "-1", "4294967296"] {
            assert_eq!(users(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_environment_names_a_private_domain() {
        let domain = DomainConfig::parse("test-1:9999").unwrap();
        assert_eq!((domain.name.as_str(), domain.udp_port), ("roxie/2:test-1", 9999));
        assert_eq!(DomainConfig::parse("x").unwrap().udp_port, 4791);
        for bad in ["", ":1", "a/b", "x:0", "x:65536", "x:", &"x".repeat(33)] {
            assert_eq!(DomainConfig::parse(bad), None, "{bad}");
        }
    }
}
