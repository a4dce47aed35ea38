//! Runs a script on a lock table and returns it with the actual answers and effects.
//!
//! `at 1.5s` sets cell time for the following entries. Every other command is one log entry; the commands between `batch`
//! and `end` are one entry together. `repeat 100 acquire s1 a/{n}; tick` applies an entry with these commands a hundred
//! times and counts the answers and effects. `who`, `check`, `get`, `session`, `now`, `next-wake`, `next-entry`, `counts`
//! and `snapshot-and-restore` do not change the table.

use std::collections::BTreeMap;

use lockkeeper_core::{Applied, Batch, CellTime, Command, LockTable, Restore};

use crate::parse::{self, Words};
use crate::show;

/// The effects of an entry with more than this many are only counted.
const EFFECTS_SHOWN_MAX: usize = 12;
/// The whole table is checked after every entry, until a script repeats something more often than this.
const CHECKED_MAX: u64 = 100;

pub(crate) fn run(script: &str) -> Result<String, String> {
    let mut runner = Runner {
        table: LockTable::new(),
        clock: CellTime(0),
        batch: None,
        large: false,
        output: String::new(),
    };
    for (line, number) in script.lines().zip(1..) {
        // Indented lines are the recorded output.
        if line.starts_with(' ') {
            continue;
        }
        runner.output += line;
        runner.output += "\n";
        if !line.is_empty() && !line.starts_with('#') {
            runner.line(line).map_err(|error| format!("line {number}: {line}: {error}"))?;
        }
    }
    Ok(runner.output)
}

struct Runner {
    table: LockTable,
    clock: CellTime,
    batch: Option<Vec<Command>>,
    large: bool,
    output: String,
}

impl Runner {
    fn line(&mut self, line: &str) -> Result<(), String> {
        let words = Words::of(line)?;
        match words.verb() {
            "at" => self.clock = parse::moment(words.plain(1)?)?,
            "batch" => self.batch = Some(Vec::new()),
            "end" => {
                let commands = self.batch.take().ok_or("`end` without `batch`")?;
                let applied = self.apply(commands)?;
                self.write_answers(&applied, true);
                self.write_effects(&applied);
            }
            "repeat" => self.repeat(line)?,
            "who" => {
                let view = self.table.lock_view(&words.lock(1)?, self.clock, 10);
                show::view(&view).iter().for_each(|line| self.write(line));
            }
            "check" => {
                let (lock, token) = (words.lock(1)?, words.token()?);
                let holds = if self.table.holds(&lock, token) { "holds it" } else { "does not hold it" };
                self.write(&format!("{holds}, last_token={}", self.table.last_token_of(&lock)));
            }
            "get" => self.write(&show::value(self.table.value(words.plain(1)?))),
            "session" => {
                let text =
                    self.table.session(words.session()?).map_or("no such session".to_owned(), |alive| {
                        format!("version={} grants={} waits={}", alive.version, alive.grants(), alive.waits())
                    });
                self.write(&text);
            }
            "now" => self.write(&show::moment(self.table.now())),
            "next-wake" => self.write(&self.table.next_wake().map_or("never".to_owned(), show::moment)),
            "next-entry" => {
                self.write(&self.table.next_entry_due().map_or("never".to_owned(), show::moment));
            }
            "counts" => {
                let counts = self.table.counts();
                self.write(&format!(
                    "sessions={} grants={} locks={} waiting={}",
                    counts.sessions, counts.grants, counts.locks, counts.waiting
                ));
            }
            "snapshot-and-restore" => {
                self.table = restored(&self.table)?;
                self.write("the same table");
            }
            _ => {
                let command = self.command(&words)?;
                if let Some(batch) = &mut self.batch {
                    batch.push(command);
                    return Ok(());
                }
                let applied = self.apply(vec![command])?;
                self.write_answers(&applied, false);
                self.write_effects(&applied);
            }
        }
        Ok(())
    }

    fn command(&self, words: &Words) -> Result<Command, String> {
        words.command(|session| self.table.session(session).map_or(0, |alive| alive.version))
    }

    fn repeat(&mut self, line: &str) -> Result<(), String> {
        let mut parts = line.splitn(3, ' ').skip(1);
        let times: u64 = parts.next().and_then(|times| times.parse().ok()).ok_or("repeat needs a number")?;
        let commands = parts.next().ok_or("repeat needs commands")?;
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
        self.write_counted(counted);
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

    fn write(&mut self, line: &str) {
        self.output += "    ";
        self.output += line;
        self.output += "\n";
    }

    fn write_answers(&mut self, applied: &Applied, numbered: bool) {
        for (answer, number) in applied.answers.iter().zip(1..) {
            let text = show::answer(answer);
            self.write(&if numbered { format!("{number}: {text}") } else { text });
        }
    }

    fn write_effects(&mut self, applied: &Applied) {
        if applied.effects.len() <= EFFECTS_SHOWN_MAX {
            applied.effects.iter().for_each(|effect| self.write(&show::effect(effect)));
            return;
        }
        let mut counted = BTreeMap::new();
        count_effects(applied, &mut counted);
        self.write_counted(counted);
    }

    fn write_counted(&mut self, counted: BTreeMap<String, u64>) {
        for (kind, times) in counted {
            self.write(&format!("{times} x {kind}"));
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
