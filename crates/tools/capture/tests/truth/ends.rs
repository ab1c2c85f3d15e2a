//! The two ends of a reliable connection, for the requests of one direction (IBA 9.7).

use std::collections::VecDeque;

use crate::plan::{Asks, EndWhat, Half, Message, Op};

/// A packet, before it has bytes. Sequence numbers begin with 0.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Packet `index` of a message; of a READ the request for its responses from `index` on.
    Request {
        message: usize,
        index: u64,
        ask: bool,
    },
    Ack {
        syndrome: u8,
        msn: u32,
    },
    /// Response `index` of a message; `opens` and `closes` are those with an AETH.
    Response {
        message: usize,
        index: u64,
        opens: bool,
        closes: bool,
        msn: u32,
    },
    Notification,
}

/// Why a packet is sent once more.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Cause {
    Nak,
    NotReady,
    Timer,
    /// A response is missing.
    Gap,
}

/// A packet to send.
#[derive(Clone, Debug)]
pub(crate) struct Emit {
    pub(crate) psn: u64,
    pub(crate) what: What,
    pub(crate) again: Option<Cause>,
}

#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Oldest number without an answer, next one to send, first one never sent.
    una: u64,
    nxt: u64,
    high: u64,
    /// Behind the last number that asks for an answer.
    asked: u64,
    cause: Option<Cause>,
    deadline: Option<u64>,
    wait_until: u64,
    next_send: u64,
    tries: u32,
    rnr_tries: u32,
    gap_at: Option<u64>,
    pub(crate) dead: bool,
}

impl Requester {
    /// Sends at most one packet. Returns it, and when to call again.
    pub(crate) fn step(&mut self, half: &Half, now: u64) -> (Option<Emit>, Option<u64>) {
        let end = half.messages.last().map_or(0, |message| message.first + message.psns);
        if self.dead || self.una >= end {
            return (None, None);
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.tries += 1;
            if self.tries > half.retries {
                self.dead = true;
                return (None, None);
            }
            self.go_back(self.una, Cause::Timer);
        }
        if now < self.wait_until.max(self.next_send) {
            return (None, Some(self.wait_until.max(self.next_send)));
        }
        let message = half.messages.iter().position(|message| self.nxt < message.first + message.psns);
        let Some(index) = message else { return (None, self.deadline) };
        let message = &half.messages[index];
        if now < message.post_ns {
            let wake = self.deadline.unwrap_or(u64::MAX).min(message.post_ns);
            return (None, Some(wake));
        }
        let psns = if message.op == Op::Read { message.first + message.psns - self.nxt } else { 1 };
        let fetches = half.messages[..index].iter().rev();
        let fetches = fetches.take_while(|before| before.first + before.psns > self.una);
        let too_many = fetches.filter(|before| before.op.is_fetch()).count() >= half.reads_max;
        let full = self.nxt > self.una && self.nxt + psns - self.una > half.window;
        // Without a demand for an ACK nothing would open the window.
        let full = full && self.asked > self.una;
        if full || too_many && message.op.is_fetch() {
            return (None, self.deadline);
        }
        let psn = self.nxt;
        let last = psn + psns == message.first + message.psns;
        let ask = match half.asks {
            Asks::Each => true,
            Asks::Messages => last,
            Asks::Some => last && message.signaled,
        };
        let ask = ask || self.nxt + psns - self.una >= half.window;
        self.nxt += psns;
        if !half.reliable {
            self.una = self.nxt;
        } else if ask || message.op.is_fetch() {
            self.asked = self.asked.max(self.nxt);
            self.deadline.get_or_insert(now + half.timer_ns);
        }
        let again = (psn < self.high).then(|| self.cause.unwrap_or(Cause::Timer));
        self.high = self.high.max(self.nxt);
        self.next_send = now + half.gap_ns;
        let what = What::Request { message: index, index: psn - message.first, ask };
        (Some(Emit { psn, what, again }), Some(self.next_send))
    }

    fn go_back(&mut self, psn: u64, cause: Cause) {
        self.nxt = psn;
        self.asked = psn;
        self.cause = Some(cause);
        self.deadline = None;
    }

