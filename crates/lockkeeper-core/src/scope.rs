//! Scopes. A scope is one line of work that may hold several locks and wait for more: the unit of deadlock detection. Its
//! age is that of its first acquire.

use std::str::FromStr;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::command::UnknownName;
use crate::id::{LockName, SessionId, Ticket, Token};
use crate::limits;
use crate::refusal::Refusal;
use crate::table::LockTable;
use crate::weighed::SizedMap;

/// The number of a scope. Lower is older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct ScopeNo(pub u64);

/// What a scope does when another scope blocks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Waits, unless that would close a cycle.
    #[default]
    Detect,
    /// Waits for younger scopes only; dies if an older one blocks it.
    WaitDie,
    /// Takes what it needs from younger scopes, and waits for older ones.
    WoundWait,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 3] = [Policy::Detect, Policy::WaitDie, Policy::WoundWait];

    /// The name used in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Policy::Detect => "detect",
            Policy::WaitDie => "wait_die",
            Policy::WoundWait => "wound_wait",
        }
    }
}

impl FromStr for Policy {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Policy, UnknownName> {
        Policy::ALL.into_iter().find(|policy| policy.as_str() == name).ok_or(UnknownName)
    }
}

/// Optional attributes of grants and waits. Most have none, which costs no memory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct OptionalAttributes {
    pub(crate) scope: Option<ScopeNo>,
    /// The value of a candidate or leader of an election.
    pub(crate) value: Option<SmolStr>,
    pub(crate) policy: Policy,
}

impl OptionalAttributes {
    pub(crate) fn shared(self) -> Option<Arc<OptionalAttributes>> {
        (self != OptionalAttributes::default()).then(|| Arc::new(self))
    }
}

/// The scope of a grant or a wait.
pub(crate) fn scope_of(extra: Option<&Arc<OptionalAttributes>>) -> Option<ScopeNo> {
    extra.and_then(|extra| extra.scope)
}

/// One line of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Scope {
    pub(crate) session: SessionId,
    pub(crate) name: SmolStr,
    /// It was wounded, and this was not reported yet.
    pub(crate) wounded: bool,
    // Invariant: its key in `Scopes::idle` while it neither holds nor waits; otherwise `None`.
    pub(crate) idle: Option<u64>,
    // Invariant: the number of its keys in `Scopes::grants`. Recounted after a restore.
    #[serde(skip)]
    pub(crate) grants: u32,
    // Invariant: the number of its keys in `Scopes::waits`. Recounted after a restore.
    #[serde(skip)]
    pub(crate) waits: u32,
    // Invariant: the number of locks of its grants. Recounted after a restore.
    #[serde(skip)]
    pub(crate) locks_held: u32,
    // Invariant: the number of locks that its requests wait for. Recounted after a restore.
    #[serde(skip)]
    pub(crate) locks_awaited: u32,
}

/// All scopes, with indexes of what they hold and wait for.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Scopes {
    pub(crate) all: SizedMap<ScopeNo, Scope>,
    pub(crate) names: OrdMap<(SessionId, SmolStr), ScopeNo>,
    pub(crate) next: u64,
    /// Scopes that neither hold nor wait, longest idle first. Kept so that a scope that died can retry with its age.
    pub(crate) idle: OrdMap<u64, ScopeNo>,
    pub(crate) idle_next: u64,
    pub(crate) grants: OrdSet<(ScopeNo, Token)>,
    pub(crate) waits: OrdSet<(ScopeNo, Ticket)>,
    /// The scopes that hold a lock, oldest first.
    pub(crate) holding: OrdSet<(LockName, ScopeNo, Token)>,
    /// The scopes that wait for a lock with the wait-die policy, oldest first.
    pub(crate) waiting: OrdSet<(LockName, ScopeNo, Ticket)>,
    /// The scopes that wait for a lock with the wound-wait policy, oldest first.
    pub(crate) wounding: OrdSet<(LockName, ScopeNo, Ticket)>,
}

