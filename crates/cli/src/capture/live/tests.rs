//! A capture whose listener ends, as the rest of the program sees it.

use super::*;
use crate::capture::source::Source;

/// A packet comes, and then the interface is deleted.
struct Vanishing {
    packets: usize,
    may_end: bool,
}

impl Listener for Vanishing {
    fn interfaces(&self) -> Vec<String> {
        vec!["eth0".to_owned()]
    }

    fn take(&mut self, each: Each<'_>) -> io::Result<usize> {
        let packet = NewPacket { interface: 0, time_ns: 1, original_len: 60, data: &[0; 60], outbound: None };
        (0..self.packets).for_each(|_| each(&packet));
        Ok(mem::take(&mut self.packets))
    }

    fn wait_ns(&self) -> u64 {
        0
    }

    fn lost(&self) -> io::Result<Vec<u64>> {
        Ok(vec![0])
    }

    fn is_there(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn stop(&mut self) {}

    fn farewell(&self) -> String {
        "it has gone".to_owned()
    }

    fn may_end(&self) -> bool {
        self.may_end
    }
}

#[test]
fn what_came_before_an_interface_went_is_read_and_then_it_is_a_failure() {
    for may_end in [true, false] {
        let listener = Vanishing { packets: 1, may_end };
        let writer = section(&listener, None).expect("memory");
        let live = Live {
            listener: Box::new(listener),
            filter: None,
            left_out: None,
            pace: Pace::new(100),
            ending: Ending::by(&[Signal::SIGUSR1]).expect("a descriptor"),
            writer,
            packets: 0,
            ready: Vec::new(),
            at: 0,
            end_ns: None,
            ended: false,
            gone: false,
        };
        let mut source = Source::new(live).expect("a capture");
        assert!(source.next_record().expect("reads").is_some());
        assert!(source.next_record().expect("it has ended").is_none());
        let said = source.check("eth0").map_err(|failure| (failure.what, failure.code));
        let failed = Err((format!("eth0: {CUT_OFF}"), 1));
        assert_eq!(said, if may_end { Ok(()) } else { failed });
    }
}
