//! The ring of receive work requests: a queue pair's own receive queue, and a shared one.

use crate::attr::{MAX_QP_WR, MAX_SGE};
use crate::memory::{AccessFault, Memory, PdId};
use crate::refusal::VerbsError;
use crate::refuse;
use crate::wr::{RecvWr, Sge};

/// Receive work requests in the order in which messages take them. Allocates only when it is made or resized.
#[derive(Debug)]
pub struct RecvQueue {
    wr_ids: Box<[u64]>,
    num_sge: Box<[u8]>,
    /// `max_sge` elements for each slot.
    sges: Box<[Sge]>,
    max_wr: u32,
    max_sge: u32,
    pd: PdId,
    head: u32,
    tail: u32,
    /// The limit is armed while this is not 0.
    limit: u32,
}

impl RecvQueue {
    /// Makes an empty queue for `max_wr` work requests of up to `max_sge` elements each, with keys of the
    /// domain `pd`.
    ///
    /// # Errors
    /// `EINVAL` when a size is above what the device has.
    pub fn new(max_wr: u32, max_sge: u32, pd: PdId) -> Result<Self, VerbsError> {
        if max_wr > MAX_QP_WR || max_sge as usize > MAX_SGE {
            return Err(refuse!(EINVAL, "receive queue", "max_wr"; max_wr, max_sge;
                "a receive queue of {max_wr} receives with {max_sge} elements each; the device has at most \
                 {MAX_QP_WR} and {MAX_SGE} (ibv_query_device)"));
        }
        let slots = (max_wr as usize).next_power_of_two();
        Ok(Self {
            wr_ids: vec![0; slots].into_boxed_slice(),
            num_sge: vec![0; slots].into_boxed_slice(),
            sges: vec![Sge::default(); slots * max_sge as usize].into_boxed_slice(),
            max_wr,
            max_sge,
            pd,
            head: 0,
            tail: 0,
            limit: 0,
        })
    }

    /// Appends a work request.
    ///
    /// # Errors
    /// `ENOMEM` when the queue is full, `EINVAL` when there are too many elements.
    pub fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        let sges = wr.sg_list;
        if sges.len() > self.max_sge as usize {
            let (num_sge, wr_id, max_sge) = (sges.len(), wr.wr_id, self.max_sge);
            return Err(refuse!(EINVAL, "receive", "num_sge"; num_sge, wr_id, max_sge;
                "the receive {wr_id:#x} has {num_sge} elements, the queue was created for max_recv_sge \
                 {max_sge}"));
        }
        if self.len() >= self.max_wr {
            return Err(self.refuse_full());
        }
        let slot = self.slot(self.tail);
        let first = slot * self.max_sge as usize;
        self.wr_ids[slot] = wr.wr_id;
        self.num_sge[slot] = sges.len() as u8;
        self.sges[first..first + sges.len()].copy_from_slice(sges);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// The refusal of a receive for a full queue.
    #[cold]
    pub(crate) fn refuse_full(&self) -> VerbsError {
        let room = self.max_wr;
        refuse!(ENOMEM, "receive queue", "max_recv_wr"; room; let plural = if room == 1 { "" } else { "s" };
            "the queue has room for {room} receive{plural} and is full")
    }

    /// Arms the limit: the message that leaves fewer than `limit` work requests raises an event, and the
    /// limit becomes 0.
    ///
    /// # Errors
    /// `EINVAL` when it is above the size of the queue.
    pub fn arm_limit(&mut self, limit: u32) -> Result<(), VerbsError> {
        if limit > self.max_wr {
            let size = self.max_wr;
            return Err(refuse!(EINVAL, "receive queue", "srq_limit"; limit, size;
                "the limit {limit} is above the {size} receives that the queue holds"));
        }
        self.limit = limit;
        Ok(())
    }

    /// Removes the next work request. The caller completes it.
    pub fn withdraw(&mut self) -> Option<RecvWqe> {
        let mut wqe = RecvWqe::default();
        self.take(&mut wqe).map(|_| wqe)
    }

    /// Makes room for `max_wr` work requests and keeps those that are posted.
    ///
    /// # Errors
    /// `EINVAL`, and nothing changes, when it is 0, above the limit of the device, below the armed limit, or
    /// below the number of posted work requests.
    pub fn resize(&mut self, max_wr: u32) -> Result<(), VerbsError> {
        let waiting = self.len();
        if max_wr == 0 || max_wr < waiting.max(self.limit) {
            let limit = self.limit;
            return Err(refuse!(EINVAL, "receive queue", "max_wr"; max_wr, waiting, limit;
                "the new size {max_wr} is 0, below the {waiting} posted receives, or below the armed limit \
                 {limit}"));
        }
        let mut resized = Self::new(max_wr, self.max_sge, self.pd)?;
        let max_sge = self.max_sge as usize;
        for i in 0..waiting {
            let (to, from) = (i as usize, self.slot(self.head.wrapping_add(i)));
            resized.wr_ids[to] = self.wr_ids[from];
            resized.num_sge[to] = self.num_sge[from];
            resized.sges[to * max_sge..][..max_sge].copy_from_slice(&self.sges[from * max_sge..][..max_sge]);
        }
        (resized.tail, resized.limit) = (waiting, self.limit);
        *self = resized;
        Ok(())
    }

