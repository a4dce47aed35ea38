//! Links between nodes are cut, in one direction or both. Clients still reach every node.

use std::time::{Duration, Instant};

use lockkeeper::{GuardState, Keeper};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::cell::Cell;
use crate::harness::client::{Load, acquire, grant, keep_alive, open_session};
use crate::harness::http::{Answer, Http};
use crate::harness::{LONG, attempts, report_retry};

/// Much longer than an election takes.
const CUT_FOR: Duration = Duration::from_secs(2);

/// Requires that the load makes progress for as long as a cut lasts.
async fn until_cut_is_over(load: &mut Load) {
    let began = Instant::now();
    while began.elapsed() < CUT_FOR {
        load.until_more(20).await;
    }
}

/// Attempts of tests that allow no election: a busy machine can delay heartbeats for too long now and then.
const ATTEMPTS: usize = 4;

/// Checks that a node still leads in the same term.
async fn unchanged(cell: &Cell, leader: u64, term_before: u64) -> Result<(), String> {
    let after = (cell.leader().await, term(cell, leader).await);
    match after == (leader, term_before) {
        true => Ok(()),
        false => {
            Err(format!("node {leader} led in term {term_before}, then node {} in term {}", after.0, after.1))
        }
    }
}

async fn term(cell: &Cell, id: u64) -> u64 {
    cell.node(id).until_status().await["term"].as_u64().unwrap()
}

