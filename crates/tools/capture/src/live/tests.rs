//! The end of a live capture, as its reader sees it.

use super::*;
use crate::source::{EndError, Source};

/// A tap with some packets; its interface is then deleted.
struct VanishingTap {
    packets: usize,
    may_end: bool,
}

impl Tap for VanishingTap {
    fn interfaces(&self) -> Vec<String> {
        vec!["eth0".to_owned()]
    }

    fn take(&mut self, sink: PacketSink<'_>) -> io::Result<usize> {
        let packet = NewPacket {
            interface: 0,
            time_ns: 1,
            original_len: 60,
            data: &[0; 60],
            outbound: None,
            verdict: None,
        };
        (0..self.packets).for_each(|_| sink(&packet));
        Ok(mem::take(&mut self.packets))
    }

    fn wait_ns(&self) -> u64 {
        0
    }

    fn dropped(&self) -> io::Result<Vec<u64>> {
        Ok(vec![0])
    }

    fn is_there(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn stop(&mut self) {}

    fn end_message(&self) -> String {
        "the interface eth0 was removed".to_owned()
    }

    fn may_end(&self) -> bool {
        self.may_end
    }
}

#[test]
fn packets_before_the_removal_of_an_interface_are_read_and_then_the_capture_fails() {
    for may_end in [true, false] {
        let tap = VanishingTap { packets: 1, may_end };
        let writer = section(&tap, None).expect("writing to memory");
        let capture = LiveCapture {
            tap: Box::new(tap),
            options: Options::default(),
            filter: None,
            left_out: None,
            budget: CpuBudget::new(100),
            writer,
            packets: 0,
            ready: Vec::new(),
            ready_at: 0,
            end_ns: None,
            has_ended: false,
            is_gone: false,
        };
        let mut source = Source::new(capture).expect("a capture");
        assert!(source.next_record().expect("a readable source").is_some());
        assert!(source.next_record().expect("a regular end").is_none());
        let early = "the capture ended early: the interface eth0 was removed".to_owned();
        let expected = if may_end { Ok(()) } else { Err(EndError::CutOff(early)) };
        assert_eq!(source.check_end(), expected);
    }
}
