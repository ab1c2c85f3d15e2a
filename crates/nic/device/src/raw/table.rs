//! The flow rules of the device, and which queues a frame reaches.

use transport::{VerbsError, refuse};

use super::key::Key;
use super::spec::{FlowSpecs, Match};

/// Kinds of rules (`enum ibv_flow_attr_type`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FlowType {
    /// The frames that match the specifications.
    Normal,
    /// Every frame that no other rule takes.
    AllDefault,
    /// Every multicast frame that no other rule takes.
    McDefault,
    /// Every frame in either direction; other rules see it as well.
    Sniffer,
}

/// A rule to create (ibv_create_flow(3)).
#[derive(Clone, Copy, Debug)]
pub struct FlowAttr {
    /// Kind.
    pub ty: FlowType,
    /// Rules with a lower number come first.
    pub priority: u16,
    /// Rules of lower priority see the frame as well (IBV_FLOW_ATTR_FLAGS_DONT_TRAP).
    pub dont_trap: bool,
    /// What frames must be like.
    pub specs: FlowSpecs,
}

/// Names a queue or an RSS queue pair of the device: an index of `State::entries`.
pub(crate) type QueueId = u32;

/// Most rules of a device: a frame is compared with each.
const FLOWS_MAX: usize = 256;
/// Highest number of a priority, as mlx5 has it.
const PRIORITY_MAX: u16 = 15;

#[derive(Clone, Debug)]
struct Rule {
    id: u64,
    ty: FlowType,
    priority: u16,
    dont_trap: bool,
    drops: bool,
    matches: Match,
    queue: QueueId,
}

impl Rule {
    /// The order in which rules see a frame: by priority, then by age; default rules last.
    fn order(&self) -> (u8, u16, u64) {
        let class = match self.ty {
            FlowType::Sniffer => 0,
            FlowType::Normal => 1,
            FlowType::McDefault => 2,
            FlowType::AllDefault => 3,
        };
        (class, self.priority, self.id)
    }

    fn covers(&self, key: &Key) -> bool {
        match self.ty {
            FlowType::McDefault => key.is_multicast(),
            _ => self.matches.covers(key),
        }
    }
}

/// The rules, in the order in which they see a frame.
#[derive(Debug, Default)]
pub(crate) struct FlowRules {
    rules: Vec<Rule>,
    last_id: u64,
}

