//! The check in front of the log: may this caller ask for this? Each call of a client passes here, whatever it came in
//! by. What belongs to a session is asked by its own identity alone; anybody else hears that there is no such session.

use std::time::Instant;

use lockkeeper_api::{Need, Request};
use lockkeeper_core::quota::namespace;
use lockkeeper_core::{Access, Command, Fence, Grant, Refusal, Right, SessionId};
use smol_str::SmolStr;

use super::Who;
use crate::api::Api;
use crate::failure::Failure;

impl Api {
    /// Whether rules are in force: the node has a root, or access control was turned on.
    pub(crate) fn is_enforced(&self) -> bool {
        self.guard().is_strict() || self.shared().table().access().is_enabled()
    }

    /// Whether the caller may do this with this name.
    pub(crate) fn may(&self, right: Right, name: &str) -> Result<(), Failure> {
        self.permit(
            |access, identity| access.allows(identity, right, name),
            || format!("{} \"{name}\"", words(right)),
        )
    }

    /// Whether the caller may do this with all names that begin so.
    pub(crate) fn may_all(&self, right: Right, prefix: &str) -> Result<(), Failure> {
        self.permit(
            |access, identity| access.allows_all(identity, right, prefix),
            || match prefix {
                "" => format!("{} everything", words(right)),
                prefix => format!("{} all that begins with \"{prefix}\"", words(right)),
            },
        )
    }

    /// Whether it is known who the caller is.
    pub(crate) fn must_be_known(&self) -> Result<(), Failure> {
        self.permit(|_, _| true, String::new)
    }

    /// The same as an answer: nothing is counted.
    pub(crate) fn is_known(&self) -> bool {
        self.judge(|_, _| true, String::new).is_ok()
    }

    /// Whether the caller may look at this name. For what is shown beside an answer: nothing is counted.
    pub(crate) fn may_see(&self, name: &str) -> bool {
        self.judge(|access, identity| access.allows(identity, Right::Read, name), String::new).is_ok()
    }

    /// Whether the caller may look at all names.
    pub(crate) fn may_see_all(&self) -> bool {
        self.judge(|access, identity| access.allows_all(identity, Right::Read, ""), String::new).is_ok()
    }

    /// Whether any rule names the caller: whoever is known and may do nothing needs no view of the cell.
    pub(crate) fn must_have_rights(&self) -> Result<(), Failure> {
        self.permit(|access, identity| access.has_rights(identity), || "look at the cell".to_owned())
    }

    /// Whether a grant may be handed to the caller now: it may have waited for long, and its rights may be gone since.
    pub(crate) fn may_receive(&self, grant: &Grant) -> Result<(), Failure> {
        grant.locks.as_slice().iter().try_for_each(|lock| self.may(Right::Acquire, lock))
    }

    fn permit(
        &self,
        allowed: impl Fn(&Access, &str) -> bool,
        what: impl Fn() -> String,
    ) -> Result<(), Failure> {
        let judged = self.judge(allowed, what);
        judged.inspect_err(|refused| self.shared().metrics.turned_away(refused.code().as_str()))
    }

    /// The one decision about a caller's rights.
    fn judge(
        &self,
        allowed: impl Fn(&Access, &str) -> bool,
        what: impl Fn() -> String,
    ) -> Result<(), Failure> {
        if matches!(self.who(), Who::Process | Who::Root) {
            return Ok(());
        }
        let table = self.shared().table();
        let access = table.access();
        if !self.guard().is_strict() && !access.is_enabled() {
            return Ok(());
        }
        match self.who() {
            Who::Token { id, .. } if access.token(id).is_none() => Err(unknown_token()),
            who => match who.identity() {
                None => Err(not_known()),
                Some(identity) if allowed(access, &identity) => Ok(()),
                Some(identity) => Err(Failure::Forbidden(format!(
                    "\"{identity}\" may not {}: an administrator can allow it with lockkeeper access grant",
                    what()
                ))),
            },
        }
    }

    /// Whether the caller may speak for a session. If not, it hears what everybody hears who names a session that is
    /// not there.
    pub(crate) fn must_own(&self, session: SessionId) -> Result<(), Failure> {
        if *self.who() == Who::Process {
            return Ok(());
        }
        self.must_be_known()?;
        let table = self.shared().table();
        let identity = self.who().identity();
        if table.belongs_to(session, identity.as_deref())
            // Nobody is asked who they are: whoever knows a session speaks for it.
            || identity.is_none() && !self.guard().is_strict() && !table.access().is_enabled()
        {
            return Ok(());
        }
        drop(table);
        // A follower may not have heard of the session yet.
        self.shared().leader_term.now()?;
        self.shared().metrics.turned_away("another_session");
        Err(Failure::Refused(Refusal::SessionLost))
    }

