//! `lockkeeper explain NAME`: why a request has to wait.

use clap::Args;
use lockkeeper::{Blocked, LockEvent, LockEventKind, LockState, Status};
use serde::Serialize;

use crate::client::{self, Client, Output};
use crate::duration::humanize;
use crate::escape;
use crate::failure::{Failure, UNAVAILABLE};

/// Explain why a request has to wait for a lock
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper explain nightly-report                       what blocks it, and for how long
  lockkeeper explain nightly-report --owner host-3        for the waiter whose owner contains host-3
  lockkeeper explain nightly-report --output json | jq -r '.sentences[]'

If the cell cannot answer, the output says what is wrong with the cell, and the exit
code is 69.")]
pub(crate) struct Explain {
    /// Name of the lock
    name: String,
    /// Explain the wait of the owner whose name contains this text
    #[arg(long, value_name = "TEXT")]
    owner: Option<String>,
    #[command(flatten)]
    pub(crate) client: Client,
}

/// The facts, and the sentences that explain them.
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
        let result = client::block_on(async {
            let keeper = self.client.connect().await?;
            let lock = keeper.who(&self.name).await?;
            // Only cells support these two calls; `who` is enough for an explanation.
            let blocked = keeper.blocked(&self.name).await.unwrap_or_default();
            let events = keeper.history(&self.name, 5).await.unwrap_or_default();
            Ok((lock, blocked, events))
        });
        let (lock, blocked, events) = match result {
            Ok(found) => found,
            Err(failure) if failure.exit == UNAVAILABLE => return Err(self.explain_outage(failure)),
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

    /// Explains why the cell does not answer, from what its nodes report.
    fn explain_outage(&self, failure: Failure) -> Failure {
        let status = client::block_on(async { Ok(self.client.admin()?.status().await?) });
        let why = match status {
            Ok(Status { leader: None, node_id, members, .. }) => format!(
                "the cell has no leader: node {node_id} answers, but fewer than {} of its {} voters seem to be up. Nothing \
                 can be granted or released until a majority is back; no lease expires meanwhile",
                members.iter().filter(|member| member.voter).count() / 2 + 1,
                members.iter().filter(|member| member.voter).count()
            ),
            Ok(Status { leader: Some(leader), node_id, .. }) => format!(
                "node {node_id} names node {leader} as the leader, which does not answer: {}",
                failure.message
            ),
            Err(_) => failure.message,
        };
        Failure::new(failure.code, failure.exit, why)
    }
}

/// The reasons for a wait, the nearest first.
fn sentences(lock: &LockState, blocked: &[Blocked], events: &[LockEvent], me: Option<&str>) -> Vec<String> {
    let name = &lock.lock;
    let mut sentences = vec![state(lock)];
    let mine = me.map(|me| (me, lock.queue.iter().find(|waiter| waiter.owner.contains(me))));
    match mine {
        Some((_, Some(waiter))) => sentences.push(match waiter.position {
            1 => {
                format!(
                    "{} is next in the queue and has waited for {}.",
                    waiter.owner,
                    humanize(waiter.waited)
                )
            }
            position => {
                let ahead: Vec<&str> = lock
                    .queue
                    .iter()
                    .take(position as usize - 1)
                    .map(|waiter| waiter.owner.as_str())
                    .collect();
                format!(
                    "{} is number {position} in the queue and has waited for {}; ahead of it: {}.",
                    waiter.owner,
                    humanize(waiter.waited),
                    some_of(&ahead)
                )
            }
        }),
        Some((me, None)) if lock.holders.iter().any(|holder| holder.owner.contains(me)) => {
            sentences.push(format!("{me} is not waiting: it holds the lock."));
        }
        Some((me, None)) => {
            sentences.push(format!(
                "No waiter has an owner that contains \"{me}\": the request has ended or never arrived."
            ));
        }
        None if lock.waiting > 0 => {
            let owners: Vec<&str> = lock.queue.iter().map(|waiter| waiter.owner.as_str()).collect();
            let first = lock.queue.first().map(|waiter| humanize(waiter.waited)).unwrap_or_default();
            sentences.push(format!(
                "{}, the first for {first}: {}.",
                waiters(lock.waiting),
                some_of(&owners)
            ));
        }
        None if !lock.holders.is_empty() => sentences.push("No waiters.".to_owned()),
        None => {}
    }
    sentences.extend(chain(lock, blocked));
    let lost = events.iter().find_map(|event| Some((event, loss(event)?)));
    if let Some((lost, how)) = lost {
        sentences.push(format!("{} ago, \"{name}\" {how}.", humanize(lost.ago)));
    }
    sentences
}

/// How the holder lost the lock, if the event is a loss.
fn loss(lost: &LockEvent) -> Option<String> {
    match lost.what {
        LockEventKind::Forced => Some(format!(
            "was force-released from {} (\"{}\")",
            lost.owner,
            lost.reason.as_deref().unwrap_or_default()
        )),
        LockEventKind::Wounded => Some(format!("was lost by {} to an older scope", lost.owner)),
        LockEventKind::SessionExpired => Some(format!("was lost by {}, whose session expired", lost.owner)),
        _ => None,
    }
}

fn waiters(count: u32) -> String {
    if count == 1 { "1 waiter".to_owned() } else { format!("{count} waiters") }
}

/// The state of the lock.
fn state(lock: &LockState) -> String {
    let name = &lock.lock;
    match &lock.holders[..] {
        [] if !lock.closed.is_zero() => format!(
            "\"{name}\" is in lock-delay for another {} (its last holder was lost).",
            humanize(lock.closed)
        ),
        [] if lock.waiting > 0 => {
            format!("\"{name}\" is free; its waiters also need other locks, which are not free.")
        }
        [] => format!("\"{name}\" is free: a request is granted at once."),
        [only] => format!(
            "\"{name}\" is held by {} for {} (token {}, {}).",
            only.owner,
            humanize(only.held),
            only.token,
            only.mode
        ),
        [first, ..] => {
            let taken: u32 = lock.holders.iter().map(|holder| holder.permits).sum();
            let owners: Vec<&str> = lock.holders.iter().map(|holder| holder.owner.as_str()).collect();
            let how = match lock.capacity {
                1 => format!("shared by {} holders", lock.holders.len()),
                capacity => format!("held: {taken} of {capacity} permits in use"),
            };
            format!("\"{name}\" is {how}, the first for {}: {}.", humanize(first.held), some_of(&owners))
        }
    }
}

/// The locks that the blocking sessions wait for in turn.
fn chain(lock: &LockState, blocked: &[Blocked]) -> Vec<String> {
    let further: Vec<&Blocked> = blocked.iter().filter(|one| one.lock != lock.lock).collect();
    let mut sentences: Vec<String> = further
        .iter()
        .take(5)
        .map(|one| {
            format!(
                "{} itself has waited for \"{}\", held by {}, for {}.",
                one.waiter,
                one.lock,
                one.holder,
                humanize(one.waited)
            )
        })
        .collect();
    if further.len() > 5 {
        sentences.push(format!("{} more waits follow.", further.len() - 5));
    }
    if blocked.iter().any(|one| one.in_ring) {
        sentences.push(
            "These sessions wait for each other in a cycle. If each is one line of work, this is a deadlock: end one of \
             them, or free a lock with lockkeeper force-release."
                .to_owned(),
        );
    }
    sentences
}

/// The first names of a list.
fn some_of(names: &[&str]) -> String {
    const SHOWN: usize = 5;
    let first = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{first} and {} more", names.len() - SHOWN) } else { first }
}
