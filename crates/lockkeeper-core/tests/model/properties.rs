//! Properties of every history, one function each. They check the answers, effects and views of the table, independently
//! of the naive model.

use std::collections::{BTreeMap, BTreeSet};

use lockkeeper_core::bounds;
use lockkeeper_core::{
    Acquire, Batch, Command, Effect, Grant, LockName, LockTable, LockView, Mode, Reply, RequestId, Restore,
    SessionId, Ticket, Token, Waiting,
};
use proptest::prelude::*;

use crate::history::{KEYS, LOCKS, Step, held};

type CheckResult = Result<(), TestCaseError>;

fn views(table: &LockTable) -> impl Iterator<Item = LockView> + '_ {
    LOCKS.iter().map(|name| table.lock_view(&LockName::from(*name), table.now(), usize::MAX))
}

/// An exclusive holder of an uncounted lock is the only holder.
pub(crate) fn one_holder(steps: &[Step]) -> CheckResult {
    for view in steps.iter().flat_map(|step| views(&step.after)) {
        let exclusive = view.holders.iter().any(|holder| holder.mode == Mode::Exclusive);
        if view.capacity == 1 && exclusive {
            prop_assert_eq!(view.holders.len(), 1, "{:?}", view);
        }
    }
    Ok(())
}

/// The permits of a counted lock are never more than its capacity.
pub(crate) fn capacity_holds(steps: &[Step]) -> CheckResult {
    for view in steps.iter().flat_map(|step| views(&step.after)).filter(|view| view.capacity > 1) {
        let permits: u32 = view.holders.iter().map(|holder| holder.permits).sum();
        prop_assert!(permits <= view.capacity, "{:?}", view);
    }
    Ok(())
}

/// A grant with its session and request id.
type Granted<'a> = (SessionId, Option<&'a RequestId>, &'a Grant);

/// The grants that answered a command, in order, including answers to retries.
fn granted_at_once(step: &Step) -> Vec<Granted<'_>> {
    let answered = step.batch.commands.iter().zip(&step.applied.answers);
    answered
        .filter_map(|(command, answer)| match (command, answer) {
            (Command::Acquire(request), Ok(Reply::Granted(grant))) => {
                Some((request.session, request.request.as_ref(), grant))
            }
            _ => None,
        })
        .collect()
}

/// The grants of waiting requests, in order.
fn granted_later(step: &Step) -> Vec<Granted<'_>> {
    step.applied
        .effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Granted { session, request, grant, .. } => Some((*session, request.as_ref(), grant)),
            _ => None,
        })
        .collect()
}

/// Every grant has a higher token than all before it, and no token is issued to two requests (S1, S5).
pub(crate) fn tokens_rise(steps: &[Step]) -> CheckResult {
    let mut issued: BTreeMap<Token, (SessionId, Option<RequestId>)> = BTreeMap::new();
    for step in steps {
        for grants in [granted_later(step), granted_at_once(step)] {
            let mut highest = step.before.last_token();
            for (session, request, grant) in grants {
                let to = (session, request.cloned());
                if let Some(before) = issued.get(&grant.token) {
                    prop_assert_eq!(before, &to, "one token for two");
                    prop_assert!(request.is_some(), "only a retry gets a token again");
                    continue;
                }
                prop_assert!(grant.token > highest, "{:?} after {:?}", grant, highest);
                highest = grant.token;
                issued.insert(grant.token, to);
            }
        }
        prop_assert!(step.after.last_token() >= step.before.last_token());
        for name in LOCKS.map(LockName::from) {
            prop_assert!(step.after.last_token_of(&name) >= step.before.last_token_of(&name));
        }
    }
    Ok(())
}

/// Waiting requests for a lock are granted in the order of tickets, and no request is granted at once while others wait
/// (S7).
pub(crate) fn first_come_first_served(steps: &[Step]) -> CheckResult {
    let mut queues: BTreeMap<LockName, BTreeSet<Ticket>> = BTreeMap::new();
    let mut waiting: BTreeMap<Ticket, Vec<LockName>> = BTreeMap::new();
    for step in steps {
        let queues_before = queues.clone();
        let new_tokens = step.before.last_token();
        let at_once: Vec<Granted<'_>> =
            granted_at_once(step).into_iter().filter(|(_, _, grant)| grant.token > new_tokens).collect();
        for (command, answer) in step.batch.commands.iter().zip(&step.applied.answers) {
            if let (Command::Acquire(request), Ok(Reply::Queued { ticket })) = (command, answer)
                && !waiting.contains_key(ticket)
            {
                waiting.insert(*ticket, request.locks.as_slice().to_vec());
                for name in request.locks.as_slice() {
                    queues.entry(name.clone()).or_default().insert(*ticket);
                }
            }
        }
        for effect in &step.applied.effects {
            let (ticket, granted) = match effect {
                Effect::Granted { ticket, .. } => (ticket, true),
                Effect::Ended { ticket, .. } => (ticket, false),
                _ => continue,
            };
            for name in waiting.remove(ticket).expect("its ticket was returned") {
                let queue = queues.get_mut(&name).expect("its queue exists");
                prop_assert!(!granted || queue.first() == Some(ticket), "{:?} overtook {:?}", ticket, queue);
                queue.remove(ticket);
            }
        }
        let later: Vec<Token> = granted_later(step).iter().map(|(_, _, grant)| grant.token).collect();
        for (_, _, grant) in at_once.iter().filter(|(_, _, grant)| !later.contains(&grant.token)) {
            for name in grant.locks.as_slice() {
                let waited_all_the_time = queues_before
                    .get(name)
                    .and_then(|before| before.iter().find(|ticket| queues[name].contains(*ticket)));
                prop_assert_eq!(waited_all_the_time, None, "{:?} was granted before it", grant);
            }
        }
    }
    Ok(())
}

