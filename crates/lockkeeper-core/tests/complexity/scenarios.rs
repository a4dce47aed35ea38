//! The scenarios of each command.

use lockkeeper_core::limits::STATE_BYTES_SETTING_MIN;
use lockkeeper_core::{
    AccessChange, Acquire, CellVersion, Command, LockTable, Mode, Policy, Quota, Right, Rights, SessionId,
    TakeRate, Ticket, Token, Wait, Waiting,
};

use super::{Scenario, acquire, each, lock, open, release, request, scenario, take, ten, wait};

pub(crate) fn none(_: u64) -> Vec<Command> {
    vec![]
}

/// Session 1 holds a lock.
fn held(_: u64) -> Vec<Command> {
    vec![take(1, "a")]
}

/// Session 1 holds a lock for which session 2 waits.
fn queue(count: u64) -> Vec<Command> {
    held(count).into_iter().chain(each(count, |_| wait(2, "a"))).collect()
}

/// Session 1 holds many locks.
pub(crate) fn many_held(count: u64) -> Vec<Command> {
    each(count, |number| take(1, lock(number)))
}

/// Each of many sessions holds a lock.
pub(crate) fn one_each(count: u64) -> Vec<Command> {
    let opened = each(count, |number| open(10 + number));
    opened.into_iter().chain(each(count, |number| take(10 + number, lock(number)))).collect()
}

pub(crate) fn open_sessions() -> Vec<Scenario> {
    vec![scenario(none, |count, _| each(count, |number| open(10 + number)))]
}

pub(crate) fn close_sessions() -> Vec<Scenario> {
    let close = |session: u64| Command::CloseSession { session: SessionId(session.into()) };
    let awaits = |count| [take(2, "a")].into_iter().chain(each(count, |_| wait(1, "a"))).collect();
    vec![
        scenario(one_each, move |count, _| each(count, |number| close(10 + number))),
        // One session with everything.
        scenario(many_held, move |_, _| vec![close(1)]),
        scenario(awaits, move |_, _| vec![close(1)]),
    ]
}

pub(crate) fn expire_sessions() -> Vec<Scenario> {
    let expire = |count: u64, table: &LockTable| {
        each(count, |number| {
            let session = SessionId(10 + u128::from(number));
            Command::ExpireSession { session, version: table.session(session).unwrap().version }
        })
    };
    vec![scenario(one_each, expire)]
}

pub(crate) fn acquires() -> Vec<Scenario> {
    let refused = |count, _: &LockTable| each(count, |number| request(acquire(2, "a"), number));
    // A full table, which forgets old answers for each new one.
    let full = move |count| {
        let set = AccessChange::SetStateBytes { bytes: Some(STATE_BYTES_SETTING_MIN) };
        let fill = each(20, |number| Command::PutValue {
            key: lock(number).into(),
            value: vec![1; 50_000].into(),
            fence: None,
            if_version: None,
        });
        held(count)
            .into_iter()
            .chain([change(set)])
            .chain(fill)
            .chain(refused(count, &LockTable::new()))
            .collect()
    };
    let mut all = vec![
        scenario(none, |count, _| many_held(count)),
        scenario(held, |count, _| each(count, |_| take(2, "a"))),
        scenario(held, |count, _| each(count, |_| wait(2, "a"))),
        scenario(queue, |count, _| each(count, |_| wait(2, "a"))),
        // Retries of one request, and requests with ids of their own.
        scenario(held, |count, _| {
            let again = Acquire { wait: Wait::Forever, ..acquire(2, "a") };
            each(count, |_| request(again.clone(), 0))
        }),
        scenario(none, |count, _| each(count, |number| request(acquire(1, lock(number)), number))),
        scenario(held, refused),
        scenario(full, |count, _| each(count, |number| request(acquire(2, "a"), count + number))),
        // Several locks at once, granted and waiting.
        scenario(none, |count, _| each(count, |number| Command::Acquire(ten(1, number)))),
        scenario(
            |count| each(count, |number| take(1, format!("ten-{number}-9"))),
            |count, _| each(count, |number| Command::Acquire(ten(2, number))),
        ),
    ];
    all.extend([Policy::Detect, Policy::WaitDie, Policy::WoundWait].into_iter().flat_map(scopes));
    all
}