    fn progress(&mut self, half: &Half, now: u64, una: u64) {
        if una > self.una {
            self.una = una;
            self.nxt = self.nxt.max(una);
            self.tries = 0;
            self.rnr_tries = 0;
            self.gap_at = None;
            self.deadline = (self.asked > una).then_some(now + half.timer_ns);
        }
    }

    /// The first READ or atomic before `psn` without its data.
    fn missing(&self, half: &Half, psn: u64) -> Option<u64> {
        let behind = |message: &&Message| message.first + message.psns > self.una && message.first < psn;
        let mut fetches = half.messages.iter().filter(|message| message.op.is_fetch());
        fetches.find(behind).map(|message| message.first.max(self.una))
    }

    pub(crate) fn on_answer(&mut self, half: &Half, now: u64, psn: u64, what: &What) {
        if self.dead || psn >= self.high && !matches!(what, What::Ack { syndrome: 0x20.., .. }) {
            return;
        }
        match *what {
            What::Ack { syndrome: 0..=0x1f, .. } => self.covered(half, now, psn + 1),
            What::Ack { syndrome, .. } => {
                if psn < self.una || psn >= self.high {
                    // Ends that do not agree where numbers begin: the requester tries until it gives up.
                    if psn >= self.high {
                        self.go_back(self.una, Cause::Nak);
                        self.tries += 1;
                        self.dead = self.tries > half.retries;
                    }
                    return;
                }
                self.covered(half, now, psn);
                match syndrome {
                    0x20..=0x3f => {
                        self.rnr_tries += 1;
                        self.go_back(self.una, Cause::NotReady);
                        self.wait_until = now + rnr_ns(syndrome & 0x1f);
                        self.dead = half.retries < 7 && self.rnr_tries > half.retries;
                    }
                    0x60 => {
                        if self.una == psn {
                            self.go_back(psn, Cause::Nak);
                        }
                    }
                    _ => self.dead = true,
                }
            }
            What::Response { .. } => {
                let missing = self.missing(half, psn);
                if psn < self.una {
                    return;
                }
                if missing.is_none_or(|missing| missing == psn) {
                    self.progress(half, now, psn + 1);
                } else {
                    self.gap(half, now, missing.unwrap_or(psn));
                }
            }
            _ => {}
        }
    }

    /// All numbers before `una` are acknowledged, except data that did not come.
    fn covered(&mut self, half: &Half, now: u64, una: u64) {
        if una < self.una {
            return;
        }
        match self.missing(half, una) {
            Some(missing) => self.gap(half, now, missing),
            None => self.progress(half, now, una),
        }
    }

    fn gap(&mut self, half: &Half, now: u64, missing: u64) {
        self.progress(half, now, missing);
        if self.gap_at != Some(missing) {
            self.gap_at = Some(missing);
            self.go_back(missing, Cause::Gap);
        }
    }
}

/// RNR timer codes: 0 is 655.36 ms, then 10 us, and so on (IBA table 46).
pub(crate) fn rnr_ns(code: u8) -> u64 {
    let tens = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    tens[usize::from(code)] * 10_000
}

#[derive(Debug, Default)]
pub(crate) struct Responder {
    pub(crate) expected: u64,
    msn: u32,
    /// A NAK was sent, and the packet that it asks for did not come.
    nak: bool,
    rnr_sent: u32,
    /// Answers to send, with their times.
    queue: VecDeque<(u64, Emit)>,
    next_send: u64,
    pub(crate) dead: bool,
}

impl Responder {
    fn answer(&mut self, half: &Half, now: u64, psn: u64, what: What) {
        let mut at = now + half.answer_delay_ns;
        let is_ack = |what: &What| matches!(what, What::Ack { syndrome: 0..=0x1f, .. });
        if let Some((due, _)) = self.queue.back().filter(|(_, last)| is_ack(&what) && is_ack(&last.what)) {
            // Coalesced: the ACK that waits says the newer number, at its own time.
            at = *due;
            self.queue.pop_back();
        }
        self.queue.push_back((at, Emit { psn, what, again: None }));
    }

