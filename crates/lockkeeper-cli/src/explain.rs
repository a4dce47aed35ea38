//! `lockkeeper explain NAME`: why am I waiting, in plain words.

use clap::Args;
use lockkeeper::{Blocked, LockEvent, LockState};
use serde::Serialize;

use crate::admin;
use crate::client::{self, Client, Output};
use crate::duration::words;
use crate::escape;
use crate::failure::{Failure, UNAVAILABLE};

/// Say in plain words why one has to wait for a lock
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper explain nightly-report                       who is in the way, and for how long already
  lockkeeper explain nightly-report --owner host-3        the same for the one whose owner contains host-3
  lockkeeper explain nightly-report --output json | jq -r '.sentences[]'

If the cell cannot answer at all, it says what is wrong with the cell instead; the exit
code is then 69.")]
pub(crate) struct Explain {
    /// The lock
    name: String,
    /// For whom: a part of its owner's name
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    #[command(flatten)]
    pub(crate) client: Client,
}

/// What is known, and what it means.
#[derive(Serialize)]
struct Explanation {
    lock: LockState,
    /// Who waits for whom, from this lock on.
    blocked: Vec<Blocked>,
    /// The last events of the lock.
    events: Vec<LockEvent>,
    sentences: Vec<String>,
}

impl Explain {
    pub(crate) fn run(self) -> Result<u8, Failure> {
        let looked = client::block_on(async {
            let keeper = self.client.connect().await?;
            let lock = keeper.who(&self.name).await?;
            // Engines of others know neither: what they know is enough for the rest.
            let blocked = keeper.blocked(&self.name).await.unwrap_or_default();
            let events = keeper.history(&self.name, 5).await.unwrap_or_default();
            Ok((lock, blocked, events))
        });
        let (lock, blocked, events) = match looked {
            Ok(known) => known,
            Err(failure) if failure.exit == UNAVAILABLE => return Err(self.cell_in_words(failure)),
            Err(failure) => return Err(failure),
        };
        let sentences = sentences(&lock, &blocked, &events, self.owner.as_deref());
        match self.client.output {
            Output::Json => client::print_json(&Explanation { lock, blocked, events, sentences })?,
            Output::Table => client::print(
                &(sentences.iter().map(|one| escape::line(one)).collect::<Vec<_>>().join("\n") + "\n"),
            )?,
        }
        Ok(0)
    }

    /// The cell does not answer: why, as far as its nodes can tell.
    fn cell_in_words(&self, failure: Failure) -> Failure {
        let status = client::block_on(admin::status(&self.client));
        let why = match status {
            Ok(status) if status.leader == 0 => format!(
                "nobody leads the cell: node {} is there, but fewer than {} of its {} voters seem to be. \
                 Nothing can be granted or released until a majority is back; nobody loses its lease meanwhile",
                status.node_id,
                status.members.iter().filter(|member| member.voter).count() / 2 + 1,
                status.members.iter().filter(|member| member.voter).count()
            ),
            Ok(status) => format!(
                "node {} says that node {} leads the cell, but that one did not answer: {}",
                status.node_id, status.leader, failure.message
            ),
            Err(_) => failure.message,
        };
        Failure::new(failure.code, failure.exit, why)
    }
}

