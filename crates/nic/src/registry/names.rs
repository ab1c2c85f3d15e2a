//! The abstract names of a group of members: `<domain>/<group>/slot/<slot>` and `<domain>/<group>/svc/...`.
//!
//! The group is a random number, chosen by the process that creates the socket set. Later processes find the
//! group by its names in /proc/net/unix, and ask the kernel for their owners. So names that a process of
//! another user takes do not stop a new group: it has other names.

use std::fmt;

use super::{DomainConfig, SLOTS};

/// The names of one group.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct GroupNames {
    /// `<domain>/<group>`
    prefix: String,
}

/// Hexadecimal digits of a group.
const GROUP_DIGITS: usize = 16;

impl GroupNames {
    /// Names that no other group has.
    pub(super) fn new(config: &DomainConfig) -> GroupNames {
        GroupNames { prefix: format!("{}/{:016x}", config.name, sys::random_u64()) }
    }

    /// The name of a slot.
    pub(super) fn slot(&self, slot: u8) -> String {
        format!("{self}/slot/{slot}")
    }

    /// Start of the names of the services with this port space and port.
    pub(super) fn services(&self, port_space: u16, port: u16) -> String {
        format!("{self}/svc/{port_space:04x}/{port:04x}/")
    }

    /// The slots of all groups of a domain that have an owner in this network namespace, in random order.
    pub(super) fn slots_in_use(config: &DomainConfig) -> Vec<(GroupNames, u8)> {
        let prefix = format!("{}/", config.name);
        let names = sys::abstract_names(&prefix);
        let mut slots: Vec<_> = names.iter().filter_map(|name| Self::parse_slot(config, name)).collect();
        slots.sort_unstable();
        // A name is listed once for the listener and once for each connection.
        slots.dedup();
        if !slots.is_empty() {
            let first = sys::random_u64() as usize % slots.len();
            slots.rotate_left(first);
        }
        slots
    }

    fn parse_slot(config: &DomainConfig, name: &str) -> Option<(GroupNames, u8)> {
        let rest = name.strip_prefix(&config.name)?.strip_prefix('/')?;
        let (group, slot) = rest.split_once("/slot/")?;
        let is_group = group.len() == GROUP_DIGITS && u64::from_str_radix(group, 16).is_ok();
        let slot = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
        is_group.then(|| (GroupNames { prefix: format!("{}/{group}", config.name) }, slot))
    }
}

impl fmt::Display for GroupNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_slot_leads_back_to_its_group() {
        let config = DomainConfig::default();
        let group = GroupNames::new(&config);
        assert_eq!(GroupNames::parse_slot(&config, &group.slot(7)), Some((group.clone(), 7)));
        assert_ne!(GroupNames::new(&config), group);
        for other in
            ["roxie/1/slot/7", "roxie/1/hook/7/3/0123456789abcdef", "roxie/1:x/0123456789abcdef/slot/7"]
        {
            assert_eq!(GroupNames::parse_slot(&config, other), None, "{other}");
        }
        assert_eq!(GroupNames::parse_slot(&config, &format!("{group}/slot/251")), None);
        assert_eq!(GroupNames::parse_slot(&config, &format!("{}+/slot/1", &group.prefix[..24])), None);
    }
}