    /// The armed limit, 0 when there is none.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Hides the posted work requests, as if the device had not learned of them yet. Returns what
    /// [`show`](Self::show) needs.
    pub fn hide(&mut self) -> u32 {
        core::mem::replace(&mut self.tail, self.head)
    }

    /// Shows the work requests that [`hide`](Self::hide) has hidden. None may have been posted meanwhile.
    pub fn show(&mut self, hidden: u32) {
        self.tail = hidden;
    }

    /// Number of posted work requests.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Whether no work request is posted.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// The most work requests it holds.
    #[must_use]
    pub fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// The most elements of a work request.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Its protection domain.
    #[must_use]
    #[inline]
    pub fn pd(&self) -> PdId {
        self.pd
    }

    /// Bytes that fit into the next work request; `None` when there is no work request.
    #[must_use]
    pub fn next_room(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.front_sges().iter().map(|sge| u64::from(sge.length)).sum())
    }

    /// Removes the next work request and copies it to `into`; `None` when there is none.
    #[inline]
    pub(crate) fn take(&mut self, into: &mut RecvWqe) -> Option<Taken> {
        if self.is_empty() {
            return None;
        }
        let sges = self.front_sges();
        into.sges[..sges.len()].copy_from_slice(sges);
        into.num_sge = sges.len() as u8;
        into.pd = self.pd;
        into.room = sges.iter().map(|sge| u64::from(sge.length)).sum();
        into.wr_id = self.wr_ids[self.slot(self.head)];
        self.head = self.head.wrapping_add(1);
        let limit_reached = self.len() < self.limit;
        if limit_reached {
            self.limit = 0;
        }
        Some(Taken { limit_reached })
    }

    /// Removes the next work request, returning only its id (flush).
    pub(crate) fn take_id(&mut self) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        let wr_id = self.wr_ids[self.slot(self.head)];
        self.head = self.head.wrapping_add(1);
        Some(wr_id)
    }

    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
    }

    #[inline]
    fn front_sges(&self) -> &[Sge] {
        let slot = self.slot(self.head);
        let first = slot * self.max_sge as usize;
        &self.sges[first..first + usize::from(self.num_sge[slot])]
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.wr_ids.len() - 1)
    }
}

/// The shared receive queues that a queue pair may use.
pub trait SrqTable {
    /// The shared receive queue of the queue pair, if it was made with one.
    fn own(&mut self) -> Option<&mut RecvQueue>;

    /// XRC: the shared receive queue with this number, if it belongs to the same XRC domain.
    fn xrc(&mut self, srqn: u32) -> Option<&mut RecvQueue>;
}

/// At most one shared receive queue, and none for XRC.
impl SrqTable for Option<&mut RecvQueue> {
    #[inline]
    fn own(&mut self) -> Option<&mut RecvQueue> {
        self.as_deref_mut()
    }

    fn xrc(&mut self, _srqn: u32) -> Option<&mut RecvQueue> {
        None
    }
}

/// The result of taking a work request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Taken {
    /// This work request reached the armed limit.
    pub(crate) limit_reached: bool,
}

/// A receive work request that a message has taken.
#[derive(Debug, Default)]
pub struct RecvWqe {
    pub(crate) wr_id: u64,
    /// Bytes that fit.
    pub(crate) room: u64,
    pd: PdId,
    num_sge: u8,
    sges: [Sge; MAX_SGE],
}

impl RecvWqe {
    /// The id that the application gave it.
    #[must_use]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// Bytes that fit.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Copies `src` to the buffer, `offset` bytes from its start.
    ///
    /// # Errors
    /// If the memory cannot be written, or the bytes do not fit.
    #[inline]
    pub fn write(&self, mem: &impl Memory, offset: u64, src: &[u8]) -> Result<(), AccessFault> {
        scatter(mem, self.pd, &self.sges[..usize::from(self.num_sge)], offset, src)
    }
}

/// Copies `src` to a list of elements, `offset` bytes from the start of the list. The keys of elements of
/// length 0 are not checked.
#[inline]
pub(crate) fn scatter(
    mem: &impl Memory,
    pd: PdId,
    sges: &[Sge],
    mut offset: u64,
    mut src: &[u8],
) -> Result<(), AccessFault> {
    for sge in sges {
        if src.is_empty() {
            return Ok(());
        }
        let length = u64::from(sge.length);
        if offset >= length {
            offset -= length;
            continue;
        }
        let here = (length - offset).min(src.len() as u64) as usize;
        let (now, later) = src.split_at(here);
        let addr = sge.addr.checked_add(offset).ok_or(AccessFault::OutOfBounds)?;
        mem.write_local(pd, sge.lkey, addr, now)?;
        src = later;
        offset = 0;
    }
    if src.is_empty() { Ok(()) } else { Err(AccessFault::OutOfBounds) }
}

