//! Who may do what: rules by identity and prefix of names, the hashes of access tokens, and quotas. Part of the
//! replicated table, so that all nodes decide alike, and decided purely.

use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;

use crate::id::CellTime;
use crate::limits;
use crate::quota::{Counting, Quota, Usage};
use crate::refusal::Refusal;
use crate::weighed::Weighed;

/// Stands for every identity in a rule, and for every namespace or identity without its own in a quota.
pub const EVERYBODY: &str = "*";
/// Elections are locks whose names begin like this; rules and quotas name them without it.
pub const ELECTION_PREFIX: &str = "election/";

/// What can be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Right {
    /// Look at locks, values and their history.
    Read,
    /// Take locks, stand for election, write values, take rates. Includes `Read`.
    Acquire,
    /// Free a lock whoever holds it. Includes `Read`.
    ForceRelease,
    /// Everything; for all names it also means rules, tokens, quotas, members and backups.
    Admin,
}

impl Right {
    /// All of them.
    pub const ALL: [Right; 4] = [Right::Read, Right::Acquire, Right::ForceRelease, Right::Admin];

    /// The word used in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Acquire => "acquire",
            Right::ForceRelease => "force_release",
            Right::Admin => "admin",
        }
    }

    /// The right with this word.
    pub fn from_word(word: &str) -> Option<Right> {
        Right::ALL
            .into_iter()
            .find(|right| right.as_str() == word || right.as_str().replace('_', "-") == word)
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

/// A set of rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rights(u8);

impl Rights {
    /// These.
    pub fn of(rights: impl IntoIterator<Item = Right>) -> Rights {
        Rights(rights.into_iter().fold(0, |bits, right| bits | right.bit()))
    }

    /// Whether nothing is allowed.
    pub fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }

    /// Those that were given, without what they include.
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

/// An access token as the table knows it: not the secret, only what tells whether somebody has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessToken {
    /// Who shows it.
    pub identity: SmolStr,
    /// Drawn for each token.
    pub salt: [u8; 16],
    /// SHA-256 of salt and secret.
    pub hash: [u8; 32],
    /// When it was made, in cell time.
    pub made: CellTime,
}

/// A change of rules, tokens or quotas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessChange {
    /// An identity may do this with names that begin so. Takes the place of an earlier rule for the same two.
    Grant {
        /// Who; [`EVERYBODY`] for all who are known.
        identity: SmolStr,
        /// How the names begin; empty for all.
        prefix: SmolStr,
        /// What.
        rights: Rights,
    },
    /// Takes a rule away.
    Revoke {
        /// Whose.
        identity: SmolStr,
        /// For which prefix.
        prefix: SmolStr,
    },
    /// A token was made. The leader drew it and gave it to the caller; here is only its hash.
    AddToken {
        /// Its public part.
        id: SmolStr,
        /// Whose it is.
        identity: SmolStr,
        /// Drawn for it.
        salt: [u8; 16],
        /// SHA-256 of salt and secret.
        hash: [u8; 32],
    },
    /// A token is worth nothing any more.
    RevokeToken {
        /// Its public part.
        id: SmolStr,
    },
    /// Bounds for a namespace: the names up to their first slash.
    SetQuota {
        /// Which; [`EVERYBODY`] for each that has no bounds of its own.
        namespace: SmolStr,
        /// None of them set: the bounds are taken away.
        quota: Quota,
    },
    /// The most sessions of an identity.
    SetSessions {
        /// Whose; [`EVERYBODY`] for each that has no bound of its own.
        identity: SmolStr,
        /// `None` takes the bound away.
        sessions: Option<u32>,
    },
    /// The most logical bytes of state that the whole cell holds.
    SetStateBytes {
        /// `None` for the default.
        bytes: Option<u64>,
    },
    /// Turns access control on, with its first administrator: a rule for everything, and a token as in `AddToken`.
    Enable {
        /// The token's public part.
        id: SmolStr,
        /// Who the administrator is.
        identity: SmolStr,
        /// Drawn for the token.
        salt: [u8; 16],
        /// SHA-256 of salt and secret.
        hash: [u8; 32],
    },
}

