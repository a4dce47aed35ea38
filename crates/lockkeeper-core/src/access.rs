//! Access control: rules by identity and name prefix, hashes of access tokens, and quotas. Part of the replicated table,
//! so all nodes decide alike. The decisions are pure.

use std::str::FromStr;

use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::command::UnknownName;
use crate::id::CellTime;
use crate::limits;
use crate::quota::{Counting, Quota, Usage};
use crate::reads;
use crate::refusal::Refusal;
use crate::weighed::SizedMap;

/// Wildcard: every identity in a rule; every namespace or identity without a quota of its own in a quota.
pub const EVERYBODY: &str = "*";
/// Name prefix of the locks behind elections. Rules and quotas name elections without it.
pub const ELECTION_PREFIX: &str = "election/";

/// A right that a rule grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Right {
    /// Look at locks, values and their history.
    Read,
    /// Acquire locks, campaign, write values, take rate-limiter permits. Includes `Read`.
    Acquire,
    /// Free a lock whoever holds it. Includes `Read`.
    ForceRelease,
    /// Everything. With the empty prefix it includes rules, tokens, quotas, members and backups.
    Admin,
}

impl Right {
    /// All rights.
    pub const ALL: [Right; 4] = [Right::Read, Right::Acquire, Right::ForceRelease, Right::Admin];

    /// The name used in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Acquire => "acquire",
            Right::ForceRelease => "force_release",
            Right::Admin => "admin",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Right::Read => 1,
            Right::Acquire => 2,
            Right::ForceRelease => 4,
            Right::Admin => 8,
        }
    }
}

impl FromStr for Right {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Right, UnknownName> {
        let is = |right: &Right| right.as_str() == name || right.as_str().replace('_', "-") == name;
        Right::ALL.into_iter().find(is).ok_or(UnknownName)
    }
}

/// A set of rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rights(u8);

impl Rights {
    /// The set of these rights.
    pub fn of(rights: impl IntoIterator<Item = Right>) -> Rights {
        Rights(rights.into_iter().fold(0, |bits, right| bits | right.bit()))
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }

    /// The rights in the set, without those that they include.
    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(move |right| self.0 & right.bit() != 0)
    }

    fn has(self, right: Right) -> bool {
        let enough = match right {
            Right::Read => 1 | 2 | 4 | 8,
            Right::Acquire => 2 | 8,
            Right::ForceRelease => 4 | 8,
            Right::Admin => 8,
        };
        self.0 & enough != 0
    }
}

/// A stored access token: the salted hash of the secret, never the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessToken {
    /// The identity that it authenticates.
    pub identity: SmolStr,
    /// Random salt of this token.
    pub salt: [u8; 16],
    /// SHA-256 of salt and secret.
    pub hash: [u8; 32],
    /// When it was created, in cell time.
    pub made: CellTime,
}

/// A change of rules, tokens or quotas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessChange {
    /// Grants rights on a name prefix to an identity. Replaces an earlier rule for the same identity and prefix.
    Grant {
        /// The identity; [`EVERYBODY`] for all authenticated identities.
        identity: SmolStr,
        /// The name prefix; empty for all names.
        prefix: SmolStr,
        /// The rights.
        rights: Rights,
    },
    /// Removes a rule.
    Revoke {
        /// The identity of the rule.
        identity: SmolStr,
        /// The prefix of the rule.
        prefix: SmolStr,
    },
    /// Adds a token. The leader generates it and returns it to the caller; the table stores only the hash.
    AddToken {
        /// The public part of the token.
        id: SmolStr,
        /// The identity that it authenticates.
        identity: SmolStr,
        /// Random salt.
        salt: [u8; 16],
        /// SHA-256 of salt and secret.
        hash: [u8; 32],
    },
    /// Revokes a token.
    RevokeToken {
        /// The public part of the token.
        id: SmolStr,
    },
    /// Sets the quota of a namespace: the part of names before their first slash.
    SetQuota {
        /// The namespace; [`EVERYBODY`] for each without a quota of its own.
        namespace: SmolStr,
        /// The quota. An empty one removes it.
        quota: Quota,
    },
    /// Sets the maximum number of sessions of an identity.
    SetSessions {
        /// The identity; [`EVERYBODY`] for each without a limit of its own.
        identity: SmolStr,
        /// `None` removes the limit.
        sessions: Option<u32>,
    },
    /// Sets the maximum number of logical bytes of state of the whole cell.
    SetStateBytes {
        /// `None` for the default.
        bytes: Option<u64>,
    },
    /// Turns access control on and adds the first administrator: an `Admin` rule for all names, and a token as in
    /// `AddToken`.
    Enable {
        /// The public part of the token.
        id: SmolStr,
        /// The identity of the administrator.
        identity: SmolStr,
        /// Random salt.
        salt: [u8; 16],
        /// SHA-256 of salt and secret.
        hash: [u8; 32],
    },
}

