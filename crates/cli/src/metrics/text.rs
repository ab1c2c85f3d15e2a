//! Writes the text exposition format, version 0.0.4: families of samples, each with help and type.

use std::collections::BTreeMap;
use std::fmt::Write;

use roxie::status::QpStatus;
use roxie::transport::QpCounters;

use crate::top::Engine;

/// The samples of one metric.
struct Family {
    kind: &'static str,
    help: String,
    /// Values by label set.
    samples: BTreeMap<String, String>,
}

/// Metric families by name.
#[derive(Default)]
struct Families(BTreeMap<String, Family>);

/// The metrics of engines.
pub(super) fn exposition(
    engines: &[Engine],
    hidden: usize,
    unresponsive: usize,
    with_queue_pairs: bool,
) -> String {
    let mut families = Families::default();
    let pids: std::collections::BTreeSet<u32> = engines.iter().map(|engine| engine.pid).collect();
    families.gauge("roxie_processes", "Processes that answered.", String::new(), pids.len() as f64);
    let help = "Processes of other users, which are read only by root and with --all-users.";
    families.gauge("roxie_hidden_processes", help, String::new(), hidden as f64);
    let help = "Processes that did not answer, for example because a signal or a debugger stops them.";
    families.gauge("roxie_unresponsive_processes", help, String::new(), unresponsive as f64);
    for engine in engines {
        let (pid, slot) = (engine.pid.to_string(), engine.slot.to_string());
        let engine_labels = [("pid", pid.as_str()), ("command", &engine.command), ("slot", &slot)];
        let status = &engine.status;
        let about = [("device", status.device.as_str()), ("netdev", &status.netdev), ("port", &status.port)];
        let help = "Name, network interface and port of a device; always 1.";
        families.gauge("roxie_device_info", help, labels(&[&engine_labels[..], &about].concat()), 1.0);
        for (name, value) in &engine.status.counters {
            let help = QpCounters::help(name).map_or_else(
                || format!("The device's counter {name}."),
                |help| format!("{} Sum over the queue pairs of a device.", help.trim()),
            );
            families.counter(&format!("roxie_{name}_total"), help, labels(&engine_labels), *value);
        }
        let mut states: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for qp in &engine.queue_pairs {
            *states.entry((&qp.service, &qp.state)).or_default() += 1;
        }
        for ((service, state), count) in states {
            let labels = labels(&[&engine_labels[..], &[("service", service), ("state", state)]].concat());
            families.gauge("roxie_queue_pairs", "Queue pairs by service and state.", labels, count as f64);
        }
        if with_queue_pairs {
            engine.queue_pairs.iter().for_each(|qp| families.queue_pair(qp, &engine_labels[..2]));
        }
    }
    families.text()
}

impl Families {
    fn queue_pair(&mut self, qp: &QpStatus, process_labels: &[(&str, &str)]) {
        let number = format!("{:#08x}", qp.qpn.value());
        let remote = qp.remote.map(|remote| remote.to_string()).unwrap_or_default();
        let more = [("qpn", number.as_str()), ("service", &qp.service), ("remote", &remote)];
        let labels = labels(&[process_labels, &more].concat());
        for (name, value) in qp.counters.rows() {
            let help = QpCounters::help(name).unwrap_or_default().trim().to_owned();
            self.counter(&format!("roxie_qp_{name}_total"), help, labels.clone(), value);
        }
        let help = "Request packets in flight: sent and not acknowledged.";
        self.gauge("roxie_qp_in_flight_packets", help, labels.clone(), f64::from(qp.in_flight));
        let help = "Request packets waiting to be sent.";
        self.gauge("roxie_qp_pending_packets", help, labels.clone(), f64::from(qp.pending));
        if let Some(ns) = qp.round_trip_ns {
            let help = "Smoothed round-trip time.";
            self.gauge("roxie_qp_round_trip_seconds", help, labels.clone(), ns as f64 / 1e9);
        }
        if let Some(bps) = qp.paced_bps {
            let help = "Pacing rate on the wire, by congestion control or a rate limit.";
            self.gauge("roxie_qp_paced_bytes_per_second", help, labels, bps as f64 / 8.0);
        }
    }

    fn counter(&mut self, name: &str, help: String, labels: String, value: u64) {
        self.add(name, "counter", help, labels, value.to_string());
    }

