//! Views of the naive model, computed from scratch each time.

use super::*;

impl Naive {
    pub(crate) fn view(&self, name: &LockName) -> LockView {
        let owner = |session| {
            let alive = self.sessions.iter().find(|alive| alive.id == session);
            alive.map_or_else(Default::default, |alive| alive.owner.as_str().into())
        };
        let mut holders: Vec<HolderView> = Vec::new();
        for hold in self.holds.iter().filter(|hold| hold.left.contains(name)) {
            holders.push(HolderView {
                session: hold.session,
                token: Token(hold.token),
                mode: hold.mode,
                permits: match hold.demand {
                    Demand::Permits { taken, .. } => taken,
                    Demand::Exclusive | Demand::Shared => 1,
                },
                owner: owner(hold.session),
                held_ms: (self.now - hold.since) / 1_000,
                scope: Default::default(),
                value: Default::default(),
            });
        }
        holders.sort_by_key(|holder| holder.token);
        let queue = self.queue.iter().filter(|waiter| waiter.locks.contains(name));
        let queue: Vec<WaiterView> = queue
            .zip(1..)
            .map(|(waiter, position)| WaiterView {
                session: waiter.session,
                position,
                mode: waiter.mode,
                owner: owner(waiter.session),
                waited_ms: (self.now - waiter.since) / 1_000,
                scope: Default::default(),
                value: Default::default(),
            })
            .collect();
        let closed = self.closed.iter().find(|closed| closed.lock == *name);
        LockView {
            name: name.clone(),
            capacity: self.capacity(name).unwrap_or(1),
            last_token: Token(self.last_token_of(name)),
            holders,
            waiting: queue.len() as u32,
            queue,
            closed_ms: closed.map_or(0, |closed| (closed.until - self.now) / 1_000),
        }
    }

    /// Version, grants and waits of each live session, in order of id.
    pub(crate) fn sessions(&self) -> Vec<(SessionId, u64, u32, u32)> {
        let mut seen: Vec<_> = self.sessions.iter().map(|alive| alive.seen(self)).collect();
        seen.sort();
        seen
    }

    /// Content, version and token of a value.
    pub(crate) fn value(&self, key: &str) -> Option<(Vec<u8>, u64, u64)> {
        let value = self.values.iter().find(|value| value.key == key)?;
        Some((value.bytes.clone(), value.version, value.token))
    }

    pub(crate) fn next_wake(&self) -> Option<CellTime> {
        self.next_due().map(|(when, _)| CellTime(when))
    }

    pub(crate) fn counts(&self) -> Counts {
        let names = self.last_tokens.iter().map(|(name, _)| name);
        let waited_for = self.queue.iter().flat_map(|waiter| &waiter.locks);
        let mut in_use: Vec<&LockName> = names.chain(waited_for).filter(|name| self.in_use(name)).collect();
        in_use.sort();
        in_use.dedup();
        Counts {
            sessions: self.sessions.len() as u64,
            grants: self.holds.len() as u64,
            locks: in_use.len() as u64,
            waiting: self.queue.len() as u64,
            values: self.values.len() as u64,
        }
    }
}