#[tokio::test]
async fn leader_cut_off_from_both_followers_refuses_its_clients() {
    let cell = Cell::start_with_network(3).await;
    let old = cell.leader().await;
    let others = cell.others(old);
    let ttl = Duration::from_secs(5);
    let keeper = cell.keeper(Keeper::builder().ttl(ttl)).await;
    let guard = keeper.lock("kept").acquire().await.unwrap();
    let closed = open_session(&cell, 60_000).await;
    grant(&cell, &closed, "passes-on").await;

    for other in &others {
        cell.network.cut_both(old, *other);
    }
    let cut = Instant::now();
    let new = cell.leader_among(&others).await;
    println!("new leader {} ms after the cut", cut.elapsed().as_millis());
    println!("node {new} leads");
    cell.call("/v1/session/close", Some(&json!({"session": closed}))).await;
    let session = open_session(&cell, 60_000).await;
    let newer = grant(&cell, &session, "passes-on").await["token"].clone();

    // The old leader still receives requests of clients, and must refuse them.
    while cut.elapsed() < ttl * 3 / 2 {
        let answer = keep_alive(&cell, old, &closed).await;
        assert!(matches!(answer.status, 421 | 503), "{answer:?}");
        let answer = cell.get(old, "/v1/lock?name=passes-on").await;
        assert!(matches!(answer.status, 421 | 503), "{answer:?}");
        let answer = acquire(&cell, old, &session, "new").await;
        assert!(matches!(answer.status, 421 | 503), "{answer:?}");
        assert_eq!(guard.state(), GuardState::Held, "its client switched to the new leader");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    cell.network.heal();
    cell.until_in_sync(&[1, 2, 3]).await;
    cell.leader().await;
    let seen = cell.read("/v1/lock?name=passes-on").await;
    assert_eq!(seen["holders"][0]["token"], newer);
    assert_eq!(cell.read("/v1/lock?name=new").await["last_token"], 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn cut_between_leader_and_one_follower_does_not_depose_the_leader() {
    let cell = Cell::start_with_network(3).await;
    let mut load = Load::start(&cell, 3).await;
    for direction in 0..3 {
        attempts(ATTEMPTS, async || {
            let leader = cell.until_agreed().await;
            let follower = cell.others(leader)[0];
            let before = term(&cell, leader).await;
            match direction {
                // The follower hears nothing from the leader and starts elections.
                0 => cell.network.cut(leader, follower),
                // The follower hears the leader, but its answers are lost.
                1 => cell.network.cut(follower, leader),
                _ => cell.network.cut_both(leader, follower),
            }
            until_cut_is_over(&mut load).await;
            let kept = unchanged(&cell, leader, before).await;
            cell.network.heal();
            load.until_more(50).await;
            kept.map_err(|why| format!("direction {direction}: {why}"))
        })
        .await;
    }
    let done = load.end().await;
    cell.until_in_sync(&[1, 2, 3]).await;
    println!("{done} pairs of acquire and release, none failed");
}

#[tokio::test]
async fn followers_cut_off_from_each_other_cannot_elect_a_leader() {
    let mut cell = Cell::start_with_network(3).await;
    let mut load = Load::start(&cell, 2).await;
    let mut leader = 0;
    attempts(ATTEMPTS, async || {
        cell.network.heal();
        leader = cell.until_agreed().await;
        let before = term(&cell, leader).await;
        let [one, other] = cell.others(leader)[..] else { panic!("three nodes") };
        cell.network.cut_both(one, other);
        until_cut_is_over(&mut load).await;
        unchanged(&cell, leader, before).await
    })
    .await;
    let others = cell.others(leader);
    // Now the leader dies: neither follower can win an election, so nothing is granted.
    load.end().await;
    cell.kill(leader);
    let began = Instant::now();
    while began.elapsed() < CUT_FOR {
        for id in &others {
            let answer = cell.post(*id, "/v1/session/open", json!({"ttl_ms": 10_000})).await;
            assert_ne!(answer.status, 200, "{answer:?}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cell.network.heal();
    cell.leader().await;
    let session = open_session(&cell, 10_000).await;
    grant(&cell, &session, "new").await;
}

#[tokio::test]
async fn leader_that_receives_no_messages_steps_down() {
    let cell = Cell::start_with_network(3).await;
    let old = cell.leader().await;
    let others = cell.others(old);
    // Messages from the leader arrive; messages to it do not.
    for other in &others {
        cell.network.cut(*other, old);
    }
    let cut = Instant::now();
    cell.leader_among(&others).await;
    println!("new leader {} ms after the cut", cut.elapsed().as_millis());
    let session = open_session(&cell, 60_000).await;
    grant(&cell, &session, "new").await;
    assert_ne!(acquire(&cell, old, &session, "new").await.status, 200);
    cell.network.heal();
    cell.until_in_sync(&[1, 2, 3]).await;
}

#[tokio::test]
async fn isolated_follower_does_not_disturb_the_cell_when_it_returns() {
    let cell = Cell::start_with_network(3).await;
    let mut load = Load::start(&cell, 2).await;
    attempts(ATTEMPTS, async || {
        let leader = cell.until_agreed().await;
        let follower = cell.others(leader)[0];
        let before = term(&cell, leader).await;
        for other in cell.others(follower) {
            cell.network.cut_both(follower, other);
        }
        until_cut_is_over(&mut load).await;
        cell.network.heal();
        cell.until_agreed().await;
        load.until_more(100).await;
        unchanged(&cell, leader, before).await
    })
    .await;
    load.end().await;
    cell.until_in_sync(&[1, 2, 3]).await;
}

/// Sessions of each round. Some expire while the leader still has its lease, the others while it has none.
const SESSIONS: u64 = 12;
/// Time between their renewals, and so between their expiries.
const STAGGER: Duration = Duration::from_millis(40);
const TTL: Duration = Duration::from_secs(2);
/// How long the leader has no majority at least, and how much longer in each round: whether an expiry is committed just before
/// or just after the leader serves again depends on the pauses between its attempts to connect.
const NO_MAJORITY_FOR: Duration = Duration::from_millis(1_450);
const LONGER_EACH_ROUND: Duration = Duration::from_millis(70);
/// How long a client renews its session after the first acknowledgement.
const RENEWED_FOR: Duration = Duration::from_millis(500);
const ROUNDS_MIN: usize = 5;
const ROUNDS_MAX: usize = 12;

/// A client with a lasting connection to one of several nodes.
struct Client {
    addresses: Vec<String>,
    connection: Option<Http>,
}

impl Client {
    /// Posts until a node answers for the cell, with this pause between attempts. Returns when that request was sent, and its
    /// answer.
    async fn post(&mut self, path: &str, body: &Value, pause: Duration) -> (Instant, Answer) {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < LONG, "no node answers {path}");
            let sent = Instant::now();
            match tokio::time::timeout(Duration::from_secs(1), self.try_post(path, body)).await {
                Ok(Ok(answer)) if !matches!(answer.status, 421 | 503) => return (sent, answer),
                // It may be raft's leader without a majority.
                Ok(Ok(answer)) if answer.status == 503 => {}
                _ => {
                    self.connection = None;
                    self.addresses.rotate_left(1);
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn try_post(&mut self, path: &str, body: &Value) -> std::io::Result<Answer> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Http::connect(&self.addresses[0]).await?,
        };
        let answer = connection.post(path, body).await?;
        self.connection = Some(connection);
        Ok(answer)
    }

    /// Renews a session until it has been acknowledged for some time. Returns when the last acknowledged renewal was sent, or
    /// `None` if the session has expired.
    async fn renew(&mut self, session: &Value) -> Option<Instant> {
        let mut first = None;
        // At first without a pause: an expiry may be committed soon after the leader serves again.
        let mut pause = Duration::from_millis(1);
        loop {
            let (sent, answer) = self.post("/v1/session/keepalive", session, pause).await;
            match (answer.code(), first) {
                ("", _) => {}
                ("session_lost", None) => return None,
                (other, _) => {
                    panic!("acknowledged for {:?}, then {other}", first.map(|first: Instant| first.elapsed()))
                }
            }
            if first.get_or_insert(sent).elapsed() >= RENEWED_FOR {
                return Some(sent);
            }
            pause = Duration::from_millis(20);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Sessions with a lock each, for which another client waits.
async fn open_renewed(cell: &Cell, round: usize) -> Vec<(Value, Value)> {
    let waiter = open_session(cell, 120_000).await;
    let mut pairs = Vec::new();
    for number in 0..SESSIONS {
        let (session, lock) =
            (open_session(cell, TTL.as_millis() as u64).await, format!("kept/{round}/{number}"));
        grant(cell, &session, &lock).await;
        let wait = json!({"session": waiter, "lock": lock, "request": lock, "wait_ms": 60_000});
        pairs.push((json!({"session": session}), wait));
    }
    pairs
}

/// A leader loses its majority just before sessions expire, and gets it back while its old connections are still frozen. A
/// renewal that it acknowledges then is a promise (S3), although an expiry that it proposed before may still be in its log.
/// Returns the numbers of renewed and of expired sessions.
async fn lose_the_majority_before_expiries(cell: &Cell, round: usize) -> Result<(usize, usize), String> {
    let leader = cell.until_agreed().await;
    let [stopped, linked] = cell.others(leader)[..] else { panic!("three nodes") };
    let client = || Client {
        addresses: [leader, linked].map(|id| cell.node(id).listen_addr.clone()).into(),
        connection: None,
    };
    let pairs = open_renewed(cell, round).await;
    let mut waits = JoinSet::new();
    let mut renewals = JoinSet::new();
    let began = Instant::now();
    let cut_at = began + TTL - STAGGER;
    let heal_at = cut_at + NO_MAJORITY_FOR + LONGER_EACH_ROUND * round as u32;
    for (number, (session, wait)) in pairs.into_iter().enumerate() {
        tokio::time::sleep_until((began + STAGGER * number as u32).into()).await;
        let (mut renewing, mut waiting) = (client(), client());
        let renewed = renewing.try_post("/v1/session/keepalive", &session).await;
        if !renewed.is_ok_and(|answer| answer.status == 200) {
            return Err("a session expired or the leader changed before the majority was lost".to_owned());
        }
        waits.spawn(async move {
            let (_, answer) = waiting.post("/v1/lock/acquire", &wait, Duration::from_millis(20)).await;
            answer.ok();
            (number, Instant::now())
        });
        renewals.spawn(async move {
            // The client is silent until the leader is about to have a majority again.
            tokio::time::sleep_until((heal_at - Duration::from_millis(5)).into()).await;
            (number, renewing.renew(&session).await)
        });
    }
    cell.stop(stopped);
    tokio::time::sleep_until(cut_at.into()).await;
    cell.network.cut_both(leader, linked);
    tokio::time::sleep_until(heal_at.into()).await;
    cell.network.heal_for_new(leader, linked);

    let renewals = renewals.join_all().await;
    let granted = waits.join_all().await;
    let (renewed, expired): (Vec<_>, Vec<_>) = renewals.into_iter().partition(|(_, last)| last.is_some());
    for (number, last) in &renewed {
        let promised_until = last.expect("it was renewed") + TTL;
        let (_, granted) = granted.iter().find(|(other, _)| other == number).expect("all are granted");
        assert!(
            *granted >= promised_until,
            "session {number} was renewed, but another client was granted its lock {:?} before it could expire",
            promised_until - *granted
        );
    }
    cell.network.heal();
    cell.resume(stopped);
    Ok((renewed.len(), expired.len()))
}

#[tokio::test]
async fn renewal_acknowledged_after_a_lost_majority_is_kept() {
    let cell = Cell::start_with_network(3).await;
    let (mut renewed, mut expired) = (0, 0);
    for round in 1..=ROUNDS_MAX {
        match lose_the_majority_before_expiries(&cell, round).await {
            Ok(counts) => (renewed, expired) = (renewed + counts.0, expired + counts.1),
            Err(why) => report_retry(&format!("round {round}: {why}")),
        }
        println!("after round {round}: {renewed} sessions renewed after the loss, {expired} expired");
        // Both must occur: an expiry was in the log of the leader, and renewals were acknowledged after it.
        if round >= ROUNDS_MIN {
            if renewed > 0 && expired > 0 {
                return;
            }
            report_retry(&format!("after round {round}: {renewed} renewed, {expired} expired"));
        }
    }
    panic!(
        "{ROUNDS_MAX} rounds: {renewed} sessions renewed after the loss of the majority, {expired} expired"
    );
}
