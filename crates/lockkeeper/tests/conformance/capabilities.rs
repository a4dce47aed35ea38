//! Operations that some engines do not support: each works, or fails as the capabilities of its engine say.

use std::time::{Duration, Instant};

use lockkeeper::prelude::*;

use crate::child::connect;
use crate::servers::Site;
use crate::support::soon;

pub(crate) async fn modes_match_the_capabilities<S: Site>() {
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
        let writer = soon(keeper.lock("shared").wait(5.secs()).acquire()).await.unwrap();
        assert_eq!(soon(other.lock("shared").shared().no_wait().acquire()).await.unwrap_err().code(), "busy");
        writer.release().await.unwrap();
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

pub(crate) async fn who_and_force_release_match_the_capabilities<S: Site>() {
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

pub(crate) async fn elections_match_the_capabilities<S: Site>() {
    let site = S::start();
    let (keeper, fenced) = connect(&site.url()).await;
    let can = keeper.capabilities();
    let Some(one) = fenced else {
        assert!(!can.elections);
        return;
    };
    if !can.elections {
        let refused = one.election("db").value("v").ttl(S::TTL).campaign().await.unwrap_err();
        assert_eq!(refused.code(), "unsupported", "{refused}");
        return;
    }
    let (_, Some(two)) = connect(&site.url()).await else { panic!("the second keeper has no tokens") };
    let mut observer = two.election("db").observe();
    assert_eq!(soon(observer.next()).await.unwrap(), None, "there is no leader yet");
    let value = "10.0.0.1:80 größe";
    let first = soon(one.election("db").value(value).ttl(S::TTL).campaign()).await.unwrap();
    let seen = soon(observer.next()).await.unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.epoch), (value, first.epoch().0));
    assert!(!seen.owner.is_empty() && !seen.owner.contains(value), "{seen:?}");
    assert_eq!(two.who("election/db").await.unwrap().holders[0].value, value);
    let busy = two.election("db").value("no").ttl(S::TTL).wait(Duration::ZERO).campaign().await.unwrap_err();
    assert_eq!(busy.code(), "busy");
    if can.engine != "cell" && can.engine != "embedded" {
        let (refused, leadership) = first.hand_over("two").await.unwrap_err();
        assert_eq!(refused.code(), "unsupported");
        leadership.check().unwrap();
        soon(leadership.resign()).await.unwrap();
    } else {
        soon(first.resign()).await.unwrap();
    }
    assert_eq!(soon(observer.next()).await.unwrap(), None, "the resignation is observed");
    let second = soon(two.election("db").value("two").ttl(S::TTL).campaign()).await.unwrap();
    assert!(second.epoch().0 > seen.epoch, "an epoch is a token");
    assert_eq!(soon(observer.next()).await.unwrap().unwrap().value, "two");
    assert_eq!(one.election("db").leader().await.unwrap().unwrap().value, "two");
}

pub(crate) async fn rate_limits_match_the_capabilities<S: Site>() {
    let site = S::start();
    let (one, _) = connect(&site.url()).await;
    let (two, _) = connect(&site.url()).await;
    let limiter = |keeper: &Keeper<lockkeeper::Unfenced>| keeper.limiter("mails", 20.0, 5);
    if !one.capabilities().rates {
        assert_eq!(limiter(&one).try_take(1).await.unwrap_err().code(), "unsupported");
        return;
    }
    let began = Instant::now();
    let mut taken = 0;
    while began.elapsed() < Duration::from_secs(2) {
        for keeper in [&one, &two] {
            match limiter(keeper).try_take(1).await.unwrap() {
                Ok(()) => taken += 1,
                Err(wait) => {
                    assert!(wait <= Duration::from_millis(51), "{wait:?}");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
    // Never more than the rate and the burst allow; fewer on a busy machine.
    let limit = 5.0 + began.elapsed().as_secs_f64() * 20.0;
    assert!(f64::from(taken) <= limit + 1.0, "{taken} permits were granted, more than {limit:.1}");
    assert!(taken >= 10, "only {taken} permits were granted");
    assert_eq!(limiter(&one).try_take(6).await.unwrap_err().code(), "invalid");
    assert_eq!(one.limiter("mails", 0.0, 5).try_take(1).await.unwrap_err().code(), "invalid");
}
