//! Draws the screen. It fits into 80 columns and 24 lines; a larger terminal shows more.

use std::collections::VecDeque;

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table as Grid, TableState};

use super::SORTS;
use super::app::{App, View};
use super::detail::Detail;
use super::item::Metric;
use super::table::Row;
use super::units::{cut, short, time};
use roxie_capture::clock;

/// A column: heading, width, whether it is aligned left, and the text of a row.
struct Column {
    heading: &'static str,
    width: u16,
    left: bool,
    cell: fn(&Row, usize) -> String,
}

/// The columns in the order of the screen, each with the smallest width of the screen that shows it. A
/// narrower screen leaves out the least important columns: a cut number would be wrong.
const COLUMNS: [(u16, Column); 17] = [
    (30, column("PID", 7, false, |row, _| row.pid().map_or_else(String::new, |pid| pid.to_string()))),
    (49, column("COMMAND", 11, true, |row, width| cut(&row.item.command, width))),
    (8, column("QP", 8, true, |row, _| format!("{:#08x}", row.item.status.qpn.value()))),
    (68, column("DEVICE", 6, true, |row, width| cut(&row.item.device, width))),
    (113, column("NETDEV", 8, true, |row, width| cut(&row.item.netdev, width))),
    (118, column("TYPE", 4, true, |row, _| row.item.status.service.clone())),
    (86, column("STATE", 5, true, |row, _| row.item.status.state.clone())),
    (80, column("PEER", 11, true, |row, width| cut(&row.peer(false), width))),
    (
        127,
        column("PEER QP", 8, true, |row, _| match row.item.status.dest_qpn {
            Some(qpn) => format!("{:#08x}", qpn.value()),
            None => String::new(),
        }),
    ),
    (15, column("TX B/s", 6, false, |row, _| short(row.rate(Metric::TxBytes)))),
    (22, column("RX B/s", 6, false, |row, _| short(row.rate(Metric::RxBytes)))),
    (
        61,
        column("MSG/s", 5, false, |row, _| {
            short(row.rate(Metric::TxMessages) + row.rate(Metric::RxMessages))
        }),
    ),
    (37, column("RTT", 6, false, |row, _| time(row.item.status.round_trip_ns))),
    (55, column("RETX", 5, false, |row, _| short(row.rate(Metric::Retransmitted)))),
    (104, column("NAK", 5, false, |row, _| short(row.rate(Metric::Naks)))),
    (104, column("RNR", 5, false, |row, _| short(row.rate(Metric::RnrNaks)))),
    (104, column("CNP", 5, false, |row, _| short(row.rate(Metric::Cnps)))),
];

const fn column(heading: &'static str, width: u16, left: bool, cell: fn(&Row, usize) -> String) -> Column {
    Column { heading, width, left, cell }
}

/// What the keys and columns are.
const HELP: &str = include_str!("../help/top-keys.txt");

/// Draws the present view.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(4), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    match &app.view {
        View::One(detail) => return one(frame, app, detail),
        View::Help => frame.render_widget(Paragraph::new(HELP), body),
        View::List | View::Filter => list(frame, app, body),
    }
    header(frame, app, head);
    let foot_line = match app.view {
        View::Filter => Line::from(vec!["Filter: ".bold(), app.filter.as_str().into(), "_".into()]),
        View::Help => Line::from("any key: back"),
        _ if !app.filter.is_empty() => {
            Line::from(vec!["Filter: ".bold(), app.filter.as_str().into(), "   Esc: all   ? help".dim()])
        }
        _ => {
            Line::from("? help   Enter one queue pair   / filter   btrmdlp sort   Space pause   q quit".dim())
        }
    };
    frame.render_widget(Paragraph::new(foot_line), foot);
}

/// Draws the heading with the sums of all queue pairs.
fn header(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let width = area.width as usize;
    let table = &app.table;
    let what = [format!("roxie top: {}", table.summary), format!("{} queue pairs", table.len())];
    let what = fitting(&what, ", ", width);
    let how = if app.is_paused { "paused".to_owned() } else { format!("every {:?}", app.interval) };
    let how = format!("by {}, {how}", SORTS[app.sort as usize].2);
    let gap = width.checked_sub(what.chars().count() + 1 + how.chars().count());
    let how = if gap.is_some() { how } else { String::new() };
    let rate = |metric: Metric| short(table.total(metric));
    let messages = short(table.total(Metric::TxMessages) + table.total(Metric::RxMessages));
    let more = [
        format!("messages {messages}/s"),
        format!("retransmitted {}/s", rate(Metric::Retransmitted)),
        format!("NAK {}/s", rate(Metric::Naks)),
        format!("RNR {}/s", rate(Metric::RnrNaks)),
        format!("CNP {}/s", rate(Metric::Cnps)),
    ];
    let lines = vec![
        Line::from(vec![what.bold(), " ".repeat(gap.unwrap_or(0) + 1).into(), how.dim()]),
        flow("tx", table.total(Metric::TxBytes), &table.tx_history, width),
        flow("rx", table.total(Metric::RxBytes), &table.rx_history, width),
        Line::from(fitting(&more, "   ", width)),
    ];
    frame.render_widget(Paragraph::new(lines), area);
}

