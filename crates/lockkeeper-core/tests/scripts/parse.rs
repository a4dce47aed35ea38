//! Parses a line of a script into a command.

use lockkeeper_core::{
    Acquire, CellTime, Command, Fence, LockName, Locks, Mode, Policy, SessionId, TakeRate, Ticket, Token,
    Wait, Waiting,
};

/// The words of a line: the plain ones in order, and those of the form `key=value`.
pub(crate) struct Words {
    plain: Vec<String>,
    named: Vec<(String, String)>,
}

impl Words {
    pub(crate) fn of(line: &str) -> Result<Words, String> {
        let mut words = Words { plain: Vec::new(), named: Vec::new() };
        let mut rest = line.trim();
        while !rest.is_empty() {
            let end = end_of_word(rest).ok_or("missing closing quote")?;
            let word = expand(&rest[..end].replace('"', ""));
            match word
                .split_once('=')
                .filter(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
            {
                Some((key, value)) => words.named.push((key.to_owned(), value.to_owned())),
                None => words.plain.push(word),
            }
            rest = rest[end..].trim_start();
        }
        Ok(words)
    }

    pub(crate) fn verb(&self) -> &str {
        self.plain.first().map_or("", |word| word)
    }

    pub(crate) fn plain(&self, at: usize) -> Result<&str, String> {
        self.plain.get(at).map(String::as_str).ok_or(format!("word {at} is missing"))
    }

    pub(crate) fn named(&self, key: &str) -> Option<&str> {
        self.named.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn has_word(&self, word: &str) -> bool {
        self.plain.iter().any(|plain| plain == word)
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, String> {
        self.named(key)
            .map(|text| text.parse().map_err(|_| format!("{key}={text} is not a number")))
            .transpose()
    }

    fn needed<T: std::str::FromStr>(&self, key: &str) -> Result<T, String> {
        self.number(key)?.ok_or(format!("{key}= is missing"))
    }

    fn milliseconds(&self, key: &str) -> Result<Option<u64>, String> {
        self.named(key).map(|text| Ok(moment(text)?.0 / 1_000)).transpose()
    }

    pub(crate) fn session(&self) -> Result<SessionId, String> {
        session(self.plain(1)?)
    }

    pub(crate) fn lock(&self, at: usize) -> Result<LockName, String> {
        Ok(self.plain(at)?.into())
    }

    pub(crate) fn token(&self) -> Result<Token, String> {
        self.needed("token").map(Token)
    }

    fn fence(&self) -> Result<Option<Fence>, String> {
        let Some(text) = self.named("fence") else { return Ok(None) };
        let (lock, token) = text.rsplit_once(':').ok_or("fence=lock:token")?;
        let token = token.parse().map_err(|_| "the fence has no token")?;
        Ok(Some(Fence { lock: lock.into(), token: Token(token) }))
    }

    fn wait(&self) -> Result<Wait, String> {
        Ok(match self.named("wait") {
            Some("forever") => Wait::Forever,
            _ => self.milliseconds("wait")?.map_or(Wait::No, Wait::ForMs),
        })
    }

    fn acquire(&self, locks: Locks) -> Result<Command, String> {
        Ok(Command::Acquire(Acquire {
            session: self.session()?,
            request: self.named("request").map(Into::into),
            locks,
            mode: if self.has_word("shared") { Mode::Shared } else { Mode::Exclusive },
            permits: self.number("permits")?,
            capacity: self.number("capacity")?,
            wait: self.wait()?,
            lock_delay_ms: self.milliseconds("delay")?.unwrap_or(0),
            scope: self.named("scope").map(Into::into),
            policy: match self.named("policy") {
                None | Some("detect") => Policy::Detect,
                Some("wait_die") => Policy::WaitDie,
                Some("wound_wait") => Policy::WoundWait,
                Some(other) => return Err(format!("unknown policy \"{other}\"")),
            },
            value: self.named("value").map(Into::into),
        }))
    }

    /// The command of the line. An expiry without a version uses the current one.
    pub(crate) fn command(&self, version_of: impl Fn(SessionId) -> u64) -> Result<Command, String> {
        Ok(match self.verb() {
            "open" => Command::OpenSession {
                session: self.session()?,
                ttl_ms: self.milliseconds("ttl")?.unwrap_or(10_000),
                owner: self.named("owner").unwrap_or_default().into(),
                identity: None,
            },
            "close" => Command::CloseSession { session: self.session()? },
            "expire" => {
                let session = self.session()?;
                let version = self.number("version")?.unwrap_or_else(|| version_of(session));
                Command::ExpireSession { session, version }
            }
            "acquire" => self.acquire(Locks::One(self.lock(2)?))?,
            "acquire-all" => {
                let names = self.plain[2..].iter().filter(|word| *word != "shared");
                self.acquire(Locks::many(names.map(LockName::from)))?
            }
            "cancel" => Command::Cancel {
                session: self.session()?,
                what: match self.named("request") {
                    Some(request) => Waiting::Request(request.into()),
                    None => Waiting::Ticket(Ticket(self.needed("ticket")?)),
                },
            },
            "release" => Command::Release {
                session: self.session()?,
                lock: self.lock(2)?,
                token: self.token()?,
                forget: self.has_word("forget"),
            },
            "force-release" => Command::ForceRelease {
                lock: self.lock(1)?,
                reason: self.named("reason").unwrap_or_default().into(),
                by: "".into(),
            },
            "put" => Command::PutValue {
                key: self.plain(1)?.into(),
                value: self.plain(2)?.as_bytes().into(),
                fence: self.fence()?,
                if_version: self.number("if-version")?,
            },
            "delete" => Command::DeleteValue {
                key: self.plain(1)?.into(),
                fence: self.fence()?,
                if_version: self.number("if-version")?,
            },
            "hand-over" => Command::HandOver {
                session: self.session()?,
                lock: self.lock(2)?,
                token: self.token()?,
                to: self.named("to").ok_or("to= is missing")?.into(),
            },
            "take" => Command::TakeRate(TakeRate {
                limiter: self.plain(1)?.into(),
                permits: self.number("permits")?.unwrap_or(1),
                interval_ns: self.needed::<u64>("every-ms")? * 1_000_000,
                burst: self.needed("burst")?,
            }),
            "tick" => Command::Tick,
            other => return Err(format!("unknown command \"{other}\"")),
        })
    }
}

/// `s1` is the session with id 1.
fn session(word: &str) -> Result<SessionId, String> {
    let number = word.strip_prefix('s').and_then(|digits| u128::from_str_radix(digits, 16).ok());
    number.map(SessionId).ok_or(format!("\"{word}\" is not a session"))
}

/// `1.5s` or `250ms`.
pub(crate) fn moment(text: &str) -> Result<CellTime, String> {
    let (digits, scale) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1_000.0),
        None => (text.strip_suffix('s').ok_or(format!("\"{text}\" has no unit"))?, 1_000_000.0),
    };
    let number: f64 = digits.parse().map_err(|_| format!("\"{text}\" is not a time"))?;
    Ok(CellTime((number * scale).round() as u64))
}

fn end_of_word(rest: &str) -> Option<usize> {
    let mut quoted = false;
    for (at, character) in rest.char_indices() {
        match character {
            '"' => quoted = !quoted,
            ' ' if !quoted => return Some(at),
            _ => {}
        }
    }
    (!quoted).then_some(rest.len())
}

/// Expands `{x*513}` to 513 times x, and `{tab}` to a tab character.
fn expand(word: &str) -> String {
    let Some((before, rest)) = word.split_once('{') else { return word.to_owned() };
    let Some((inner, after)) = rest.split_once('}') else { return word.to_owned() };
    let inner = match inner.split_once('*') {
        Some((character, times)) => character.repeat(times.parse().unwrap_or(1)),
        None if inner == "tab" => "\t".to_owned(),
        None => format!("{{{inner}}}"),
    };
    format!("{before}{inner}{after}")
}