    fn gauge(&mut self, name: &str, help: &str, labels: String, value: f64) {
        self.add(name, "gauge", help.to_owned(), labels, value.to_string());
    }

    fn add(&mut self, name: &str, kind: &'static str, help: String, labels: String, value: String) {
        let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
        let name: String = name.chars().map(allowed).collect();
        let family = self.0.entry(name).or_insert_with(|| Family { kind, help, samples: BTreeMap::new() });
        // A duplicated series would make the complete text invalid.
        family.samples.entry(labels).or_insert(value);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.0 {
            let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
            // A write to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", family.kind);
            for (labels, value) in &family.samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        }
        text
    }
}

/// A label set: `{pid="4711",command="rping"}`.
fn labels(labels: &[(&str, &str)]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", labels.join(","))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use roxie::status::EngineStatus;
    use wire::Qpn;

    use super::*;

    fn engine(pid: u32, command: &str) -> Engine {
        let mut qp = QpStatus {
            qpn: Qpn::new(0x11),
            service: "RC".into(),
            state: "RTS".into(),
            ..QpStatus::default()
        };
        qp.remote = Some("10.0.0.2".parse().unwrap());
        qp.round_trip_ns = Some(1500);
        qp.counters.sent_bytes = 7;
        let other = QpStatus { qpn: Qpn::new(0x12), ..qp.clone() };
        let counters = vec![("rx_packets".to_owned(), 5), ("sent_bytes".to_owned(), 14)];
        let (device, netdev) = ("roxie0".into(), "eth0".into());
        let status = EngineStatus { device, netdev, port: "udp".into(), counters };
        Engine { pid, slot: 3, command: command.to_owned(), status, queue_pairs: vec![qp, other] }
    }

    /// Checks the rules of Prometheus' parser and linter; returns the number of series.
    fn check(text: &str) -> usize {
        let (mut names, mut series) = (BTreeSet::new(), BTreeSet::new());
        let mut current = (String::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a help");
                assert!(names.insert(name.to_owned()), "{name} in two places");
                assert!(!help.is_empty(), "{name}");
                current = (name.to_owned(), String::new());
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert_eq!(name, current.0, "the type follows the help");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                current.1 = kind.to_owned();
            } else {
                let end = line.find(['{', ' ']).expect("a sample");
                assert_eq!(line[..end], current.0, "samples follow their type");
                let (labels, value) = line[end..].rsplit_once(' ').expect("a value");
                assert!(value.parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
                assert!(series.insert(line[..end].to_owned() + labels), "twice: {line}");
                assert!(line[..end].starts_with(|c: char| c.is_ascii_lowercase()));
            }
        }
        assert!(text.ends_with('\n'));
        series.len()
    }

    #[test]
    fn the_exposition_is_valid() {
        let engines = [engine(4711, "ib_write_bw"), engine(4712, "a \"b\"\\c\nd")];
        let text = exposition(&engines, 4, 1, true);
        let queue_pairs = QpCounters::default().rows().count() + 3;
        assert_eq!(check(&text), 3 + 2 * (1 + 2 + 1 + 2 * queue_pairs));
        for line in [
            "roxie_processes 2",
            "roxie_hidden_processes 4",
            "roxie_unresponsive_processes 1",
            "# TYPE roxie_rx_packets_total counter",
            r#"roxie_rx_packets_total{pid="4711",command="ib_write_bw",slot="3"} 5"#,
            r#"roxie_rx_packets_total{pid="4712",command="a \"b\"\\c\nd",slot="3"} 5"#,
            r#"roxie_queue_pairs{pid="4711",command="ib_write_bw",slot="3",service="RC",state="RTS"} 2"#,
            concat!(
                r#"roxie_qp_round_trip_seconds{pid="4711",command="ib_write_bw",qpn="0x000011","#,
                r#"service="RC",remote="10.0.0.2"} 0.0000015"#
            ),
            "# HELP roxie_qp_sent_bytes_total Payload bytes sent, retransmitted ones included.",
        ] {
            assert!(text.lines().any(|there| there == line), "{line}\n{text}");
        }
        assert_eq!(check(&exposition(&engines, 0, 0, false)), 3 + 2 * 4);
        assert_eq!(check(&exposition(&[], 0, 0, true)), 3);
    }
}