    fn ack(&mut self, half: &Half, now: u64, psn: u64, syndrome: u8) {
        let msn = if half.no_msn { 0 } else { self.msn };
        self.answer(half, now, psn, What::Ack { syndrome, msn });
    }

    pub(crate) fn on_request(&mut self, half: &Half, now: u64, psn: u64, what: &What) {
        let What::Request { message: number, index, ask } = *what else { return };
        if self.dead {
            return;
        }
        let message = &half.messages[number];
        let fault = half.fault.filter(|fault| fault.message == number).map(|fault| fault.what);
        let anywhere = half.fault.map(|fault| fault.what);
        if anywhere == Some(EndWhat::OtherPsn) {
            if !self.nak {
                self.nak = true;
                self.ack(half, now, 5000, 0x60);
            }
            return;
        }
        if psn > self.expected {
            if !self.nak {
                self.nak = true;
                self.ack(half, now, self.expected, 0x60);
            }
            return;
        }
        if psn < self.expected {
            return self.duplicate(half, now, psn, number, index, ask);
        }
        self.nak = false;
        let last = message.op.is_fetch() || index + 1 == message.psns && !message.cut;
        if index == 0 && number > 0 && half.messages[number - 1].cut {
            return self.refuse(half, now, psn, 0x61);
        }
        let needs_receive = index == 0 && message.op == Op::Send || last && message.imm;
        match fault {
            Some(EndWhat::NotReady(times, code)) if needs_receive && self.rnr_sent < times => {
                self.rnr_sent += 1;
                self.nak = true;
                return self.ack(half, now, psn, 0x20 | code);
            }
            Some(EndWhat::Refuses(syndrome)) => return self.refuse(half, now, psn, syndrome),
            Some(EndWhat::Dead) => {
                self.dead = true;
                return;
            }
            Some(EndWhat::LargerMtu) => return self.refuse(half, now, psn, 0x61),
            Some(EndWhat::OtherLength) if last => return self.refuse(half, now, psn, 0x61),
            _ => {}
        }
        let now = if fault == Some(EndWhat::Slow) && last { now + 1_300_000_000 } else { now };
        self.expected += if message.op == Op::Read { message.psns - index } else { 1 };
        self.msn += u32::from(last);
        if message.op.is_fetch() {
            return self.respond(half, now, number, index);
        }
        let answered = match half.answers {
            Asks::Each => true,
            Asks::Messages => last || ask,
            Asks::Some => ask,
        };
        if answered {
            self.ack(half, now, self.expected - 1, half.credits);
        }
    }

    fn refuse(&mut self, half: &Half, now: u64, psn: u64, syndrome: u8) {
        self.ack(half, now, psn, syndrome);
        self.dead = true;
    }

    fn duplicate(&mut self, half: &Half, now: u64, psn: u64, message: usize, index: u64, ask: bool) {
        if half.messages[message].op.is_fetch() {
            self.respond(half, now, message, index);
        } else if ask || psn + 1 == self.expected {
            self.ack(half, now, self.expected - 1, half.credits);
        }
    }

    fn respond(&mut self, half: &Half, now: u64, number: usize, index: u64) {
        let message = &half.messages[number];
        let msn = if half.no_msn { 0 } else { self.msn };
        for each in index..message.psns {
            let (opens, closes) = (each == index, each + 1 == message.psns);
            let what = What::Response { message: number, index: each, opens, closes, msn };
            self.answer(half, now, message.first + each, what);
        }
    }

    /// Sends at most one packet. Returns it, and when to call again.
    pub(crate) fn step(&mut self, half: &Half, now: u64) -> (Option<Emit>, Option<u64>) {
        let Some(due) = self.queue.front().map(|(at, _)| (*at).max(self.next_send)) else {
            return (None, None);
        };
        if now < due {
            return (None, Some(due));
        }
        self.next_send = now + half.gap_ns;
        let next = self.queue.pop_front().map(|(_, emit)| emit);
        (next, (!self.queue.is_empty()).then_some(self.next_send))
    }
}
