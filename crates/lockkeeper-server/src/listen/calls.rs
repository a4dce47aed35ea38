//! What the node knows about a call before it reads its message: how expensive it is, and whether its messages are streamed.
//! The table of gRPC methods is here; the costs of HTTP calls are in the route table (`http/routes.rs`).

use std::collections::HashMap;
use std::sync::LazyLock;

use super::http;
use super::request_filter::Protocol;

/// The client's stream of frames.
pub(super) const STREAM_PATH: &str = "/lockkeeper.v1.Lockkeeper/Stream";
pub(super) const REFLECTION_PATH: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// How expensive a call is for the node, whatever its HTTP method: HEAD costs as much as GET.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cost {
    /// The answer is small, and so is the work in front of the log: writes, renewals and probes. Never waits for other calls.
    Small,
    /// The answer may be large. Waits while unread answers fill the budget of the connection.
    LargeAnswer,
    /// The work grows with the table, too. Also waits for its turn (`crate::limits::turns`).
    GrowsWithTable,
}

impl Cost {
    /// Returns the cost of a call. An unknown path is refused by its handler; until then it counts as a read.
    pub(super) fn of(protocol: Protocol, path: &str) -> Cost {
        let known = match protocol {
            Protocol::Grpc => GrpcMethod::find(path).map(|method| method.cost),
            Protocol::Http => http::cost(path),
        };
        known.unwrap_or(Cost::LargeAnswer)
    }
}

/// Which messages of a gRPC method are streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Streaming {
    /// None: one request, one answer.
    Unary,
    /// The answers, which are produced as the client reads.
    Answers,
    /// Requests and answers.
    Both,
}

/// A gRPC method for clients and for health checks.
#[derive(Debug, Clone, Copy)]
pub(super) struct GrpcMethod {
    path: &'static str,
    cost: Cost,
    streaming: Streaming,
}

impl GrpcMethod {
    pub(super) fn is_unary(&self) -> bool {
        self.streaming == Streaming::Unary
    }

    pub(super) fn has_streamed_requests(&self) -> bool {
        self.streaming == Streaming::Both
    }

    /// Returns the method with this path. Methods between members are not listed.
    pub(super) fn find(path: &str) -> Option<&'static GrpcMethod> {
        static BY_PATH: LazyLock<HashMap<&str, &GrpcMethod>> =
            LazyLock::new(|| METHODS.iter().map(|method| (method.path, method)).collect());
        BY_PATH.get(path).copied()
    }

    const fn streaming(self, streaming: Streaming) -> GrpcMethod {
        GrpcMethod { streaming, ..self }
    }
}

const fn small(path: &'static str) -> GrpcMethod {
    GrpcMethod { path, cost: Cost::Small, streaming: Streaming::Unary }
}

const fn large_answer(path: &'static str) -> GrpcMethod {
    GrpcMethod { path, cost: Cost::LargeAnswer, streaming: Streaming::Unary }
}

const fn grows_with_table(path: &'static str) -> GrpcMethod {
    GrpcMethod { path, cost: Cost::GrowsWithTable, streaming: Streaming::Unary }
}