impl FlowRules {
    /// Adds a rule; returns its id.
    ///
    /// # Errors
    /// `EINVAL` for specifications of a rule that is not normal, `ENOSPC` for a priority that the device does
    /// not have, `ENOMEM` at the limit.
    pub(crate) fn add(&mut self, attr: &FlowAttr, queue: QueueId) -> Result<u64, VerbsError> {
        if attr.ty != FlowType::Normal && (!attr.specs.is_empty() || attr.specs.drops || attr.dont_trap) {
            let ty = attr.ty as u32;
            return Err(refuse!(EINVAL, "flow rule", "type"; ty;
                "a rule of this type has no specifications, no action and no flag"));
        }
        let (priority, rules) = (attr.priority, self.rules.len());
        if attr.priority > PRIORITY_MAX {
            return Err(refuse!(ENOSPC, "flow rule", "priority"; priority;
                is "{priority}, the largest value is {PRIORITY_MAX}"));
        }
        if rules == FLOWS_MAX {
            return Err(refuse!(ENOMEM, "device", "flow rules"; rules;
                "the device has its largest number of flow rules, {rules}"));
        }
        self.last_id += 1;
        let FlowAttr { ty, priority, dont_trap, specs } = *attr;
        let (id, drops, matches) = (self.last_id, specs.drops, specs.matches);
        let rule = Rule { id, ty, priority, dont_trap, drops, matches, queue };
        let at = self.rules.partition_point(|other| other.order() < rule.order());
        self.rules.insert(at, rule);
        Ok(id)
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.rules.retain(|rule| rule.id != id);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether there is a rule of this kind.
    pub(crate) fn has(&self, ty: FlowType) -> bool {
        self.rules.iter().any(|rule| rule.ty == ty)
    }

    pub(crate) fn uses(&self, queue: QueueId) -> bool {
        self.rules.iter().any(|rule| rule.queue == queue)
    }

    /// Sets `queues` to those that a frame reaches. Rules of one priority that compare the same are one rule
    /// with several queues.
    pub(crate) fn decide(&self, key: &Key, is_outgoing: bool, queues: &mut Vec<QueueId>) {
        queues.clear();
        let mut first: Option<&Rule> = None;
        for rule in &self.rules {
            if rule.ty != FlowType::Sniffer && is_outgoing {
                return;
            }
            let is_twin = |first: &Rule| {
                (first.ty, first.priority, first.matches, first.drops)
                    == (rule.ty, rule.priority, rule.matches, rule.drops)
            };
            if first.is_some_and(|first| !is_twin(first)) {
                continue;
            }
            if !rule.covers(key) {
                continue;
            }
            if !rule.drops && !queues.contains(&rule.queue) {
                queues.push(rule.queue);
            }
            if rule.ty != FlowType::Sniffer && !rule.dont_trap {
                first = Some(rule);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::tests::frame;
    use super::super::key::{TCP, UDP};
    use super::super::spec::tests::{ethernet, specs, udp};
    use super::*;
    use transport::Errno;

    fn normal(list: &[Vec<u8>], priority: u16) -> FlowAttr {
        FlowAttr { ty: FlowType::Normal, priority, dont_trap: false, specs: specs(list).unwrap() }
    }

    fn of_type(ty: FlowType) -> FlowAttr {
        FlowAttr { ty, ..normal(&[], 0) }
    }

    fn reached(rules: &FlowRules, frame: &[u8]) -> Vec<QueueId> {
        let mut queues = vec![99];
        rules.decide(&Key::of(frame), false, &mut queues);
        queues
    }

    #[test]
    fn the_first_rule_by_priority_takes_a_frame_and_equal_rules_share_it() {
        let mut rules = FlowRules::default();
        let (to_two, udp_2000) = (ethernet([2, 0, 0, 0, 0, 2]), udp(2000));
        rules.add(&normal(std::slice::from_ref(&to_two), 5), 1).unwrap();
        rules.add(&normal(std::slice::from_ref(&udp_2000), 3), 2).unwrap();
        let third = rules.add(&normal(std::slice::from_ref(&udp_2000), 3), 3).unwrap();
        rules.add(&normal(std::slice::from_ref(&to_two), 3), 4).unwrap();
        assert_eq!(reached(&rules, &frame(false, UDP, None)), [2, 3]);
        assert_eq!(reached(&rules, &frame(false, TCP, None)), [4]);
        rules.remove(third);
        assert_eq!(reached(&rules, &frame(false, UDP, None)), [2]);
        assert!(rules.uses(4) && !rules.uses(3));
    }

    #[test]
    fn drops_sniffers_and_defaults_have_their_places() {
        let mut rules = FlowRules::default();
        let mut drop = normal(&[udp(2000)], 0);
        drop.specs.drops = true;
        rules.add(&of_type(FlowType::AllDefault), 1).unwrap();
        rules.add(&of_type(FlowType::McDefault), 2).unwrap();
        rules.add(&drop, 3).unwrap();
        assert_eq!(reached(&rules, &frame(false, UDP, None)), []);
        assert_eq!(reached(&rules, &frame(false, TCP, None)), [1]);
        let mut multicast = frame(false, TCP, None);
        multicast[0] |= 1;
        assert_eq!(reached(&rules, &multicast), [2]);
        rules.add(&of_type(FlowType::Sniffer), 4).unwrap();
        assert_eq!(reached(&rules, &frame(false, UDP, None)), [4]);
        assert_eq!(reached(&rules, &frame(false, TCP, None)), [4, 1]);
        let mut queues = Vec::new();
        rules.decide(&Key::of(&multicast), true, &mut queues);
        assert_eq!(queues, [4], "only sniffers see what this host sends");
        let watch = FlowAttr { dont_trap: true, ..normal(&[udp(2000)], 0) };
        let mut rules = FlowRules::default();
        rules.add(&watch, 5).unwrap();
        rules.add(&normal(&[udp(2000)], 1), 6).unwrap();
        assert_eq!(reached(&rules, &frame(false, UDP, None)), [5, 6]);
    }

    #[test]
    fn bad_rules_are_refused() {
        let mut rules = FlowRules::default();
        let mut sniffer = normal(&[udp(1)], 0);
        sniffer.ty = FlowType::Sniffer;
        assert_eq!(rules.add(&sniffer, 0).map_err(|refused| refused.kind()), Err(Errno::EINVAL));
        assert_eq!(
            rules.add(&normal(&[], PRIORITY_MAX + 1), 0).map_err(|refused| refused.kind()),
            Err(Errno::ENOSPC)
        );
        for _ in 0..FLOWS_MAX {
            rules.add(&normal(&[], PRIORITY_MAX), 0).unwrap();
        }
        assert_eq!(rules.add(&normal(&[], 0), 0).map_err(|refused| refused.kind()), Err(Errno::ENOMEM));
    }
}
