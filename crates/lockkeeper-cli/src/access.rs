//! `lockkeeper access`: who may do what.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use lockkeeper_proto::v1;
use serde_json::json;

use crate::admin;
use crate::client::{self, Client, Output};
use crate::escape;
use crate::failure::Failure;
use crate::table::Table;

/// Say who may do what: rules, access tokens and quotas
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper access enable --to admin.token             turn access control on; the administrator's token is in the file
  lockkeeper access grant ci builds/ acquire            ci may take what begins with builds/
  lockkeeper access grant '*' '' read                   everybody who is known may look at all
  lockkeeper access token create ci --to ci.token       a token for ci, in a file of its own
  lockkeeper access quota set builds --locks 1000 --requests-per-s 200
  lockkeeper access quota set --identity ci --sessions 20
  lockkeeper access quota set --cell --state-bytes 4294967296
  lockkeeper access list

Rights: read; acquire (locks, elections, values, rates; includes read); force-release (includes read);
admin (everything; for the prefix '' also rules, tokens, quotas, members and backups).

An identity is the name in a client certificate, or that of an access token. A prefix is the beginning
of names, such as builds/ with its slash; an election is known by its own name. The rules are part of
the cell: every node has them, and they come back with a snapshot.

The caller shows who it is by LOCKKEEPER_AUTH_TOKEN_FILE, or LOCKKEEPER_CERT and LOCKKEEPER_KEY.")]
pub(crate) struct AccessVerb {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show all rules, tokens and quotas
    List {
        #[command(flatten)]
        client: Client,
    },
    /// Turn access control on: from then on every client shows an access token or a certificate, and nothing is allowed that
    /// no rule allows. Makes the token of the first administrator, which is shown once
    Enable {
        /// Who the first administrator is
        #[arg(default_value = "admin")]
        identity: String,
        /// Writes the token to this new file, which only its owner may read, instead of stdout
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
        #[command(flatten)]
        client: Client,
    },
    /// Allow an identity something with all names that begin so; takes the place of its former rule for them
    Grant {
        /// Who; '*' for everybody who is known
        identity: String,
        /// How the names begin; '' for all
        prefix: String,
        /// read, acquire, force-release, admin
        #[arg(required = true, value_delimiter = ',')]
        rights: Vec<String>,
        #[command(flatten)]
        client: Client,
    },
    /// Take a rule away
    Revoke {
        /// Whose
        identity: String,
        /// For which prefix
        prefix: String,
        #[command(flatten)]
        client: Client,
    },
    /// Make and revoke access tokens
    #[command(subcommand)]
    Token(TokenWhat),
    /// Set and take away bounds
    #[command(subcommand)]
    Quota(QuotaWhat),
}

#[derive(Debug, Subcommand)]
enum TokenWhat {
    /// Make a token for an identity. It is shown once; the cell keeps only its hash
    Create {
        /// Who will show it
        identity: String,
        /// Writes it to this new file, which only its owner may read, instead of stdout
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
        #[command(flatten)]
        client: Client,
    },
    /// Make a token worthless, at once
    Revoke {
        /// Its public part, as `list` shows it
        id: String,
        #[command(flatten)]
        client: Client,
    },
}

#[derive(Debug, Subcommand)]
enum QuotaWhat {
    /// Set the bounds of a namespace, of an identity, or of the whole cell; what is not named has none
    Set {
        /// The part of names before their first slash; '*' for each that has no bounds of its own
        #[arg(required_unless_present_any = ["identity", "cell"], conflicts_with_all = ["identity", "cell"])]
        namespace: Option<String>,
        /// Most locks in use
        #[arg(long, conflicts_with = "identity")]
        locks: Option<u64>,
        /// Most requests that wait
        #[arg(long, conflicts_with = "identity")]
        waiters: Option<u64>,
        /// Most values
        #[arg(long, conflicts_with = "identity")]
        values: Option<u64>,
        /// Most requests in a second
        #[arg(long, conflicts_with = "identity")]
        requests_per_s: Option<u32>,
        /// Instead of a namespace: an identity; '*' for each that has no bound of its own
        #[arg(long)]
        identity: Option<String>,
        /// Most sessions of the identity
        #[arg(long, requires = "identity")]
        sessions: Option<u32>,
        /// Instead of a namespace: the whole cell
        #[arg(long, requires = "state_bytes", conflicts_with = "identity")]
        cell: bool,
        /// Most logical bytes of state in the cell; 0 for the default, 1 GiB
        #[arg(long, requires = "cell", value_name = "BYTES")]
        state_bytes: Option<u64>,
        #[command(flatten)]
        client: Client,
    },
}

