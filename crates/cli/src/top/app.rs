//! The live view: its state, and what keys do.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::detail::Detail;
use super::item::Key;
use super::table::{Row, Table};
use super::{SORTS, Sort};

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
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

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
