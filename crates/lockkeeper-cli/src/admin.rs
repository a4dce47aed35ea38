//! Calls that only a cell has: its members and its backups. They go to the node that can answer.

use std::future::Future;
use std::time::{Duration, Instant};

use lockkeeper_proto::v1;
use lockkeeper_proto::v1::lockkeeper_client::LockkeeperClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use crate::client::Client;
use crate::failure::{Failure, OTHER, UNAVAILABLE, USAGE};

/// So often a call follows a node that points at another one: a leader that was just removed, and some more.
const HOPS_MAX: usize = 10;
/// After all have been asked in vain.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const DEFAULT_PORT: u16 = 7420;

/// A node of the cell.
pub(crate) type Admin = LockkeeperClient<Channel>;

/// Makes a call on one node after the other until one of them answers for the cell.
pub(crate) async fn call<T, Answer>(
    client: &Client,
    mut ask: impl FnMut(Admin) -> Answer,
) -> Result<T, Failure>
where
    Answer: Future<Output = Result<Response<T>, Status>>,
{
    let hosts = hosts(&client.engine)?;
    let began = Instant::now();
    let mut host = hosts[0].clone();
    let mut next = 1;
    let mut hops = 0;
    loop {
        let status = match connect(client, &host).await {
            Ok(admin) => match ask(admin).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => status,
            },
            Err(status) => status,
        };
        if status.code() != Code::Unavailable {
            return Err(failure(&status));
        }
        let leader = status.metadata().get("lockkeeper-leader").and_then(|leader| leader.to_str().ok());
        hops += 1;
        match leader {
            Some(leader) if hops < HOPS_MAX => host = leader.to_owned(),
            _ if next < hosts.len() => {
                host = hosts[next].clone();
                next += 1;
            }
            // A new leader takes a moment: whoever asks all of them in between must not be told that there is none.
            _ if began.elapsed() < client.connect_timeout => {
                tokio::time::sleep(ASK_AGAIN).await;
                host = hosts[0].clone();
                (next, hops) = (1, 0);
            }
            _ => return Err(failure(&status)),
        }
    }
}

/// How the cell is, by a node that knows of a leader: one that was removed, or is cut off, only knows how it was.
pub(crate) async fn status(client: &Client) -> Result<v1::StatusResponse, Failure> {
    let mut without_leader = None;
    let mut refused = None;
    for host in hosts(&client.engine)? {
        let asked = async { connect(client, &host).await?.status(v1::StatusRequest {}).await };
        match asked.await.map(Response::into_inner) {
            Ok(status) if status.leader != 0 => return Ok(status),
            Ok(status) => without_leader = without_leader.or(Some(status)),
            Err(status) => refused = Some(status),
        }
    }
    without_leader.ok_or_else(|| refused.map_or_else(|| Failure::other("no node answers"), |s| failure(&s)))
}

async fn connect(client: &Client, host: &str) -> Result<Admin, Status> {
    let absent = |why: String| {
        Status::unavailable(format!(
            "no node answers at {host} ({why}): is it running? start one with lockkeeper serve, or name another with \
             --engine"
        ))
    };
    let endpoint = Endpoint::from_shared(format!("http://{host}"))
        .map_err(|error| Status::invalid_argument(format!("{host} is no address: {error}")))?
        .connect_timeout(client.connect_timeout);
    Ok(LockkeeperClient::new(endpoint.connect().await.map_err(|error| absent(innermost(&error)))?))
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn failure(status: &Status) -> Failure {
    let (code, exit) = match status.code() {
        Code::InvalidArgument => ("invalid", USAGE),
        Code::Unavailable | Code::ResourceExhausted => ("unavailable", UNAVAILABLE),
        Code::Unimplemented => ("unsupported", OTHER),
        _ => ("fatal", OTHER),
    };
    Failure::new(code, exit, status.message())
}

fn hosts(engine: &str) -> Result<Vec<String>, Failure> {
    let Some(hosts) = engine.strip_prefix("lockkeeper://") else {
        return Err(Failure::usage(format!(
            "\"{engine}\" is no cell: only a cell has members and snapshots; write lockkeeper://host:port"
        )));
    };
    Ok(hosts
        .trim_end_matches('/')
        .split(',')
        .map(|host| match host.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
            _ => format!("{host}:{DEFAULT_PORT}"),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_a_port() {
        let found = hosts("lockkeeper://a,b:1,[::1]:2,[::1]").map_err(|failure| failure.message);
        assert_eq!(found, Ok(["a:7420", "b:1", "[::1]:2", "[::1]:7420"].map(str::to_owned).to_vec()));
        assert!(hosts("redis://a").is_err());
    }
}
