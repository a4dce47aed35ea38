//! Authorization. Every request of a client passes here, whatever its protocol. A session can only be used by the identity
//! that opened it; to any other caller it does not exist.

use std::time::Instant;

use lockkeeper_api::{Request, RequiredRight};
use lockkeeper_core::quota::namespace;
use lockkeeper_core::{Access, Command, Fence, Grant, Refusal, Right, SessionId};
use smol_str::SmolStr;

use super::Principal;
use crate::api::Api;
use crate::failure::Failure;

impl Api {
    /// Whether access control is enforced: the node has a root, or access control was turned on.
    pub(crate) fn is_enforced(&self) -> bool {
        self.authenticator().has_root() || self.shared().table().access().is_enabled()
    }

    /// Checks the caller's right to a name.
    pub(crate) fn check_right(&self, right: Right, name: &str) -> Result<(), Failure> {
        self.permit(
            |access, identity| access.allows(identity, right, name),
            || format!("{} \"{name}\"", verb(right)),
        )
    }

    /// Checks the caller's right to all names with a prefix.
    pub(crate) fn check_right_on_all(&self, right: Right, prefix: &str) -> Result<(), Failure> {
        self.permit(
            |access, identity| access.allows_all(identity, right, prefix),
            || match prefix {
                "" => format!("{} everything", verb(right)),
                prefix => format!("{} all names that start with \"{prefix}\"", verb(right)),
            },
        )
    }

    /// Checks that the caller is authenticated.
    pub(crate) fn check_authenticated(&self) -> Result<(), Failure> {
        self.permit(|_, _| true, String::new)
    }