/// Why one has to wait, from the nearest reason to the farthest.
fn sentences(lock: &LockState, blocked: &[Blocked], events: &[LockEvent], me: Option<&str>) -> Vec<String> {
    let name = &lock.lock;
    let mut said = vec![state(lock)];
    let mine = me.map(|me| (me, lock.queue.iter().find(|waiter| waiter.owner.contains(me))));
    match mine {
        Some((_, Some(waiter))) => said.push(match waiter.position {
            1 => format!("{} is next, and has waited for {}.", waiter.owner, words(waiter.waited)),
            position => {
                let before: Vec<&str> = lock
                    .queue
                    .iter()
                    .take(position as usize - 1)
                    .map(|waiter| waiter.owner.as_str())
                    .collect();
                format!(
                    "{} is number {position} in line and has waited for {}; before it: {}.",
                    waiter.owner,
                    words(waiter.waited),
                    some_of(&before)
                )
            }
        }),
        Some((me, None)) if lock.holders.iter().any(|holder| holder.owner.contains(me)) => {
            said.push(format!("{me} does not wait: it holds the lock."));
        }
        Some((me, None)) => {
            said.push(format!("Nobody whose owner contains \"{me}\" stands in line: the request has ended, or never came here."));
        }
        None if lock.waiting > 0 => {
            let line: Vec<&str> = lock.queue.iter().map(|waiter| waiter.owner.as_str()).collect();
            let first = lock.queue.first().map(|waiter| words(waiter.waited)).unwrap_or_default();
            said.push(format!("{} in line, the first for {first}: {}.", wait(lock.waiting), some_of(&line)));
        }
        None if !lock.holders.is_empty() => said.push("Nobody waits for it.".to_owned()),
        None => {}
    }
    said.extend(chain(lock, blocked));
    if let Some(lost) =
        events.iter().find(|event| matches!(event.what.as_str(), "session_expired" | "forced" | "wounded"))
    {
        let how = match lost.what.as_str() {
            "forced" => format!(
                "was taken from {} by force (\"{}\")",
                lost.owner,
                lost.reason.as_deref().unwrap_or_default()
            ),
            "wounded" => format!("was lost by {} to an older scope", lost.owner),
            _ => format!("was lost by {}, whose session expired", lost.owner),
        };
        said.push(format!("Lately, {} ago, \"{name}\" {how}.", words(lost.ago)));
    }
    said
}

fn wait(count: u32) -> String {
    if count == 1 { "One waits".to_owned() } else { format!("{count} wait") }
}

/// How the lock stands.
fn state(lock: &LockState) -> String {
    let name = &lock.lock;
    match &lock.holders[..] {
        [] if !lock.closed.is_zero() => format!(
            "\"{name}\" is free but stays closed for another {}: its last holder was lost, and had asked for a lock-delay.",
            words(lock.closed)
        ),
        [] if lock.waiting > 0 => format!(
            "\"{name}\" is free; those in line wait for other locks that they asked for together with it."
        ),
        [] => format!("\"{name}\" is free: whoever asks for it gets it at once."),
        [only] => format!(
            "\"{name}\" is held by {} since {} (token {}, {}).",
            only.owner,
            words(only.held),
            only.token,
            only.mode
        ),
        [first, ..] => {
            let taken: u32 = lock.holders.iter().map(|holder| holder.permits).sum();
            let owners: Vec<&str> = lock.holders.iter().map(|holder| holder.owner.as_str()).collect();
            let how = match lock.capacity {
                1 => format!("shared by {}", lock.holders.len()),
                capacity => format!("held: {taken} of {capacity} permits are taken"),
            };
            format!("\"{name}\" is {how}, the first since {}: {}.", words(first.held), some_of(&owners))
        }
    }
}

/// What those in the way wait for themselves.
fn chain(lock: &LockState, blocked: &[Blocked]) -> Vec<String> {
    let further: Vec<&Blocked> = blocked.iter().filter(|one| one.lock != lock.lock).collect();
    let mut said: Vec<String> = further
        .iter()
        .take(5)
        .map(|one| {
            format!(
                "{} itself waits for \"{}\", held by {}, since {}.",
                one.waiter,
                one.lock,
                one.holder,
                words(one.waited)
            )
        })
        .collect();
    if further.len() > 5 {
        said.push(format!("And so on: {} more wait further down.", further.len() - 5));
    }
    if blocked.iter().any(|one| one.in_ring) {
        said.push(
            "They wait for each other in a ring: if each is one line of work, nobody can go on. End one of them, or \
             free a lock with lockkeeper force-release."
                .to_owned(),
        );
    }
    said
}

/// The first names of a list.
fn some_of(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let first = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{first} and {} more", names.len() - SHOWN) } else { first }
}
