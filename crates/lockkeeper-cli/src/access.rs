//! `lockkeeper access`: rules, access tokens and quotas.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use lockkeeper::admin::{AccessState, NewAccessToken, Quota, Right};
use serde_json::json;

use crate::client::{self, Client, Output};
use crate::escape;
use crate::failure::Failure;
use crate::table::Table;

/// Manage access rules, access tokens and quotas
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockkeeper access enable --to admin.token         writes the administrator's token
  lockkeeper access grant ci builds/ acquire        ci may acquire builds/...
  lockkeeper access grant '*' '' read               all authenticated callers may read
  lockkeeper access token create ci --to ci.token   a token for ci, in its own file
  lockkeeper access quota set builds --locks 1000 --requests-per-s 200
  lockkeeper access quota set --identity ci --sessions 20
  lockkeeper access quota set --cell --state-bytes 4294967296
  lockkeeper access list

Rights: read; acquire (locks, elections, values, rates; includes read); force-release
(includes read); admin (everything; for the prefix '' also rules, tokens, quotas, members
and backups).

An identity is the name in a client certificate or the name of an access token. A prefix
is the beginning of names, such as builds/ with its slash; an election has its own name.
The rules are part of the replicated state and of snapshots.

The caller authenticates with LOCKKEEPER_AUTH_TOKEN_FILE, or with LOCKKEEPER_CERT and
LOCKKEEPER_KEY.")]
pub(crate) struct AccessVerb {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show all rules, tokens and quotas
    List {
        #[command(flatten)]
        client: Client,
    },
    /// Turn access control on: from then on every client needs an access token or a certificate, and a request that no rule
    /// allows is refused. Creates the first administrator's token, which is shown once
    Enable {
        /// Identity of the first administrator
        #[arg(default_value = "admin")]
        identity: String,
        /// Write the token to this new file, readable by its owner only, instead of stdout
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
        #[command(flatten)]
        client: Client,
    },
    /// Grant an identity rights on all names with a prefix; replaces its previous rule for that prefix
    Grant {
        /// Identity; '*' for every authenticated caller
        identity: String,
        /// Prefix of the names; '' for all
        prefix: String,
        /// Rights: read, acquire, force-release, admin
        #[arg(required = true, value_delimiter = ',', value_parser = right)]
        rights: Vec<Right>,
        #[command(flatten)]
        client: Client,
    },
    /// Revoke a rule
    Revoke {
        /// Identity
        identity: String,
        /// Prefix of the rule
        prefix: String,
        #[command(flatten)]
        client: Client,
    },
    /// Create and revoke access tokens
    #[command(subcommand)]
    Token(TokenAction),
    /// Set and remove quotas
    #[command(subcommand)]
    Quota(QuotaAction),
}

#[derive(Debug, Subcommand)]
enum TokenAction {
    /// Create a token for an identity. It is shown once; the cell keeps only its hash
    Create {
        /// Identity
        identity: String,
        /// Write the token to this new file, readable by its owner only, instead of stdout
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
        #[command(flatten)]
        client: Client,
    },
    /// Revoke a token at once
    Revoke {
        /// Public part of the token, as shown by `list`
        id: String,
        #[command(flatten)]
        client: Client,
    },
}

#[derive(Debug, Subcommand)]
enum QuotaAction {
    /// Set the quota of a namespace, an identity or the whole cell; a limit that is not named is removed
    Set {
        /// Namespace: the part of names before the first slash; '*' for each namespace without a quota of its own
        #[arg(required_unless_present_any = ["identity", "cell"], conflicts_with_all = ["identity", "cell"])]
        namespace: Option<String>,
        /// Maximum number of locks in use
        #[arg(long, conflicts_with = "identity")]
        locks: Option<u64>,
        /// Maximum number of waiting requests
        #[arg(long, conflicts_with = "identity")]
        waiters: Option<u64>,
        /// Maximum number of values
        #[arg(long, conflicts_with = "identity")]
        values: Option<u64>,
        /// Maximum number of requests per second
        #[arg(long, conflicts_with = "identity")]
        requests_per_s: Option<u32>,
        /// Instead of a namespace: an identity; '*' for each identity without a quota of its own
        #[arg(long)]
        identity: Option<String>,
        /// Maximum number of sessions of the identity
        #[arg(long, requires = "identity")]
        sessions: Option<u32>,
        /// Instead of a namespace: the whole cell
        #[arg(long, requires = "state_bytes", conflicts_with = "identity")]
        cell: bool,
        /// Maximum logical size of the cell's state; 0 for the default, 1 GiB
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
        match &self.action {
            Action::List { client }
            | Action::Enable { client, .. }
            | Action::Grant { client, .. }
            | Action::Revoke { client, .. }
            | Action::Token(TokenAction::Create { client, .. } | TokenAction::Revoke { client, .. })
            | Action::Quota(QuotaAction::Set { client, .. }) => client,
        }
    }

    pub(crate) fn run(self) -> Result<u8, Failure> {
        let client = self.client().clone();
        client::block_on(self.execute(&client))?;
        Ok(0)
    }

