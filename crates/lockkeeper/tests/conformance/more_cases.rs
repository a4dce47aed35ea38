//! What must hold for every engine around a lock: names, requests, modes, errors, and that nothing leaks.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockkeeper::Fencing;
use lockkeeper::prelude::*;

use crate::cases::soon;
use crate::child::connect;
use crate::servers::{Site, free_address};

pub(crate) async fn names_of_every_kind_are_locks_of_their_own<S: Site>() {
    let site = S::start();
    let (keeper, _) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    let longest = "x".repeat(512);
    let names = [
        "a",
        "A",
        "a/b",
        "/a",
        "a/",
        "a//b",
        "a b",
        " a",
        "a ",
        ".",
        "..",
        "a.b",
        "-",
        "--help",
        "*",
        "a*",
        "?",
        "[a]",
        "{a}",
        "}{",
        "'",
        "\"",
        "`",
        "\\",
        "%",
        "%2F",
        "100%",
        "#",
        "a#b",
        "a?b=c&d",
        ":",
        "a:b",
        ";",
        ",",
        "$1",
        "$(x)",
        "ä",
        "größe",
        "日本語",
        "\u{1F512}",
        "e\u{301}",
        "\u{e9}",
        "\u{200b}",
        "null",
        "NULL",
        "0",
        "-1",
        "~",
        "^",
        "|",
        "<a>",
        "@",
        "!",
        "a=b",
        "+",
        longest.as_str(),
    ];
    // All at once: were two of them the same, the second would be busy.
    let mut guards = Vec::new();
    for name in names {
        let guard = soon(keeper.lock(name).ttl(60.secs()).no_wait().acquire()).await;
        guards.push(guard.unwrap_or_else(|error| panic!("{name:?}: {error}")));
    }
    for name in names {
        assert!(soon(other.lock(name).try_acquire()).await.unwrap().is_none(), "{name:?}");
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    for (name, code) in [
        ("", "invalid"),
        ("a\nb", "invalid"),
        ("a\0b", "invalid"),
        ("\u{7f}", "invalid"),
        (&"x".repeat(513), "too_large"),
    ] {
        let error = soon(keeper.lock(name).no_wait().acquire()).await.unwrap_err();
        assert_eq!(error.code(), code, "{name:?}: {error}");
    }
}

/// Repeats it a million times. Where each is a round trip, a thousand at a time, and as many as fit into some seconds: a
/// million take longer than that in a debug build.
async fn repeated<F: Fencing>(lock: &Lock<F>, at_once: usize) -> Vec<Guard<F>> {
    const TIMES: usize = 1_000_000;
    const AT_LEAST: usize = 10_000;
    let until = Instant::now() + 10.secs();
    let mut guards = vec![lock.acquire().await.unwrap()];
    while guards.len() < AT_LEAST || (guards.len() < TIMES && (at_once == 1 || Instant::now() < until)) {
        match at_once {
            1 => guards.push(lock.acquire().await.unwrap()),
            _ => guards
                .extend(join_all((0..at_once).map(|_| lock.acquire())).await.into_iter().map(Result::unwrap)),
        }
    }
    println!("repeated {} times", guards.len());
    guards
}

pub(crate) async fn a_request_that_is_repeated_leaves_one_holder<S: Site>() {
    let site = S::start();
    let (keeper, fenced) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    let at_once = if S::KNOWS_REQUESTS { 1 } else { 1_000 };
    if let Some(fenced) = &fenced {
        let lock = fenced.lock("repeated").ttl(60.secs()).request_id("once");
        let mut guards = repeated(&lock, at_once).await;
        assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
        assert!(soon(other.lock("repeated").try_acquire()).await.unwrap().is_none());
        guards.swap_remove(0).release().await.unwrap();
        let next = soon(other.lock("repeated").ttl(60.secs()).wait(10.secs()).acquire()).await.unwrap();
        // What is left of the million holds nothing, and takes nothing from others.
        drop(guards);
        let last = lock.clone().request_id("another").no_wait().acquire().await;
        assert_eq!(last.unwrap_err().code(), "busy");
        next.release().await.unwrap();
    } else {
        let lock = keeper.lock("repeated").ttl(60.secs()).request_id("once");
        let mut guards = repeated(&lock, at_once).await;
        assert!(soon(other.lock("repeated").try_acquire()).await.unwrap().is_none());
        guards.swap_remove(0).release().await.unwrap();
        soon(other.lock("repeated").wait(10.secs()).acquire()).await.unwrap().release().await.unwrap();
    }
}

pub(crate) async fn modes_work_or_are_refused_as_the_capabilities_say<S: Site>() {
    let site = S::start();
    let (keeper, _) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    let can = keeper.capabilities();
    let unsupported = |result: Result<Guard<lockkeeper::Unfenced>, Error>| {
        assert_eq!(result.unwrap_err().code(), "unsupported");
    };
    let shared = soon(keeper.lock("shared").shared().no_wait().acquire()).await;
    if can.shared {
        let readers =
            (shared.unwrap(), soon(other.lock("shared").shared().no_wait().acquire()).await.unwrap());
        assert_eq!(readers.1.mode(), Mode::Shared);
        assert_eq!(soon(other.lock("shared").no_wait().acquire()).await.unwrap_err().code(), "busy");
        readers.0.release().await.unwrap();
        assert_eq!(soon(keeper.lock("shared").no_wait().acquire()).await.unwrap_err().code(), "busy");
        readers.1.release().await.unwrap();
        let alone = soon(keeper.lock("shared").wait(5.secs()).acquire()).await.unwrap();
        assert_eq!(soon(other.lock("shared").shared().no_wait().acquire()).await.unwrap_err().code(), "busy");
        alone.release().await.unwrap();
    } else {
        unsupported(shared);
    }
    let counted = |keeper: &Keeper<lockkeeper::Unfenced>| keeper.lock("counted").capacity(3).no_wait();
    let one = soon(counted(&keeper).acquire()).await;
    if can.counted {
        let (one, two) = (one.unwrap(), soon(counted(&other).permits(2).acquire()).await.unwrap());
        assert_eq!(soon(counted(&other).acquire()).await.unwrap_err().code(), "busy");
        let error = soon(other.lock("counted").capacity(5).no_wait().acquire()).await.unwrap_err();
        assert_eq!(error.code(), "invalid", "{error}");
        one.release().await.unwrap();
        soon(counted(&other).acquire()).await.unwrap().release().await.unwrap();
        two.release().await.unwrap();
    } else {
        unsupported(one);
    }
    let several = soon(keeper.lock_all(["several/a", "several/b"]).wait(5.secs()).acquire()).await;
    if can.several {
        let both = several.unwrap();
        assert_eq!(soon(other.lock("several/b").no_wait().acquire()).await.unwrap_err().code(), "busy");
        both.release().await.unwrap();
        let part = soon(other.lock("several/b").acquire()).await.unwrap();
        let all = soon(keeper.lock_all(["several/b", "several/a"]).no_wait().acquire()).await;
        assert_eq!(all.unwrap_err().code(), "busy");
        soon(other.lock("several/a").no_wait().acquire()).await.unwrap().release().await.unwrap();
        part.release().await.unwrap();
    } else {
        unsupported(several);
    }
    let delayed = soon(keeper.lock("delayed").lock_delay(1.secs()).acquire()).await;
    match can.lock_delay {
        true => delayed.unwrap().release().await.unwrap(),
        false => unsupported(delayed),
    }
    for ttl in [can.ttl_min / 2, can.ttl_max * 2] {
        let error = soon(keeper.lock("ttl").ttl(ttl).no_wait().acquire()).await.unwrap_err();
        assert_eq!(error.code(), "invalid", "{error}");
    }
}

pub(crate) async fn operators_see_and_free_a_lock_where_the_engine_can<S: Site>() {
    let site = S::start();
    let (keeper, fenced) = connect(&site.url()).await;
    let (other, _) = connect(&site.url()).await;
    let can = keeper.capabilities();
    let Some(fenced) = fenced else {
        assert!(!can.who && !can.force_release);
        assert_eq!(keeper.who("x").await.unwrap_err().code(), "unsupported");
        assert_eq!(keeper.force_release("x", "test").await.unwrap_err().code(), "unsupported");
        return;
    };
    let guard = fenced.lock("stuck").ttl(S::TTL).acquire().await.unwrap();
    if can.who {
        let state = other.who("stuck").await.unwrap();
        assert_eq!(state.holders.len(), 1, "{state:?}");
        assert_eq!(state.holders[0].token, guard.token().0);
        assert!(!state.holders[0].owner.is_empty());
        assert!(other.check_token("stuck", guard.token()).await.unwrap().valid);
        assert!(other.check_sequencer(guard.sequencer()).await.unwrap().valid);
        assert!(other.who("nobody").await.unwrap().holders.is_empty());
    }
    if can.force_release {
        let freed = other.force_release("stuck", "test").await.unwrap();
        assert_eq!(freed.holders, 1);
        assert!(freed.last_token > guard.token().0);
        soon(guard.lost()).await;
        assert!(guard.check().is_err());
        let next = soon(other.lock("stuck").wait(10.secs()).acquire()).await.unwrap();
        let code = guard.release().await.unwrap_err().code();
        assert!(["not_held", "session_lost"].contains(&code), "{code}");
        next.check().unwrap();
    }
}

pub(crate) async fn a_server_that_is_absent_or_of_another_kind_is_told_in_plain_words<S: Site>() {
    let site = S::start();
    let nobody: Vec<_> = site.addresses().iter().map(|_| free_address()).collect();
    let builder = || Keeper::builder().connect_timeout(600.millis()).request_timeout(600.millis());
    let started = Instant::now();
    let error = builder().connect_unfenced(&site.url_at(&nobody)).await.unwrap_err();
    assert_eq!(error.code(), "unavailable", "{error}");
    assert!(nobody.iter().any(|address| error.to_string().contains(&address.to_string())), "{error}");
    assert!(started.elapsed() < 10.secs());

    // Something that answers in another language.
    let strangers: Vec<TcpListener> =
        site.addresses().iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<_> = strangers.iter().map(|listener| listener.local_addr().unwrap()).collect();
    for listener in strangers {
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                use std::io::Write;
                let Ok(mut stream) = stream else { return };
                let _ = stream.write_all(b"SSH-2.0-something-else\r\nhello\r\n");
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    }
    let started = Instant::now();
    let error = builder().connect_unfenced(&site.url_at(&addresses)).await.unwrap_err();
    assert!(["unavailable", "invalid"].contains(&error.code()), "{error}");
    assert!(addresses.iter().any(|address| error.to_string().contains(&address.to_string())), "{error}");
    assert!(started.elapsed() < 10.secs());
}

/// Connections that a keeper may keep when nothing is to be done: Consul's HTTP has the most.
const CONNECTIONS_LEFT_MAX: usize = 40;

pub(crate) async fn ten_thousand_locks_leave_nothing_behind<S: Site>() {
    let site = S::start();
    let tasks_before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (keeper, _fenced) = connect(&site.url()).await;
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..20 {
        let keeper = keeper.clone();
        workers.spawn(async move {
            for round in 0..500 {
                // Some are released, some dropped, some given up.
                let lock = keeper.lock(format!("leak/{worker}/{}", round % 50)).ttl(30.secs());
                match round % 10 {
                    0 => drop(lock.acquire().await.unwrap()),
                    1 => drop(tokio::time::timeout(Duration::from_micros(50), lock.acquire()).await),
                    _ => lock.acquire().await.unwrap().release().await.unwrap(),
                }
            }
        });
    }
    let all = async {
        while let Some(ended) = workers.join_next().await {
            ended.unwrap();
        }
    };
    tokio::time::timeout(120.secs(), all).await.expect("it takes too long");
    // What was dropped is still being given back for a moment.
    let until = Instant::now() + 15.secs();
    while site.connections().is_some_and(|connections| connections > CONNECTIONS_LEFT_MAX) {
        assert!(Instant::now() < until, "{:?} connections", site.connections());
        tokio::time::sleep(20.millis()).await;
    }
    soon(keeper.close()).await.unwrap();
    drop((keeper, _fenced));
    let until = Instant::now() + 15.secs();
    loop {
        let (left, connections) = (site.left_behind(), site.connections().unwrap_or(0));
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        if left.is_empty() && connections == 0 && tasks <= tasks_before {
            break;
        }
        assert!(
            Instant::now() < until,
            "left behind: {left:?}, {connections} connections, {tasks} tasks (at first {tasks_before})"
        );
        tokio::time::sleep(20.millis()).await;
    }
}