impl AccessVerb {
    pub(crate) fn output(&self) -> Output {
        self.client().output
    }

    fn client(&self) -> &Client {
        match &self.what {
            What::List { client }
            | What::Enable { client, .. }
            | What::Grant { client, .. }
            | What::Revoke { client, .. }
            | What::Token(TokenWhat::Create { client, .. } | TokenWhat::Revoke { client, .. })
            | What::Quota(QuotaWhat::Set { client, .. }) => client,
        }
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        let client = self.client().clone();
        client::block_on(self.ask(&client))?;
        Ok(0)
    }

    async fn ask(self, client: &Client) -> Result<(), Failure> {
        match self.what {
            What::List { .. } => {
                let state =
                    admin::call(
                        client,
                        |mut node| async move { node.get_access(v1::GetAccessRequest {}).await },
                    )
                    .await?;
                return show(client.output, &state);
            }
            What::Enable { identity, to, .. } => return enable(client, identity, to).await,
            What::Grant { identity, prefix, rights, .. } => {
                let request = v1::GrantAccessRequest { identity, prefix, rights };
                admin::call(client, |mut node| {
                    let request = request.clone();
                    async move { node.grant_access(request).await }
                })
                .await?;
            }
            What::Revoke { identity, prefix, .. } => {
                let request = v1::RevokeAccessRequest { identity, prefix };
                admin::call(client, |mut node| {
                    let request = request.clone();
                    async move { node.revoke_access(request).await }
                })
                .await?;
            }
            What::Token(TokenWhat::Create { identity, to, .. }) => return create(client, identity, to).await,
            What::Token(TokenWhat::Revoke { id, .. }) => {
                let request = v1::RevokeAccessTokenRequest { id };
                admin::call(client, |mut node| {
                    let request = request.clone();
                    async move { node.revoke_access_token(request).await }
                })
                .await?;
            }
            What::Quota(QuotaWhat::Set {
                namespace,
                locks,
                waiters,
                values,
                requests_per_s,
                identity,
                sessions,
                state_bytes,
                ..
            }) => {
                let quota = v1::Quota {
                    namespace: namespace.unwrap_or_default(),
                    locks,
                    waiters,
                    values,
                    requests_per_s,
                    identity: identity.unwrap_or_default(),
                    sessions,
                    state_bytes,
                    ..v1::Quota::default()
                };
                let request = v1::SetQuotaRequest { quota: Some(quota) };
                admin::call(client, |mut node| {
                    let request = request.clone();
                    async move { node.set_quota(request).await }
                })
                .await?;
            }
        }
        match client.output {
            Output::Json => client::print_json(&json!({})),
            Output::Table => Ok(()),
        }
    }
}

async fn create(client: &Client, identity: String, to: Option<PathBuf>) -> Result<(), Failure> {
    // A file that cannot be written is found before there is a token that nobody would ever see.
    let file = to.as_deref().map(own_file).transpose()?;
    let request = v1::CreateAccessTokenRequest { identity };
    let made = admin::call(client, |mut node| {
        let request = request.clone();
        async move { node.create_access_token(request).await }
    })
    .await?;
    if let Some(file) = file {
        write_token(file, &made.token).map_err(|error| {
            Failure::other(format!(
                "the token cannot be written ({error}): revoke it with lockkeeper access token revoke {}",
                made.id
            ))
        })?;
    }
    hand_over(client.output, &made, to.as_deref())
}

/// Turns access control on. The token is the only way back in, so it is written before anything is lost: to stdout if the
/// file fails.
async fn enable(client: &Client, identity: String, to: Option<PathBuf>) -> Result<(), Failure> {
    let file = to.as_deref().map(own_file).transpose()?;
    let request = v1::EnableAccessRequest { identity };
    let enabled = admin::call(client, |mut node| {
        let request = request.clone();
        async move { node.enable_access(request).await }
    })
    .await;
    let made = match (enabled, &to) {
        (Ok(made), _) => made,
        (Err(failure), Some(path)) => {
            // Nothing is in it; the same command must work when the reason is gone.
            let _ = std::fs::remove_file(path);
            return Err(failure);
        }
        (Err(failure), None) => return Err(failure),
    };
    let mut to = to;
    if let Some(Err(error)) = file.map(|file| write_token(file, &made.token)) {
        eprintln!("lockkeeper: the token cannot be written to the file ({error}); it follows");
        to = None;
    }
    hand_over(client.output, &made, to.as_deref())?;
    let whose = escape::line(&made.identity);
    eprintln!(
        "lockkeeper: access control is on, and {whose} is its administrator. Clients without a token or certificate are \
         refused from now on.\nGive each one its own: lockkeeper access grant IDENTITY PREFIX acquire; lockkeeper access \
         token create IDENTITY --to FILE"
    );
    Ok(())
}