/// Fills `dst` from a list of elements, `offset` bytes from the start of the list.
#[inline]
pub(crate) fn gather(
    mem: &impl Memory,
    pd: PdId,
    sges: &[Sge],
    mut offset: u64,
    mut dst: &mut [u8],
) -> Result<(), AccessFault> {
    for sge in sges {
        if dst.is_empty() {
            return Ok(());
        }
        let length = u64::from(sge.length);
        if offset >= length {
            offset -= length;
            continue;
        }
        let here = (length - offset).min(dst.len() as u64) as usize;
        let (now, later) = dst.split_at_mut(here);
        let addr = sge.addr.checked_add(offset).ok_or(AccessFault::OutOfBounds)?;
        mem.read_local(pd, sge.lkey, addr, now)?;
        dst = later;
        offset = 0;
    }
    if dst.is_empty() { Ok(()) } else { Err(AccessFault::OutOfBounds) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;
    use wire::Lkey;

    fn post(queue: &mut RecvQueue, wr_id: u64) -> Result<(), VerbsError> {
        let sge = Sge { addr: wr_id * 100, length: 10, lkey: Lkey(1) };
        queue.post(&RecvWr { wr_id, sg_list: &[sge, sge] })
    }

    #[test]
    fn the_armed_limit_can_be_queried() {
        let mut queue = RecvQueue::new(3, 2, PdId(1)).unwrap();
        assert_eq!((queue.limit(), queue.arm_limit(4).map_err(VerbsError::kind)), (0, Err(Errno::EINVAL)));
        queue.arm_limit(3).unwrap();
        assert_eq!(queue.limit(), 3);
    }

    #[test]
    fn work_requests_come_out_in_order_and_the_queue_is_bounded() {
        let mut queue = RecvQueue::new(3, 2, PdId(1)).unwrap();
        let mut wqe = RecvWqe::default();
        for round in 0..10 {
            for i in 0..3 {
                post(&mut queue, round * 3 + i).unwrap();
            }
            assert_eq!(post(&mut queue, 99).map_err(VerbsError::kind), Err(Errno::ENOMEM));
            for i in 0..3 {
                assert_eq!(queue.next_room(), Some(20));
                assert_eq!(queue.take(&mut wqe), Some(Taken { limit_reached: false }));
                assert_eq!((wqe.wr_id, wqe.room), (round * 3 + i, 20));
            }
            assert_eq!(queue.take(&mut wqe), None);
        }
    }

    #[test]
    fn posted_work_requests_and_the_limit_survive_a_resize() {
        let mut queue = RecvQueue::new(3, 2, PdId(1)).unwrap();
        let mut wqe = RecvWqe::default();
        (0..3).for_each(|i| post(&mut queue, i).unwrap());
        queue.take(&mut wqe).unwrap();
        post(&mut queue, 3).unwrap();
        queue.arm_limit(2).unwrap();
        for refused in [0, 2, MAX_QP_WR + 1] {
            assert_eq!(queue.resize(refused).map_err(VerbsError::kind), Err(Errno::EINVAL), "{refused}");
        }
        assert_eq!((queue.max_wr(), queue.limit(), queue.len()), (3, 2, 3));
        queue.resize(5).unwrap();
        assert_eq!((queue.max_wr(), queue.limit(), queue.len()), (5, 2, 3));
        (4..6).for_each(|i| post(&mut queue, i).unwrap());
        assert_eq!(post(&mut queue, 6).map_err(VerbsError::kind), Err(Errno::ENOMEM));
        for i in 1..6 {
            assert_eq!(queue.take(&mut wqe), Some(Taken { limit_reached: i == 4 }));
            assert_eq!((wqe.wr_id, wqe.sges[1].addr), (i, i * 100));
        }
        queue.resize(1).unwrap();
        post(&mut queue, 7).unwrap();
        assert_eq!(post(&mut queue, 8).map_err(VerbsError::kind), Err(Errno::ENOMEM));
    }

    #[test]
    fn too_many_elements_are_refused() {
        let mut queue = RecvQueue::new(1, 1, PdId(1)).unwrap();
        assert_eq!(post(&mut queue, 1).map_err(VerbsError::kind), Err(Errno::EINVAL));
        assert!(RecvQueue::new(1, MAX_SGE as u32 + 1, PdId(1)).is_err());
    }

    #[test]
    fn the_limit_fires_once_when_fewer_are_left() {
        let mut queue = RecvQueue::new(4, 2, PdId(1)).unwrap();
        let mut wqe = RecvWqe::default();
        for i in 0..4 {
            post(&mut queue, i).unwrap();
        }
        assert_eq!(queue.arm_limit(5).map_err(VerbsError::kind), Err(Errno::EINVAL));
        queue.arm_limit(3).unwrap();
        let fired: Vec<bool> =
            core::iter::from_fn(|| queue.take(&mut wqe)).map(|taken| taken.limit_reached).collect();
        assert_eq!(fired, [false, true, false, false]);
        assert_eq!(queue.limit(), 0);
    }
}
