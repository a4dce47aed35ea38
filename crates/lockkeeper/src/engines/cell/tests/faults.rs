//! Lost answers, cut connections, lost sessions, nodes that do not lead or do not answer.

use lockkeeper_api::v1;

use super::*;
use crate::error::{Error, Loss};
use crate::events::Event;
use crate::guard::GuardState;

fn waiting(keeper: &Keeper, lock: &str) -> tokio::task::JoinHandle<Result<crate::Guard, Error>> {
    let lock = keeper.lock(lock);
    tokio::spawn(async move { lock.acquire().await })
}

#[tokio::test]
async fn retried_acquire_gets_the_same_grant() {
    let (peer, keeper) = connected(options()).await;
    keeper.lock("warm").acquire().await.unwrap().release().await.unwrap();
    peer.state().mute = true;
    let acquire = waiting(&keeper, "a");
    until("it is granted", || peer.holders("a") == 1).await;
    peer.state().mute = false;
    peer.cut();
    let guard = soon(acquire).await.unwrap().unwrap();
    assert_eq!(peer.count("acquire a"), 2, "the request was retried");
    assert_eq!(peer.state().table.last_token(), guard.token(), "and granted once");
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(peer.holders("a"), 0);
}

#[tokio::test]
async fn lost_grant_of_several_locks_releases_the_rest_after_a_forced_release() {
    let (peer, keeper) = connected(options()).await;
    keeper.lock("warm").acquire().await.unwrap().release().await.unwrap();
    peer.state().mute = true;
    let both = keeper.lock_all(["a", "b"]);
    let acquire = tokio::spawn(async move { both.acquire().await });
    until("it is granted", || peer.holders("b") == 1).await;
    peer.state().force("a");
    peer.state().mute = false;
    peer.cut();
    let refused = soon(acquire).await.unwrap();
    assert!(matches!(refused, Err(Error::NotHeld { .. })), "{refused:?}");
    until("the other lock is released", || peer.holders("b") == 0).await;
}