/// All rules, tokens and quotas.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Access {
    // Invariant: true once there has been a rule or a token, and never false again: without rules nothing is allowed.
    pub(crate) enabled: bool,
    pub(crate) rules: SizedMap<(SmolStr, SmolStr), Rights>,
    pub(crate) tokens: SizedMap<SmolStr, AccessToken>,
    pub(crate) quotas: SizedMap<SmolStr, Quota>,
    pub(crate) session_quotas: SizedMap<SmolStr, u32>,
    // Invariant: the usage of each namespace, as far as it has been counted (see `counting`), while there are quotas;
    // empty otherwise. Recounted after a restore.
    pub(crate) usage: OrdMap<SmolStr, Usage>,
    /// Progress of counting what was in use before the first quota; `None` when complete.
    pub(crate) counting: Option<Counting>,
    // Invariant: the number of sessions of each identity. Recounted after a restore.
    pub(crate) sessions: OrdMap<SmolStr, u32>,
}

/// A record of the access state in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AccessRecord {
    Rule(SmolStr, SmolStr, Rights),
    Token(SmolStr, AccessToken),
    Quota(SmolStr, Quota),
    Sessions(SmolStr, u32),
    Enabled,
}

/// The name that rules and quotas use for a lock or an election.
pub fn subject(name: &str) -> &str {
    name.strip_prefix(ELECTION_PREFIX).unwrap_or(name)
}

impl Access {
    /// Whether access control is on. Then only what a rule grants is allowed.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether a rule other than this one grants administration of everything.
    pub fn has_other_administrator(&self, identity: &str, prefix: &str) -> bool {
        self.rules().any(|(other, of, rights)| {
            of.is_empty() && rights.has(Right::Admin) && (other != identity || of != prefix)
        })
    }

    /// Whether an identity has a right on a name.
    pub fn allows(&self, identity: &str, right: Right, name: &str) -> bool {
        self.has_rule(identity, right, subject(name))
    }

    /// Whether an identity has a right on all names with a prefix.
    pub fn allows_all(&self, identity: &str, right: Right, prefix: &str) -> bool {
        // A prefix of "election/" covers elections of every name.
        let common = if ELECTION_PREFIX.starts_with(prefix) { "" } else { subject(prefix) };
        self.has_rule(identity, right, common)
    }

    /// Whether any rule applies to an identity, its own or a wildcard rule.
    pub fn has_rights(&self, identity: &str) -> bool {
        [identity, EVERYBODY].into_iter().any(|who| {
            reads::count(1);
            let first = self.rules.get_next(&(SmolStr::new(who), SmolStr::default()));
            first.is_some_and(|((whose, _), _)| whose == who)
        })
    }

    /// Whether a rule for a prefix of `name` grants a right. Goes from the last rule up to the name, in the order of prefixes,
    /// to ever shorter prefixes, and skips all rules that are not for one.
    fn has_rule(&self, identity: &str, right: Right, name: &str) -> bool {
        [identity, EVERYBODY].into_iter().any(|who| {
            let who = SmolStr::new(who);
            let mut rest = name;
            loop {
                reads::count(1);
                let rule = self.rules.get_prev(&(who.clone(), SmolStr::new(rest)));
                let Some(((_, prefix), rights)) = rule.filter(|((whose, _), _)| *whose == who) else {
                    return false;
                };
                let shared = prefix.bytes().zip(rest.bytes()).take_while(|(a, b)| a == b).count();
                let is_prefix = shared == prefix.len();
                if is_prefix && rights.has(right) {
                    return true;
                }
                // The next rule must be for a shorter prefix, or for no more than both have in common.
                let Some(longest) = shared.checked_sub(usize::from(is_prefix)) else { return false };
                rest = (0..=longest).rev().find_map(|length| rest.get(..length)).unwrap_or_default();
            }
        })
    }

    /// A token by its public part.
    pub fn token(&self, id: &str) -> Option<&AccessToken> {
        reads::count(1);
        self.tokens.get(id)
    }

