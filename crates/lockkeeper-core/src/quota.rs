//! Quotas of namespaces and identities. Usage is counted only while there are quotas, so they cost nothing otherwise.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::access::{Access, EVERYBODY, subject};
use crate::command::Locks;
use crate::id::LockName;
use crate::refusal::Refusal;
use crate::table::LockTable;
use crate::work::Task;

/// The quota of a namespace. Without a value, only the bounds of the cell apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quota {
    /// Maximum number of locks that are held, waited for or closed.
    pub locks: Option<u64>,
    /// Maximum number of waiting requests.
    pub waiters: Option<u64>,
    /// Maximum number of values.
    pub values: Option<u64>,
    /// Maximum number of requests per second. Counted by the leader, because the table has no clock.
    pub requests_per_s: Option<u32>,
}

impl Quota {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Quota::default()
    }
}

impl std::fmt::Display for Quota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bounds = [
            ("locks", self.locks),
            ("waiters", self.waiters),
            ("values", self.values),
            ("requests/s", self.requests_per_s.map(u64::from)),
        ];
        let set: Vec<_> =
            bounds.iter().filter_map(|(what, most)| most.map(|most| format!("{what} {most}"))).collect();
        f.write_str(if set.is_empty() { "none" } else { "" })?;
        f.write_str(&set.join(", "))
    }
}

/// The usage of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Locks that are held, waited for or closed.
    pub locks: u64,
    /// Waiting requests.
    pub waiters: u64,
    /// Values.
    pub values: u64,
}

/// Progress of counting usage after the first quota was set. Counting runs in slices, because there may be millions of
/// names. Names are visited in order; those up to the name here are counted, and kept up to date from then on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Counting {
    /// The locks, with their waiters, up to this one.
    Locks(LockName),
    /// All locks, and the values up to this one.
    Values(SmolStr),
}

/// A counted resource.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counted {
    Lock,
    Waiter,
    Value,
}

impl Usage {
    fn part(&mut self, what: Counted) -> &mut u64 {
        match what {
            Counted::Lock => &mut self.locks,
            Counted::Waiter => &mut self.waiters,
            Counted::Value => &mut self.values,
        }
    }
}

/// The namespace of a name: the part before its first slash.
pub fn namespace(name: &str) -> &str {
    let name = subject(name);
    name.split_once('/').map_or(name, |(namespace, _)| namespace)
}

impl Access {
    /// The quota of the namespace of a name.
    pub fn quota_of(&self, name: &str) -> Option<&Quota> {
        self.quotas.get(namespace(name)).or_else(|| self.quotas.get(EVERYBODY))
    }

    /// The usage of a namespace, as far as it is counted.
    pub fn usage_of(&self, namespace: &str) -> Usage {
        self.usage.get(namespace).copied().unwrap_or_default()
    }

    /// The number of open sessions of an identity.
    pub fn sessions_of(&self, identity: &str) -> u32 {
        self.sessions.get(identity).copied().unwrap_or(0)
    }

    pub(crate) fn counts(&self) -> bool {
        !self.quotas.is_empty()
    }

    /// Whether counting has passed this name.
    fn is_counted(&self, name: &str, what: Counted) -> bool {
        match (&self.counting, what) {
            (None, _) | (Some(Counting::Values(_)), Counted::Lock | Counted::Waiter) => true,
            (Some(Counting::Locks(_)), Counted::Value) => false,
            (Some(Counting::Locks(last)), Counted::Lock | Counted::Waiter) => name <= last.as_str(),
            (Some(Counting::Values(last)), Counted::Value) => name <= last.as_str(),
        }
    }

    pub(crate) fn add(&mut self, name: &str, what: Counted) {
        if self.counts() && self.is_counted(name, what) {
            *self.usage.entry(SmolStr::new(namespace(name))).or_default().part(what) += 1;
        }
    }

    pub(crate) fn remove(&mut self, name: &str, what: Counted) {
        if !self.counts() || !self.is_counted(name, what) {
            return;
        }
        let Some(usage) = self.usage.get_mut(namespace(name)) else { return };
        let part = usage.part(what);
        *part = part.saturating_sub(1);
        if *usage == Usage::default() {
            self.usage.remove(namespace(name));
        }
    }

    pub(crate) fn session_opened(&mut self, identity: &SmolStr) {
        *self.sessions.entry(identity.clone()).or_default() += 1;
    }

