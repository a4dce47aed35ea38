//! The promise of a follower outlives its process: it is written to the identity of the data folder before it is first given.
//!
//! A restarted node may have promised to follow no other leader for some time, and does not know when. So it neither votes nor stands
//! for election for the longest promise that it can have given: that of the last process or, while the timing is changed, an
//! earlier one.

use std::io;
use std::time::Duration;

use lockkeeper_core::mutation::{self, Mutation};

use crate::data_dir::DataDir;

/// Makes a longer promise durable before it is first given. Returns the longest promise that can still hold.
pub(crate) fn prepare(home: &DataDir, promise: Duration) -> io::Result<Duration> {
    let promise_ms = promise.as_millis() as u64;
    let forgets = mutation::is_on(Mutation::ForgetPromise);
    let before = if forgets { 0 } else { home.identity().promise_ms };
    if promise_ms > before {
        home.remember_promise(promise_ms)?;
    }
    Ok(Duration::from_millis(before.max(promise_ms)))
}

/// Makes this promise the only one, after all earlier promises have expired. Not before that, because a node that is restarted
/// meanwhile must still keep the longer one.
pub(crate) fn settle(home: &DataDir, promise: Duration) -> io::Result<()> {
    let promise_ms = promise.as_millis() as u64;
    match home.identity().promise_ms == promise_ms {
        true => Ok(()),
        false => home.remember_promise(promise_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_millis(3_000);

    fn open(folder: &std::path::Path) -> DataDir {
        DataDir::open(folder, Some(1), crate::data_dir::InsecureFiles::Refused).unwrap()
    }

    #[test]
    fn a_longer_promise_is_durable_at_once_and_a_shorter_one_after_the_silence() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(prepare(&open(folder.path()), SHORT).unwrap(), SHORT);
        assert_eq!(prepare(&open(folder.path()), LONG).unwrap(), LONG);
        // Two starts with the shorter promise again, without settling: both keep the longer one.
        assert_eq!(prepare(&open(folder.path()), SHORT).unwrap(), LONG);
        let home = open(folder.path());
        assert_eq!(prepare(&home, SHORT).unwrap(), LONG);
        settle(&home, SHORT).unwrap();
        drop(home);
        assert_eq!(prepare(&open(folder.path()), SHORT).unwrap(), SHORT);
    }
}
