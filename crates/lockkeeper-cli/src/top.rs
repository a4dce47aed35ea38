//! `lockkeeper top`: contention, live in the terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use clap::Args;
use lockkeeper::{Keeper, Status, Top, Unfenced};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::client::{self, Client, Output};
use crate::duration::{self, humanize};
use crate::escape;
use crate::failure::Failure;
use crate::table::Table;

/// Enter and leave the alternate screen; the cursor is hidden there.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves to the first line, and clears the rest of each line and of the screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Show contention: the most contended and longest-held locks, and the last hour; live
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper top                               live, until ctrl-c
  lockkeeper top --once                        print once; the default if stdout is not a terminal
  lockkeeper top --output json | jq '.top.contended[0]'

The leader counts the figures of the last hour.")]
pub(crate) struct TopVerb {
    /// Maximum number of locks in each list
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    limit: u32,
    /// Print once and exit
    #[arg(long)]
    once: bool,
    /// Interval between updates
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
    every: Duration,
    #[command(flatten)]
    pub(crate) client: Client,
}

#[derive(Serialize)]
struct View {
    status: Status,
    top: Top,
}

impl TopVerb {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let live = !self.once && self.client.output == Output::Table && std::io::stdout().is_terminal();
        client::block_on(async {
            let keeper = self.client.connect().await?;
            if live {
                return self.run_live(&keeper).await;
            }
            let view = self.view(&keeper).await?;
            match self.client.output {
                Output::Json => client::print_json(&view),
                Output::Table => client::print(&text(&view)),
            }
        })?;
        Ok(0)
    }

    async fn view(&self, keeper: &Keeper<Unfenced>) -> Result<View, Failure> {
        Ok(View { status: keeper.status().await?, top: keeper.top(self.limit).await? })
    }

    async fn run_live(&self, keeper: &Keeper<Unfenced>) -> Result<(), Failure> {
        let failed =
            |error: std::io::Error| Failure::other(format!("failed to install signal handlers: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let _screen = Screen::enter()?;
        let mut last = String::new();
        loop {
            let result = tokio::select! {
                result = self.view(keeper) => result,
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
            };
            match result {
                Ok(view) => {
                    last = text(&view);
                    draw(&last)?;
                }
                // Keep the last view, and show the error above it.
                Err(failure) => draw(&format!("{}\n\n{last}", failure.message))?,
            }
            tokio::select! {
                () = tokio::time::sleep(self.every.max(Duration::from_millis(100))) => {}
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
            }
        }
    }
}

/// The alternate screen of the terminal, left when dropped.
struct Screen;

impl Screen {
    fn enter() -> Result<Screen, Failure> {
        client::print_raw(ENTER)?;
        Ok(Screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is no way left to report a failure.
        let _ = client::print_raw(LEAVE);
    }
}

/// Draws as much as fits on the terminal.
fn draw(text: &str) -> Result<(), Failure> {
    let (lines, columns) = match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => (24, 80),
    };
    let mut frame = HOME.to_owned();
    let shown: Vec<String> =
        text.lines().take(lines).map(|line| escape::line(line).chars().take(columns).collect()).collect();
    frame.push_str(&shown.join(&format!("{CLEAR_LINE}\r\n")));
    frame.push_str(CLEAR_LINE);
    frame.push_str(CLEAR_BELOW);
    client::print_raw(&frame)?;
    std::io::stdout()
        .flush()
        .map_err(|error| Failure::other(format!("failed to write to the terminal: {error}")))
}

fn text(view: &View) -> String {
    let View { status, top } = view;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match status.leader {
        None => writeln!(text, "the cell has no leader: nothing can be granted"),
        Some(leader) => writeln!(
            text,
            "node {leader} leads, term {}; {} held, {} waiting, {} sessions",
            status.term, status.locks_held, status.waiting, status.sessions
        ),
    };
    let last_minute = top.hour.granted.last().copied().unwrap_or(0);
    let lost: u32 = top.hour.lost.iter().sum();
    let _ = writeln!(
        text,
        "last hour: {} grants ({last_minute} in this minute), {lost} lost; waited p50 {}, p99 {}; held p50 {}, p99 {}",
        top.hour.waited.count,
        humanize(top.hour.waited.p50),
        humanize(top.hour.waited.p99),
        humanize(top.hour.held.p50),
        humanize(top.hour.held.p99)
    );
    let mut contended = Table::new(&["MOST CONTENDED", "WAITING", "LONGEST WAIT", "HELD BY"]);
    for lock in &top.contended {
        contended.row([
            lock.lock.clone(),
            lock.waiting.to_string(),
            humanize(lock.waited),
            lock.owner.clone(),
        ]);
    }
    let mut held = Table::new(&["LONGEST HELD", "HELD FOR", "HELD BY", "WAITING", "TOKEN"]);
    for lock in &top.longest_held {
        held.row([
            lock.lock.clone(),
            humanize(lock.held),
            lock.owner.clone(),
            lock.waiting.to_string(),
            lock.token.to_string(),
        ]);
    }
    let _ = match top.contended.is_empty() {
        true => writeln!(text, "\nno waiters"),
        false => write!(text, "\n{contended}"),
    };
    let _ = match top.longest_held.is_empty() {
        true => writeln!(text, "\nno locks held"),
        false => write!(text, "\n{held}"),
    };
    if top.sampled {
        let _ = writeln!(text, "\na sample: there are too many locks to examine all of them");
    }
    text
}