    /// All rules: identity, prefix, rights.
    pub fn rules(&self) -> impl Iterator<Item = (&SmolStr, &SmolStr, Rights)> {
        self.rules
            .iter()
            .inspect(|_| reads::count(1))
            .map(|((identity, prefix), rights)| (identity, prefix, *rights))
    }

    /// All tokens with their public parts.
    pub fn tokens(&self) -> impl Iterator<Item = (&SmolStr, &AccessToken)> {
        self.tokens.iter().inspect(|_| reads::count(1))
    }

    /// All quotas of namespaces.
    pub fn quotas(&self) -> impl Iterator<Item = (&SmolStr, &Quota)> {
        self.quotas.iter()
    }

    /// All session limits of identities.
    pub fn session_quotas(&self) -> impl Iterator<Item = (&SmolStr, u32)> {
        self.session_quotas.iter().map(|(identity, sessions)| (identity, *sessions))
    }

    /// Applies a change.
    pub(crate) fn change(&mut self, now: CellTime, change: &AccessChange) -> Result<(), Refusal> {
        match change {
            AccessChange::Grant { identity, prefix, rights } => {
                check_identity(identity)?;
                limits::check_length("prefix", prefix.len(), limits::NAME_BYTES_MAX)?;
                if rights.is_empty() {
                    return Err(Refusal::invalid(
                        "no right is named: name read, acquire, force_release or admin",
                    ));
                }
                let key = (identity.clone(), prefix.clone());
                if !self.rules.contains_key(&key) {
                    let first = (identity.clone(), SmolStr::default());
                    let own =
                        self.rules.range(first..).take_while(|((whose, _), _)| whose == identity).count();
                    check_count("rules of one identity", own, limits::RULES_PER_IDENTITY_MAX)?;
                    check_count("rules", self.rules.len(), limits::RULES_MAX)?;
                }
                self.rules.insert(key, *rights);
                self.enabled = true;
            }
            AccessChange::Revoke { identity, prefix } => {
                if self.rules.remove(&(identity.clone(), prefix.clone())).is_none() {
                    return Err(Refusal::invalid(format!(
                        "there is no rule for \"{identity}\" with the prefix \"{prefix}\": list the rules first"
                    )));
                }
            }
            AccessChange::AddToken { id, identity, salt, hash } => {
                self.add_token(now, id, identity, *salt, *hash)?;
                self.enabled = true;
            }
            AccessChange::Enable { id, identity, salt, hash } => {
                if self.enabled {
                    return Err(Refusal::invalid(
                        "access control is already on: an administrator creates further tokens with lockkeeper access token \
                         create",
                    ));
                }
                self.add_token(now, id, identity, *salt, *hash)?;
                self.rules.insert((identity.clone(), SmolStr::default()), Rights::of([Right::Admin]));
                self.enabled = true;
            }
            AccessChange::RevokeToken { id } => {
                if self.tokens.remove(id).is_none() {
                    return Err(Refusal::invalid(format!(
                        "there is no token \"{id}\": list the tokens first"
                    )));
                }
            }
            AccessChange::SetQuota { namespace, quota } => {
                limits::check_name("namespace", namespace)?;
                if namespace.contains('/') {
                    return Err(Refusal::invalid(
                        "a namespace is the part of names before their first slash: leave the slash out",
                    ));
                }
                match quota.is_empty() {
                    true => drop(self.quotas.remove(namespace)),
                    false => {
                        check_count("quotas", self.quotas.len(), limits::QUOTAS_MAX)?;
                        self.quotas.insert(namespace.clone(), *quota);
                    }
                }
            }
            AccessChange::SetSessions { identity, sessions } => {
                check_identity(identity)?;
                match sessions {
                    None => drop(self.session_quotas.remove(identity)),
                    Some(sessions) => {
                        check_count("quotas", self.session_quotas.len(), limits::QUOTAS_MAX)?;
                        self.session_quotas.insert(identity.clone(), *sessions);
                    }
                }
            }
            // Stored in the table, not here.
            AccessChange::SetStateBytes { .. } => {}
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.rules.bytes() + self.tokens.bytes() + self.quotas.bytes() + self.session_quotas.bytes()
    }

    pub(crate) fn count_bytes(&self) -> u64 {
        self.rules.count_bytes()
            + self.tokens.count_bytes()
            + self.quotas.count_bytes()
            + self.session_quotas.count_bytes()
    }

    fn add_token(
        &mut self,
        now: CellTime,
        id: &SmolStr,
        identity: &SmolStr,
        salt: [u8; 16],
        hash: [u8; 32],
    ) -> Result<(), Refusal> {
        check_identity(identity)?;
        limits::check_name("id of the token", id)?;
        if identity == EVERYBODY {
            return Err(Refusal::invalid("a token is for one identity: name it"));
        }
        if self.tokens.contains_key(id) {
            return Err(Refusal::invalid("a token with this id already exists: create another"));
        }
        check_count("tokens", self.tokens.len(), limits::TOKENS_MAX)?;
        self.tokens.insert(id.clone(), AccessToken { identity: identity.clone(), salt, hash, made: now });
        Ok(())
    }

    pub(crate) fn records_len(&self) -> usize {
        usize::from(self.enabled)
            + self.rules.len()
            + self.tokens.len()
            + self.quotas.len()
            + self.session_quotas.len()
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = AccessRecord> + '_ {
        let rules = self
            .rules
            .iter()
            .map(|((who, prefix), rights)| AccessRecord::Rule(who.clone(), prefix.clone(), *rights));
        let tokens = self.tokens.iter().map(|(id, token)| AccessRecord::Token(id.clone(), token.clone()));
        let quotas = self.quotas.iter().map(|(name, quota)| AccessRecord::Quota(name.clone(), *quota));
        let sessions =
            self.session_quotas.iter().map(|(who, most)| AccessRecord::Sessions(who.clone(), *most));
        let enabled = self.enabled.then_some(AccessRecord::Enabled);
        enabled.into_iter().chain(rules).chain(tokens).chain(quotas).chain(sessions)
    }

    /// Restores one record; true if it is a duplicate.
    pub(crate) fn take(&mut self, record: AccessRecord) -> bool {
        // A snapshot with rules always turns access control on: it cannot open a cell.
        let is_enabled = matches!(record, AccessRecord::Rule(..) | AccessRecord::Token(..));
        let is_duplicate = self.put(record);
        self.enabled |= is_enabled;
        is_duplicate
    }

    fn put(&mut self, record: AccessRecord) -> bool {
        match record {
            AccessRecord::Enabled => std::mem::replace(&mut self.enabled, true),
            AccessRecord::Rule(who, prefix, rights) => self.rules.insert((who, prefix), rights).is_some(),
            AccessRecord::Token(id, token) => self.tokens.insert(id, token).is_some(),
            AccessRecord::Quota(name, quota) => self.quotas.insert(name, quota).is_some(),
            AccessRecord::Sessions(who, most) => self.session_quotas.insert(who, most).is_some(),
        }
    }
}

impl AccessChange {
    /// One line for the audit trail. The text is part of the replicated state.
    pub fn describe(&self) -> SmolStr {
        let text = match self {
            AccessChange::Grant { identity, prefix, rights } => {
                let rights: Vec<_> = rights.iter().map(Right::as_str).collect();
                format!("grant {} on \"{prefix}\" to {identity}", rights.join(","))
            }
            AccessChange::Revoke { identity, prefix } => format!("revoke \"{prefix}\" from {identity}"),
            AccessChange::AddToken { id, identity, .. } => format!("token {id} made for {identity}"),
            AccessChange::RevokeToken { id } => format!("token {id} revoked"),
            AccessChange::SetQuota { namespace, quota } => format!("quota of {namespace}: {quota}"),
            AccessChange::SetStateBytes { bytes: None } => "default limit of state bytes".to_owned(),
            AccessChange::SetStateBytes { bytes: Some(most) } => format!("at most {most} bytes of state"),
            AccessChange::Enable { id, identity, .. } => {
                format!("access control turned on; token {id} made for the administrator {identity}")
            }
            AccessChange::SetSessions { identity, sessions: None } => {
                format!("no quota of sessions for {identity}")
            }
            AccessChange::SetSessions { identity, sessions: Some(most) } => {
                format!("at most {most} sessions for {identity}")
            }
        };
        text.into()
    }