/// All rules, tokens and quotas.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Access {
    // Invariant: true if there is a rule or a token, and true for ever after: without rules nothing is allowed.
    pub(crate) enabled: bool,
    pub(crate) rules: Weighed<(SmolStr, SmolStr), Rights>,
    pub(crate) tokens: Weighed<SmolStr, AccessToken>,
    pub(crate) quotas: Weighed<SmolStr, Quota>,
    pub(crate) session_quotas: Weighed<SmolStr, u32>,
    // Invariant: what each namespace has in use, as far as it has been counted (see `counting`), while there are
    // quotas; empty otherwise. Restored by counting.
    pub(crate) usage: OrdMap<SmolStr, Usage>,
    /// There while what was in use before the first quota is still being counted.
    pub(crate) counting: Option<Counting>,
    // Invariant: the sessions of each identity. Restored by counting.
    pub(crate) sessions: OrdMap<SmolStr, u32>,
}

/// A part of it in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AccessRecord {
    Rule(SmolStr, SmolStr, Rights),
    Token(SmolStr, AccessToken),
    Quota(SmolStr, Quota),
    Sessions(SmolStr, u32),
    Enabled,
}

/// The name that rules and quotas know it by.
pub fn subject(name: &str) -> &str {
    name.strip_prefix(ELECTION_PREFIX).unwrap_or(name)
}

impl Access {
    /// Whether rules are in force: then nothing is allowed that no rule allows.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether anybody but the one named by this rule may administer everything.
    pub fn has_other_administrator(&self, identity: &str, prefix: &str) -> bool {
        self.rules().any(|(other, of, rights)| {
            of.is_empty() && rights.has(Right::Admin) && (other != identity || of != prefix)
        })
    }

    /// Whether an identity may do this with this name.
    pub fn allows(&self, identity: &str, right: Right, name: &str) -> bool {
        self.has_rule(identity, right, |prefix| subject(name).starts_with(prefix))
    }

    /// Whether it may with all names that begin so.
    pub fn allows_all(&self, identity: &str, right: Right, prefix: &str) -> bool {
        // A beginning of "election/" takes in elections of any name.
        let common = if ELECTION_PREFIX.starts_with(prefix) { "" } else { subject(prefix) };
        self.has_rule(identity, right, |given| common.starts_with(given))
    }

    /// Whether there is any rule for an identity, of its own or for everybody.
    pub fn has_rights(&self, identity: &str) -> bool {
        Right::ALL.into_iter().any(|right| self.has_rule(identity, right, |_| true))
    }

    fn has_rule(&self, identity: &str, right: Right, fits: impl Fn(&str) -> bool) -> bool {
        [identity, EVERYBODY].into_iter().any(|who| {
            let first = (SmolStr::new(who), SmolStr::default());
            self.rules
                .range(first..)
                .take_while(|((whose, _), _)| whose == who)
                .any(|((_, prefix), rights)| rights.has(right) && fits(prefix))
        })
    }

    /// A token by its public part.
    pub fn token(&self, id: &str) -> Option<&AccessToken> {
        self.tokens.get(id)
    }

    /// Every rule: identity, prefix, rights.
    pub fn rules(&self) -> impl Iterator<Item = (&SmolStr, &SmolStr, Rights)> {
        self.rules.iter().map(|((identity, prefix), rights)| (identity, prefix, *rights))
    }

    /// Every token with its public part.
    pub fn tokens(&self) -> impl Iterator<Item = (&SmolStr, &AccessToken)> {
        self.tokens.iter()
    }

    /// The bounds of every namespace that has some.
    pub fn quotas(&self) -> impl Iterator<Item = (&SmolStr, &Quota)> {
        self.quotas.iter()
    }

    /// The most sessions of every identity that has a bound.
    pub fn session_quotas(&self) -> impl Iterator<Item = (&SmolStr, u32)> {
        self.session_quotas.iter().map(|(identity, sessions)| (identity, *sessions))
    }

