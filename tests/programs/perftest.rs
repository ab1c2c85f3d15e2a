//! perftest: every tool with and without rdma_cm, all sizes, many queue pairs, both directions, events,
//! shared receive queues. One process per CPU.

use std::time::Duration;

use roxie_tests::lab::{Lab, Side};
use roxie_tests::pair::{Both, Pair, Ready};
use roxie_tests::place::{Family, Place, Port};

use crate::case::{Case, LONG, Scale, Spread, gid_index, places};

/// Rows of a report with `-a`: sizes 2 to 2^23.
const ALL_SIZES: usize = 23;

/// A tool and its options.
struct Variant {
    spread: Spread,
    tool: &'static str,
    words: &'static [&'static str],
}

pub(crate) fn cases(scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for (nth, variant) in variants(scale).into_iter().enumerate() {
        // At quick scale at one of the two places.
        let spread = match variant.spread {
            Spread::Two if nth % 2 == 0 => Spread::Root,
            Spread::Two => Spread::Ordinary,
            spread => spread,
        };
        // perftest 4.5 resolves the peer of -R as IPv4 only, --ipv6 or not.
        let cm = variant.words.contains(&"-R");
        let places = places(scale, spread).into_iter().filter(|place| !cm || place.family == Family::V4);
        cases.extend(places.map(|place| case(place, scale, &variant)));
    }
    cases
}

fn variants(scale: Scale) -> Vec<Variant> {
    use Spread::{Ordinary, Root, Third, Two};
    let mut variants = Vec::new();
    let mut add = |tool, spread, words| variants.push(Variant { spread, tool, words });
    // perftest measures the frequency of the CPU for each row of a report, by calls of gettimeofday(2): 0.2 s
    // of CPU time, and 5 s with `-a`. So at quick scale each size of READs runs once; rping and rstream have
    // other sizes of SENDs and WRITEs, and check the bytes.
    add("ib_read_bw", Root, &["-a"]);
    if scale == Scale::Full {
        for tool in ["ib_write_bw", "ib_send_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat"] {
            add(tool, Root, &["-a"]);
        }
        for tool in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
            add(tool, Ordinary, &["-a", "-b", "-R"]);
        }
        for tool in ["ib_write_lat", "ib_read_lat", "ib_send_lat"] {
            add(tool, Ordinary, &["-a", "-R"]);
        }
    }
    for (nth, tool) in ["ib_write_bw", "ib_read_bw", "ib_send_bw"].into_iter().enumerate() {
        add(tool, Third(nth), &[]);
        add(tool, Third(nth + 1), &["-R"]);
        add(tool, Two, &["-q", "4"]);
        add(tool, Two, &["-q", "4", "-R"]);
        add(tool, Two, &["-b"]);
        add(tool, Two, &["-s", "8", "-l", "32"]);
    }
    add("ib_atomic_bw", Third(2), &[]);
    add("ib_atomic_bw", Two, &["-R"]);
    add("ib_atomic_bw", Two, &["-A", "CMP_AND_SWAP"]);
    add("ib_atomic_bw", Two, &["-q", "4"]);
    add("ib_atomic_bw", Two, &["-b"]);
    for tool in ["ib_read_bw", "ib_send_bw", "ib_atomic_bw"] {
        add(tool, Two, &["-e"]);
    }
    add("ib_send_bw", Two, &["--use-srq"]);
    add("ib_send_bw", Two, &["--use-srq", "-q", "4"]);
    add("ib_send_bw", Two, &["--use-srq", "-R", "-e"]);
    for (nth, tool) in ["ib_write_lat", "ib_read_lat", "ib_send_lat"].into_iter().enumerate() {
        add(tool, Third(nth + 2), &[]);
        add(tool, Two, &["-R"]);
    }
    add("ib_atomic_lat", Two, &[]);
    for tool in ["ib_read_lat", "ib_send_lat"] {
        add(tool, Two, &["-e"]);
    }
    add("ib_send_lat", Two, &["--use-srq"]);
    // Besides, ibv_xsrq_pingpong runs at other places, and udaddy for UD.
    add("ib_send_bw", Third(1), &["-c", "XRC"]);
    for tool in ["ib_write_bw", "ib_read_bw", "ib_write_lat", "ib_send_lat", "ib_read_lat", "ib_atomic_bw"] {
        add(tool, Two, &["-c", "XRC"]);
    }
    add("ib_send_bw", Two, &["-c", "XRC", "-q", "4"]);
    add("ib_write_bw", Two, &["-c", "XRC", "-b"]);
    for tool in ["ib_write_bw", "ib_write_lat", "ib_send_lat"] {
        add(tool, Two, &["-c", "UC"]);
    }
    add("ib_send_lat", Two, &["-c", "UD"]);
    // With a duration: a receiver that counts messages would wait for ever for a lost one.
    add("ib_send_bw", Two, &["-c", "UC", "-D", "1"]);
    add("ib_send_bw", Two, &["-c", "UD", "-D", "1"]);
    variants
}