/// After any history: when all held locks are released, every waiting request is granted or times out. There is no
/// deadlock and no ghost in a queue.
pub(crate) fn every_queue_drains(steps: &[Step]) -> CheckResult {
    let Some(mut table) = steps.last().map(|step| step.after.clone()) else { return Ok(()) };
    let rounds_max = table.counts().waiting + 1;
    for _ in 0..=rounds_max {
        let commands = held(&table)
            .into_iter()
            .map(|(session, lock, token)| Command::Release { session, lock, token, forget: true })
            .collect();
        // A minute later every lock-delay is over.
        let batch = Batch { now: table.now().plus_ms(60_000), utc_ms: 0, commands };
        table.apply(table.applied() + 1, &batch).expect("the next entry");
    }
    let counts = table.counts();
    prop_assert_eq!((counts.waiting, counts.grants, counts.locks), (0, 0, 0), "{:?}", table);
    Ok(())
}

/// A retry gets the same answer and changes nothing (S5).
pub(crate) fn retry_changes_nothing(steps: &[Step]) -> CheckResult {
    for step in steps {
        for command in &step.batch.commands {
            let Command::Acquire(request) = command else { continue };
            if request.request.is_some() {
                check_retry(&step.after, request)?;
            }
        }
    }
    Ok(())
}

fn check_retry(table: &LockTable, request: &Acquire) -> CheckResult {
    let acquire = Command::Acquire(request.clone());
    // Raises the version of the session like the retry, and does nothing else.
    let nothing = Command::Cancel { session: request.session, what: Waiting::Ticket(Ticket(u64::MAX)) };
    let (mut once, mut twice) = (table.clone(), table.clone());
    let next = table.applied() + 1;
    let first =
        once.apply(next, &Batch { now: table.now(), utc_ms: 0, commands: vec![acquire.clone(), nothing] });
    let second =
        twice.apply(next, &Batch { now: table.now(), utc_ms: 0, commands: vec![acquire.clone(), acquire] });
    let (first, second) = (first.expect("the next entry"), second.expect("the next entry"));
    prop_assert_eq!(&second.answers[0], &second.answers[1]);
    prop_assert_eq!(&first.answers[0], &second.answers[0]);
    prop_assert_eq!(first.effects, second.effects);
    prop_assert!(once == twice, "the retry of {:?} changed the table", request);
    Ok(())
}

/// After every entry, a snapshot restores an equal table.
pub(crate) fn snapshot_restores_the_table(steps: &[Step]) -> CheckResult {
    for step in steps {
        let restored = restored(&step.after);
        prop_assert!(restored == step.after, "after {:?}", step.batch);
        prop_assert_eq!(restored.hash(), step.after.hash());
    }
    Ok(())
}

/// A node that starts from a snapshot and applies the later entries gives the same answers and gets the same table.
pub(crate) fn snapshot_and_later_entries_give_the_same_table(steps: &[Step], at: usize) -> CheckResult {
    let mut table = restored(&steps[at].before);
    for step in &steps[at..] {
        let applied = table.apply(table.applied() + 1, &step.batch).expect("the next entry");
        prop_assert_eq!(&applied, &step.applied);
    }
    prop_assert!(Some(&table) == steps.last().map(|step| &step.after), "the table differs");
    Ok(())
}

/// Every index agrees with the records that it indexes.
pub(crate) fn invariants_hold(steps: &[Step]) -> CheckResult {
    for step in steps {
        prop_assert_eq!(step.after.check_invariants(), Ok(()), "after {:?}", step.batch);
    }
    Ok(())
}

/// No entry takes more steps than its budgets allow (S11).
pub(crate) fn entries_stay_within_their_budgets(steps: &[Step]) -> CheckResult {
    for step in steps {
        let (taken, most) = (step.after.steps(), bounds::bounds().steps_per_entry_max(&step.batch.commands));
        prop_assert!(taken <= most, "{} steps, at most {} are allowed: {:?}", taken, most, step.batch);
    }
    Ok(())
}

/// Cell time never decreases, and every entry is counted.
pub(crate) fn time_never_goes_back(steps: &[Step]) -> CheckResult {
    for Step { before, after, .. } in steps {
        prop_assert!(after.now() >= before.now());
        prop_assert_eq!(after.applied(), before.applied() + 1);
    }
    Ok(())
}

/// A version of a value denotes one content, even if the value was deleted in between.
pub(crate) fn versions_are_never_reused(steps: &[Step]) -> CheckResult {
    for key in KEYS {
        let seen: Vec<_> = steps.iter().filter_map(|step| step.after.value(key)).collect();
        for pair in seen.windows(2) {
            prop_assert!(pair[0] == pair[1] || pair[0].version < pair[1].version, "{:?}", pair);
        }
    }
    Ok(())
}

fn restored(table: &LockTable) -> LockTable {
    let mut restore = Restore::new();
    for chunk in table.snapshot() {
        restore.push(&chunk).expect("a good chunk");
    }
    restore.finish().expect("a whole snapshot")
}
