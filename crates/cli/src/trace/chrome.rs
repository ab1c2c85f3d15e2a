//! Chrome's trace event format (JSON), which Perfetto and chrome://tracing open: a trace is written to it and
//! read from it.
//!
//! A message is an asynchronous event with its parts inside, so overlapping ones need no thread; its name is
//! that of the queue pair, which makes one track of each. Its arguments are the whole [`Message`]: the reader
//! needs no other fields.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::failure::{Failure, Outcome};

use super::model::{Event, Mark, Message, PARTS, Process, Slice, Thread, Trace, What};

/// Category of messages and of their parts.
const MESSAGE: &str = "message";
/// Category of the events of connection management that are spans.
const CM: &str = "cm";

/// Writes a trace, one event a line.
pub(super) fn write(trace: &Trace, mut to: impl Write) -> io::Result<()> {
    write!(to, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let mut separator = "\n";
    let mut put = |event: &Value| {
        let written = write!(to, "{separator}{event}");
        separator = ",\n";
        written
    };
    for Process { pid, command } in &trace.processes {
        put(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": command}}))?;
    }
    for Thread { pid, tid, name } in &trace.threads {
        put(&json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}))?;
    }
    for (number, message) in trace.messages.iter().enumerate() {
        message_events(number, message).iter().try_for_each(&mut put)?;
    }
    for slice in &trace.slices {
        put(&slice_event(slice))?;
    }
    for Mark { pid, tid, at, event } in &trace.marks {
        put(&json!({
            "ph": "i", "s": "t", "name": event.name(), "pid": pid, "tid": tid, "ts": us(*at), "args": event,
        }))?;
    }
    for (number, span) in cm_spans(&trace.marks).iter().enumerate() {
        span_events(&format!("cm{number}"), span).iter().try_for_each(&mut put)?;
    }
    writeln!(to, "\n]}}")?;
    to.flush()
}

/// Microseconds, the unit of the format.
fn us(ns: u64) -> Value {
    // Three places are exact up to 2^53 ns, which is 104 days; later moments are rounded to a few ns.
    json!(ns as f64 / 1e3)
}

fn message_events(number: usize, message: &Message) -> Vec<Value> {
    let (pid, tid, id) = (message.pid, message.qpn, format!("m{number}"));
    let event = |phase: &str, name: &str, at: u64| {
        let at = us(at);
        json!({"ph": phase, "cat": MESSAGE, "id": id, "name": name, "pid": pid, "tid": tid, "ts": at})
    };
    let name = format!("QP {:#08x} {}", message.qpn, message.opcode);
    let mut begin = event("b", &name, message.posted);
    begin["args"] = json!(message);
    let mut events = vec![begin];
    let (mut before, ends) = (message.posted, message.ends());
    for (part, end) in PARTS.iter().zip(ends) {
        if end > before {
            events.extend([event("b", part, before), event("e", part, end)]);
        }
        before = end;
    }
    events.push(event("e", &name, before));
    events
}

fn slice_event(slice: &Slice) -> Value {
    let name = match &slice.what {
        What::Batch { .. } => "engine".to_owned(),
        What::Transmit { qpn, retransmitted: 0, .. } => format!("transmit {qpn:#08x}"),
        What::Transmit { qpn, .. } => format!("retransmit {qpn:#08x}"),
        What::Receive { qpn, .. } => format!("receive {qpn:#08x}"),
    };
    let Slice { pid, tid, begin, end, what } = slice;
    json!({
        "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": us(*begin), "dur": us(end - begin),
        "args": what,
    })
}

/// A handshake of connection management.
struct CmSpan {
    name: &'static str,
    pid: u32,
    tid: u32,
    begin: u64,
    end: u64,
}

fn span_events(id: &str, span: &CmSpan) -> [Value; 2] {
    let CmSpan { name, pid, tid, begin, end } = span;
    [("b", begin), ("e", end)].map(|(phase, at)| {
        json!({"ph": phase, "cat": CM, "id": id, "name": name, "pid": pid, "tid": tid, "ts": us(*at)})
    })
}

/// From each REQ to the RTU or REJ, and from each DREQ to the DREP.
fn cm_spans(marks: &[Mark]) -> Vec<CmSpan> {
    let (mut spans, mut open) = (Vec::new(), HashMap::new());
    for Mark { pid, tid, at, event } in marks {
        let Event::Cm { message, own, peer, is_sent } = event else { continue };
        let (name, begins, is_active) = match message.as_str() {
            "REQ" => ("connect", true, *is_sent),
            "RTU" => ("connect", false, *is_sent),
            "REJ" => ("connect", false, !*is_sent),
            "DREQ" => ("disconnect", true, *is_sent),
            "DREP" => ("disconnect", false, !*is_sent),
            _ => continue,
        };
        // The passive side has no ID of its own yet when the REQ arrives.
        let key = (*pid, name, is_active, if is_active { *own } else { *peer });
        if begins {
            // A repeated message belongs to the same handshake.
            open.entry(key).or_insert((*at, *tid));
        } else if let Some((begin, tid)) = open.remove(&key) {
            spans.push(CmSpan { name, pid: *pid, tid, begin, end: *at });
        }
    }
    spans
}

/// Reads a trace that [`write`] has written. `name`: of the file, for errors.
pub(super) fn read(text: &[u8], name: &str) -> Outcome<Trace> {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::new(format!("{name}: {why}")).hint("it must be a file that 'roxie trace -o' has written")
    };
    let file: Value = serde_json::from_slice(text).map_err(|error| refused(&error))?;
    let events = file.get("traceEvents").and_then(Value::as_array);
    let mut trace = Trace::default();
    for event in events.ok_or_else(|| refused(&"no traceEvents"))? {
        read_event(event, &mut trace).map_err(|error| refused(&error))?;
    }
    Ok(trace)
}

fn read_event(event: &Value, trace: &mut Trace) -> Result<(), serde_json::Error> {
    let number = |name: &str| event[name].as_u64().unwrap_or_default() as u32;
    let ns = |name: &str| (event[name].as_f64().unwrap_or_default() * 1e3).round() as u64;
    let (pid, tid, args) = (number("pid"), number("tid"), || event["args"].clone());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match (event["ph"].as_str(), event["name"].as_str()) {
        (Some("M"), Some("process_name")) => {
            trace.processes.push(Process { pid, command: text(&event["args"]["name"]) });
        }
        (Some("M"), _) => trace.threads.push(Thread { pid, tid, name: text(&event["args"]["name"]) }),
        (Some("b"), _) if event["cat"] == MESSAGE && event.get("args").is_some() => {
            trace.messages.push(serde_json::from_value(args())?);
        }
        (Some("X"), _) => {
            let (begin, what) = (ns("ts"), serde_json::from_value(args())?);
            trace.slices.push(Slice { pid, tid, begin, end: begin.saturating_add(ns("dur")), what });
        }
        (Some("i"), _) => {
            trace.marks.push(Mark { pid, tid, at: ns("ts"), event: serde_json::from_value(args())? });
        }
        _ => {}
    }
    Ok(())
}