impl Scopes {
    /// Whether it neither holds nor waits.
    pub(crate) fn is_idle(&self, scope: ScopeNo) -> bool {
        self.all.get(&scope).is_none_or(|scope| scope.grants == 0 && scope.waits == 0)
    }

    pub(crate) fn tokens_of(&self, scope: ScopeNo) -> impl Iterator<Item = Token> + '_ {
        let own = self.grants.range((scope, Token::default())..);
        own.take_while(move |(owner, _)| *owner == scope).map(|(_, token)| *token)
    }

    pub(crate) fn tickets_of(&self, scope: ScopeNo) -> impl Iterator<Item = Ticket> + '_ {
        let own = self.waits.range((scope, Ticket::default())..);
        own.take_while(move |(owner, _)| *owner == scope).map(|(_, ticket)| *ticket)
    }

    pub(crate) fn note_grant(&mut self, scope: ScopeNo, token: Token, locks: &[LockName]) {
        self.grants.insert((scope, token));
        if let Some(owner) = self.all.get_mut(&scope) {
            owner.grants += 1;
            owner.locks_held += locks.len() as u32;
        }
        for name in locks {
            self.holding.insert((name.clone(), scope, token));
        }
    }

    /// Removes one lock from a grant.
    pub(crate) fn forget_lock(&mut self, scope: ScopeNo, token: Token, lock: &LockName) {
        if self.holding.remove(&(lock.clone(), scope, token)).is_some()
            && let Some(owner) = self.all.get_mut(&scope)
        {
            owner.locks_held -= 1;
        }
    }

    /// Removes a grant without locks.
    pub(crate) fn forget_grant(&mut self, scope: ScopeNo, token: Token) {
        if self.grants.remove(&(scope, token)).is_some()
            && let Some(owner) = self.all.get_mut(&scope)
        {
            owner.grants -= 1;
        }
    }

    pub(crate) fn note_wait(&mut self, extra: &OptionalAttributes, ticket: Ticket, locks: &[LockName]) {
        let Some(scope) = extra.scope else { return };
        self.waits.insert((scope, ticket));
        if let Some(owner) = self.all.get_mut(&scope) {
            owner.waits += 1;
            owner.locks_awaited += locks.len() as u32;
        }
        for name in locks {
            match extra.policy {
                Policy::Detect => {}
                Policy::WaitDie => drop(self.waiting.insert((name.clone(), scope, ticket))),
                Policy::WoundWait => drop(self.wounding.insert((name.clone(), scope, ticket))),
            }
        }
    }

    pub(crate) fn forget_wait(&mut self, extra: &OptionalAttributes, ticket: Ticket, locks: &[LockName]) {
        let Some(scope) = extra.scope else { return };
        if self.waits.remove(&(scope, ticket)).is_some()
            && let Some(owner) = self.all.get_mut(&scope)
        {
            owner.waits -= 1;
            owner.locks_awaited -= locks.len() as u32;
        }
        for name in locks {
            match extra.policy {
                Policy::Detect => {}
                Policy::WaitDie => drop(self.waiting.remove(&(name.clone(), scope, ticket))),
                Policy::WoundWait => drop(self.wounding.remove(&(name.clone(), scope, ticket))),
            }
        }
    }

    /// The oldest scope in an index for a lock.
    pub(crate) fn oldest<T: Ord + Clone + Default>(
        of: &OrdSet<(LockName, ScopeNo, T)>,
        lock: &LockName,
    ) -> Option<ScopeNo> {
        let first = of.range((lock.clone(), ScopeNo::default(), T::default())..).next();
        first.filter(|(name, _, _)| name == lock).map(|(_, scope, _)| *scope)
    }
}

