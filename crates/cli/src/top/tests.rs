//! The view without a terminal and without processes: keys, and the screen after them.

use std::time::{Duration, Instant};

use ::wire::Qpn;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use roxie::status::{EngineStatus, QpStatus};

use super::app::{App, Step, View};
use super::item::{Item, Key, Metric};
use super::process::Engine;
use super::table::Table;
use super::{Sort, draw, once};

/// A queue pair that has sent `tx_bytes`.
fn item(number: u32, tx_bytes: u64) -> Item {
    let qpn = Qpn::new(0x03_0000 + number);
    let status = QpStatus {
        qpn,
        service: "RC".to_owned(),
        state: if number == 7 { "ERR" } else { "RTS" }.to_owned(),
        local: Some("10.77.0.1".parse().unwrap()),
        remote: Some("10.77.0.2".parse().unwrap()),
        dest_qpn: Some(Qpn::new(0x12)),
        path_mtu: 1024,
        timeout: 14,
        rnr_retry: 7,
        round_trip_ns: Some(17_300),
        ..QpStatus::default()
    };
    let mut totals = [0; Metric::NAMES.len()];
    totals[Metric::TxBytes as usize] = tx_bytes;
    totals[Metric::Retransmitted as usize] = u64::from(number == 3) * tx_bytes;
    let command = if number.is_multiple_of(2) { "ib_write_bw" } else { "rping" }.to_owned();
    let key = Key::Process { pid: 4711 + number, slot: 3, qpn };
    Item { key, command, device: "roxie0".to_owned(), netdev: "eth0".to_owned(), status, totals }
}

/// A table with two updates a second apart, between which queue pair n has sent n MB.
fn table(count: u32) -> Table {
    let (mut table, start) = (Table::default(), Instant::now());
    table.summary = format!("{count} processes");
    table.take((0..count).map(|number| item(number, 5)).collect(), start);
    let later = start + Duration::from_secs(1);
    table.take((0..count).map(|number| item(number, 5 + u64::from(number) * 1_000_000)).collect(), later);
    table
}

fn app(count: u32) -> App {
    App {
        table: table(count),
        sort: Sort::Traffic,
        filter: String::new(),
        view: View::List,
        marked: None,
        is_paused: false,
        interval: Duration::from_secs(1),
    }
}

fn press(app: &mut App, keys: &[KeyCode]) {
    for code in keys {
        assert_ne!(app.on_key(KeyEvent::new(*code, KeyModifiers::NONE)), Step::Quit, "{code:?}");
    }
}

fn screen(app: &App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(line).collect()
}

#[test]
fn rates_are_the_changes_between_two_updates() {
    let mut table = table(4);
    let rates = |table: &Table| {
        let rows = table.chosen(Sort::Process, "");
        rows.iter().map(|row| row.rate(Metric::TxBytes)).collect::<Vec<_>>()
    };
    assert_eq!(rates(&table), [0.0, 1e6, 2e6, 3e6]);
    assert_eq!(table.total(Metric::TxBytes), 6e6);
    // Queue pair 3 is destroyed, the counter of 1 has restarted, 9 is new.
    let later = Instant::now() + Duration::from_secs(60);
    table.take(vec![item(1, 0), item(2, 2_000_005), item(9, 0)], later);
    assert_eq!(rates(&table), [0.0, 0.0, 0.0]);
    assert_eq!(table.chosen(Sort::Process, "")[1].tx_history, [2_000_000, 0]);
}

