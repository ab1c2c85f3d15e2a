//! `roxie sim --devices`: whole devices with applications, in virtual time.

use ::sim::{DeviceFailed, DeviceOptions, DeviceOutcome, run_devices};
use roxie::sched::Tuning;
use serde_json::{Map, Value, json};

use super::args::{Scale, SimArgs};
use super::{Simulation, Table, replay_command};
use crate::cpu;
use crate::failure::Failure;

/// Runs of devices with the same tunables.
pub(super) struct Devices {
    tuning: Tuning,
    /// The options of the command line, for the command that replays a seed.
    options: String,
}

/// Results of runs without a violation.
#[derive(Default)]
pub(super) struct Sum {
    runs: u64,
    outcome: DeviceOutcome,
}

impl Devices {
    pub(super) fn new(args: &SimArgs) -> Self {
        let tuning = args.tuning.iter().fold(Tuning::default(), |tuning, scale| scale.apply(tuning));
        let scales: Vec<_> = args.tuning.iter().map(Scale::to_string).collect();
        let tuning_option =
            if scales.is_empty() { String::new() } else { format!(" --tuning {}", scales.join(",")) };
        Self { tuning, options: format!(" --devices{tuning_option}") }
    }
}

/// The broken promise, and the plan of the run as lines.
fn promise_and_plan(failed: &DeviceFailed) -> (&str, Vec<&str>) {
    let (promise, plan) = failed.what.split_once('\n').unwrap_or((&failed.what, ""));
    (promise, plan.lines().map(str::trim).collect())
}

impl Simulation for Devices {
    type Sum = Sum;
    type Failed = DeviceFailed;

    const UNITS: [&str; 2] = ["runs", "packets"];

    /// Pins the worker thread, and with it the threads of its simulated processes, of which one runs at a
    /// time: to wake a thread on another, idle CPU takes 20 to 40 us.
    fn prepare(&self, worker: usize) {
        if let Some(cpu) = cpu::of_worker(worker) {
            cpu::stay_on(cpu);
        }
    }

    fn run(&self, seed: u64, sum: &mut Sum) -> Result<u64, DeviceFailed> {
        let outcome = run_devices(&DeviceOptions { seed, tuning: self.tuning })?;
        Self::absorb(sum, &Sum { runs: 1, outcome });
        Ok(outcome.packets.0)
    }

    fn absorb(sum: &mut Sum, other: &Sum) {
        sum.runs += other.runs;
        let (sum, other) = (&mut sum.outcome, &other.outcome);
        sum.processes += other.processes;
        sum.connections += other.connections;
        sum.packets.0 += other.packets.0;
        sum.packets.1 += other.packets.1;
        sum.forged += other.forged;
        sum.elapsed_ns += other.elapsed_ns;
        sum.steps += other.steps;
    }

    fn has_any(sum: &Sum) -> bool {
        sum.runs > 0
    }

    fn options(&self) -> String {
        self.options.clone()
    }

    fn show(table: &Table, sum: &Sum, seconds: f64) {
        let DeviceOutcome { processes, connections, packets, forged, elapsed_ns, steps, .. } = sum.outcome;
        let rate = sum.runs as f64 / seconds.max(0.001);
        table.line("runs", sum.runs, &format!("{rate:.0} a second, for {seconds:.1} s"));
        table.line("processes", processes, "each with a device");
        table.line("connections", connections, "");
        table.line("packets sent", packets.0, "");
        table.line("dropped", packets.1, "");
        table.line("forged", forged, "not counted as sent");
        table.line("thread switches", steps, "one thread of a run at a time");
        table.line("virtual time", format!("{:.3} s", elapsed_ns as f64 / 1e9), "");
    }

    fn json(report: &mut Map<String, Value>, sum: &Sum) {
        let DeviceOutcome { processes, connections, packets, forged, elapsed_ns, steps, .. } = sum.outcome;
        let results = json!({
            "runs": sum.runs,
            "processes": processes,
            "connections": connections,
            "packets": { "sent": packets.0, "dropped": packets.1, "forged": forged },
            "thread_switches": steps,
            "virtual_ns": elapsed_ns,
        });
        report.extend(results.as_object().cloned().unwrap_or_default());
    }

    fn violation_json(&self, failed: &DeviceFailed) -> Value {
        let (promise, plan) = promise_and_plan(failed);
        json!({
            "what": promise,
            "plan": plan,
            "seed": failed.seed,
            "replay": replay_command(failed.seed, &self.options),
        })
    }

    fn violation(&self, failed: &DeviceFailed) -> Failure {
        let (promise, plan) = promise_and_plan(failed);
        let plan = plan.iter().map(|line| format!("  {line}"));
        Failure::new(promise).lines(plan).hint(replay_command(failed.seed, &self.options))
    }

    fn seed(failed: &DeviceFailed) -> u64 {
        failed.seed
    }
}

#[cfg(test)]
mod tests {
    use super::super::json_report;
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_violation_comes_with_the_plan_and_the_line_that_replays_it() {
        let tuning = vec!["quantum_pkts=x0.5".parse().expect("a scale"), "batch_pkts=x2".parse().unwrap()];
        let devices = Devices::new(&SimArgs { devices: true, tuning, ..SimArgs::default() });
        assert_eq!((devices.tuning.quantum_pkts, devices.tuning.batch_pkts), (62, 192));
        let what = "process 1: it sleeps\n  process 0: Poll\n  process 1: Events".to_owned();
        let failed = DeviceFailed { seed: 0x1f, what };
        let replay = "roxie sim --devices --tuning quantum_pkts=x0.5,batch_pkts=x2 --seed 0x1f";
        let report = json_report(&devices, &Sum::default(), Duration::ZERO, Some(&failed), false);
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["ok"], false);
        assert_eq!(report["violation"]["what"], "process 1: it sleeps");
        assert_eq!(report["violation"]["plan"], json!(["process 0: Poll", "process 1: Events"]));
        assert_eq!(report["violation"]["replay"], replay);
        let failure = devices.violation(&failed);
        assert_eq!(failure.code, 1);
        assert_eq!(failure.what, "process 1: it sleeps");
        assert_eq!(failure.lines, ["  process 0: Poll", "  process 1: Events"]);
        assert_eq!(failure.hint.as_deref(), Some(replay));
    }
}