/// As many of the first parts as fit into a line.
fn fitting(parts: &[String], between: &str, width: usize) -> String {
    let mut lines = (1..=parts.len()).rev().map(|count| parts[..count].join(between));
    lines.find(|line| line.chars().count() <= width).unwrap_or_default()
}

/// A line with a rate and its history.
fn flow(name: &'static str, rate: f64, history: &VecDeque<u64>, width: usize) -> Line<'static> {
    let label = format!("{name} {:>5}B/s ", short(rate));
    let bars = bars(history, width.saturating_sub(label.len()));
    Line::from(vec![Span::from(label), bars.fg(if name == "tx" { Color::Green } else { Color::Cyan })])
}

/// The latest values as bars, one column each, the latest on the right; the largest value fills the line.
pub(super) fn bars(history: &VecDeque<u64>, width: usize) -> String {
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = history.len().min(width);
    let values = history.iter().skip(history.len() - shown);
    let most = values.clone().copied().max().unwrap_or(0).max(1);
    // A value above zero has at least the smallest bar.
    let level = |value: &u64| LEVELS[(u128::from(*value) * 8).div_ceil(u128::from(most)) as usize];
    " ".repeat(width - shown).chars().chain(values.map(level)).collect()
}

/// Draws the table.
fn list(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let rows = app.chosen();
    if rows.is_empty() {
        let words = match (app.table.len(), app.filter.is_empty()) {
            (0, _) => "No queue pairs. Start a program on roxie: roxie run -- PROGRAM".to_owned(),
            _ => format!("None of {} has \"{}\" in its text.", app.table.len(), app.filter),
        };
        return frame.render_widget(Paragraph::new(vec![Line::default(), Line::from(words)]), area);
    }
    let columns: Vec<&Column> =
        COLUMNS.iter().filter(|(from, _)| area.width >= *from).map(|(_, column)| column).collect();
    let fixed: u16 = columns.iter().map(|column| column.width + 1).sum();
    // The address column takes the remaining width.
    let wide = |column: &Column| match column.heading {
        "PEER" => column.width + (area.width + 1).saturating_sub(fixed).min(28),
        _ => column.width,
    };
    let widths = columns.iter().map(|column| Constraint::Length(wide(column)));
    let aligned = |column: &Column, text: String| {
        let alignment = if column.left { Alignment::Left } else { Alignment::Right };
        Cell::from(Line::from(text).alignment(alignment))
    };
    let heading = columns.iter().map(|column| aligned(column, column.heading.to_owned()));
    let body = rows.iter().map(|row| {
        let cells = columns.iter().map(|column| aligned(column, (column.cell)(row, wide(column) as usize)));
        Cells::new(cells).style(tone(row))
    });
    let grid = Grid::new(body, widths)
        .header(Cells::new(heading).style(Style::new().bold().reversed()))
        .row_highlight_style(Style::new().reversed())
        .column_spacing(1);
    let mut state = TableState::default().with_selected(app.marked_index(&rows));
    frame.render_stateful_widget(grid, area, &mut state);
}

/// Colour of a row: red in an error state, yellow with retransmissions, dim when idle.
fn tone(row: &Row) -> Style {
    let retransmitting = row.rate(Metric::Retransmitted) + row.rate(Metric::Timeouts);
    match row.item.status.state.as_str() {
        "ERR" | "SQE" => Style::new().fg(Color::Red),
        _ if retransmitting > 0.0 => Style::new().fg(Color::Yellow),
        _ if row.rate(Metric::TxPackets) + row.rate(Metric::RxPackets) == 0.0 => Style::new().dim(),
        _ => Style::new(),
    }
}

/// Draws one queue pair.
fn one(frame: &mut Frame<'_>, app: &App, detail: &Detail) {
    let (row, area) = (&detail.row, frame.area());
    let width = area.width as usize;
    let mut lines = attributes(row, detail.is_gone, width);
    lines.push(flow("tx", row.rate(Metric::TxBytes), &row.tx_history, width));
    lines.push(flow("rx", row.rate(Metric::RxBytes), &row.rx_history, width));
    // Counters take at most a third of the screen, or four lines.
    let cells: Vec<String> =
        detail.growth.iter().map(|(name, total, rate)| counter(name, *total, *rate)).collect();
    let across = (width / COUNTER_WIDTH).max(1);
    let most = (area.height as usize / 3).max(4);
    let shown: Vec<String> = cells.chunks(across).map(|line| line.concat()).collect();
    lines.extend(shown.iter().take(most).map(|line| Line::from(line.clone())));
    if shown.len() > most {
        let hidden = cells.len() - most * across;
        lines.push(Line::from(format!("{hidden} more counters: roxie top --once --json")).dim());
    }
    lines.push(Line::from(format!("{:<width$}", "PACKETS")).bold().reversed());
    let room = (area.height as usize).saturating_sub(lines.len() + 1);
    let skipped = detail.packets.len().saturating_sub(room);
    if detail.packets.is_empty() {
        lines.push(Line::from(detail.note.as_str()).dim());
    }
    lines.extend(detail.packets.iter().skip(skipped).map(|line| Line::from(line.as_str())));
    let [body, foot] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(area);
    frame.render_widget(Paragraph::new(lines), body);
    let paused = if app.is_paused { "   paused" } else { "" };
    frame.render_widget(Paragraph::new(format!("Esc back   Space pause   n update now{paused}").dim()), foot);
}

/// Width of a counter: name, total and change.
const COUNTER_WIDTH: usize = 40;

fn counter(name: &str, total: u64, rate: f64) -> String {
    let rate = if rate >= 0.5 { format!("+{}/s", short(rate)) } else { String::new() };
    let text = format!("{:<22} {:>6} {rate}", cut(name, 22), short(total as f64));
    format!("{text:<COUNTER_WIDTH$}")
}

/// The attributes of a queue pair.
fn attributes(row: &Row, is_gone: bool, width: usize) -> Vec<Line<'static>> {
    let status = &row.item.status;
    let name = match row.pid() {
        Some(pid) => format!("process {pid} {}, queue pair {:#08x}", row.item.command, status.qpn.value()),
        None => format!("queue pair {:#08x}", status.qpn.value()),
    };
    let place = match row.item.device.as_str() {
        "" => row.item.netdev.clone(),
        device => format!("{device} on {}", row.item.netdev),
    };
    let state = if is_gone { "destroyed".to_owned() } else { status.state.clone() };
    let title = format!("{name}, {} {state}", status.service);
    let path = match (status.local, status.remote) {
        (Some(local), Some(_)) => format!("{local} -> {}", row.peer(true)),
        _ => "not connected".to_owned(),
    };
    let timeout = match status.timeout {
        0 => "none".to_owned(),
        // 4.096 us times a power of two (IBA 9.7.6.1.3).
        power => clock::span(4096 << power.min(31)),
    };
    let rnr = if status.rnr_retry == 7 { "unlimited".to_owned() } else { status.rnr_retry.to_string() };
    let mut said = vec![
        path,
        place,
        format!("path MTU {}", status.path_mtu),
        format!("traffic class {}", status.traffic_class),
        format!("round trip {}", time(status.round_trip_ns)),
    ];
    if row.pid().is_some() {
        said.extend([
            format!("ACK timeout {timeout}"),
            format!("retries {}", status.retry_cnt),
            format!("RNR retries {rnr}"),
            format!(
                "READs in flight {} own, {} of the peer",
                status.max_rd_atomic, status.max_dest_rd_atomic
            ),
            format!("queues {} send, {} receive", status.max_send_wr, status.max_recv_wr),
            format!("first PSN {} own, {} of the peer", status.sq_psn.value(), status.rq_psn.value()),
            format!("{} packets in flight, {} to send", status.in_flight, status.pending),
        ]);
    }
    said.extend(status.paced_bps.map(|bps| format!("paced at {}bit/s", short(bps as f64))));
    let title = Line::from(title).bold();
    let title = if is_gone || status.state == "ERR" { title.fg(Color::Red) } else { title };
    let mut lines = vec![title];
    lines.extend(crate::terminal::wrap(&said, "; ", width).into_iter().map(Line::from));
    lines
}