    pub(crate) fn session_ended(&mut self, identity: &SmolStr) {
        let Some(count) = self.sessions.get_mut(identity) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.sessions.remove(identity);
        }
    }

    pub(crate) fn check_session(&self, identity: &str) -> Result<(), Refusal> {
        let bound = self.session_quotas.get(identity).or_else(|| self.session_quotas.get(EVERYBODY));
        match bound {
            Some(most) if self.sessions_of(identity) >= *most => Err(Refusal::limit(format!(
                "\"{identity}\" has {most} sessions, its quota: close some, or share one session in each process"
            ))),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_value(&self, key: &str) -> Result<(), Refusal> {
        self.check(key, "values", |quota| quota.values, |usage| usage.values + 1)
    }

    fn check(
        &self,
        name: &str,
        what: &str,
        bound: impl Fn(&Quota) -> Option<u64>,
        then: impl Fn(Usage) -> u64,
    ) -> Result<(), Refusal> {
        match self.quota_of(name).and_then(bound) {
            Some(most) if then(self.usage_of(namespace(name))) > most => Err(Refusal::limit(format!(
                "the namespace \"{}\" has {most} {what}, its quota: try again when there are fewer, or raise it with \
                 lockkeeper access quota",
                namespace(name)
            ))),
            _ => Ok(()),
        }
    }
}

impl LockTable {
    /// Checks that one more request may wait for all these locks.
    pub(crate) fn check_waiter_quota(&self, locks: &Locks) -> Result<(), Refusal> {
        if !self.access.counts() {
            return Ok(());
        }
        let names: Vec<&LockName> = locks.as_slice().iter().collect();
        self.check_all(&names, "waiting requests", |quota| quota.waiters, |usage| usage.waiters)
    }

    /// Checks that all these locks may be in use at once.
    pub(crate) fn check_lock_quota(&self, locks: &Locks) -> Result<(), Refusal> {
        if !self.access.counts() {
            return Ok(());
        }
        let is_new = |name: &LockName| self.locks.get(name).is_none_or(|lock| lock.freed.is_some());
        let fresh: Vec<&LockName> = locks.as_slice().iter().filter(|name| is_new(name)).collect();
        self.check_all(&fresh, "locks in use", |quota| quota.locks, |usage| usage.locks)
    }

    /// Checks that each namespace has room for its names among these.
    fn check_all(
        &self,
        names: &[&LockName],
        what: &str,
        bound: impl Fn(&Quota) -> Option<u64> + Copy,
        used: impl Fn(Usage) -> u64 + Copy,
    ) -> Result<(), Refusal> {
        let mut wanted: BTreeMap<&str, u64> = BTreeMap::new();
        for name in names {
            *wanted.entry(namespace(name)).or_default() += 1;
        }
        for name in names {
            let of_same = wanted.get(namespace(name)).copied().unwrap_or(0);
            self.access.check(name, what, bound, |usage| used(usage) + of_same)?;
        }
        Ok(())
    }

    /// Starts to count usage after the first quota was set, or forgets it after the last one was removed.
    pub(crate) fn restart_counting(&mut self) {
        self.access.usage = Default::default();
        self.access.counting = self.access.counts().then(|| Counting::Locks(LockName::default()));
        self.count_more();
    }

    /// Counts usage, within the budget of the entry.
    pub(crate) fn count_more(&mut self) {
        let LockTable { access, locks, values, work, backlog, .. } = self;
        if let Some(Counting::Locks(last)) = access.counting.clone() {
            for (name, lock) in locks.range((Bound::Excluded(last), Bound::Unbounded)) {
                if work.is_exhausted() {
                    return backlog.push(Task::Count);
                }
                work.charge(1);
                access.counting = Some(Counting::Locks(name.clone()));
                if lock.freed.is_none() {
                    let usage = access.usage.entry(SmolStr::new(namespace(name))).or_default();
                    usage.locks += 1;
                    usage.waiters += u64::from(lock.waiting);
                }
            }
            access.counting = Some(Counting::Values(SmolStr::default()));
        }
        if let Some(Counting::Values(last)) = access.counting.clone() {
            for (key, _) in values.range((Bound::Excluded(last), Bound::Unbounded)) {
                if work.is_exhausted() {
                    return backlog.push(Task::Count);
                }
                work.charge(1);
                access.counting = Some(Counting::Values(key.clone()));
                access.add(key, Counted::Value);
            }
            access.counting = None;
        }
    }

    /// Recounts usage after a restore, as far as it was counted when the snapshot was taken.
    pub(crate) fn count_restored(&mut self) {
        let LockTable { access, locks, queues, values, .. } = self;
        for (name, _) in locks.iter().filter(|(_, lock)| lock.freed.is_none()) {
            access.add(name, Counted::Lock);
        }
        for (name, _) in queues.iter() {
            access.add(name, Counted::Waiter);
        }
        for key in values.keys() {
            access.add(key, Counted::Value);
        }
    }
}