#[test]
fn the_queue_pairs_of_a_process_are_listed_by_device() {
    let mut table = Table::default();
    let of = |(number, device): (u32, &str)| Item {
        key: Key::Process { pid: 4711, slot: 3, qpn: Qpn::new(number) },
        device: device.to_owned(),
        netdev: format!("eth{}", &device[5..]),
        ..item(number, 0)
    };
    // A second engine of the first device, and ten devices.
    let all = [(0x1000, "roxie0"), (0x2000, "roxie10"), (0x3000, "roxie2"), (0x4000, "roxie0")];
    table.take(all.map(of).to_vec(), Instant::now());
    let devices = |filter| {
        let rows = table.chosen(Sort::Process, filter);
        rows.iter().map(|row| row.item.device.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(devices(""), ["roxie0", "roxie0", "roxie2", "roxie10"]);
    assert_eq!((devices("ROXIE2"), devices("eth10")), (vec!["roxie2"], vec!["roxie10"]));
    let json = once::json(&table, &table.chosen(Sort::Process, "eth2"));
    let row = &json["queue_pairs"][0];
    assert_eq!((&row["device"], &row["netdev"]), (&"roxie2".into(), &"eth2".into()));
}

#[test]
fn keys_sort_filter_and_select() {
    let mut app = app(9);
    let first = |app: &App| app.chosen()[0].item.status.qpn.value() & 0xff;
    assert_eq!(first(&app), 8);
    press(&mut app, &[KeyCode::Char('p')]);
    assert_eq!(first(&app), 0);
    press(&mut app, &[KeyCode::Char('l')]);
    assert_eq!(first(&app), 3, "only queue pair 3 retransmits");
    press(&mut app, &[KeyCode::Char('/'), KeyCode::Char('E'), KeyCode::Char('r'), KeyCode::Char('r')]);
    assert_eq!(app.chosen().len(), 1);
    press(&mut app, &[KeyCode::Enter]);
    assert!(matches!(app.view, View::List) && app.filter == "Err");
    press(&mut app, &[KeyCode::Esc, KeyCode::Char('p'), KeyCode::End]);
    assert_eq!(app.marked_index(&app.chosen()), 8);
    // The selected row stays selected in another order.
    press(&mut app, &[KeyCode::Char('b')]);
    assert_eq!(app.marked_index(&app.chosen()), 0);
    press(&mut app, &[KeyCode::PageDown, KeyCode::Up, KeyCode::Char(' '), KeyCode::Char('+')]);
    assert_eq!(app.marked_index(&app.chosen()), 7);
    assert!(app.is_paused && app.interval == Duration::from_millis(500));
    assert_eq!(app.on_key(KeyEvent::new(KeyCode::Char('n'), KeyModifiers::NONE)), Step::Look);
    for (code, modifiers) in
        [(KeyCode::Char('q'), KeyModifiers::NONE), (KeyCode::Char('c'), KeyModifiers::CONTROL)]
    {
        assert_eq!(app.on_key(KeyEvent::new(code, modifiers)), Step::Quit);
    }
}

#[test]
fn the_list_fits_a_small_terminal_and_fills_a_large_one() {
    let small = screen(&app(9), 80, 24);
    assert!(
        small[0].contains("9 processes, 9 queue pairs") && small[0].contains("by traffic"),
        "{}",
        small[0]
    );
    assert!(small[1].starts_with("tx 36.0MB/s") && small[1].trim_end().ends_with('█'), "{}", small[1]);
    assert_eq!(
        small[5].trim_end(),
        "   4719 ib_write_bw 0x030008 roxie0 10.77.0.2    8.00M      -     - 17.3us     -"
    );
    let large = screen(&app(9), 120, 40);
    for heading in ["NETDEV", "TYPE", "STATE", "NAK", "RNR", "CNP"] {
        assert!(large[4].contains(heading) && !small[4].contains(heading), "{heading}");
    }
    // Sizes without room for anything do not panic.
    for (width, height) in [(1, 1), (20, 5), (79, 3), (300, 100)] {
        screen(&app(200), width, height);
    }
}

/// Columns that do not fit are left out, the least important first.
#[test]
fn a_narrow_screen_has_fewer_columns_and_no_cut_numbers() {
    let app = app(9);
    for width in 8..=128 {
        let shown = screen(&app, width, 24);
        let known = [
            "4719",
            "ib_write_bw",
            "0x030008",
            "roxie0",
            "eth0",
            "RC",
            "RTS",
            "10.77.0.2",
            "0x000012",
            "8.00M",
            "-",
            "17.3us",
        ];
        for word in shown[5].split_whitespace() {
            assert!(known.contains(&word), "{width}: {}", shown[5]);
        }
        assert!(shown[5].contains("0x030008"), "{width}: {}", shown[5]);
        let sum = shown[3].trim_end();
        assert!(sum.is_empty() || sum.ends_with("/s"), "{width}: {sum}");
    }
    let narrow = screen(&app, 60, 24);
    assert_eq!(narrow[4].trim_end(), "    PID COMMAND     QP       TX B/s RX B/s    RTT  RETX");
    assert_eq!(narrow[5].trim_end(), "   4719 ib_write_bw 0x030008  8.00M      - 17.3us     -");
}

#[test]
fn the_selected_row_of_many_is_visible() {
    let mut app = app(200);
    press(&mut app, &[KeyCode::Char('p'), KeyCode::End]);
    assert!(screen(&app, 80, 24).iter().any(|line| line.contains("0x0300c7")));
}

#[test]
fn an_empty_table_is_explained() {
    let mut app = app(0);
    assert!(screen(&app, 80, 24)[5].starts_with("No queue pairs."));
    press(&mut app, &[KeyCode::Enter, KeyCode::Down]);
    assert!(matches!(app.view, View::List));
    app.table = table(3);
    app.filter = "absent".to_owned();
    assert!(screen(&app, 80, 24)[5].contains("None of 3"));
    press(&mut app, &[KeyCode::Char('?')]);
    let help = screen(&app, 80, 24);
    assert!(
        help.iter().any(|line| line.contains("Ctrl-C"))
            && help.iter().any(|line| line.contains("all per second"))
    );
}

#[test]
fn the_view_of_one_queue_pair_has_its_attributes() {
    let mut app = app(9);
    press(&mut app, &[KeyCode::Enter]);
    let shown = screen(&app, 80, 24);
    assert!(shown[0].starts_with("process 4719 ib_write_bw, queue pair 0x030008, RC RTS"), "{}", shown[0]);
    let words = "10.77.0.1 -> 10.77.0.2 0x12; roxie0 on eth0; path MTU 1024; traffic class 0";
    assert_eq!(shown[1].trim_end(), words);
    let words = "round trip 17.3us; ACK timeout 67.1 ms; retries 0; RNR retries unlimited";
    assert_eq!(shown[2].trim_end(), words);
    // The queue pair is destroyed while it is shown.
    let View::One(detail) = &mut app.view else { panic!("one") };
    detail.refresh(&Table::default());
    assert!(screen(&app, 80, 24)[0].contains("RC destroyed"));
    press(&mut app, &[KeyCode::Esc]);
    assert!(matches!(app.view, View::List));
}

#[test]
fn the_largest_bar_fills_the_line_and_small_values_are_visible() {
    assert_eq!(draw::bars(&[0, 1, 50, 100].into(), 6), "   ▁▄█");
    assert_eq!(draw::bars(&[5, 5, 5].into(), 2), "██");
    assert_eq!(draw::bars(&[u64::MAX].into(), 1), "█");
}

#[test]
fn the_columns_of_a_printed_table_are_aligned() {
    let table = table(3);
    let lines = once::lines(&table.chosen(Sort::Traffic, ""));
    assert!(lines.iter().all(|line| line.chars().count() == lines[0].chars().count()));
    let words: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(
        words,
        [
            "4713",
            "ib_write_bw",
            "roxie0",
            "eth0",
            "0x030002",
            "RC",
            "RTS",
            "10.77.0.2",
            "0x000012",
            "2.00M",
            "-",
            "-",
            "-",
            "17.3us",
            "-",
            "-",
            "-",
            "-",
            "-"
        ]
    );
    let json = once::json(&table, &table.chosen(Sort::Traffic, ""));
    let first = &json["queue_pairs"][0];
    assert_eq!((first["pid"].as_u64(), first["rates"]["tx_bytes"].as_f64()), (Some(4713), Some(2e6)));
    assert_eq!(
        (first["remote"].as_str(), first["counters"]["sent_pkts"].as_u64()),
        (Some("10.77.0.2"), Some(0))
    );
}

#[test]
fn a_device_without_free_chunks_has_a_line_and_its_counters_in_json() {
    let counters = [("xsk_tx_pool_empty", 12), ("xsk_kicks", 0), ("xsk_rx_packets", 77)];
    let counters = counters.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let status = EngineStatus {
        device: "roxie0".to_owned(),
        netdev: "eth0".to_owned(),
        port: "xsk".to_owned(),
        counters,
    };
    let (command, queue_pairs) = ("ib_write_bw".to_owned(), Vec::new());
    let device = Engine { pid: 4711, slot: 3, command, status, queue_pairs };
    let quiet = Engine { status: EngineStatus::default(), ..device.clone() };
    let line = device.pressure().expect("a line");
    let start = "4711 ib_write_bw, roxie0 on eth0: no free chunk: 0 times to receive, 12 to send; ";
    assert!(line.starts_with(start), "{line}");
    assert!(line.ends_with("77 packets steered to the AF_XDP sockets, 0 sent over UDP instead"), "{line}");
    assert_eq!(quiet.pressure(), None);
    let mut table = Table::default();
    table.devices = vec![device, quiet];
    let json = once::json(&table, &[]);
    let devices = json["devices"].as_array().expect("a list");
    assert_eq!((devices.len(), devices[0]["slot"].as_u64()), (2, Some(3)));
    assert_eq!(devices[0]["counters"]["xsk_tx_pool_empty"].as_u64(), Some(12));
    assert!(devices[0]["counters"].get("xsk_kicks").is_none(), "a counter of 0");
}

/// ratatui leaves them out.
#[test]
fn no_cell_has_a_character_that_controls_the_terminal() {
    let hostile = "a\x1b[31m\u{9b}2J\u{202e}b".to_owned();
    let mut app = app(3);
    app.table.summary.clone_from(&hostile);
    for view in [View::List, View::Filter] {
        (app.view, app.filter) = (view, hostile.clone());
        let screen = screen(&app, 120, 40).concat();
        assert!(!screen.contains(::wire::text::is_unsafe), "{}", screen.escape_debug());
    }
}