#[tokio::test]
async fn waiter_keeps_its_place_after_a_reconnect() {
    let (peer, first) = connected(options()).await;
    let (second, holder) = (another(&peer, options()).await, another(&peer, options()).await);
    let guard = holder.lock("a").acquire().await.unwrap();
    let one = waiting(&first, "a");
    until("one waits", || peer.waiting("a") == 1).await;
    let two = waiting(&second, "a");
    until("two wait", || peer.waiting("a") == 2).await;
    let mut events = first.events();
    peer.cut();
    loop {
        if let Event::Connected { .. } = soon(events.next()).await.unwrap() {
            break;
        }
    }
    until("the first waiter retries", || peer.count("acquire a") >= 4).await;
    assert_eq!(peer.waiting("a"), 2);
    guard.release().await.unwrap();
    let one = soon(one).await.unwrap().unwrap();
    assert!(!two.is_finished());
    one.release().await.unwrap();
    soon(two).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn retried_release_succeeds() {
    let (peer, keeper) = connected(options()).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    peer.state().mute = true;
    let release = tokio::spawn(guard.release());
    until("it is free", || peer.holders("a") == 0).await;
    peer.state().mute = false;
    peer.cut();
    soon(release).await.unwrap().unwrap();
    assert_eq!(peer.count("release a"), 2);
}

#[tokio::test]
async fn unanswered_write_is_not_retried() {
    let (peer, keeper) = connected(options()).await;
    peer.state().mute = true;
    let put = tokio::spawn({
        let value = keeper.value("k").if_version(0);
        async move { value.put("v").await }
    });
    until("it is written", || peer.count("put") == 1).await;
    peer.state().mute = false;
    peer.cut();
    let error = soon(put).await.unwrap().unwrap_err();
    assert!(error.may_have_happened(), "{error:?}");
    assert_eq!(keeper.value("k").get().await.unwrap().unwrap().bytes, b"v");
    assert_eq!(peer.count("put"), 1);
}

#[tokio::test]
async fn unanswered_read_is_retried() {
    let (peer, keeper) = connected(options()).await;
    peer.state().deaf = true;
    let who = tokio::spawn({
        let keeper = keeper.clone();
        async move { keeper.who("a").await }
    });
    until("it was sent", || peer.count("GetLock") == 1).await;
    peer.state().deaf = false;
    peer.cut();
    soon(who).await.unwrap().unwrap();
}

#[tokio::test]
async fn lost_session_loses_its_guards_and_its_waiters_retry() {
    for connected_meanwhile in [true, false] {
        let (peer, keeper) = connected(options()).await;
        let holder = another(&peer, Options { ttl: Duration::from_secs(60), ..options() }).await;
        let other = holder.lock("b").acquire().await.unwrap();
        let guard = keeper.lock("a").acquire().await.unwrap();
        let waiter = waiting(&keeper, "b");
        until("it waits", || peer.waiting("b") == 1).await;
        let mut events = keeper.events();
        if !connected_meanwhile {
            peer.state().shut = true;
            peer.cut();
        }
        // End only the keeper's own session.
        let session = keeper.session_ids().await.unwrap().remove(0).parse().unwrap();
        peer.state().end(session);
        peer.state().shut = false;
        assert_eq!(soon(guard.lost()).await, Loss::SessionExpired);
        assert_eq!(guard.state(), GuardState::Lost);
        loop {
            if let Event::SessionLost { .. } = soon(events.next()).await.unwrap() {
                break;
            }
        }
        assert_eq!(guard.release().await.unwrap_err(), Error::SessionLost);
        until("it waits again, in a new session", || peer.waiting("b") == 1).await;
        soon(keeper.lock("a").no_wait().acquire()).await.unwrap().release().await.unwrap();
        other.release().await.unwrap();
        soon(waiter).await.unwrap().unwrap().check().unwrap();
    }
}

#[tokio::test]
async fn forced_release_during_a_disconnect_is_detected() {
    let (peer, keeper) = connected(options()).await;
    let operator = another(&peer, options()).await;
    let (gone, kept) = (keeper.lock("a").acquire().await.unwrap(), keeper.lock("b").acquire().await.unwrap());
    let both = keeper.lock_all(["c", "d"]).acquire().await.unwrap();
    peer.state().shut = true;
    peer.cut();
    peer.state().force("a");
    peer.state().force("d");
    peer.state().shut = false;
    assert_eq!(soon(gone.lost()).await, Loss::TakenAway);
    assert_eq!(soon(both.lost()).await, Loss::TakenAway);
    kept.check().unwrap();
    drop(both);
    until("the other one of two is released", || peer.holders("c") == 0).await;
    drop(operator);
}

#[tokio::test]
async fn redirect_to_the_leader_is_followed() {
    let (peer, keeper) = connected(options()).await;
    peer.state().fails =
        Some(v1::Error { code: "not_leader".into(), leader: "other:1".into(), ..Default::default() });
    let acquire = waiting(&keeper, "a");
    until("it connects to the leader", || peer.state().opened.contains(&Some("other:1".into()))).await;
    peer.state().fails = None;
    soon(acquire).await.unwrap().unwrap().release().await.unwrap();
    // A redirected write did not happen, and is retried on the leader.
    peer.state().fails = Some(v1::Error { code: "not_leader".into(), ..Default::default() });
    let put = tokio::spawn({
        let value = keeper.value("k");
        async move { value.put("v").await }
    });
    until("it is redirected", || peer.count("put") >= 1).await;
    peer.state().fails = None;
    soon(put).await.unwrap().unwrap();
}

#[tokio::test]
async fn unavailable_is_retried_where_it_is_safe() {
    let (peer, keeper) = connected(Options { request_timeout: ms(300), ..options() }).await;
    keeper.lock("warm").acquire().await.unwrap().release().await.unwrap();
    peer.state().fails =
        Some(v1::Error { code: "unavailable".into(), message: "no quorum".into(), ..Default::default() });
    let acquire = waiting(&keeper, "a");
    until("it is retried", || peer.count("acquire a") >= 3).await;
    // A write that did not happen is retried too, until the request timeout.
    let error = soon(keeper.value("k").put("v")).await.unwrap_err();
    assert_eq!(error, Error::Unavailable("no quorum: try again".into()));
    assert!(peer.count("put k") >= 2);
    let error = soon(keeper.lock("a").no_wait().acquire()).await.unwrap_err();
    assert_eq!(error.code(), "unavailable");
    peer.state().fails.as_mut().unwrap().may_have_happened = true;
    let sent = peer.count("put k");
    assert!(keeper.value("k").put("v").await.unwrap_err().may_have_happened());
    assert_eq!(peer.count("put k"), sent + 1, "an operation that may have happened is not retried");
    peer.state().fails.as_mut().unwrap().may_have_happened = false;
    let put = tokio::spawn({
        let value = keeper.value("k");
        async move { value.put("v").await }
    });
    until("it is refused", || peer.count("put k") >= sent + 2).await;
    peer.state().fails = None;
    assert_eq!(soon(put).await.unwrap(), Ok(1), "the write happened once");
    let guard = soon(acquire).await.unwrap().unwrap();
    assert_eq!(peer.waiting("a"), 0);
    drop(guard);
}

#[tokio::test]
async fn overloaded_node_is_retried_after_its_pause() {
    let (peer, keeper) = connected(options()).await;
    keeper.lock("warm").acquire().await.unwrap().release().await.unwrap();
    let limit = |retry_after_ms| {
        Some(v1::Error {
            code: "limit".into(),
            message: "too much".into(),
            retry_after_ms,
            ..Default::default()
        })
    };
    peer.state().fails = limit(600);
    let began = std::time::Instant::now();
    let acquire = waiting(&keeper, "a");
    until("it is refused", || peer.count("acquire a") == 1).await;
    peer.state().fails = None;
    // Another request does not cause an earlier retry.
    keeper.lock("b").acquire().await.unwrap().release().await.unwrap();
    soon(acquire).await.unwrap().unwrap().release().await.unwrap();
    assert!(began.elapsed() >= ms(600), "{:?}", began.elapsed());
    assert_eq!(peer.count("acquire a"), 2);
    // A request without that much time fails at once.
    peer.state().fails = limit(60_000);
    let error = soon(keeper.lock("a").no_wait().acquire()).await.unwrap_err();
    assert_eq!(error, Error::Limit("too much".into()));
    peer.state().fails = None;
}

#[tokio::test]
async fn connect_error_names_the_address_and_the_next_step() {
    let peer = Peer::new();
    peer.state().shut = true;
    let error = super::super::start(&crate::engines::cell::CAPABILITIES, Arc::new(peer), &options())
        .await
        .err()
        .unwrap();
    assert_eq!(error.code(), "unavailable");
    let text = error.to_string();
    assert!(
        text.contains("peer") && text.contains("lockkeeper serve") && text.contains("--engine"),
        "{text}"
    );
}

#[tokio::test]
async fn timeouts_apply_without_a_connection() {
    let (peer, keeper) = connected(Options { request_timeout: ms(200), ..options() }).await;
    keeper.lock("warm").acquire().await.unwrap().release().await.unwrap();
    peer.state().shut = true;
    peer.cut();
    let started = std::time::Instant::now();
    let (no_wait, wait, who) = tokio::join!(
        async { (keeper.lock("a").no_wait().acquire().await, started.elapsed()) },
        async { (keeper.lock("a").wait(ms(400)).acquire().await, started.elapsed()) },
        async { (keeper.who("a").await, started.elapsed()) },
    );
    assert_eq!(no_wait.0.unwrap_err().code(), "unavailable");
    assert!(no_wait.1 >= ms(200) && no_wait.1 <= wait.1, "{:?}, {:?}", no_wait.1, wait.1);
    assert_eq!(wait.0.unwrap_err().code(), "unavailable");
    // It must not take much longer than the limit.
    assert!(wait.1 >= ms(400) && wait.1 < ms(10_000), "{:?}", wait.1);
    assert_eq!(who.0.unwrap_err().code(), "unavailable");
    peer.state().shut = false;
    soon(keeper.lock("a").acquire()).await.unwrap().release().await.unwrap();
    assert_eq!((peer.holders("a"), peer.waiting("a")), (0, 0));
}

#[tokio::test]
async fn timed_out_acquire_is_cancelled_later() {
    let (peer, keeper) = connected(Options { request_timeout: ms(100), ..options() }).await;
    keeper.lock("warm").acquire().await.unwrap().release().await.unwrap();
    peer.state().mute = true;
    let error = soon(keeper.lock("a").no_wait().acquire()).await.unwrap_err();
    assert_eq!(error.code(), "unavailable");
    assert_eq!(peer.holders("a"), 1, "it was granted without an answer");
    peer.state().mute = false;
    until("it is released", || peer.holders("a") == 0).await;
}

#[tokio::test]
async fn link_without_answers_to_renewals_is_replaced() {
    let (peer, keeper) = connected(Options { ttl: ms(1_500), ..options() }).await;
    let guard = keeper.lock("a").acquire().await.unwrap();
    {
        let mut state = peer.state();
        (state.frozen, state.no_renewals) = (true, true);
    }
    let before = peer.state().opened.len();
    until("another link is opened", || peer.state().opened.len() > before).await;
    peer.state().no_renewals = false;
    until("it is renewed", || guard.remaining() > ms(1_200)).await;
    assert_eq!(guard.state(), GuardState::Held);
}

#[tokio::test]
async fn callers_wait_when_the_queue_is_full() {
    let (peer, keeper) = connected(options()).await;
    keeper.lock("warm").acquire().await.unwrap().release().await.unwrap();
    peer.state().stalled = true;
    let mut tasks = tokio::task::JoinSet::new();
    const CALLERS: usize = 20_000;
    for index in 0..CALLERS {
        let lock = keeper.lock(format!("lock/{index}"));
        tasks.spawn(async move { lock.acquire().await.map(drop) });
    }
    tokio::time::sleep(ms(50)).await;
    assert_eq!(peer.count("acquire lock/"), 0);
    peer.state().stalled = false;
    let mut ended = 0;
    while let Some(result) = soon(tasks.join_next()).await {
        result.unwrap().unwrap();
        ended += 1;
    }
    assert_eq!(ended, CALLERS);
}
