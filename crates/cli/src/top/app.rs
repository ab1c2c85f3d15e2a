//! The live view: its state, and the handling of keys.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::detail::Detail;
use super::source::Source;
use super::table::{Key, Row, Table};
use super::{SORTS, Sort, TopArgs, draw};
use crate::ending::Ending;
use crate::failure::{During, Outcome};

/// The state of the view.
pub(super) struct App {
    pub(super) table: Table,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) view: View,
    /// Key of the selected row; the first row is selected if there is none with this key.
    pub(super) marked: Option<Key>,
    pub(super) is_paused: bool,
    pub(super) interval: Duration,
}

/// What the screen shows.
pub(super) enum View {
    /// The table.
    List,
    /// The table, while the user edits the filter.
    Filter,
    /// The list of keys.
    Help,
    /// One queue pair.
    One(Box<Detail>),
}

/// What to do after a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    /// Draw the screen.
    Draw,
    /// Update at once.
    Look,
    /// End the program.
    Quit,
}

/// Rows by which a page key moves the selection.
const PAGE: isize = 10;
/// Longest time between two checks for signals.
const LOOK_MAX: Duration = Duration::from_millis(250);
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// Shows the view until the user quits, then restores the terminal.
pub(super) fn run(args: &TopArgs, source: Source, table: Table) -> Outcome {
    // SIGHUP ends the process at once: the terminal is closed and need not be restored.
    let ending = Ending::by(&[Signal::SIGTERM, Signal::SIGINT])?;
    let mut app = App {
        table,
        sort: args.sort,
        filter: args.filter.clone(),
        view: View::List,
        marked: None,
        is_paused: false,
        interval: args.interval,
    };
    let mut terminal = ratatui::try_init().during("terminal")?;
    let outcome = run_loop(&mut terminal, &mut app, source, &ending);
    ratatui::restore();
    outcome
}

/// Draws, waits for keys and updates until the user quits or a signal arrives.
fn run_loop(terminal: &mut DefaultTerminal, app: &mut App, mut source: Source, ending: &Ending) -> Outcome {
    let mut updated = Instant::now();
    // The first rates need two updates, so the second one comes soon.
    let mut wait = app.interval.min(Duration::from_millis(300));
    loop {
        terminal.draw(|frame| draw::draw(frame, app)).during("terminal")?;
        let left = if app.is_paused { LOOK_MAX } else { wait.saturating_sub(updated.elapsed()) };
        let mut step = Step::Draw;
        if wait_for_input(ending, left.min(LOOK_MAX)).during("terminal")? {
            return Ok(());
        }
        if event::poll(Duration::ZERO).during("terminal")?
            && let Event::Key(key) = event::read().during("terminal")?
            && key.kind != KeyEventKind::Release
        {
            step = app.on_key(key);
        }
        if step == Step::Quit {
            return Ok(());
        }
        if step == Step::Look || !app.is_paused && updated.elapsed() >= wait {
            app.table.update(&mut source)?;
            if let View::One(detail) = &mut app.view {
                detail.refresh(&app.table);
            }
            (updated, wait) = (Instant::now(), app.interval);
        }
    }
}

/// Waits for input. Returns `true` if a signal has arrived or the terminal was closed; crossterm does not
/// report the latter.
fn wait_for_input(ending: &Ending, most: Duration) -> nix::Result<bool> {
    let stdin = std::io::stdin();
    let mut fds =
        [PollFd::new(stdin.as_fd(), PollFlags::POLLIN), PollFd::new(ending.as_fd(), PollFlags::POLLIN)];
    let most = u16::try_from(most.as_millis()).unwrap_or(u16::MAX);
    match poll(&mut fds, PollTimeout::from(most)) {
        Ok(_) => {}
        // The terminal was resized: crossterm reports it.
        Err(Errno::EINTR) => return Ok(false),
        Err(error) => return Err(error),
    }
    let happened = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::empty());
    let closed = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    Ok(happened(&fds[0]).intersects(closed) || happened(&fds[1]).contains(PollFlags::POLLIN))
}

impl App {
    /// Handles a key.
    pub(super) fn on_key(&mut self, key: KeyEvent) -> Step {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Step::Quit;
        }
        match &self.view {
            View::Filter => self.write_filter(key.code),
            View::Help => self.view = View::List,
            View::One(_) => return self.on_key_of_one(key.code),
            View::List => return self.on_key_of_list(key.code),
        }
        Step::Draw
    }

    fn on_key_of_list(&mut self, code: KeyCode) -> Step {
        if let Some(row) = SORTS.iter().find(|row| code == KeyCode::Char(row.1)) {
            self.sort = row.0;
            return Step::Draw;
        }
        match code {
            KeyCode::Char('q') => return Step::Quit,
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.view = View::Help,
            KeyCode::Char('/') => self.view = View::Filter,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Down | KeyCode::Char('j') => self.mark(1),
            KeyCode::Up | KeyCode::Char('k') => self.mark(-1),
            KeyCode::PageDown => self.mark(PAGE),
            KeyCode::PageUp => self.mark(-PAGE),
            KeyCode::Home => self.mark(isize::MIN),
            KeyCode::End => self.mark(isize::MAX),
            KeyCode::Enter => {
                let chosen = self.chosen();
                if let Some(row) = chosen.get(self.marked_index(&chosen)) {
                    self.view = View::One(Box::new(Detail::new(row)));
                }
            }
            code => return self.on_key_of_time(code),
        }
        Step::Draw
    }

    fn on_key_of_one(&mut self, code: KeyCode) -> Step {
        match code {
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Backspace | KeyCode::Enter => {
                self.view = View::List;
                Step::Draw
            }
            code => self.on_key_of_time(code),
        }
    }

    fn on_key_of_time(&mut self, code: KeyCode) -> Step {
        match code {
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('+') => self.interval = (self.interval / 2).max(*INTERVALS.start()),
            KeyCode::Char('-') => self.interval = (self.interval * 2).min(*INTERVALS.end()),
            KeyCode::Char('n') => return Step::Look,
            _ => {}
        }
        Step::Draw
    }

    fn write_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Esc => {
                self.filter.clear();
                self.view = View::List;
            }
            KeyCode::Enter => self.view = View::List,
            _ => {}
        }
    }

    /// The rows in the order of the screen.
    pub(super) fn chosen(&self) -> Vec<&Row> {
        self.table.chosen(self.sort, &self.filter)
    }

    /// Index of the selected row.
    pub(super) fn marked_index(&self, chosen: &[&Row]) -> usize {
        let marked = self.marked.as_ref();
        marked.and_then(|key| chosen.iter().position(|row| row.item.key == *key)).unwrap_or(0)
    }

    fn mark(&mut self, by: isize) {
        let chosen = self.chosen();
        let at = self.marked_index(&chosen).saturating_add_signed(by).min(chosen.len().saturating_sub(1));
        self.marked = chosen.get(at).map(|row| row.item.key.clone());
    }
}
