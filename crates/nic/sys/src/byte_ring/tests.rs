//! A ring compared with a queue of bytes, between two threads, and with a peer that writes invalid
//! indices.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use super::*;
use crate::{memory_file, random_u64};

fn ring() -> (Producer, Consumer) {
    let (producer, fd) = Producer::create().unwrap();
    (producer, Consumer::open(fd.as_fd()).unwrap())
}

/// xorshift64: the same numbers for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        for (shift, left) in [(13, true), (7, false), (17, true)] {
            self.0 ^= if left { self.0 << shift } else { self.0 >> shift };
        }
        (self.0 % limit as u64) as usize
    }
}

#[test]
fn a_ring_is_a_queue_of_bytes() {
    let seed = random_u64() | 1;
    let (mut numbers, (mut producer, mut consumer)) = (Numbers(seed), ring());
    let mut queue = VecDeque::new();
    for round in 0..120 {
        let len = numbers.below(RING_BYTES / 3);
        let room = producer.room(len).unwrap();
        assert!(room <= RING_BYTES - queue.len(), "seed {seed} round {round}");
        let fits = len <= RING_BYTES - queue.len();
        assert_eq!(
            len <= room,
            fits,
            "seed {seed} round {round}: what is released is seen when it is needed"
        );
        // In two parts, the second one first.
        let bytes: Vec<u8> = (0..len).map(|i| (i as u32 * 31 + round) as u8).collect();
        let half = numbers.below(len + 1);
        assert_eq!(producer.write(half, &bytes[half..]) && producer.write(0, &bytes[..half]), fits);
        if fits {
            producer.publish(len);
            queue.extend(bytes);
        }
        assert_eq!(consumer.available(), Ok(queue.len()));
        let mut out = vec![0; numbers.below(queue.len() + 1)];
        let at = numbers.below(queue.len() + 1 - out.len());
        assert!(consumer.read(at, &mut out));
        assert!(out.iter().eq(queue.range(at..at + out.len())), "seed {seed} round {round}");
        let released = numbers.below(queue.len() + 1);
        consumer.release(released);
        queue.drain(..released);
    }
}

#[test]
fn bytes_beyond_either_end_are_not_written_or_read() {
    let (mut producer, mut consumer) = ring();
    assert_eq!(producer.room(RING_BYTES), Ok(RING_BYTES));
    assert!(producer.write(RING_BYTES - 4, &[7; 4]));
    assert!(!producer.write(RING_BYTES - 3, &[7; 4]) && !producer.write(usize::MAX, &[7; 4]));
    assert!(!consumer.read(0, &mut [0; 1]), "nothing is published");
    producer.publish(RING_BYTES);
    assert_eq!((producer.room(1), producer.write(0, &[1])), (Ok(0), false));
    assert_eq!(consumer.available(), Ok(RING_BYTES));
    let mut end = [0; 4];
    assert!(consumer.read(RING_BYTES - 4, &mut end) && end == [7; 4]);
    assert!(!consumer.read(RING_BYTES - 3, &mut end) && !consumer.read(usize::MAX, &mut end));
}

#[test]
fn no_byte_and_no_wake_up_is_lost_between_two_threads() {
    const TOTAL: usize = 40 << 20;
    let (mut producer, mut consumer) = ring();
    let (wake, woken) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut numbers = Numbers(random_u64() | 1);
            let mut written = 0;
            while written < TOTAL {
                let len = (1 + numbers.below(40_000)).min(TOTAL - written);
                while producer.room(len).unwrap() < len {
                    std::thread::yield_now();
                }
                let bytes: Vec<u8> = (written..written + len).map(|at| (at % 251) as u8).collect();
                assert!(producer.write(0, &bytes));
                producer.publish(len);
                written += len;
                if producer.take_wakeup_request() {
                    wake.send(()).unwrap();
                }
            }
        });
        let (mut read, mut buffer) = (0, vec![0; 30_000]);
        while read < TOTAL {
            let len = consumer.available().unwrap().min(buffer.len());
            if len == 0 {
                if consumer.request_wakeup() {
                    let within = std::time::Duration::from_secs(20);
                    woken.recv_timeout(within).expect("the producer wakes a sleeping consumer");
                }
                consumer.withdraw_wakeup();
                continue;
            }
            assert!(consumer.read(0, &mut buffer[..len]));
            let wrong = buffer[..len].iter().zip(read..).find(|(byte, at)| **byte != (at % 251) as u8);
            assert_eq!(wrong, None);
            consumer.release(len);
            read += len;
        }
        assert_eq!(consumer.available(), Ok(0));
    });
}

