//! A first-in first-out ring of fixed capacity: allocated once, indexed by mask.

/// A ring of at most `capacity` values in order of arrival.
#[derive(Debug)]
pub(crate) struct Ring<T> {
    slots: Box<[Option<T>]>,
    capacity: u32,
    head: u32,
    tail: u32,
}

impl<T: Copy> Ring<T> {
    pub(crate) fn new(capacity: usize) -> Self {
        let slots = vec![None; capacity.max(1).next_power_of_two()].into_boxed_slice();
        Self { slots, capacity: capacity as u32, head: 0, tail: 0 }
    }

    #[inline]
    fn slot(&self, index: u32) -> usize {
        index as usize & (self.slots.len() - 1)
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.capacity
    }

    /// Appends a value; returns false when the ring is full.
    #[inline]
    #[must_use]
    pub(crate) fn push(&mut self, value: T) -> bool {
        if self.is_full() {
            return false;
        }
        let slot = self.slot(self.tail);
        self.slots[slot] = Some(value);
        self.tail = self.tail.wrapping_add(1);
        true
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let slot = self.slot(self.head);
        self.head = self.head.wrapping_add(1);
        self.slots[slot]
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        if self.is_empty() { None } else { self.slots[self.slot(self.head)].as_ref() }
    }

    /// Index of the oldest value and one past the youngest, for [`Ring::get`].
    #[inline]
    pub(crate) fn bounds(&self) -> (u32, u32) {
        (self.head, self.tail)
    }

    /// The value at an index inside [`Ring::bounds`].
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        if index.wrapping_sub(self.head) < self.len() { self.slots[self.slot(index)].as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        if index.wrapping_sub(self.head) < self.len() {
            let slot = self.slot(index);
            self.slots[slot].as_mut()
        } else {
            None
        }
    }

    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
    }
}

#[cfg(test)]
mod tests {
    use super::Ring;
    use std::collections::VecDeque;

    proptest::proptest! {
        #[test]
        fn a_ring_behaves_as_a_bounded_deque(
            capacity in 0_usize..9,
            ops in proptest::collection::vec(0_u8..4, 0..200),
        ) {
            let mut ring = Ring::new(capacity);
            let mut model = VecDeque::new();
            for (i, op) in ops.into_iter().enumerate() {
                match op {
                    0..=2 => {
                        let fits = model.len() < capacity;
                        proptest::prop_assert_eq!(ring.push(i), fits);
                        if fits { model.push_back(i); }
                    }
                    _ => proptest::prop_assert_eq!(ring.pop(), model.pop_front()),
                }
                proptest::prop_assert_eq!(ring.front(), model.front());
                proptest::prop_assert_eq!(ring.len() as usize, model.len());
                let (head, tail) = ring.bounds();
                proptest::prop_assert_eq!(ring.get(tail), None);
                proptest::prop_assert_eq!(ring.get(head), model.front());
            }
        }
    }
}
