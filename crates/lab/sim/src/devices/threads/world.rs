//! What an engine sees of the virtual threads: its [`World`].

use std::os::fd::RawFd;

use roxie::runtime::{Point, World};
use sys::Usage;

use super::{NONE, PROCESS, Run, SELF, Threads, YIELD_NS};

impl World for Threads {
    fn now_ns(&self) -> u64 {
        self.now()
    }

    fn usage(&self) -> Usage {
        self.state().processes[PROCESS.get()].usage
    }

    fn random_u64(&self) -> u64 {
        self.state().numbers.next()
    }

    fn reach(&self, point: Point) {
        let me = SELF.get();
        if me != NONE {
            let preempted = self.state().draw_preemption(self.preempt_ppm, point);
            let run = preempted.map_or(Run::Ready, |ns| Run::Preempted(self.now() + ns));
            self.switch(me, run);
        }
    }

    fn yield_now(&self) {
        let me = SELF.get();
        if me != NONE {
            self.state().release_cpu(me);
            // It is in the middle of a call and may be about to wake another thread.
            self.switch(me, Run::Preempted(self.now() + YIELD_NS));
        }
    }

    fn wait_for_lock(&self) {
        let me = SELF.get();
        assert_ne!(me, NONE, "only virtual threads wait for each other");
        self.switch(me, Run::WaitsForLock);
    }

    fn sleep(&self, fds: &[RawFd], until_ns: u64) {
        let me = SELF.get();
        if me != NONE {
            let fds = fds.iter().copied().filter(|fd| *fd >= 0).collect();
            self.switch(me, Run::Sleeps { fds, until_ns });
        }
    }

    fn spawn(&self, body: Box<dyn FnOnce() + Send>) {
        self.start(PROCESS.get(), true, body);
    }
}