/// Scopes that wait for each other in a chain, and scopes that all wait for the same lock.
fn scopes(policy: Policy) -> Vec<Scenario> {
    let scoped = move |number: u64, name: String, wait| {
        let scope = Some(format!("scope-{number}").into());
        Command::Acquire(Acquire { scope, policy, wait, ..acquire(1, name) })
    };
    let own = move |count| each(count, |number| scoped(number, lock(number), Wait::No));
    vec![
        scenario(own, move |count, _| {
            each(count - 1, |number| scoped(number, lock(number + 1), Wait::Forever))
        }),
        scenario(
            move |count| held(count).into_iter().chain(own(count)).collect(),
            move |count, _| each(count, |number| scoped(number, "a".to_owned(), Wait::Forever)),
        ),
    ]
}

pub(crate) fn cancels() -> Vec<Scenario> {
    let by_id = |session: u64, count: u64| {
        each(count, |number| Command::Cancel {
            session: SessionId(session.into()),
            what: Waiting::Request(format!("r{number}").into()),
        })
    };
    let by_ticket = |count: u64, _: &LockTable| {
        each(count, |number| Command::Cancel {
            session: SessionId(2),
            what: Waiting::Ticket(Ticket(count - number)),
        })
    };
    let waiting = |count| {
        let waits = Acquire { wait: Wait::Forever, ..acquire(2, "a") };
        held(count).into_iter().chain(each(count, |number| request(waits.clone(), number))).collect()
    };
    let granted = |count| each(count, |number| request(acquire(1, lock(number)), number));
    let granted_ten = |count| each(count, |number| request(ten(1, number), number));
    vec![
        scenario(queue, by_ticket),
        scenario(waiting, move |count, _| by_id(2, count)),
        scenario(granted, move |count, _| by_id(1, count)),
        scenario(granted_ten, move |count, _| by_id(1, count)),
        // The acquire was lost or comes later.
        scenario(none, move |count, _| by_id(1, count)),
    ]
}

pub(crate) fn releases() -> Vec<Scenario> {
    let readers = |count| {
        let reader = || Acquire { wait: Wait::Forever, mode: Mode::Shared, ..acquire(2, "a") };
        held(count).into_iter().chain(each(count, |_| Command::Acquire(reader()))).collect()
    };
    vec![
        scenario(many_held, |count, _| each(count, |number| release(1, lock(number), number + 1))),
        // Each release admits the next request.
        scenario(queue, |count, _| {
            each(count, |number| release(if number == 0 { 1 } else { 2 }, "a", number + 1))
        }),
        // One release admits all.
        scenario(readers, |_, _| vec![release(1, "a", 1)]),
    ]
}

pub(crate) fn hand_overs() -> Vec<Scenario> {
    let candidate = |value: String| {
        Command::Acquire(Acquire { wait: Wait::Forever, value: Some(value.into()), ..acquire(2, "a") })
    };
    let candidates = move |count| {
        held(count)
            .into_iter()
            .chain(each(count, |number| candidate(format!("v{number}"))))
            .collect::<Vec<_>>()
    };
    let hand_over = |number: u64, to: String| Command::HandOver {
        session: SessionId(if number == 0 { 1 } else { 2 }),
        lock: "a".into(),
        token: Token(number + 1),
        to: to.into(),
    };
    let to_owner = |count: u64| {
        let last = Acquire { wait: Wait::Forever, ..acquire(3, "a") };
        let owner = Command::OpenSession {
            session: SessionId(3),
            ttl_ms: 10_000,
            owner: "last".into(),
            identity: None,
        };
        queue(count).into_iter().chain([owner, Command::Acquire(last)]).collect()
    };
    vec![
        // To the first, and to the last.
        scenario(candidates, move |count, _| each(count, |number| hand_over(number, format!("v{number}")))),
        scenario(candidates, move |count, _| {
            each(count, |number| hand_over(number, format!("v{}", count - 1 - number)))
        }),
        // To an owner far behind.
        scenario(to_owner, move |count, _| each(count, |_| hand_over(0, "last".to_owned()))),
    ]
}

