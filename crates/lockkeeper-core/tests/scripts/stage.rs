//! Plays a story on a lock table and writes it down with what really followed.
//!
//! `at 1.5s` moves cell time for the entries that follow. Every other command is one entry of the log;
//! between `batch` and `end` several are. `repeat 100 acquire s1 a/{n}; tick` applies an entry with these
//! commands a hundred times and counts what followed. `who`, `check`, `get`, `session`, `now`,
//! `next-wake`, `next-entry` and `snapshot-and-restore` look without changing.

use std::collections::BTreeMap;

use lockkeeper_core::{Applied, Batch, CellTime, Command, LockTable, Restore};

use crate::parse::{self, Words};
use crate::show;

/// An entry with more effects than this is told in numbers.
const EFFECTS_TOLD_MAX: usize = 12;
/// The whole table is checked after every entry, until a story has repeated something more often than this.
const CHECKED_MAX: u64 = 100;

pub(crate) fn play(story: &str) -> Result<String, String> {
    let mut stage = Stage {
        table: LockTable::new(),
        clock: CellTime(0),
        batch: None,
        large: false,
        played: String::new(),
    };
    for (line, number) in story.lines().zip(1..) {
        // Indented lines are what followed the last time.
        if line.starts_with(' ') {
            continue;
        }
        stage.played += line;
        stage.played += "\n";
        if !line.is_empty() && !line.starts_with('#') {
            stage.line(line).map_err(|error| format!("line {number}: {line}: {error}"))?;
        }
    }
    Ok(stage.played)
}

struct Stage {
    table: LockTable,
    clock: CellTime,
    batch: Option<Vec<Command>>,
    large: bool,
    played: String,
}

impl Stage {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let words = Words::of(line)?;
        match words.verb() {
            "at" => self.clock = parse::moment(words.plain(1)?)?,
            "batch" => self.batch = Some(Vec::new()),
            "end" => {
                let commands = self.batch.take().ok_or("no batch was begun")?;
                let applied = self.apply(commands)?;
                self.tell_answers(&applied, true);
                self.tell_effects(&applied);
            }
            "repeat" => self.repeat(line)?,
            "who" => {
                let view = self.table.lock_view(&words.lock(1)?, self.clock, 10);
                show::view(&view).iter().for_each(|line| self.tell(line));
            }
            "check" => {
                let (lock, token) = (words.lock(1)?, words.token()?);
                let holds = if self.table.holds(&lock, token) { "holds it" } else { "does not hold it" };
                self.tell(&format!("{holds}, last_token={}", self.table.last_token_of(&lock)));
            }
            "get" => self.tell(&show::value(self.table.value(words.plain(1)?))),
            "session" => {
                let told =
                    self.table.session(words.session()?).map_or("no such session".to_owned(), |alive| {
                        format!("version={} grants={} waits={}", alive.version, alive.grants(), alive.waits())
                    });
                self.tell(&told);
            }
            "now" => self.tell(&show::moment(self.table.now())),
            "next-wake" => self.tell(&self.table.next_wake().map_or("never".to_owned(), show::moment)),
            "next-entry" => {
                self.tell(&self.table.next_entry_due().map_or("never".to_owned(), show::moment));
            }
            "counts" => {
                let counts = self.table.counts();
                self.tell(&format!(
                    "sessions={} grants={} locks={} waiting={}",
                    counts.sessions, counts.grants, counts.locks, counts.waiting
                ));
            }
            "snapshot-and-restore" => {
                self.table = restored(&self.table)?;
                self.tell("the same table");
            }
            _ => {
                let command = self.command(&words)?;
                if let Some(batch) = &mut self.batch {
                    batch.push(command);
                    return Ok(());
                }
                let applied = self.apply(vec![command])?;
                self.tell_answers(&applied, false);
                self.tell_effects(&applied);
            }
        }
        Ok(())
    }

    fn command(&self, words: &Words) -> Result<Command, String> {
        words.command(|session| self.table.session(session).map_or(0, |alive| alive.version))
    }

    fn repeat(&mut self, line: &str) -> Result<(), String> {
        let mut parts = line.splitn(3, ' ').skip(1);
        let times: u64 = parts.next().and_then(|times| times.parse().ok()).ok_or("repeat how often?")?;
        let commands = parts.next().ok_or("repeat what?")?;
        self.large |= times > CHECKED_MAX;
        let mut counted: BTreeMap<String, u64> = BTreeMap::new();
        for n in 1..=times {
            let entry = commands.replace("{n}", &n.to_string()).replace("{n+1}", &(n + 1).to_string());
            let entry: Result<Vec<Command>, String> =
                entry.split(';').map(|command| self.command(&Words::of(command)?)).collect();
            let applied = self.apply(entry?)?;
            for answer in &applied.answers {
                *counted.entry(show::kind(&show::answer(answer)).to_owned()).or_default() += 1;
            }
            count_effects(&applied, &mut counted);
        }
        self.tell_counted(counted);
        Ok(())
    }

    fn apply(&mut self, commands: Vec<Command>) -> Result<Applied, String> {
        let batch = Batch { now: self.clock, utc_ms: 0, commands };
        let applied =
            self.table.apply(self.table.applied() + 1, &batch).map_err(|error| error.to_string())?;
        if !self.large {
            self.table.check_invariants()?;
            restored(&self.table)?;
        }
        Ok(applied)
    }

    fn tell(&mut self, line: &str) {
        self.played += "    ";
        self.played += line;
        self.played += "\n";
    }

    fn tell_answers(&mut self, applied: &Applied, numbered: bool) {
        for (answer, number) in applied.answers.iter().zip(1..) {
            let told = show::answer(answer);
            self.tell(&if numbered { format!("{number}: {told}") } else { told });
        }
    }

    fn tell_effects(&mut self, applied: &Applied) {
        if applied.effects.len() <= EFFECTS_TOLD_MAX {
            applied.effects.iter().for_each(|effect| self.tell(&show::effect(effect)));
            return;
        }
        let mut counted = BTreeMap::new();
        count_effects(applied, &mut counted);
        self.tell_counted(counted);
    }

    fn tell_counted(&mut self, counted: BTreeMap<String, u64>) {
        for (kind, times) in counted {
            self.tell(&format!("{times} x {kind}"));
        }
    }
}

fn count_effects(applied: &Applied, counted: &mut BTreeMap<String, u64>) {
    for effect in &applied.effects {
        *counted.entry(format!("-> {}", show::kind(&show::effect(effect)))).or_default() += 1;
    }
}

fn restored(table: &LockTable) -> Result<LockTable, String> {
    let mut restore = Restore::new();
    for chunk in table.snapshot() {
        restore.push(&chunk).map_err(|error| error.to_string())?;
    }
    let restored = restore.finish().map_err(|error| error.to_string())?;
    if restored != *table || restored.hash() != table.hash() {
        return Err("the restored table differs".into());
    }
    Ok(restored)
}
