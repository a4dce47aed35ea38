//! What people build on a lock, on every engine that can carry it: elections and rates.

use std::time::{Duration, Instant};

use lockkeeper::prelude::*;

use crate::cases::soon;
use crate::child::connect;
use crate::servers::Site;

pub(crate) async fn an_election_is_held_or_refused_as_the_capabilities_say<S: Site>() {
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
    let (_, Some(two)) = connect(&site.url()).await else { panic!("the second keeper fences as the first") };
    let mut observer = two.election("db").observe();
    assert_eq!(soon(observer.next()).await.unwrap(), None, "nobody leads");
    let value = "10.0.0.1:80 größe";
    let first = soon(one.election("db").value(value).ttl(S::TTL).campaign()).await.unwrap();
    let seen = soon(observer.next()).await.unwrap().unwrap();
    assert_eq!((seen.value.as_str(), seen.epoch), (value, first.epoch().0));
    assert!(!seen.owner.is_empty() && !seen.owner.contains(value), "{seen:?}");
    assert_eq!(two.who("election/db").await.unwrap().holders[0].value, value);
    let busy = two.election("db").value("no").ttl(S::TTL).wait(Duration::ZERO).campaign().await.unwrap_err();
    assert_eq!(busy.code(), "busy");
    if can.engine != "cell" && can.engine != "embedded" {
        let (refused, back) = first.hand_over("two").await.unwrap_err();
        assert_eq!(refused.code(), "unsupported");
        back.check().unwrap();
        soon(back.resign()).await.unwrap();
    } else {
        soon(first.resign()).await.unwrap();
    }
    assert_eq!(soon(observer.next()).await.unwrap(), None, "the vacancy is seen");
    let second = soon(two.election("db").value("two").ttl(S::TTL).campaign()).await.unwrap();
    assert!(second.epoch().0 > seen.epoch, "an epoch is a token");
    assert_eq!(soon(observer.next()).await.unwrap().unwrap().value, "two");
    assert_eq!(one.election("db").leader().await.unwrap().unwrap().value, "two");
}

pub(crate) async fn a_rate_is_shared_or_refused_as_the_capabilities_say<S: Site>() {
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
    // Never more than the rate and the burst; on a busy machine fewer.
    let most = 5.0 + began.elapsed().as_secs_f64() * 20.0;
    assert!(f64::from(taken) <= most + 1.0, "{taken} were served, at most {most:.1} may be");
    assert!(taken >= 10, "only {taken} were served");
    assert_eq!(limiter(&one).try_take(6).await.unwrap_err().code(), "invalid");
    assert_eq!(one.limiter("mails", 0.0, 5).try_take(1).await.unwrap_err().code(), "invalid");
}