    /// Whether the caller is authenticated. Does not count a refusal.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.judge(|_, _| true, String::new).is_ok()
    }

    /// Whether the caller may read this name, for details beside an answer. Does not count a refusal.
    pub(crate) fn can_read(&self, name: &str) -> bool {
        self.judge(|access, identity| access.allows(identity, Right::Read, name), String::new).is_ok()
    }

    /// Whether the caller may read all names. Does not count a refusal.
    pub(crate) fn can_read_all(&self) -> bool {
        self.judge(|access, identity| access.allows_all(identity, Right::Read, ""), String::new).is_ok()
    }

    /// Checks that any rule names the caller. A caller without rights needs no view of the cell.
    pub(crate) fn check_has_rights(&self) -> Result<(), Failure> {
        self.permit(|access, identity| access.has_rights(identity), || "view the cell".to_owned())
    }

    /// Checks that a grant may be delivered to the caller: its rights may have been revoked while it waited.
    pub(crate) fn check_may_receive(&self, grant: &Grant) -> Result<(), Failure> {
        grant.locks.as_slice().iter().try_for_each(|lock| self.check_right(Right::Acquire, lock))
    }

    fn permit(
        &self,
        allowed: impl Fn(&Access, &str) -> bool,
        what: impl Fn() -> String,
    ) -> Result<(), Failure> {
        let judged = self.judge(allowed, what);
        judged.inspect_err(|refused| self.shared().metrics.turned_away(refused.code().as_str()))
    }

    /// Decides about a caller's rights. All checks end here.
    fn judge(
        &self,
        allowed: impl Fn(&Access, &str) -> bool,
        what: impl Fn() -> String,
    ) -> Result<(), Failure> {
        if matches!(self.principal(), Principal::Process | Principal::Root) {
            return Ok(());
        }
        let table = self.shared().table();
        let access = table.access();
        if !self.authenticator().has_root() && !access.is_enabled() {
            return Ok(());
        }
        match self.principal() {
            Principal::Token { id, .. } if access.token(id).is_none() => Err(unknown_token()),
            principal => match principal.identity() {
                None => Err(unauthenticated()),
                Some(identity) if allowed(access, &identity) => Ok(()),
                Some(identity) => Err(Failure::Forbidden(format!(
                    "\"{identity}\" may not {}: an administrator can allow it with lockkeeper access grant",
                    what()
                ))),
            },
        }
    }

    /// Checks that the caller owns a session. If not, it gets the same answer as for a session that does not exist.
    pub(crate) fn check_owns_session(&self, session: SessionId) -> Result<(), Failure> {
        if *self.principal() == Principal::Process {
            return Ok(());
        }
        self.check_authenticated()?;
        let table = self.shared().table();
        let identity = self.principal().identity();
        if table.belongs_to(session, identity.as_deref())
            // Without authentication, knowing the session's id is enough.
            || identity.is_none() && !self.authenticator().has_root() && !table.access().is_enabled()
        {
            return Ok(());
        }
        drop(table);
        // A follower may not have applied the session's opening yet.
        self.shared().leader_term.now()?;
        self.shared().metrics.turned_away("another_session");
        Err(Failure::Refused(Refusal::SessionLost))
    }

    /// Checks that the caller may make a request. Every request of every protocol passes here.
    pub(crate) fn authorize(&self, request: &Request) -> Result<(), Failure> {
        match request.required_right() {
            RequiredRight::Command(command) => self.authorize_command(command),
            RequiredRight::Authenticated => self.check_authenticated(),
            RequiredRight::AnyRight => self.check_has_rights(),
            RequiredRight::Read(name) => self.check_right(Right::Read, name),
            RequiredRight::ReadAll(prefix) => self.check_right_on_all(Right::Read, prefix),
            RequiredRight::Administer => self.check_right_on_all(Right::Admin, ""),
            RequiredRight::OwnSession(session) => self.check_owns_session(session),
        }
    }

    fn authorize_command(&self, command: &Command) -> Result<(), Failure> {
        if self.is_unrestricted() {
            return Ok(());
        }
        match command {
            Command::OpenSession { .. } => self.check_authenticated(),
            Command::CloseSession { session }
            | Command::Cancel { session, .. }
            | Command::Release { session, .. }
            | Command::HandOver { session, .. } => self.check_owns_session(*session),
            Command::Acquire(request) => {
                self.check_owns_session(request.session)?;
                request.locks.as_slice().iter().try_for_each(|name| {
                    self.check_right(Right::Acquire, name)?;
                    self.check_request_rate(name)
                })
            }
            Command::ForceRelease { lock, .. } => self.check_right(Right::ForceRelease, lock),
            Command::PutValue { key, fence, .. } => {
                self.check_right(Right::Acquire, key)?;
                self.check_fence(fence.as_ref())?;
                self.check_request_rate(key)
            }
            Command::DeleteValue { key, fence, .. } => {
                self.check_right(Right::Acquire, key)?;
                self.check_fence(fence.as_ref())
            }
            Command::TakeRate(take) => {
                self.check_right(Right::Acquire, &take.limiter)?;
                self.check_request_rate(&take.limiter)
            }
            Command::ChangeAccess { .. } | Command::AuditNote { .. } => {
                self.check_right_on_all(Right::Admin, "")
            }
            Command::ExpireSession { .. } | Command::Tick | Command::RaiseCellVersion { .. } => {
                Err(Failure::Invalid("this command is reserved for the node itself".to_owned()))
            }
            #[cfg(feature = "next-version")]
            Command::NextVersionNote { .. } => self.check_right_on_all(Right::Admin, ""),
        }
    }

    /// Checks the right to read the fence's lock: a refused fence discloses the lock's last token, and an accepted one that it
    /// has not changed.
    fn check_fence(&self, fence: Option<&Fence>) -> Result<(), Failure> {
        fence.map_or(Ok(()), |fence| self.check_right(Right::Read, &fence.lock))
    }

    /// Whether no check applies to the caller: it is this process, or authentication is off and there are neither rules nor
    /// quotas.
    fn is_unrestricted(&self) -> bool {
        match self.principal() {
            Principal::Process => true,
            Principal::Anonymous if !self.authenticator().has_root() => {
                let table = self.shared().table();
                !table.access().is_enabled() && table.access().quotas().next().is_none()
            }
            _ => false,
        }
    }

    /// Adds the caller's identity to commands that record it.
    pub(crate) fn sign(&self, command: &mut Command) {
        match command {
            // The process itself sets on whose behalf it acts.
            _ if *self.principal() == Principal::Process => {}
            Command::OpenSession { identity, .. } => *identity = self.principal().identity(),
            Command::ForceRelease { by, .. } => *by = self.signature(),
            _ => {}
        }
    }

    /// Returns the caller's identity for the audit trail; empty if it has none.
    pub(crate) fn signature(&self) -> SmolStr {
        self.principal().identity().unwrap_or_default()
    }

    /// Checks the namespace's quota of requests per second.
    pub(crate) fn check_request_rate(&self, name: &str) -> Result<(), Failure> {
        let per_s = self.shared().table().access().quota_of(name).and_then(|quota| quota.requests_per_s);
        match per_s {
            Some(per_s) if !self.rates().take(namespace(name), per_s, Instant::now()) => {
                self.shared().metrics.turned_away("request_rate");
                Err(Failure::Overload {
                    why: format!(
                        "the namespace \"{}\" has used up its quota of {per_s} requests per second",
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

fn verb(right: Right) -> &'static str {
    match right {
        Right::Read => "read",
        Right::Acquire => "acquire or write",
        Right::ForceRelease => "force-release",
        Right::Admin => "administer",
    }
}

pub(crate) fn unauthenticated() -> Failure {
    Failure::Unauthenticated(
        "access control is on, and the caller is not authenticated: present an access token (LOCKKEEPER_AUTH_TOKEN_FILE, \
         or the header Authorization: Bearer) or a client certificate; an administrator creates tokens with lockkeeper \
         access token create"
            .to_owned(),
    )
}

pub(crate) fn unknown_token() -> Failure {
    Failure::Unauthenticated(
        "the access token is unknown to the cell or was revoked: ask an administrator for a new one"
            .to_owned(),
    )
}