fn case(place: Place, scale: Scale, variant: &Variant) -> Case {
    let &Variant { tool, words, .. } = variant;
    let title = format!("{tool} {}", words.join(" "));
    let all_sizes = words.contains(&"-a");
    let case = Case::new(place, title.trim_end(), tool, move |lab, name| {
        let both = run(lab, &place, name, tool, words, iterations(scale, tool, words))?;
        judge(&both, if all_sizes { ALL_SIZES } else { 1 })
    });
    // Streams of a tenth of a second. Both ends of a ping-pong, or of a stream of a second, keep both CPUs
    // busy. All XRC domains have the same two files.
    let is_busy = tool.ends_with("_lat") || words.contains(&"-D") || words.contains(&"XRC");
    if is_busy { case } else { case.beside_others() }
}

/// Iterations per size: enough to wrap every queue, few enough for the time limit, and a multiple of every
/// post list and of the CQ moderation, 100. perftest 4.5 counts one completion as that many messages, also
/// the last one of a queue pair. With a remainder it can count all messages as completed while one queue
/// pair lags, and then posts for ever without polling.
fn iterations(scale: Scale, tool: &str, words: &[&str]) -> &'static str {
    match (scale, words.contains(&"-a"), tool.ends_with("_lat")) {
        (Scale::Quick, true, _) => "20",
        (Scale::Quick, false, true) => "512",
        (Scale::Quick, false, false) => "1600",
        (Scale::Full, true, _) => "200",
        (Scale::Full, false, _) => "6400",
    }
}

/// Time limit for messages of every size where the kernel copies each packet: gigabytes at a tenth of the
/// other ports' rate, while `ib_write_lat` spins on memory on both CPUs.
const COPYING: Duration = Duration::from_secs(150);

/// Runs both ends of a tool, each with the GID of its address.
pub(crate) fn run(
    lab: &Lab,
    place: &Place,
    name: &str,
    tool: &str,
    words: &[&str],
    iterations: &str,
) -> Result<Both, String> {
    // perftest leaves the files of its XRC domains behind, and only their owner can open them.
    for side in ["server", "client"] {
        let _there_may_be_none = std::fs::remove_file(format!("/tmp/xrc_domain_{side}"));
    }
    let port = lab.port();
    let port_word = port.to_string();
    let cm = words.contains(&"-R");
    let mut common = [&[tool, "-d", "roxie0", "-F", "-p", &port_word, "-n", iterations], words].concat();
    let (at_server, at_client);
    let (mut server, mut client) = (Vec::new(), Vec::new());
    if place.family == Family::V6 {
        common.push("--ipv6");
        (at_server, at_client) = (gid_index(lab, place, Side::Server)?, gid_index(lab, place, Side::Client)?);
        server = vec!["-x", &at_server];
        client = vec!["-x", &at_client];
    }
    // perftest exchanges its addresses over TCP, with IPv4 only.
    client.push(lab.address(&Place { family: Family::V4, ..*place }));
    Pair {
        name,
        server: [&common[..], &server].concat(),
        client: [&common[..], &client].concat(),
        ready: if cm { Ready::Cm(port) } else { Ready::Tcp(port) },
        limit: if words.contains(&"-a") && place.ports != [Port::Udp; 2] { COPYING } else { LONG },
    }
    .run(lab, place)
}

/// Requires a report with `rows` rows with averages above zero, and no error message.
fn judge(both: &Both, rows: usize) -> Result<(), String> {
    let fail = |why: String| Err(format!("{why}\n{}{}", both.client.describe(), both.server.describe()));
    // On a busy machine perftest may not find the frequency of the CPU: it says so in the middle of a row,
    // and its figures are zero.
    const BUSY: &str = "Correlation coefficient";
    let output = &both.client.output;
    let least = if output.contains(BUSY) { -1.0 } else { 0.0 };
    let lines = output.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
    let lines = lines.filter_map(|line| line.split(BUSY).next().filter(|line| !line.trim().is_empty()));
    let good = lines.map_while(row).filter(|values| values.iter().skip(2).any(|v| *v > least)).count();
    if good != rows {
        return fail(format!("{good} rows in the report instead of {rows}"));
    }
    for ended in [&both.client, &both.server] {
        if let Some(line) = ended.output.lines().find(|line| line.contains("ompletion with error")) {
            return fail(line.to_owned());
        }
    }
    Ok(())
}

/// Parses a line of numbers.
fn row(line: &str) -> Option<Vec<f64>> {
    let values: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
    values.ok().filter(|values| values.len() >= 3)
}
