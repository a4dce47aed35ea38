//! Random histories over few sessions, locks and request ids, so that they often conflict.

use lockkeeper_core::{
    Acquire, Applied, Batch, CellTime, Command, Fence, LockName, LockTable, Locks, Mode, SessionId, Ticket,
    Token, Wait, Waiting,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

pub(crate) const SESSIONS: u128 = 4;
pub(crate) const LOCKS: [&str; 4] = ["a", "b", "c", "d"];
pub(crate) const KEYS: [&str; 2] = ["k", "l"];

/// The plan of an entry. Tokens, tickets and versions are resolved against the table when it is applied.
#[derive(Debug, Clone)]
pub(crate) struct EntryPlan {
    /// Half-seconds that pass before the entry. If negative, its stamp goes back.
    step: i64,
    commands: Vec<CommandPlan>,
}

#[derive(Debug, Clone)]
enum CommandPlan {
    Open(u128),
    Close(u128),
    Expire {
        session: u128,
        stale: bool,
    },
    Acquire(Acquire),
    /// A retry of an earlier acquire.
    Retry(Index),
    CancelRequest {
        session: u128,
        request: u8,
    },
    CancelTicket {
        session: u128,
        back: u64,
    },
    /// Releases one of the held locks.
    Release {
        which: Index,
        forget: bool,
    },
    /// Releases a lock with a token that may be wrong.
    ReleaseWrongly {
        session: u128,
        lock: usize,
        back: u64,
    },
    ForceRelease(usize),
    Put {
        key: usize,
        fence: Option<(usize, u64)>,
        version: Option<u64>,
    },
    Delete {
        key: usize,
        fence: Option<(usize, u64)>,
        version: Option<u64>,
    },
    Tick,
}

pub(crate) fn histories() -> impl Strategy<Value = Vec<EntryPlan>> {
    let step = prop_oneof![4 => Just(0), 4 => 1..4i64, 1 => 10..100i64, 1 => -5..0i64];
    let plan = (step, vec(command(), 1..5)).prop_map(|(step, commands)| EntryPlan { step, commands });
    vec(plan, 1..60)
}

fn command() -> impl Strategy<Value = CommandPlan> {
    let session = || 1..=SESSIONS;
    let fence = || proptest::option::of((0..LOCKS.len(), 0..3u64));
    let version = || proptest::option::weighted(0.3, 0..4u64);
    prop_oneof![
        4 => session().prop_map(CommandPlan::Open),
        1 => session().prop_map(CommandPlan::Close),
        2 => (session(), any::<bool>()).prop_map(|(session, stale)| CommandPlan::Expire { session, stale }),
        14 => acquire().prop_map(CommandPlan::Acquire),
        3 => any::<Index>().prop_map(CommandPlan::Retry),
        2 => (session(), 0..8u8).prop_map(|(session, request)| CommandPlan::CancelRequest { session, request }),
        1 => (session(), 0..4u64).prop_map(|(session, back)| CommandPlan::CancelTicket { session, back }),
        9 => (any::<Index>(), any::<bool>())
            .prop_map(|(which, forget)| CommandPlan::Release { which, forget }),
        1 => (session(), 0..LOCKS.len(), 0..4u64)
            .prop_map(|(session, lock, back)| CommandPlan::ReleaseWrongly { session, lock, back }),
        1 => (0..LOCKS.len()).prop_map(CommandPlan::ForceRelease),
        2 => (0..KEYS.len(), fence(), version())
            .prop_map(|(key, fence, version)| CommandPlan::Put { key, fence, version }),
        1 => (0..KEYS.len(), fence(), version())
            .prop_map(|(key, fence, version)| CommandPlan::Delete { key, fence, version }),
        2 => Just(CommandPlan::Tick),
    ]
}

fn acquire() -> impl Strategy<Value = Acquire> {
    let locks = prop_oneof![
        3 => (0..LOCKS.len()).prop_map(|at| vec![LOCKS[at]]),
        1 => proptest::sample::subsequence(LOCKS.to_vec(), 2..=3),
    ];
    let wait = prop_oneof![
        2 => Just(Wait::No),
        1 => Just(Wait::Forever),
        4 => (0..8u64).prop_map(|half_seconds| Wait::ForMs(half_seconds * 500)),
    ];
    let counted = prop_oneof![
        3 => Just((None, None)),
        1 => (proptest::option::of(0..5u32), proptest::option::of(1..4u32)),
    ];
    let request = proptest::option::weighted(0.6, 0..8u8);
    let delay = prop_oneof![3 => Just(0u64), 1 => (1..6u64).prop_map(|half_seconds| half_seconds * 500)];
    (1..=SESSIONS, locks, wait, counted, request, delay, any::<bool>()).prop_map(
        |(session, locks, wait, (permits, capacity), request, lock_delay_ms, shared)| {
            let alone = locks.len() == 1;
            Acquire {
                request: request.map(|number| format!("r{number}").into()),
                mode: if shared { Mode::Shared } else { Mode::Exclusive },
                permits: permits.filter(|_| alone),
                capacity: capacity.filter(|_| alone),
                wait,
                lock_delay_ms,
                ..Acquire::new(SessionId(session), Locks::many(locks.into_iter().map(LockName::from)))
            }
        },
    )
}

/// An entry with the table before and after it.
pub(crate) struct Step {
    pub(crate) before: LockTable,
    pub(crate) batch: Batch,
    pub(crate) applied: Applied,
    pub(crate) after: LockTable,
}

/// Runs a history. All sessions are open at its start.
pub(crate) fn run_history(plans: &[EntryPlan]) -> Vec<Step> {
    let opening = (1..=SESSIONS).map(CommandPlan::Open).collect();
    let mut table = LockTable::new();
    let mut past: Vec<Acquire> = Vec::new();
    let mut steps = Vec::new();
    for plan in std::iter::once(&EntryPlan { step: 0, commands: opening }).chain(plans) {
        let now = CellTime(table.now().0.saturating_add_signed(plan.step * 500_000));
        let commands: Vec<Command> =
            plan.commands.iter().map(|command| command.resolve(&table, &mut past)).collect();
        let batch = Batch { now, utc_ms: 0, commands };
        let before = table.clone();
        let applied = table.apply(table.applied() + 1, &batch).expect("the next entry");
        steps.push(Step { before, batch, applied, after: table.clone() });
    }
    steps
}

impl CommandPlan {
    fn resolve(&self, table: &LockTable, past: &mut Vec<Acquire>) -> Command {
        let back_from_last = |back: u64| Token(table.last_token().0.saturating_sub(back));
        let fence_of = |fence: &Option<(usize, u64)>| {
            fence.map(|(lock, back)| {
                let lock = LockName::from(LOCKS[lock]);
                Fence { token: Token(table.last_token_of(&lock).0.saturating_sub(back)), lock }
            })
        };
        // Versions near the current one, and sometimes 0 for "must not exist".
        let version_of = |key: usize, back: Option<u64>| {
            back.map(|back| table.value(KEYS[key]).map_or(0, |value| value.version).saturating_sub(back))
        };
        match self {
            CommandPlan::Open(session) => Command::OpenSession {
                session: SessionId(*session),
                ttl_ms: 10_000,
                owner: format!("client-{session}").into(),
                identity: None,
            },
            CommandPlan::Close(session) => Command::CloseSession { session: SessionId(*session) },
            CommandPlan::Expire { session, stale } => {
                let session = SessionId(*session);
                let version = table.session(session).map_or(0, |alive| alive.version);
                Command::ExpireSession { session, version: version.saturating_sub(u64::from(*stale)) }
            }
            CommandPlan::Acquire(request) => {
                past.push(request.clone());
                Command::Acquire(request.clone())
            }
            CommandPlan::Retry(_) if past.is_empty() => Command::Tick,
            CommandPlan::Retry(which) => Command::Acquire(which.get(past).clone()),
            CommandPlan::CancelRequest { session, request } => Command::Cancel {
                session: SessionId(*session),
                what: Waiting::Request(format!("r{request}").into()),
            },
            CommandPlan::CancelTicket { session, back } => {
                let ticket = Ticket(table.counts().waiting.saturating_sub(*back));
                Command::Cancel { session: SessionId(*session), what: Waiting::Ticket(ticket) }
            }
            CommandPlan::Release { which, forget } => {
                let held = held(table);
                if held.is_empty() {
                    return Command::Tick;
                }
                let (session, lock, token) = which.get(&held).clone();
                Command::Release { session, lock, token, forget: *forget }
            }
            CommandPlan::ReleaseWrongly { session, lock, back } => Command::Release {
                session: SessionId(*session),
                lock: LOCKS[*lock].into(),
                token: back_from_last(*back),
                forget: false,
            },
            CommandPlan::ForceRelease(lock) => {
                Command::ForceRelease { lock: LOCKS[*lock].into(), reason: "random".into(), by: "".into() }
            }
            CommandPlan::Put { key, fence, version } => Command::PutValue {
                key: KEYS[*key].into(),
                value: table.applied().to_string().as_bytes().into(),
                fence: fence_of(fence),
                if_version: version_of(*key, *version),
            },
            CommandPlan::Delete { key, fence, version } => Command::DeleteValue {
                key: KEYS[*key].into(),
                fence: fence_of(fence),
                if_version: version_of(*key, *version),
            },
            CommandPlan::Tick => Command::Tick,
        }
    }
}

/// All held locks: each lock of each grant.
pub(crate) fn held(table: &LockTable) -> Vec<(SessionId, LockName, Token)> {
    let mut held = Vec::new();
    for session in (1..=SESSIONS).map(SessionId) {
        for grant in table.grants_of(session) {
            held.extend(grant.locks.as_slice().iter().map(|lock| (session, lock.clone(), grant.token)));
        }
    }
    held
}