    /// Makes a change, or says why not.
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
                    check_room("rules of one identity", own, limits::RULES_PER_IDENTITY_MAX)?;
                    check_room("rules", self.rules.len(), limits::RULES_MAX)?;
                }
                self.rules.insert(key, *rights);
                self.enabled = true;
            }
            AccessChange::Revoke { identity, prefix } => {
                if self.rules.remove(&(identity.clone(), prefix.clone())).is_none() {
                    return Err(Refusal::invalid(format!(
                        "there is no rule for \"{identity}\" and the prefix \"{prefix}\": look at the list"
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
                        "access control is on already: an administrator makes further tokens with lockkeeper access token \
                         create",
                    ));
                }
                self.add_token(now, id, identity, *salt, *hash)?;
                self.rules.insert((identity.clone(), SmolStr::default()), Rights::of([Right::Admin]));
                self.enabled = true;
            }
            AccessChange::RevokeToken { id } => {
                if self.tokens.remove(id).is_none() {
                    return Err(Refusal::invalid(format!("there is no token \"{id}\": look at the list")));
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
                        check_room("quotas", self.quotas.len(), limits::QUOTAS_MAX)?;
                        self.quotas.insert(namespace.clone(), *quota);
                    }
                }
            }
            AccessChange::SetSessions { identity, sessions } => {
                check_identity(identity)?;
                match sessions {
                    None => drop(self.session_quotas.remove(identity)),
                    Some(sessions) => {
                        check_room("quotas", self.session_quotas.len(), limits::QUOTAS_MAX)?;
                        self.session_quotas.insert(identity.clone(), *sessions);
                    }
                }
            }
            // Not part of the rules: the table has it.
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
            return Err(Refusal::invalid("there is a token with this id already: make another"));
        }
        check_room("tokens", self.tokens.len(), limits::TOKENS_MAX)?;
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

    /// Takes one record back in; true if it came twice.
    pub(crate) fn take(&mut self, record: AccessRecord) -> bool {
        // Rules are in force whenever there are some: a snapshot cannot open a cell.
        let is_enabled = matches!(record, AccessRecord::Rule(..) | AccessRecord::Token(..));
        let came_twice = self.put(record);
        self.enabled |= is_enabled;
        came_twice
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
    /// The change in a line, for the audit trail.
    pub fn in_words(&self) -> SmolStr {
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

    /// About what it weighs.
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

fn check_room(what: &str, there: usize, most: usize) -> Result<(), Refusal> {
    match there < most {
        true => Ok(()),
        false => Err(Refusal::limit(format!("there are {there} {what}, the most: take some away first"))),
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
    fn a_rule_is_for_its_identity_its_prefix_and_its_rights() {
        let access = access(&[("ci", "builds/", &[Right::Acquire]), ("*", "public/", &[Right::Read])]);
        assert!(access.allows("ci", Right::Acquire, "builds/7"));
        assert!(access.allows("ci", Right::Read, "builds/7"), "who may take it may look at it");
        assert!(!access.allows("ci", Right::ForceRelease, "builds/7"));
        assert!(!access.allows("ci", Right::Acquire, "orders/7"));
        assert!(!access.allows("ci2", Right::Acquire, "builds/7"));
        assert!(!access.allows("c", Right::Acquire, "builds/7"));
        assert!(access.allows("anybody", Right::Read, "public/a"));
        assert!(!access.allows("anybody", Right::Acquire, "public/a"));
        assert!(!Access::default().allows("ci", Right::Read, "a"), "nothing is allowed that no rule allows");
    }

    #[test]
    fn an_election_is_known_by_its_own_name() {
        let access = access(&[("ci", "builds/", &[Right::Acquire]), ("eve", "elec", &[Right::Read])]);
        assert!(access.allows("ci", Right::Acquire, "election/builds/leader"));
        assert!(!access.allows("ci", Right::Acquire, "election/orders/leader"));
        assert!(!access.allows("eve", Right::Read, "election/orders/leader"));
        assert!(!access.allows_all("eve", Right::Read, "elec"), "that would be all elections");
        assert!(!access.allows_all("eve", Right::Read, "election/"));
        assert!(access.allows_all("eve", Right::Read, "electric"));
    }

    #[test]
    fn a_page_is_allowed_only_if_all_of_it_is() {
        let access = access(&[("ci", "builds/", &[Right::Read])]);
        assert!(access.allows_all("ci", Right::Read, "builds/"));
        assert!(access.allows_all("ci", Right::Read, "builds/7"));
        assert!(!access.allows_all("ci", Right::Read, "build"));
        assert!(!access.allows_all("ci", Right::Read, ""));
    }

    #[test]
    fn access_control_is_turned_on_once_and_stays_on() {
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
        assert!(access.change(CellTime(0), &enable("two", "eve")).is_err(), "nobody else becomes the first");
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
    fn admin_is_everything() {
        let access = access(&[("ada", "", &[Right::Admin])]);
        for right in Right::ALL {
            assert!(access.allows_all("ada", right, ""), "{right:?}");
        }
    }
}
