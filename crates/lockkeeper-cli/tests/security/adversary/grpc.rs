//! Every unary call of the contract.

use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper_api::v1;
use lockkeeper_api::v1::lockkeeper_client::LockkeeperClient;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use super::attacks::Adversary;
use super::holdings::{Holdings, candidate, waiting_request};
use super::operations::{CROWDED, VALUE, acquire, acquire_all, long};

/// The protocol, as counted.
pub const GRPC: &str = "gRPC";
/// Calls that only administrators may make.
pub const ADMINISTRATIVE: [&str; 10] = [
    "add_member",
    "remove_member",
    "get_access",
    "enable_access",
    "grant_access",
    "revoke_access",
    "create_access_token",
    "revoke_access_token",
    "set_quota",
    "save_snapshot",
];
/// Rounds at once.
const ROUNDS: u64 = 4;
/// Time limit of a call.
const WITHIN: Duration = Duration::from_secs(10);

/// Waits for the first message of a stream.
pub async fn first<T>(answer: Result<Response<Streaming<T>>, Status>) -> Result<Option<T>, Status> {
    answer?.into_inner().message().await
}

impl Adversary {
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", format!("Bearer {}", self.token()).parse().unwrap());
        request.set_timeout(WITHIN);
        request
    }

    pub async fn over_grpc(self) {
        let channel = self.caller.channel().await.unwrap();
        for round in 0.. {
            let rounds = (0..ROUNDS).map(|number| {
                let (node, adversary) = (channel.clone(), &self);
                async move {
                    let holdings = adversary.holdings().await;
                    let round = ROUNDS * round + number;
                    adversary.client_calls(node.clone(), &holdings, round).await;
                    adversary.closing_calls(node, &holdings).await;
                }
            });
            join_all(rounds).await;
        }
    }

    pub fn client(&self, channel: Channel) -> LockkeeperClient<Channel> {
        LockkeeperClient::new(channel).max_decoding_message_size(64 << 20)
    }

    /// Calls that leave what the adversary holds, and those of administrators.
    async fn client_calls(&self, channel: Channel, holdings: &Holdings, round: u64) {
        let node = self.client(channel);
        let session = self.session.clone();
        let election = format!("adversary/campaign/{}", holdings.number);
        macro_rules! each {
            ($($call:ident($message:expr)),* $(,)?) => {
                tokio::join!($(async {
                    let answer = node.clone().$call(self.request($message)).await;
                    self.tally.add(GRPC, stringify!($call), answer.is_ok());
                }),*)
            };
        }
        macro_rules! first_of_each {
            ($($call:ident($message:expr)),* $(,)?) => {
                tokio::join!($(async {
                    let answer = first(node.clone().$call(self.request($message)).await).await;
                    self.tally.add(GRPC, stringify!($call), answer.is_ok());
                }),*)
            };
        }
        each!(
            open_session(v1::OpenSessionRequest { ttl_ms: 1_000, owner: "o".repeat(500) }),
            keep_alive(v1::KeepAliveRequest { session: session.clone() }),
            acquire(acquire(&session, long("grpc", holdings.number))),
            acquire(v1::AcquireRequest { wait_ms: 1_000, ..acquire(&session, CROWDED) }),
            acquire_all(v1::AcquireAllRequest {
                wait_forever: false,
                request: String::new(),
                ..acquire_all(&session, round, "detect")
            }),
            acquire_all(v1::AcquireAllRequest {
                session: holdings.holder.clone(),
                locks: (0..100).map(|place| long("all-of-grpc", 100 * holdings.number + place)).collect(),
                ..Default::default()
            }),
            get_lock(v1::GetLockRequest { lock: CROWDED.into() }),
            list_locks(v1::ListLocksRequest { limit: 1_000, ..Default::default() }),
            check_token(v1::CheckTokenRequest { lock: CROWDED.into(), token: 1, ..Default::default() }),
            get_history(v1::GetHistoryRequest { lock: CROWDED.into(), ..Default::default() }),
            get_audit(v1::GetAuditRequest { limit: u32::MAX }),
            get_top(v1::GetTopRequest { limit: u32::MAX }),
            get_wait_graph(v1::GetWaitGraphRequest::default()),
            put_value(v1::PutValueRequest {
                key: format!("adversary/{}", round % 16),
                value: vec![1; 60 << 10],
                ..Default::default()
            }),
            get_value(v1::GetValueRequest { key: VALUE.into() }),
            campaign(v1::CampaignRequest {
                session: holdings.holder.clone(),
                election,
                value: candidate(),
                ..Default::default()
            }),
            get_election(v1::GetElectionRequest { election: holdings.handed_over.0.clone() }),
            take_rate(v1::TakeRateRequest {
                limiter: long("rate", round),
                rate_per_s: 1.0,
                burst: 1,
                ..Default::default()
            }),
            status(v1::StatusRequest {}),
            list_members(v1::ListMembersRequest {}),
        );
        each!(
            add_member(v1::AddMemberRequest { node_id: 2, address: self.caller.address.clone() }),
            remove_member(v1::RemoveMemberRequest { node_id: 1 }),
            get_access(v1::GetAccessRequest {}),
            enable_access(v1::EnableAccessRequest { identity: "adversary".into() }),
            grant_access(v1::GrantAccessRequest {
                identity: "adversary".into(),
                prefix: String::new(),
                rights: vec!["admin".into()]
            }),
            revoke_access(v1::RevokeAccessRequest { identity: "victim".into(), prefix: String::new() }),
            create_access_token(v1::CreateAccessTokenRequest { identity: "victim".into() }),
            revoke_access_token(v1::RevokeAccessTokenRequest { id: "0".repeat(12) }),
            set_quota(v1::SetQuotaRequest::default()),
        );
        first_of_each!(
            observe_election(v1::ObserveElectionRequest {
                election: long("observed", round),
                ..Default::default()
            }),
            save_snapshot(v1::SaveSnapshotRequest {}),
        );
    }

    /// Calls that use up what the adversary holds.
    async fn closing_calls(&self, channel: Channel, holdings: &Holdings) {
        let node = self.client(channel);
        let (session, waiter) = (&holdings.holder, &holdings.waiter);
        let (handed_over, epoch) = &holdings.handed_over;
        let (resigned, resigned_epoch) = &holdings.resigned;
        macro_rules! each {
            ($($call:ident($message:expr)),* $(,)?) => {
                tokio::join!($(async {
                    let answer = node.clone().$call(self.request($message)).await;
                    self.tally.add(GRPC, stringify!($call), answer.is_ok());
                }),*)
            };
        }
        let release = |(lock, token): &(String, u64)| {
            let (session, lock, token) = (session.clone(), lock.clone(), *token);
            let (mut node, request) =
                (node.clone(), v1::ReleaseRequest { session, lock, token, forget: true });
            async move { self.tally.add(GRPC, "release", node.release(self.request(request)).await.is_ok()) }
        };
        let cancel = v1::CancelRequest { session: waiter.clone(), request: waiting_request(0) };
        self.tally.add(GRPC, "cancel", node.clone().cancel(self.request(cancel)).await.is_ok());
        each!(
            hand_over(v1::HandOverRequest {
                session: session.clone(),
                election: handed_over.clone(),
                epoch: *epoch,
                to: candidate()
            }),
            resign(v1::ResignRequest {
                session: session.clone(),
                election: resigned.clone(),
                epoch: *resigned_epoch
            }),
            force_release(v1::ForceReleaseRequest {
                lock: holdings.crowd.clone(),
                reason: "r".repeat(1_000)
            }),
            delete_value(v1::DeleteValueRequest { key: holdings.value.clone(), ..Default::default() }),
            close_session(v1::CloseSessionRequest { session: holdings.full.clone() }),
        );
        join_all(holdings.held.iter().map(release)).await;
    }
}