    /// Approximate size in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            AccessChange::Grant { identity, prefix, .. } | AccessChange::Revoke { identity, prefix } => {
                identity.len() + prefix.len()
            }
            AccessChange::AddToken { id, identity, .. } | AccessChange::Enable { id, identity, .. } => {
                id.len() + identity.len() + 48
            }
            AccessChange::RevokeToken { id } => id.len(),
            AccessChange::SetQuota { namespace, .. } => namespace.len() + 32,
            AccessChange::SetSessions { identity, .. } => identity.len(),
            AccessChange::SetStateBytes { .. } => 0,
        }
    }
}

fn check_identity(identity: &str) -> Result<(), Refusal> {
    limits::check_name("identity", identity)?;
    limits::check_length("identity", identity.len(), limits::IDENTITY_BYTES_MAX)
}

fn check_count(what: &str, count: usize, max: usize) -> Result<(), Refusal> {
    match count < max {
        true => Ok(()),
        false => Err(Refusal::limit(format!("the cell has {count} {what}, its limit: remove some first"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(rules: &[(&str, &str, &[Right])]) -> Access {
        let mut access = Access::default();
        for (identity, prefix, rights) in rules {
            let rights = Rights::of(rights.iter().copied());
            let change =
                AccessChange::Grant { identity: (*identity).into(), prefix: (*prefix).into(), rights };
            access.change(CellTime(0), &change).unwrap();
        }
        access
    }

    #[test]
    fn rule_grants_only_its_rights_on_its_prefix_to_its_identity() {
        let access = access(&[("ci", "builds/", &[Right::Acquire]), ("*", "public/", &[Right::Read])]);
        assert!(access.allows("ci", Right::Acquire, "builds/7"));
        assert!(access.allows("ci", Right::Read, "builds/7"), "acquire includes read");
        assert!(!access.allows("ci", Right::ForceRelease, "builds/7"));
        assert!(!access.allows("ci", Right::Acquire, "orders/7"));
        assert!(!access.allows("ci2", Right::Acquire, "builds/7"));
        assert!(!access.allows("c", Right::Acquire, "builds/7"));
        assert!(access.allows("anybody", Right::Read, "public/a"));
        assert!(!access.allows("anybody", Right::Acquire, "public/a"));
        assert!(!Access::default().allows("ci", Right::Read, "a"), "nothing is allowed that no rule allows");
    }

    #[test]
    fn rules_name_elections_without_their_prefix() {
        let access = access(&[("ci", "builds/", &[Right::Acquire]), ("eve", "elec", &[Right::Read])]);
        assert!(access.allows("ci", Right::Acquire, "election/builds/leader"));
        assert!(!access.allows("ci", Right::Acquire, "election/orders/leader"));
        assert!(!access.allows("eve", Right::Read, "election/orders/leader"));
        assert!(!access.allows_all("eve", Right::Read, "elec"), "the prefix covers all elections");
        assert!(!access.allows_all("eve", Right::Read, "election/"));
        assert!(access.allows_all("eve", Right::Read, "electric"));
    }

    #[test]
    fn list_is_allowed_only_if_every_name_is() {
        let access = access(&[("ci", "builds/", &[Right::Read])]);
        assert!(access.allows_all("ci", Right::Read, "builds/"));
        assert!(access.allows_all("ci", Right::Read, "builds/7"));
        assert!(!access.allows_all("ci", Right::Read, "build"));
        assert!(!access.allows_all("ci", Right::Read, ""));
    }

    #[test]
    fn access_control_is_enabled_once_and_stays_on() {
        let mut access = Access::default();
        assert!(!access.is_enabled());
        let enable = |id: &str, identity: &str| AccessChange::Enable {
            id: id.into(),
            identity: identity.into(),
            salt: [1; 16],
            hash: [2; 32],
        };
        access.change(CellTime(0), &enable("one", "ada")).unwrap();
        assert!(access.is_enabled() && access.allows_all("ada", Right::Admin, ""));
        assert_eq!(access.token("one").unwrap().identity, "ada");
        assert!(
            access.change(CellTime(0), &enable("two", "eve")).is_err(),
            "there is only one first administrator"
        );
        assert!(!access.has_other_administrator("ada", ""));
        let revoke = AccessChange::Revoke { identity: "ada".into(), prefix: "".into() };
        access.change(CellTime(0), &revoke).unwrap();
        access.change(CellTime(0), &AccessChange::RevokeToken { id: "one".into() }).unwrap();
        assert!(access.is_enabled(), "without rules nothing is allowed");
        let mut restored = Access::default();
        access.records().for_each(|record| assert!(!restored.take(record)));
        assert_eq!(restored, access);
    }

    #[test]
    fn admin_includes_every_right() {
        let access = access(&[("ada", "", &[Right::Admin])]);
        for right in Right::ALL {
            assert!(access.allows_all("ada", right, ""), "{right:?}");
        }
    }
}