impl LockTable {
    /// Returns the scope with this name, creating it if needed. Fails once if it was wounded, and if it has no room for so
    /// many more locks.
    pub(crate) fn enter_scope(
        &mut self,
        session: SessionId,
        name: &SmolStr,
        locks: usize,
    ) -> Result<ScopeNo, Refusal> {
        if let Some(&no) = self.scopes.names.get(&(session, name.clone())) {
            let Some(scope) = self.scopes.all.get_mut(&no) else { return Ok(no) };
            if std::mem::take(&mut scope.wounded) {
                return Err(Refusal::Wounded);
            }
            let (held, waits) = (scope.locks_held, scope.locks_awaited);
            if let Some(number) = scope.idle.take() {
                self.scopes.idle.remove(&number);
            }
            let locks = locks as u32;
            if held + locks > limits::LOCKS_PER_SCOPE_MAX || waits + locks > limits::WAITS_PER_SCOPE_MAX {
                self.note_if_idle(no);
                return Err(Refusal::limit(format!(
                    "the scope \"{name}\" holds {held} locks and waits for {waits}; at most {} and {} are allowed",
                    limits::LOCKS_PER_SCOPE_MAX,
                    limits::WAITS_PER_SCOPE_MAX
                )));
            }
            return Ok(no);
        }
        self.scopes.next += 1;
        let no = ScopeNo(self.scopes.next);
        self.scopes.names.insert((session, name.clone()), no);
        let scope = Scope {
            session,
            name: name.clone(),
            wounded: false,
            idle: None,
            grants: 0,
            waits: 0,
            locks_held: 0,
            locks_awaited: 0,
        };
        self.scopes.all.insert(no, scope);
        Ok(no)
    }

    /// Records a scope that has become idle, and forgets the longest idle one beyond the bound.
    pub(crate) fn note_if_idle(&mut self, no: ScopeNo) {
        if !self.scopes.is_idle(no) {
            return;
        }
        let Some(scope) = self.scopes.all.get_mut(&no) else { return };
        if scope.idle.is_some() {
            return;
        }
        scope.idle = Some(self.scopes.idle_next);
        self.scopes.idle.insert(self.scopes.idle_next, no);
        self.scopes.idle_next += 1;
        if self.scopes.idle.len() > limits::IDLE_SCOPES_REMEMBERED_MAX
            && let Some((_, oldest)) = self.scopes.idle.get_min().cloned()
        {
            self.forget_scope(oldest);
        }
    }

    pub(crate) fn forget_scope(&mut self, no: ScopeNo) {
        let Some(scope) = self.scopes.all.remove(&no) else { return };
        self.scopes.names.remove(&(scope.session, scope.name));
        if let Some(number) = scope.idle {
            self.scopes.idle.remove(&number);
        }
    }

    pub(crate) fn first_scope_of(&self, session: SessionId) -> Option<ScopeNo> {
        let ((owner, _), no) = self.scopes.names.range((session, SmolStr::default())..).next()?;
        (*owner == session).then_some(*no)
    }

    /// Checks that every index agrees with the grants and waits.
    pub(crate) fn check_scopes(&self) -> Result<(), String> {
        let mut expected =
            Scopes { next: self.scopes.next, idle_next: self.scopes.idle_next, ..Scopes::default() };
        for (no, scope) in &self.scopes.all {
            if self.scopes.is_idle(*no) != scope.idle.is_some() {
                return Err(format!(
                    "the idle state of the scope {} and its entry among the idle ones disagree",
                    scope.name
                ));
            }
            expected.names.insert((scope.session, scope.name.clone()), *no);
            expected
                .all
                .insert(*no, Scope { grants: 0, waits: 0, locks_held: 0, locks_awaited: 0, ..scope.clone() });
            if let Some(number) = scope.idle {
                expected.idle.insert(number, *no);
            }
        }
        for ((_, token), held) in &self.grants {
            if let Some(scope) = scope_of(held.extra.as_ref()) {
                expected.note_grant(scope, *token, held.locks.as_slice());
            }
        }
        for (ticket, waiter) in &self.waiters {
            if let Some(extra) = &waiter.extra {
                expected.note_wait(extra, *ticket, waiter.locks.as_slice());
            }
        }
        if expected != self.scopes {
            return Err("the indexes of scopes disagree with the grants and waits".into());
        }
        Ok(())
    }
}
