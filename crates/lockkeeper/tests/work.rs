//! The recipes built on locks: scopes, elections, rate limiters, steps that run once, optimistic updates. All on a lock table
//! in this process, with one keeper for each client.

#![allow(clippy::unwrap_used, reason = "a test fails with a panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::prelude::*;
use lockkeeper::{GuardState, Loss, Policy, Token};
use tokio::task::JoinSet;

/// A timeout that even a busy machine does not reach.
const LONG: Duration = Duration::from_secs(30);

async fn keeper(name: &str, owner: &str) -> Keeper {
    let url = format!("embedded:{}", folder(name).display());
    Keeper::builder().owner(owner).connect(&url).await.expect("connect")
}

/// Returns the folder of a test. Keepers of the same folder share one table.
fn folder(name: &str) -> std::path::PathBuf {
    static ROOT: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    ROOT.get_or_init(|| tempfile::tempdir().expect("create a folder")).path().join(name)
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < LONG, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A xorshift random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// 50 clients run 1,000 transactions with 4 random locks each, in random order. Each changes accounts that only the locks
/// protect.
async fn transactions(policy: Policy) {
    const CLIENTS: u64 = 50;
    const EACH: u64 = 20;
    const LOCKS: u64 = 40;
    let accounts: Arc<Vec<AtomicU64>> = Arc::new((0..LOCKS).map(|_| AtomicU64::new(0)).collect());
    let retries = Arc::new(AtomicU32::new(0));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let keeper = keeper(policy.as_str(), &format!("client-{number}")).await;
        let (accounts, retries) = (Arc::clone(&accounts), Arc::clone(&retries));
        clients.spawn(async move {
            let mut random = Random(number * 7_919 + 1);
            for _ in 0..EACH {
                let mut wanted = Vec::new();
                while wanted.len() < 4 {
                    let lock = random.below(LOCKS);
                    if !wanted.contains(&lock) {
                        wanted.push(lock);
                    }
                }
                let tries = AtomicU32::new(0);
                keeper
                    .scope()
                    .policy(policy)
                    .run(|scope| {
                        tries.fetch_add(1, Ordering::Relaxed);
                        let (wanted, accounts) = (&wanted, &accounts);
                        async move {
                            let mut guards = Vec::new();
                            for lock in wanted {
                                let guard = scope.lock(format!("account/{lock}")).wait(LONG).acquire().await;
                                // A timeout would mean that the deadlock was not prevented.
                                guards.push(guard.inspect_err(|error| {
                                    assert!(!matches!(error, Error::Timeout { .. }), "{error}");
                                })?);
                            }
                            let before: Vec<u64> = wanted
                                .iter()
                                .map(|at| accounts[*at as usize].load(Ordering::Relaxed))
                                .collect();
                            tokio::task::yield_now().await;
                            // Nothing is written under a lost guard.
                            guards.iter().try_for_each(|guard| guard.check())?;
                            for (at, before) in wanted.iter().zip(before) {
                                accounts[*at as usize].store(before + 1, Ordering::Relaxed);
                            }
                            for guard in guards {
                                // An older scope may have taken it since.
                                let _ = guard.release().await;
                            }
                            Ok(())
                        }
                    })
                    .await
                    .unwrap();
                retries.fetch_add(tries.into_inner() - 1, Ordering::Relaxed);
            }
            keeper.close().await.unwrap();
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let written: u64 = accounts.iter().map(|account| account.load(Ordering::Relaxed)).sum();
    println!("{}: {} retries of transactions", policy.as_str(), retries.load(Ordering::Relaxed));
    assert_eq!(written, CLIENTS * EACH * 4, "a change of a transaction was lost");
}

#[tokio::test]
async fn wait_die_finishes_a_thousand_transactions() {
    transactions(Policy::WaitDie).await;
}

#[tokio::test]
async fn detection_finishes_a_thousand_transactions() {
    transactions(Policy::Detect).await;
}

#[tokio::test]
async fn wound_wait_finishes_a_thousand_transactions() {
    transactions(Policy::WoundWait).await;
}

#[tokio::test]
async fn wounded_guard_is_lost_at_once_and_fenced() {
    let old = keeper("wounded", "old").await;
    let young = keeper("wounded", "young").await;
    let elder = old.scope().policy(Policy::WoundWait);
    let first = elder.lock("a").acquire().await.unwrap();
    let younger = young.scope_named("youngest").policy(Policy::WoundWait);
    let held = younger.lock("b").acquire().await.unwrap();
    let taken = elder.lock("b").acquire().await.unwrap();
    assert_eq!(held.lost().await, Loss::Wounded);
    assert_eq!(held.state(), GuardState::Lost);
    assert!(matches!(held.check(), Err(Error::Lost { why: Loss::Wounded, .. })));
    let write = young.value("row").fence(&held).put("late").await;
    assert!(matches!(write, Err(Error::StaleToken { .. })), "{write:?}");
    assert!(matches!(younger.lock("c").acquire().await, Err(Error::Wounded(_))));
    // `who` shows the scope of the holder.
    assert_eq!(old.who("b").await.unwrap().holders[0].scope, elder.name());
    drop((first, taken));
    let wrong = younger.lock("d").ttl(3.secs()).acquire().await;
    assert!(matches!(wrong, Err(Error::Invalid(_))), "{wrong:?}");
}

#[tokio::test]
async fn observers_see_every_change_of_leader() {
    let (one, two, three) =
        (keeper("elect", "pod-1").await, keeper("elect", "pod-2").await, keeper("elect", "pod-3").await);
    let mut observer = three.election("db").observe();
    assert_eq!(observer.next().await.unwrap(), None, "there is no leader");
    let first = one.election("db").value("10.0.0.1").campaign().await.unwrap();
    let leader = observer.next().await.unwrap().unwrap();
    assert_eq!((leader.value.as_str(), leader.owner.as_str()), ("10.0.0.1", "pod-1"));
    assert_eq!(leader.epoch, first.epoch().0);
    assert_eq!(two.election("db").leader().await.unwrap(), Some(leader));
    let busy = two.election("db").wait(Duration::ZERO).campaign().await;
    assert!(matches!(busy, Err(Error::Contended { .. })), "{busy:?}");

    // Two candidates wait; the leader hands over to the second one.
    let mut waiting = Vec::new();
    for (keeper, value) in [(&two, "10.0.0.2"), (&three, "10.0.0.3")] {
        let election = keeper.election("db").value(value);
        waiting.push(tokio::spawn(async move { election.campaign().await }));
        let count = waiting.len() as u32;
        until("one more waits", async || one.who("election/db").await.unwrap().waiting == count).await;
    }
    let (error, first) = first.hand_over("nobody").await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let epoch = first.epoch();
    first.check().unwrap();
    first.hand_over("10.0.0.3").await.unwrap();
    let second = waiting.pop().unwrap().await.unwrap().unwrap();
    assert!(second.epoch() > epoch);
    assert_eq!(observer.next().await.unwrap().unwrap().value, "10.0.0.3");

    // When a leader goes away, the next candidate leads.
    assert!(second.remaining() > Duration::ZERO);
    three.close().await.unwrap();
    assert_eq!(second.state(), GuardState::Lost);
    let third = waiting.pop().unwrap().await.unwrap().unwrap();
    let mut observer = one.election("db").observe();
    assert_eq!(observer.next().await.unwrap().unwrap().epoch, third.epoch().0);
    third.resign().await.unwrap();
    assert_eq!(observer.next().await.unwrap(), None, "the vacancy is observed");
    let done = one.election("db").run(|lease| async move { lease.token() }).await.unwrap();
    assert!(done > epoch);
}

#[tokio::test]
async fn rate_limit_applies_to_all_clients_together() {
    const RATE: f64 = 200.0;
    // A pause of the machine that is longer than the burst lasts loses permits.
    const ATTEMPTS: usize = 4;
    for attempt in 1..=ATTEMPTS {
        let rate = rate_of_all_clients(&format!("calls-{attempt}"), RATE).await;
        assert!(rate <= RATE * 1.01, "{rate} per second are too many");
        if rate >= RATE * 0.99 {
            return;
        }
        println!("attempt {attempt}: {rate} per second are too few");
    }
    panic!("too few in each of {ATTEMPTS} attempts");
}

/// The rate that sixteen clients reach together, without the burst at the beginning.
async fn rate_of_all_clients(name: &str, rate: f64) -> f64 {
    const CLIENTS: usize = 16;
    // Large enough to make up for a second in which the machine is busy.
    const BURST: u64 = 200;
    let measured = Duration::from_secs(30);
    let mut limiters = Vec::new();
    for number in 0..CLIENTS {
        limiters.push(keeper("rate", &format!("client-{number}")).await.limiter(name, rate, BURST));
    }
    let began = Instant::now();
    let taken = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for limiter in limiters {
        let taken = Arc::clone(&taken);
        clients.spawn(async move {
            while began.elapsed() < measured {
                limiter.take(1).await.unwrap();
                taken.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::time::sleep(measured.saturating_sub(began.elapsed())).await;
    // Measure up to the current moment.
    let (count, seconds) = (taken.load(Ordering::Relaxed) as f64, began.elapsed().as_secs_f64());
    println!("{count} in {seconds:.2} s");
    clients.shutdown().await;
    (count - BURST as f64) / seconds
}

#[tokio::test]
async fn local_batch_stays_within_its_bound() {
    let one = keeper("batch", "one").await;
    let exact = one.limiter("l", 10.0, 40);
    let batched = keeper("batch", "two").await.limiter("l", 10.0, 40).local_batch(20);
    let began = Instant::now();
    for _ in 0..20 {
        batched.try_take(1).await.unwrap().unwrap();
    }
    // The batch was taken at once: half of the burst is left, plus what was refilled since.
    let mut left = 0;
    while exact.try_take(1).await.unwrap().is_ok() {
        left += 1;
    }
    let refilled = (began.elapsed().as_secs_f64() * 10.0).ceil() as u64;
    assert!((20..=20 + refilled).contains(&left), "{left} were left, {refilled} were refilled");
    // Some may have been refilled since.
    let wait = loop {
        if let Err(wait) = batched.try_take(1).await.unwrap() {
            break wait;
        }
    };
    assert!(wait <= Duration::from_millis(100), "{wait:?}");
    assert!(matches!(exact.try_take(41).await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn step_runs_once_and_all_clients_get_its_result() {
    let done = Arc::new(AtomicU32::new(0));
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let keeper = keeper("once", &format!("client-{number}")).await;
        let done = Arc::clone(&done);
        clients.spawn(async move {
            let step = keeper.once("order-42/charge");
            step.run(|token| async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                done.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Error>(format!("receipt under {token}"))
            })
            .await
            .unwrap()
            .unwrap()
        });
    }
    let mut receipts = Vec::new();
    while let Some(receipt) = clients.join_next().await {
        receipts.push(receipt.unwrap());
    }
    receipts.dedup();
    assert_eq!((receipts.len(), done.load(Ordering::Relaxed)), (1, 1), "{receipts:?}");

    let keeper = keeper("once", "later").await;
    let step = keeper.once("order-43/charge");
    // A failure is not recorded, and the next call runs the step again.
    let failed = step.run(|_| async { Err::<u32, _>("no money") }).await.unwrap();
    assert_eq!(failed, Err("no money"));
    assert_eq!(step.recorded::<u32>().await.unwrap(), None);
    // A step that was dropped in the middle runs again.
    let dropped = tokio::time::timeout(
        Duration::from_millis(50),
        step.run(|_| std::future::pending::<Result<u32, Error>>()),
    );
    assert!(dropped.await.is_err());
    let mut first = Token(0);
    let result = step.run(|token| {
        first = token;
        async { Ok::<_, Error>(7) }
    });
    assert_eq!(result.await.unwrap(), Ok(7));
    assert!(first > Token(0));
    assert_eq!(step.recorded::<u32>().await.unwrap(), Some(7));
    assert!(matches!(step.recorded::<String>().await, Err(Error::Fatal(_))));
    step.forget().await.unwrap();
    assert_eq!(step.recorded::<u32>().await.unwrap(), None);
}

#[tokio::test]
async fn optimistic_updates_are_not_lost() {
    let mut clients = JoinSet::new();
    for number in 0..8 {
        let keeper = keeper("optimistic", &format!("client-{number}")).await;
        clients.spawn(async move {
            for _ in 0..25 {
                let raise = |bytes: Option<&[u8]>| {
                    let before =
                        bytes.map_or(0, |bytes| std::str::from_utf8(bytes).unwrap().parse::<u64>().unwrap());
                    Some((before + 1).to_string().into_bytes())
                };
                keeper.optimistic("visits", raise).await.unwrap();
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let keeper = keeper("optimistic", "reader").await;
    let value = keeper.value("visits").get().await.unwrap().unwrap();
    assert_eq!((value.bytes.as_slice(), value.version), (&b"200"[..], 200));
    assert_eq!(keeper.optimistic("visits", |_| None).await.unwrap(), 200, "left unchanged");
    // An idempotency key: only the first write succeeds.
    keeper.value("key").if_version(0).put("mine").await.unwrap();
    let second = keeper.value("key").if_version(0).put("mine too").await;
    assert!(matches!(second, Err(Error::VersionMismatch { version: 1 })), "{second:?}");
}
