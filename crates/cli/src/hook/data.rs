//! `roxie hook map`, `samples` and `log`: data of programs in a running process.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use roxie_capture::clock;
use roxie_capture::live::realtime_offset;
use roxie_hook::HookPoint;
use roxie_hook::control::{ControlError, Remote};
use serde_json::json;

use super::args::{HookLogArgs, HookSamplesArgs, ProcessArgs};
use super::attachable;
use crate::bpf_data::{Content, Hooked, RecordOutput, Source, Table, time_of};
use crate::engines::{device_suffixes, engines_of, unanswered};
use crate::failure::{Failure, Outcome};
use crate::terminal;

/// Pause after a query that returned nothing. A ring of 1 MiB then holds 3000 samples of 256 bytes.
const PAUSE: Duration = Duration::from_millis(20);

impl Source for ProcessArgs {
    fn subject(&self) -> String {
        format!("process {}", self.pid)
    }

    fn tables(&self) -> Outcome<Vec<Box<dyn Table>>> {
        let engines = engines_of(self.pid)?.into_iter().map(Rc::new).collect::<Vec<_>>();
        let tables = hooked(self.pid, &engines, self.at)?;
        if tables.is_empty() {
            let hint =
                format!("'roxie hook list {}' lists its hooks; 'roxie hook attach' adds one", self.pid);
            return Err(Failure::new(format!("process {}: no program with maps", self.pid)).hint(hint));
        }
        Ok(tables.into_iter().map(|table| Box::new(table) as Box<dyn Table>).collect())
    }
}

fn hooked(pid: u32, engines: &[Rc<Remote>], at: Option<HookPoint>) -> Outcome<Vec<Hooked>> {
    let mut all = Vec::new();
    for (remote, device) in engines.iter().zip(device_suffixes(engines.iter().map(Rc::as_ref))?) {
        let tables = Hooked::all(remote, &device).map_err(|error| unanswered(pid, &error))?;
        all.extend(tables.into_iter().filter(|table| at.is_none_or(|at| at == table.map.point)));
    }
    Ok(all)
}

/// Prints records until enough have arrived or the process ends.
pub(super) fn samples(args: &HookSamplesArgs) -> Outcome {
    let (pid, at) = (args.process.pid, args.process.at);
    let engines = engines_of(pid)?.into_iter().map(Rc::new).collect::<Vec<_>>();
    if let Some(text) = &args.attach {
        let plan = attachable(text)?;
        for remote in &engines {
            for point in HookPoint::ALL.into_iter().filter(|point| at.is_none_or(|at| at == *point)) {
                remote.attach_held(point, &plan).map_err(|error| unanswered(pid, &error))?;
            }
        }
    }
    let rings = rings(args, &engines)?;
    let devices = device_suffixes(engines.iter().map(Rc::as_ref))?;
    let mut out = RecordOutput::open(args.records.write.as_deref(), args.records.json)?;
    let mut left = args.records.count.unwrap_or(u64::MAX);
    let mut lost: BTreeMap<usize, u64> = BTreeMap::new();
    while left > 0 {
        let (offset, mut any) = (realtime_offset(), false);
        let mut found = Vec::new();
        for (index, (table, content)) in rings.iter().enumerate() {
            let read = match table.remote.records(table.map.id) {
                Err(error) if has_ended(&error) => return ended(pid, &lost),
                read => read.map_err(|error| unanswered(pid, &error))?,
            };
            lost.insert(index, read.lost);
            found.extend(read.records.into_iter().map(|record| (time_of(content, &record), index, record)));
        }
        found.sort_by_key(|(time_ns, ..)| *time_ns);
        for (_, index, record) in found.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            let (table, content) = &rings[*index];
            (any, left) = (true, left - 1);
            out.put(content, &table.at(), record, offset)?;
        }
        if args.attach.is_some() {
            for (remote, device) in engines.iter().zip(&devices) {
                match remote.log() {
                    Err(error) if has_ended(&error) => return ended(pid, &lost),
                    read => {
                        let (lines, _lost) = read.map_err(|error| unanswered(pid, &error))?;
                        lines.iter().for_each(|line| print_line(line, device, offset, args.records.json));
                        any |= !lines.is_empty();
                    }
                }
            }
        }
        out.flush()?;
        if !any {
            std::thread::sleep(PAUSE);
        }
    }
    warn_of(&lost);
    Ok(())
}

/// The rings to read, and what is in them.
fn rings(args: &HookSamplesArgs, engines: &[Rc<Remote>]) -> Outcome<Vec<(Hooked, Content)>> {
    let pid = args.process.pid;
    let mut rings = Vec::new();
    for table in hooked(pid, engines, args.process.at)? {
        let def = &table.view().def;
        let is_ring = matches!(def.kind, bpf::MapKind::Ringbuf | bpf::MapKind::PerfEventArray);
        if is_ring && args.records.map.as_ref().is_none_or(|name| *name == def.name) {
            let content = Content::of(&def.name, table.types.as_ref(), args.records.type_name.as_deref())?;
            rings.push((table, content));
        }
    }
    if !rings.is_empty() {
        return Ok(rings);
    }
    let what = match &args.records.map {
        Some(name) => format!("process {pid}: no ring buffer or perf event array '{name}'"),
        None => format!("process {pid}: no program with a ring buffer or perf event array"),
    };
    Err(Failure::new(what).hint(format!("'roxie hook samples {pid} --attach sample' copies its packets")))
}

fn has_ended(error: &ControlError) -> bool {
    let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe, io::ErrorKind::NotConnected];
    matches!(error, ControlError::Io(error) if kinds.contains(&error.kind()))
}

fn ended(pid: u32, lost: &BTreeMap<usize, u64>) -> Outcome {
    warn_of(lost);
    say!("roxie: process {pid} has ended");
    Ok(())
}

fn warn_of(lost: &BTreeMap<usize, u64>) {
    let lost: u64 = lost.values().copied().fold(0, u64::saturating_add);
    if lost > 0 {
        say!("roxie: warning: {lost} records were lost: the rings were full when the programs wrote them");
    }
}

/// Prints lines of `bpf_printk` until enough have arrived or the process ends.
pub(super) fn log(args: &HookLogArgs) -> Outcome {
    let engines = engines_of(args.pid)?;
    let devices = device_suffixes(&engines)?;
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let (offset, mut any) = (realtime_offset(), false);
        for (remote, device) in engines.iter().zip(&devices) {
            let (lines, lost) = match remote.log() {
                Err(error) if has_ended(&error) => return ended(args.pid, &BTreeMap::new()),
                read => read.map_err(|error| unanswered(args.pid, &error))?,
            };
            for line in lines.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                (any, left) = (true, left - 1);
                print_line(line, device, offset, args.json);
            }
            if lost > 0 {
                say!("roxie: warning: {lost} lines were lost: the programs print faster than this reads");
            }
        }
        if !any {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// `device`: one of [`device_suffixes`].
fn print_line(line: &roxie_hook::LogLine, device: &str, offset: u64, is_json: bool) {
    let point = format!("{}{device}", line.point);
    let time_ns = line.time_ns.saturating_add(offset);
    if is_json {
        let row = json!({
            "time_ns": time_ns,
            "point": point,
            "program": line.program,
            "line": line.text,
        });
        terminal::json(&row);
        return;
    }
    let time = clock::time_of_day(time_ns);
    terminal::print(&format!("{point:<9} {time} {}: {}", line.program, line.text));
}
