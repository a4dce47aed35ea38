//! Bounds for namespaces and identities. What is in use is counted only while there are bounds, so that a cell without
//! any pays nothing.

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::access::{Access, EVERYBODY, subject};
use crate::command::Locks;
use crate::id::LockName;
use crate::refusal::Refusal;
use crate::table::LockTable;

/// The bounds of a namespace. What is not set has none but those of the whole cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quota {
    /// Most locks that are held, waited for or closed.
    pub locks: Option<u64>,
    /// Most requests that wait.
    pub waiters: Option<u64>,
    /// Most values.
    pub values: Option<u64>,
    /// Most requests in a second, counted by the leader and not by the table: it has no clock.
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

/// What a namespace has in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Locks that are held, waited for or closed.
    pub locks: u64,
    /// Requests that wait.
    pub waiters: u64,
    /// Values.
    pub values: u64,
}

/// What is counted.
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

/// The namespace of a name: what is before its first slash.
pub fn namespace(name: &str) -> &str {
    let name = subject(name);
    name.split_once('/').map_or(name, |(namespace, _)| namespace)
}

impl Access {
    /// The bounds of the namespace that this name is in.
    pub fn quota_of(&self, name: &str) -> Option<&Quota> {
        self.quotas.get(namespace(name)).or_else(|| self.quotas.get(EVERYBODY))
    }

    /// What a namespace has in use, if it is counted.
    pub fn usage_of(&self, namespace: &str) -> Usage {
        self.usage.get(namespace).copied().unwrap_or_default()
    }

    /// How many sessions an identity has open.
    pub fn sessions_of(&self, identity: &str) -> u32 {
        self.sessions.get(identity).copied().unwrap_or(0)
    }

    pub(crate) fn counts(&self) -> bool {
        !self.quotas.is_empty()
    }

    pub(crate) fn add(&mut self, name: &str, what: Counted) {
        if self.counts() {
            *self.usage.entry(SmolStr::new(namespace(name))).or_default().part(what) += 1;
        }
    }

    pub(crate) fn remove(&mut self, name: &str, what: Counted) {
        if !self.counts() {
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
                "the namespace \"{}\" has {most} {what}, its quota: come back when some are gone, or raise it with \
                 lockkeeper access quota",
                namespace(name)
            ))),
            _ => Ok(()),
        }
    }
}

impl LockTable {
    /// Whether one more request may wait for all these locks.
    pub(crate) fn check_waiter_quota(&self, locks: &Locks) -> Result<(), Refusal> {
        if !self.access.counts() {
            return Ok(());
        }
        let names: Vec<&LockName> = locks.as_slice().iter().collect();
        self.check_all(&names, "waiting requests", |quota| quota.waiters, |usage| usage.waiters)
    }

    /// Whether all these locks may be in use at once.
    pub(crate) fn check_lock_quota(&self, locks: &Locks) -> Result<(), Refusal> {
        if !self.access.counts() {
            return Ok(());
        }
        let is_new = |name: &LockName| self.locks.get(name).is_none_or(|lock| lock.freed.is_some());
        let fresh: Vec<&LockName> = locks.as_slice().iter().filter(|name| is_new(name)).collect();
        self.check_all(&fresh, "locks in use", |quota| quota.locks, |usage| usage.locks)
    }

    /// Whether each namespace has room for all its names among these.
    fn check_all(
        &self,
        names: &[&LockName],
        what: &str,
        bound: impl Fn(&Quota) -> Option<u64> + Copy,
        used: impl Fn(Usage) -> u64 + Copy,
    ) -> Result<(), Refusal> {
        for name in names {
            let of_same = names.iter().filter(|other| namespace(other) == namespace(name)).count() as u64;
            self.access.check(name, what, bound, |usage| used(usage) + of_same)?;
        }
        Ok(())
    }

    /// Counts everything anew, or forgets all counts if there are no bounds.
    pub(crate) fn count_usage(&mut self) {
        self.access.usage = Default::default();
        if !self.access.counts() {
            return;
        }
        let access = &mut self.access;
        for (name, _) in self.locks.iter().filter(|(_, lock)| lock.freed.is_none()) {
            access.add(name, Counted::Lock);
        }
        for (name, _) in self.queues.iter() {
            access.add(name, Counted::Waiter);
        }
        for key in self.values.keys() {
            access.add(key, Counted::Value);
        }
    }
}