fn write_token(mut file: std::fs::File, token: &str) -> std::io::Result<()> {
    file.write_all(format!("{token}\n").as_bytes())?;
    file.sync_all()
}

/// Says where the token is, or what it is: this once.
fn hand_over(output: Output, made: &v1::NewAccessToken, to: Option<&Path>) -> Result<(), Failure> {
    match (output, to) {
        (Output::Json, None) => {
            client::print_json(&json!({"id": made.id, "identity": made.identity, "token": made.token}))
        }
        (Output::Json, Some(_)) => client::print_json(&json!({"id": made.id, "identity": made.identity})),
        (Output::Table, None) => client::print(&format!("{}\n", made.token)),
        (Output::Table, Some(path)) => {
            client::print(&format!("token {} of {} is in {}\n", made.id, made.identity, path.display()))
        }
    }
}

/// A new file that only its owner may read.
fn own_file(path: &Path) -> Result<std::fs::File, Failure> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
        Failure::usage(format!(
            "{} cannot be made ({error}): name a file that is not there yet",
            path.display()
        ))
    })
}

fn show(output: Output, state: &v1::AccessState) -> Result<(), Failure> {
    match output {
        Output::Json => client::print_json(&as_json(state)),
        Output::Table => client::print(&as_tables(state)),
    }
}

fn as_json(state: &v1::AccessState) -> serde_json::Value {
    let text = |text: &String| (!text.is_empty()).then(|| text.clone());
    let rules: Vec<_> = state
        .rules
        .iter()
        .map(|rule| json!({"identity": rule.identity, "prefix": rule.prefix, "rights": rule.rights}))
        .collect();
    let tokens: Vec<_> = state
        .tokens
        .iter()
        .map(|token| json!({"id": token.id, "identity": token.identity, "age_ms": token.age_ms}))
        .collect();
    let quotas: Vec<_> = state
        .quotas
        .iter()
        .map(|quota| {
            json!({
                "namespace": text(&quota.namespace),
                "identity": text(&quota.identity),
                "locks": quota.locks,
                "waiters": quota.waiters,
                "values": quota.values,
                "requests_per_s": quota.requests_per_s,
                "sessions": quota.sessions,
                "locks_used": quota.locks_used,
                "waiters_used": quota.waiters_used,
                "values_used": quota.values_used,
                "sessions_used": quota.sessions_used,
                "state_bytes": quota.state_bytes,
                "state_bytes_used": quota.state_bytes_used,
            })
        })
        .collect();
    json!({"enabled": state.enabled, "rules": rules, "tokens": tokens, "quotas": quotas})
}

fn as_tables(state: &v1::AccessState) -> String {
    let mut rules = Table::new(&["IDENTITY", "PREFIX", "RIGHTS"]);
    for rule in &state.rules {
        rules.row([rule.identity.clone(), format!("\"{}\"", rule.prefix), rule.rights.join(", ")]);
    }
    let mut tokens = Table::new(&["TOKEN", "IDENTITY", "AGE"]);
    for token in &state.tokens {
        tokens.row([token.id.clone(), token.identity.clone(), format!("{} s", token.age_ms / 1_000)]);
    }
    let mut quotas =
        Table::new(&["QUOTA OF", "LOCKS", "WAITERS", "VALUES", "REQUESTS/S", "SESSIONS", "STATE BYTES"]);
    let of = |used: u64, most: Option<u64>| most.map_or("-".to_owned(), |most| format!("{used} of {most}"));
    for quota in &state.quotas {
        let whose = match quota.identity.is_empty() {
            true if quota.state_bytes.is_some() => "the whole cell".to_owned(),
            true => format!("{}/", quota.namespace),
            false => quota.identity.clone(),
        };
        quotas.row([
            whose,
            of(quota.locks_used, quota.locks),
            of(quota.waiters_used, quota.waiters),
            of(quota.values_used, quota.values),
            quota.requests_per_s.map_or("-".to_owned(), |most| most.to_string()),
            of(quota.sessions_used.into(), quota.sessions.map(u64::from)),
            of(quota.state_bytes_used, quota.state_bytes),
        ]);
    }
    let state = match state.enabled {
        true => "access control is on\n",
        false => {
            "access control is off: everybody who reaches the cell may do everything (lockkeeper access enable)\n"
        }
    };
    [state.to_owned(), rules.to_string(), tokens.to_string(), quotas.to_string()].join("\n")
}
