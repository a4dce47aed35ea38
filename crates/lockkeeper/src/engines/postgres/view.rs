//! The view of a lock: its holders and waiters, from `pg_locks`.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::session::Sessions;
use super::token;
use crate::error::Error;
use crate::mode::Mode;
use crate::view::{ForcedRelease, Holder, LockState, Waiter};

const LOCKS: &str = "
    SELECT l.pid, l.granted, l.mode = 'ShareLock', coalesce(a.application_name, ''),
      extract(epoch FROM now())::bigint,
      coalesce(extract(epoch FROM clock_timestamp() - a.query_start) * 1000, 0)::bigint
    FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.objsubid = 1
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (l.classid::bigint << 32) | l.objid::bigint = hashtextextended($1, 0)
    ORDER BY a.query_start";

pub(super) async fn who(sessions: &Sessions, lock: &str) -> Result<LockState, Error> {
    let session = sessions.take().await?;
    let rows = sessions.with_timeout(session.client.query_typed(LOCKS, &[(&lock, Type::TEXT)])).await?;
    let last = "SELECT last_value FROM lockkeeper.token WHERE is_called";
    let last = sessions.with_timeout(session.client.query_typed_opt(last, &[])).await?;
    let leader_value = token::stored_value(sessions, &session.client, lock).await?;
    sessions.put_back(&session);
    let last_token = last.map_or(0, |row| u64::try_from(row.get::<_, i64>(0)).unwrap_or(0));
    let (granted, waiting): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.get(1));
    let mut queue = Vec::new();
    for (position, row) in (1..).zip(&waiting) {
        queue.push(Waiter {
            session: row.get::<_, i32>(0).to_string(),
            position,
            mode: mode(row),
            owner: parse_application_name(row.get(3)).0,
            waited: Duration::from_millis(u64::try_from(row.get::<_, i64>(5)).unwrap_or(0)),
            ..Waiter::default()
        });
    }
    let mut holders: Vec<Holder> = granted.into_iter().map(holder).collect();
    if let Some((token, value)) = leader_value
        && let Some(leader) = holders.iter_mut().find(|holder| holder.token == token)
    {
        leader.value = value;
    }
    Ok(LockState {
        lock: lock.to_owned(),
        capacity: 1,
        last_token,
        holders,
        waiting: queue.len() as u32,
        queue,
        closed: Duration::ZERO,
    })
}

fn mode(row: &Row) -> Mode {
    if row.get(2) { Mode::Shared } else { Mode::Exclusive }
}

fn holder(row: &Row) -> Holder {
    let (owner, token, since) = parse_application_name(row.get(3));
    let now: i64 = row.get(4);
    let held = Duration::from_secs(u64::try_from(now).unwrap_or(0).saturating_sub(since));
    Holder {
        session: row.get::<_, i32>(0).to_string(),
        token,
        mode: mode(row),
        owner,
        held,
        permits: 1,
        ..Holder::default()
    }
}

/// The owner, the token and the start of the hold, from `owner #token @since` as set in `lock.rs`.
fn parse_application_name(name: &str) -> (String, u64, u64) {
    let parsed = || {
        let (rest, since) = name.rsplit_once(" @")?;
        let (owner, token) = rest.rsplit_once(" #")?;
        Some((owner.to_owned(), token.parse().ok()?, since.parse().ok()?))
    };
    parsed().unwrap_or((name.to_owned(), 0, u64::MAX))
}

/// Terminates the connections of the holders, and draws a token, so that all earlier tokens are stale.
pub(super) async fn force_release(sessions: &Sessions, lock: &str) -> Result<ForcedRelease, Error> {
    let sql = format!(
        "WITH held AS MATERIALIZED (SELECT pid FROM ({LOCKS}) AS l(pid, granted, shared, application, now, waited)
           WHERE granted),
         ended AS MATERIALIZED (SELECT pg_terminate_backend(pid) AS ok FROM held)
         SELECT (SELECT count(*) FROM ended WHERE ok), nextval('lockkeeper.token')"
    );
    let session = sessions.take().await?;
    let row = sessions.with_timeout(session.client.query_typed_one(&sql, &[(&lock, Type::TEXT)])).await?;
    sessions.put_back(&session);
    let (holders, token): (i64, i64) = (row.get(0), row.get(1));
    Ok(ForcedRelease {
        holders: u32::try_from(holders).unwrap_or(0),
        last_token: u64::try_from(token).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_name_is_parsed() {
        assert_eq!(
            parse_application_name("web-3/4711/me #42 @1700000000"),
            ("web-3/4711/me".to_owned(), 42, 1_700_000_000)
        );
        assert_eq!(parse_application_name("psql"), ("psql".to_owned(), 0, u64::MAX));
    }
}