const METHODS: &[GrpcMethod] = &[
    small("/lockkeeper.v1.Lockkeeper/OpenSession"),
    small("/lockkeeper.v1.Lockkeeper/KeepAlive"),
    small("/lockkeeper.v1.Lockkeeper/CloseSession"),
    small("/lockkeeper.v1.Lockkeeper/Acquire"),
    small("/lockkeeper.v1.Lockkeeper/AcquireAll"),
    small("/lockkeeper.v1.Lockkeeper/Release"),
    small("/lockkeeper.v1.Lockkeeper/Cancel"),
    small("/lockkeeper.v1.Lockkeeper/ForceRelease"),
    grows_with_table("/lockkeeper.v1.Lockkeeper/GetLock"),
    grows_with_table("/lockkeeper.v1.Lockkeeper/ListLocks"),
    small("/lockkeeper.v1.Lockkeeper/CheckToken"),
    grows_with_table("/lockkeeper.v1.Lockkeeper/GetHistory"),
    grows_with_table("/lockkeeper.v1.Lockkeeper/GetAudit"),
    grows_with_table("/lockkeeper.v1.Lockkeeper/GetTop"),
    grows_with_table("/lockkeeper.v1.Lockkeeper/GetWaitGraph"),
    small("/lockkeeper.v1.Lockkeeper/PutValue"),
    large_answer("/lockkeeper.v1.Lockkeeper/GetValue"),
    small("/lockkeeper.v1.Lockkeeper/DeleteValue"),
    small("/lockkeeper.v1.Lockkeeper/Campaign"),
    small("/lockkeeper.v1.Lockkeeper/Resign"),
    small("/lockkeeper.v1.Lockkeeper/HandOver"),
    large_answer("/lockkeeper.v1.Lockkeeper/GetElection"),
    small("/lockkeeper.v1.Lockkeeper/ObserveElection").streaming(Streaming::Answers),
    small("/lockkeeper.v1.Lockkeeper/TakeRate"),
    large_answer("/lockkeeper.v1.Lockkeeper/Status"),
    large_answer("/lockkeeper.v1.Lockkeeper/ListMembers"),
    small("/lockkeeper.v1.Lockkeeper/AddMember"),
    small("/lockkeeper.v1.Lockkeeper/RemoveMember"),
    grows_with_table("/lockkeeper.v1.Lockkeeper/GetAccess"),
    small("/lockkeeper.v1.Lockkeeper/EnableAccess"),
    small("/lockkeeper.v1.Lockkeeper/GrantAccess"),
    small("/lockkeeper.v1.Lockkeeper/RevokeAccess"),
    small("/lockkeeper.v1.Lockkeeper/CreateAccessToken"),
    small("/lockkeeper.v1.Lockkeeper/RevokeAccessToken"),
    small("/lockkeeper.v1.Lockkeeper/SetQuota"),
    large_answer("/lockkeeper.v1.Lockkeeper/SaveSnapshot").streaming(Streaming::Answers),
    // Its operations are classified one by one, in `session/costs.rs`.
    small(STREAM_PATH).streaming(Streaming::Both),
    small("/grpc.health.v1.Health/Check"),
    small("/grpc.health.v1.Health/Watch").streaming(Streaming::Answers),
    small(REFLECTION_PATH).streaming(Streaming::Both),
];

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    // The parts of a `FileDescriptorSet` that are compared.
    #[derive(Clone, PartialEq, Message)]
    struct FileSet {
        #[prost(message, repeated, tag = "1")]
        files: Vec<File>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct File {
        #[prost(string, tag = "2")]
        package: String,
        #[prost(message, repeated, tag = "6")]
        services: Vec<Service>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Service {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(message, repeated, tag = "2")]
        methods: Vec<Method>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Method {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(bool, tag = "5")]
        client_streaming: bool,
        #[prost(bool, tag = "6")]
        server_streaming: bool,
    }

    /// The path and the streaming of every method in a descriptor.
    fn described(descriptor: &[u8]) -> Vec<(String, Streaming)> {
        let files = FileSet::decode(descriptor).unwrap().files;
        let services = files.into_iter().flat_map(|File { package, services }| {
            services.into_iter().map(move |service| (format!("/{package}.{}", service.name), service.methods))
        });
        let methods = services.flat_map(|(service, methods)| {
            methods.into_iter().map(move |method| {
                let streaming = match (method.client_streaming, method.server_streaming) {
                    (false, false) => Streaming::Unary,
                    (false, true) => Streaming::Answers,
                    (true, _) => Streaming::Both,
                };
                (format!("{service}/{}", method.name), streaming)
            })
        });
        methods.collect()
    }

    #[test]
    fn every_grpc_method_is_classified() {
        let mut all = described(lockkeeper_api::FILE_DESCRIPTOR_SET);
        assert!(all.len() > 30, "{all:?}");
        all.extend(described(tonic_health::pb::FILE_DESCRIPTOR_SET));
        all.extend(described(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET));
        // Newer versions of the health service list all services; ours does not.
        all.retain(|(path, _)| path != "/grpc.health.v1.Health/List");
        for (path, streaming) in &all {
            let found = GrpcMethod::find(path).unwrap_or_else(|| panic!("{path} has no cost"));
            assert_eq!(found.streaming, *streaming, "{path}");
        }
        assert_eq!(METHODS.len(), all.len(), "methods that do not exist");
    }

    #[test]
    fn reads_whose_work_grows_cost_the_same_over_both_protocols() {
        for (method, path) in [
            ("GetLock", "/v1/lock"),
            ("ListLocks", "/v1/locks"),
            ("GetHistory", "/v1/history"),
            ("GetAudit", "/v1/audit"),
            ("GetTop", "/v1/top"),
            ("GetWaitGraph", "/v1/graph"),
            ("GetAccess", "/v1/access"),
            ("GetValue", "/v1/value"),
            ("GetElection", "/v1/election"),
            ("Status", "/v1/status"),
            ("ListMembers", "/v1/members"),
            ("SaveSnapshot", "/v1/snapshot"),
            ("KeepAlive", "/v1/session/keepalive"),
        ] {
            let grpc = Cost::of(Protocol::Grpc, &format!("/lockkeeper.v1.Lockkeeper/{method}"));
            assert_eq!(grpc, Cost::of(Protocol::Http, path), "{path}");
        }
    }

    #[test]
    fn unknown_path_counts_as_a_read() {
        for protocol in [Protocol::Grpc, Protocol::Http] {
            assert_eq!(Cost::of(protocol, "/v1/unknown"), Cost::LargeAnswer);
        }
    }
}