    /// Whether the caller may ask for this. Every request of every protocol passes here.
    pub(crate) fn authorize(&self, request: &Request) -> Result<(), Failure> {
        match request.needs() {
            Need::Command(command) => self.authorize_command(command),
            Need::Authenticated => self.must_be_known(),
            Need::AnyRight => self.must_have_rights(),
            Need::Read(name) => self.may(Right::Read, name),
            Need::ReadAll(prefix) => self.may_all(Right::Read, prefix),
            Need::Administer => self.may_all(Right::Admin, ""),
            Need::Own(session) => self.must_own(session),
        }
    }

    fn authorize_command(&self, command: &Command) -> Result<(), Failure> {
        if self.is_unrestricted() {
            return Ok(());
        }
        match command {
            Command::OpenSession { .. } => self.must_be_known(),
            Command::CloseSession { session }
            | Command::Cancel { session, .. }
            | Command::Release { session, .. }
            | Command::HandOver { session, .. } => self.must_own(*session),
            Command::Acquire(request) => {
                self.must_own(request.session)?;
                request.locks.as_slice().iter().try_for_each(|name| {
                    self.may(Right::Acquire, name)?;
                    self.check_request_rate(name)
                })
            }
            Command::ForceRelease { lock, .. } => self.may(Right::ForceRelease, lock),
            Command::PutValue { key, fence, .. } => {
                self.may(Right::Acquire, key)?;
                self.may_fence_with(fence.as_ref())?;
                self.check_request_rate(key)
            }
            Command::DeleteValue { key, fence, .. } => {
                self.may(Right::Acquire, key)?;
                self.may_fence_with(fence.as_ref())
            }
            Command::TakeRate(take) => {
                self.may(Right::Acquire, &take.limiter)?;
                self.check_request_rate(&take.limiter)
            }
            Command::ChangeAccess { .. } | Command::AuditNote { .. } => self.may_all(Right::Admin, ""),
            Command::ExpireSession { .. } | Command::Tick | Command::RaiseCellVersion { .. } => {
                Err(Failure::Invalid("only the node itself asks for this".to_owned()))
            }
            #[cfg(feature = "next-version")]
            Command::NextVersionNote { .. } => self.may_all(Right::Admin, ""),
        }
    }

    /// A refused fence tells the last token of its lock, and an accepted one that it has not changed.
    fn may_fence_with(&self, fence: Option<&Fence>) -> Result<(), Failure> {
        fence.map_or(Ok(()), |fence| self.may(Right::Read, &fence.lock))
    }

    /// Nothing is asked of the caller: it is this process, or there are neither rules nor quotas and nobody is asked
    /// who they are.
    fn is_unrestricted(&self) -> bool {
        match self.who() {
            Who::Process => true,
            Who::Nobody if !self.guard().is_strict() => {
                let table = self.shared().table();
                !table.access().is_enabled() && table.access().quotas().next().is_none()
            }
            _ => false,
        }
    }

    /// Adds the caller's identity to commands that record it.
    pub(crate) fn sign(&self, command: &mut Command) {
        match command {
            // The process itself says in whose name it acts.
            _ if *self.who() == Who::Process => {}
            Command::OpenSession { identity, .. } => *identity = self.who().identity(),
            Command::ForceRelease { by, .. } => *by = self.signature(),
            _ => {}
        }
    }

    /// Who the caller is, for the audit trail.
    pub(crate) fn signature(&self) -> SmolStr {
        self.who().identity().unwrap_or_default()
    }

    /// Whether the namespace has not had all its requests of this second.
    pub(crate) fn check_request_rate(&self, name: &str) -> Result<(), Failure> {
        let per_s = self.shared().table().access().quota_of(name).and_then(|quota| quota.requests_per_s);
        match per_s {
            Some(per_s) if !self.rates().take(namespace(name), per_s, Instant::now()) => {
                self.shared().metrics.turned_away("request_rate");
                Err(Failure::Overload {
                    why: format!(
                        "the namespace \"{}\" has had its {per_s} requests of this second, its quota",
                        namespace(name)
                    )
                    .into(),
                    retry_after_ms: 1_000,
                })
            }
            _ => Ok(()),
        }
    }
}

fn words(right: Right) -> &'static str {
    match right {
        Right::Read => "read",
        Right::Acquire => "take or write",
        Right::ForceRelease => "free by force",
        Right::Admin => "administer",
    }
}

pub(crate) fn not_known() -> Failure {
    Failure::Unauthenticated(
        "access control is on, and the caller is not authenticated: show an access token (LOCKKEEPER_AUTH_TOKEN_FILE, \
         or the header Authorization: Bearer) or a client certificate; an administrator makes tokens with lockkeeper \
         access token create"
            .to_owned(),
    )
}

pub(crate) fn unknown_token() -> Failure {
    Failure::Unauthenticated(
        "the access token is not known to the cell, or was revoked: ask an administrator for another"
            .to_owned(),
    )
}