    async fn execute(self, client: &Client) -> Result<(), Failure> {
        let admin = client.admin()?;
        match self.action {
            Action::List { .. } => return show(client.output, &admin.access().await?),
            Action::Enable { identity, to, .. } => return enable(client, &identity, to).await,
            Action::Grant { identity, prefix, rights, .. } => {
                admin.grant_access(&identity, &prefix, &rights).await?;
            }
            Action::Revoke { identity, prefix, .. } => admin.revoke_access(&identity, &prefix).await?,
            Action::Token(TokenAction::Create { identity, to, .. }) => {
                return create(client, &identity, to).await;
            }
            Action::Token(TokenAction::Revoke { id, .. }) => admin.revoke_access_token(&id).await?,
            Action::Quota(QuotaAction::Set {
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
                let quota = Quota {
                    namespace,
                    identity,
                    locks,
                    waiters,
                    values,
                    requests_per_s,
                    sessions,
                    state_bytes,
                    ..Quota::default()
                };
                admin.set_quota(quota).await?;
            }
        }
        match client.output {
            Output::Json => client::print_json(&json!({})),
            Output::Table => Ok(()),
        }
    }
}

fn right(word: &str) -> Result<Right, String> {
    word.parse()
        .map_err(|_| format!("\"{word}\" is not a right (use {})", Right::ALL.map(Right::as_str).join(", ")))
}

async fn create(client: &Client, identity: &str, to: Option<PathBuf>) -> Result<(), Failure> {
    // Created before the token: if the file cannot be written, no unknown token is left on the cell.
    let file = to.as_deref().map(create_private_file).transpose()?;
    let made = client.admin()?.create_access_token(identity).await?;
    if let Some(file) = file {
        write_token(file, &made.token).map_err(|error| {
            Failure::other(format!(
                "failed to write the token ({error}): revoke it with lockkeeper access token revoke {}",
                made.id
            ))
        })?;
    }
    print_token(client.output, &made, to.as_deref())
}

/// Turns access control on. The token is the only way back in, so it goes to stdout if the file cannot be written.
async fn enable(client: &Client, identity: &str, to: Option<PathBuf>) -> Result<(), Failure> {
    let file = to.as_deref().map(create_private_file).transpose()?;
    let enabled = client.admin()?.enable_access(identity).await.map_err(Failure::from);
    let made = match (enabled, &to) {
        (Ok(made), _) => made,
        (Err(failure), Some(path)) => {
            // The file is empty; the same command must work again later.
            let _ = std::fs::remove_file(path);
            return Err(failure);
        }
        (Err(failure), None) => return Err(failure),
    };
    let mut to = to;
    if let Some(Err(error)) = file.map(|file| write_token(file, &made.token)) {
        eprintln!("lockkeeper: failed to write the token to the file ({error}); printing it instead");
        to = None;
    }
    print_token(client.output, &made, to.as_deref())?;
    let whose = escape::line(&made.identity);
    eprintln!(
        "lockkeeper: access control is on; {whose} is the administrator. Clients without a token or certificate are now \
         refused.\nCreate an identity for each client: lockkeeper access grant IDENTITY PREFIX acquire; lockkeeper access \
         token create IDENTITY --to FILE"
    );
    Ok(())
}

fn write_token(mut file: std::fs::File, token: &str) -> std::io::Result<()> {
    file.write_all(format!("{token}\n").as_bytes())?;
    file.sync_all()
}

/// Prints the token, or the file that contains it.
fn print_token(output: Output, made: &NewAccessToken, to: Option<&Path>) -> Result<(), Failure> {
    match (output, to) {
        (Output::Json, None) => client::print_json(made),
        (Output::Json, Some(_)) => client::print_json(&json!({"id": made.id, "identity": made.identity})),
        (Output::Table, None) => client::print(&format!("{}\n", made.token)),
        (Output::Table, Some(path)) => {
            client::print(&format!("token {} of {} written to {}\n", made.id, made.identity, path.display()))
        }
    }
}

/// Creates a new file that only its owner may read.
fn create_private_file(path: &Path) -> Result<std::fs::File, Failure> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|error| {
        Failure::usage(format!(
            "failed to create {} ({error}): name a file that does not exist yet",
            path.display()
        ))
    })
}

fn show(output: Output, state: &AccessState) -> Result<(), Failure> {
    match output {
        Output::Json => client::print_json(state),
        Output::Table => client::print(&tables(state)),
    }
}

fn tables(state: &AccessState) -> String {
    let mut rules = Table::new(&["IDENTITY", "PREFIX", "RIGHTS"]);
    for rule in &state.rules {
        rules.row([rule.identity.clone(), format!("\"{}\"", rule.prefix), rule.rights.join(", ")]);
    }
    let mut tokens = Table::new(&["TOKEN", "IDENTITY", "AGE"]);
    for token in &state.tokens {
        tokens.row([token.id.clone(), token.identity.clone(), format!("{} s", token.age.as_secs())]);
    }
    let mut quotas =
        Table::new(&["QUOTA OF", "LOCKS", "WAITERS", "VALUES", "REQUESTS/S", "SESSIONS", "STATE BYTES"]);
    let of = |used: u64, most: Option<u64>| most.map_or("-".to_owned(), |most| format!("{used} of {most}"));
    for quota in &state.quotas {
        let whose = match (&quota.identity, &quota.namespace) {
            (Some(identity), _) => identity.clone(),
            (None, Some(namespace)) => format!("{namespace}/"),
            (None, None) => "the whole cell".to_owned(),
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
            "access control is off: anyone who can reach the cell may do anything (turn it on with lockkeeper access enable)\n"
        }
    };
    [state.to_owned(), rules.to_string(), tokens.to_string(), quotas.to_string()].join("\n")
}