/// Records of three bytes begin once at every position, and cross the end of the memory in every way.
#[test]
fn bytes_survive_at_every_position_of_the_ring() {
    let (mut producer, mut consumer) = ring();
    for number in 0..RING_BYTES as u32 {
        let record = [number as u8, (number >> 8) as u8, (number >> 16) as u8];
        assert!(producer.room(3).is_ok_and(|room| room >= 3) && producer.write(0, &record));
        producer.publish(3);
        let mut read = [0; 3];
        assert!(consumer.available() == Ok(3) && consumer.read(0, &mut read));
        assert_eq!(read, record);
        consumer.release(3);
    }
}

/// Every index that the other side may write, on both sides of what is valid.
#[test]
fn exactly_the_possible_indices_are_accepted() {
    let ring_bytes = RING_BYTES as u64;
    for (released, known) in [(0, 0), (5, 5), (5, 900), (ring_bytes, ring_bytes + 7), (7, ring_bytes + 7)] {
        let (mut producer, mut consumer) = ring();
        for index in (0..3 * ring_bytes).chain([u64::MAX - 1, u64::MAX]) {
            (consumer.released, consumer.published) = (released, known);
            consumer.shared.published().store(index, Ordering::Relaxed);
            let fits = index >= known && index - released <= ring_bytes;
            assert_eq!(
                consumer.available(),
                if fits { Ok((index - released) as usize) } else { Err(Broken) }
            );

            (producer.released, producer.published) = (released, known);
            producer.shared.released().store(index, Ordering::Relaxed);
            let used = known.checked_sub(index).filter(|_| index >= released);
            let room = used.map(|used| RING_BYTES - used as usize);
            if producer.published - producer.released > 0 {
                assert_eq!(producer.room(RING_BYTES), room.ok_or(Broken));
            }
        }
    }
}

#[test]
fn an_invalid_producer_index_is_detected() {
    for (honest, lie) in [(0, RING_BYTES as u64 + 1), (0, u64::MAX), (100, 99), (100, 0)] {
        let (mut producer, mut consumer) = ring();
        producer.publish(honest);
        assert_eq!(consumer.available(), Ok(honest));
        consumer.shared.published().store(lie, Ordering::Relaxed);
        assert_eq!(consumer.available(), Err(Broken), "{honest} {lie}");
        assert!(!consumer.request_wakeup(), "reading the index detects it");
        assert!(consumer.read(0, &mut vec![0; honest]) && !consumer.read(0, &mut vec![0; honest + 1]));
    }
}

#[test]
fn an_invalid_consumer_index_is_detected() {
    for (honest, lie) in [(1, 2), (1, u64::MAX), (500, 501), (500, RING_BYTES as u64 * 2)] {
        let (mut producer, _consumer) = ring();
        producer.publish(honest);
        producer.shared.released().store(lie, Ordering::Relaxed);
        assert_eq!(producer.room(RING_BYTES), Err(Broken), "{honest} {lie}");
        assert!(producer.write(0, &[1]) && !producer.write(RING_BYTES - honest, &[1]));
    }
    let (mut producer, mut consumer) = ring();
    producer.publish(10);
    assert_eq!(consumer.available(), Ok(10));
    consumer.release(10);
    assert_eq!(producer.room(RING_BYTES), Ok(RING_BYTES));
    producer.shared.released().store(9, Ordering::Relaxed);
    assert_eq!(
        (producer.room(RING_BYTES), producer.publish(1)),
        (Ok(RING_BYTES), ()),
        "the index was not read"
    );
    assert_eq!(producer.room(RING_BYTES), Err(Broken), "it has taken something back");
}

#[test]
fn a_file_that_could_shrink_or_is_no_ring_is_refused() {
    let refusal = |fd: BorrowedFd<'_>| Consumer::open(fd).unwrap_err().raw_os_error();
    let file = memory_file(c"roxie-test").unwrap();
    file.set_len(FILE_LEN as u64).unwrap();
    assert_eq!(refusal(file.as_fd()), Some(libc::EPROTO), "it cannot be sealed");
    let (_producer, ring) = Producer::create().unwrap();
    let file = File::from(ring);
    assert!(file.set_len(FILE_LEN as u64 - 1).is_err(), "sealed");
    assert_eq!(file.metadata().unwrap().len(), FILE_LEN as u64);
    let socket = crate::udp_socket(false).unwrap();
    assert_eq!(refusal(socket.as_fd()), Some(libc::EPROTO));
}
