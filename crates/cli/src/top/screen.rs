//! The live view on the terminal: draws, reads keys, updates.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::app::{App, Step, View};
use super::source::Source;
use super::table::Table;
use super::{TopArgs, draw};
use crate::ending::Ending;
use crate::failure::{During, Outcome};

/// Longest time between two checks for signals.
const LOOK_MAX: Duration = Duration::from_millis(250);

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
