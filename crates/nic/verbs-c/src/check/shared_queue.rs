//! The receives of a shared receive queue, from the post to the completion that the application polls.

use std::collections::VecDeque;

use roxie::transport::RecvWr;

use super::numbers::NumberSet;
use super::options::OPTIONS;
use super::posted::{Posted, overlap};

/// The receives of a shared receive queue.
#[derive(Default)]
pub(super) struct SharedQueue {
    pub(super) receives: VecDeque<Posted>,
    /// Its number on XRC, else 0.
    pub(super) srqn: u32,
    /// With `--races`: their numbers of the application, and whether two had the same one at a time.
    wr_ids: NumberSet<u64>,
    are_alike: bool,
}

impl SharedQueue {
    /// The application posts this receive; `srqn`: number of the queue on XRC, else 0.
    pub(super) fn receive(&mut self, wr: &RecvWr<'_>, srqn: u32) {
        let receive = Posted::receive(wr, None);
        overlap(("receive", wr.wr_id, receive.posted), &receive.list, self.receives.iter());
        self.receives.push_back(receive);
        self.srqn = srqn;
        if OPTIONS.races {
            self.are_alike |= !self.wr_ids.insert(wr.wr_id);
        }
    }

    /// Takes the first work request with this `wr_id`. Also returns whether no other one can have completed:
    /// queue pairs with different completion queues complete receives in any order.
    pub(super) fn take(&mut self, wr_id: u64) -> (Option<Posted>, bool) {
        self.wr_ids.remove(&wr_id);
        (take(&mut self.receives, wr_id), !self.are_alike)
    }
}

/// Takes the first work request with this `wr_id`.
pub(super) fn take(receives: &mut VecDeque<Posted>, wr_id: u64) -> Option<Posted> {
    let at = receives.iter().position(|receive| receive.wr_id == wr_id)?;
    receives.remove(at)
}