pub(crate) fn force_releases() -> Vec<Scenario> {
    let force = |name: String| Command::ForceRelease { lock: name.into(), reason: "r".into(), by: "".into() };
    let sharers =
        |count| each(count, |_| Command::Acquire(Acquire { mode: Mode::Shared, ..acquire(1, "a") }));
    vec![
        scenario(many_held, move |count, _| each(count, |number| force(lock(number)))),
        scenario(sharers, move |_, _| vec![force("a".to_owned())]),
    ]
}

fn put(number: u64) -> Command {
    Command::PutValue { key: lock(number).into(), value: vec![1].into(), fence: None, if_version: None }
}

pub(crate) fn puts() -> Vec<Scenario> {
    vec![
        scenario(none, |count, _| each(count, put)),
        scenario(|count| each(count, put), |count, _| each(count, put)),
    ]
}

pub(crate) fn deletes() -> Vec<Scenario> {
    let delete = |number| Command::DeleteValue { key: lock(number).into(), fence: None, if_version: None };
    vec![scenario(|count| each(count, put), move |count, _| each(count, delete))]
}

pub(crate) fn rates() -> Vec<Scenario> {
    let take = |number: u64| {
        let limiter = lock(number).into();
        Command::TakeRate(TakeRate { limiter, permits: 1, interval_ns: 1_000, burst: 5 })
    };
    vec![
        scenario(none, move |count, _| each(count, take)),
        scenario(none, move |count, _| each(count, |_| take(1))),
    ]
}

pub(crate) fn ticks() -> Vec<Scenario> {
    vec![scenario(queue, |count, _| each(count, |_| Command::Tick))]
}

pub(crate) fn audit_notes() -> Vec<Scenario> {
    let note = || Command::AuditNote { by: "root".into(), text: "done".into() };
    vec![scenario(none, move |count, _| each(count, |_| note()))]
}

pub(crate) fn raised_versions() -> Vec<Scenario> {
    let to = CellVersion::RELEASED;
    vec![scenario(many_held, move |count, _| each(count, |_| Command::RaiseCellVersion { to }))]
}

#[cfg(feature = "next-version")]
pub(crate) fn next_version_notes() -> Vec<Scenario> {
    let note = || Command::NextVersionNote { text: "new".into() };
    vec![scenario(none, move |count, _| each(count, |_| note()))]
}

pub(crate) fn change(change: AccessChange) -> Command {
    Command::ChangeAccess { by: "root".into(), change }
}

/// The change with each number, after others.
pub(crate) fn changes(
    before: impl Fn(u64) -> Vec<Command> + 'static,
    number: impl Fn(u64) -> AccessChange + 'static,
) -> Vec<Scenario> {
    vec![scenario(before, move |count, _| each(count, |n| change(number(n))))]
}

pub(crate) fn grant(number: u64) -> AccessChange {
    let identity = format!("ada-{}", number / 200).into();
    AccessChange::Grant { identity, prefix: lock(number).into(), rights: Rights::of([Right::Acquire]) }
}

pub(crate) fn token(number: u64) -> AccessChange {
    AccessChange::AddToken {
        id: format!("{number:x}").into(),
        identity: "ci".into(),
        salt: [1; 16],
        hash: [2; 32],
    }
}

pub(crate) fn revoked_rules() -> Vec<Scenario> {
    let revoke = |number| match grant(number) {
        AccessChange::Grant { identity, prefix, .. } => AccessChange::Revoke { identity, prefix },
        other => other,
    };
    changes(|count| each(count, |number| change(grant(number))), revoke)
}

pub(crate) fn quotas() -> Vec<Scenario> {
    let quota = |number: u64| AccessChange::SetQuota {
        namespace: format!("space-{number}").into(),
        quota: Quota { locks: Some(10), ..Quota::default() },
    };
    // The first one counts all locks and values.
    let used = |count| many_held(count).into_iter().chain(each(count, put)).collect();
    let mut all = changes(none, quota);
    all.push(scenario(used, move |_, _| vec![change(quota(0))]));
    all
}

pub(crate) fn first_administrators() -> Vec<Scenario> {
    changes(one_each, |number| AccessChange::Enable {
        id: format!("{number:x}").into(),
        identity: "root".into(),
        salt: [1; 16],
        hash: [2; 32],
    })
}
