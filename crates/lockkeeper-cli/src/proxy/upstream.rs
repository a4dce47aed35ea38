//! The service behind the proxy: forwards requests and answers unchanged.

use std::error::Error as _;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use lockkeeper::gates::http::FencedBody;
use lockkeeper_api::{Code, ErrorBody};
use tower_service::Service;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Hop-by-hop headers, besides those that `Connection` names.
const HOP_BY_HOP: [HeaderName; 6] = [
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    TE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

pub(super) type Body = Either<Incoming, Full<Bytes>>;

/// The client of the upstream.
#[derive(Debug, Clone)]
pub(super) struct Upstream {
    client: Client<HttpConnector, FencedBody<Incoming>>,
    authority: Authority,
    /// The prefix of each path, without a slash at its end.
    path: String,
    version: Version,
}

impl Upstream {
    pub(super) fn new(url: &str, http2: bool) -> Result<Upstream, String> {
        let example = "name it as http://host:port";
        let uri: Uri =
            url.parse().map_err(|error| format!("{url} is not a valid upstream ({error}): {example}"))?;
        let authority =
            uri.authority().cloned().ok_or_else(|| format!("{url} is not a valid upstream: {example}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(format!(
                    "{url}: the proxy does not support TLS yet; put a tunnel in front of the upstream, and name it with http://"
                ));
            }
            _ => return Err(format!("{url} is not a valid upstream: {example}")),
        }
        if uri.query().is_some() {
            return Err(format!("{url} is not a valid upstream, because it has a query: {example}"));
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .http2_only(http2)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        let path = uri.path().trim_end_matches('/').to_owned();
        let version = if http2 { Version::HTTP_2 } else { Version::HTTP_11 };
        Ok(Upstream { client, authority, path, version })
    }

    fn rewrite<B>(&self, request: &mut Request<B>) -> Option<()> {
        let requested = request.uri().path_and_query()?.as_str();
        let path: PathAndQuery = format!("{}{requested}", self.path).parse().ok()?;
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone()).path_and_query(path);
        let host = request.headers_mut().remove(HOST).or_else(|| {
            // HTTP/2 has the host in the URI.
            HeaderValue::from_str(request.uri().authority()?.as_str()).ok()
        });
        *request.uri_mut() = uri.build().ok()?;
        *request.version_mut() = self.version;
        let client = request.extensions().get::<SocketAddr>().map(SocketAddr::ip);
        let headers = request.headers_mut();
        let trailers = headers.get(TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
        strip(headers);
        // The proxy itself answers `Expect: 100-continue`.
        headers.remove(EXPECT);
        if trailers && self.version == Version::HTTP_2 {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        if let Some(host) = host {
            headers.insert(FORWARDED_HOST, host);
        }
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
        if let Some(client) = client {
            let before = headers.get(FORWARDED_FOR).and_then(|before| before.to_str().ok());
            let line = before.map_or_else(|| client.to_string(), |before| format!("{before}, {client}"));
            headers.insert(FORWARDED_FOR, HeaderValue::from_str(&line).ok()?);
        }
        Some(())
    }
}

/// Removes hop-by-hop headers.
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

impl Service<Request<FencedBody<Incoming>>> for Upstream {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<FencedBody<Incoming>>) -> Self::Future {
        let sent = if request.method() == Method::CONNECT || self.rewrite(&mut request).is_none() {
            None
        } else {
            Some(self.client.request(request))
        };
        let authority = self.authority.clone();
        Box::pin(async move {
            let Some(sent) = sent else { return Ok(unsupported_request()) };
            Ok(match sent.await {
                Ok(mut response) => {
                    strip(response.headers_mut());
                    *response.version_mut() = Version::HTTP_11;
                    response.map(Either::Left)
                }
                Err(error) => no_answer(&authority, &error),
            })
        })
    }
}

fn unsupported_request() -> Response<Body> {
    let message = "this proxy forwards requests for a path of the upstream only: CONNECT and absolute URIs are not supported";
    refusal(StatusCode::NOT_IMPLEMENTED, lockkeeper_api::Error::new(Code::Unsupported, message))
}

fn no_answer(upstream: &Authority, error: &Error) -> Response<Body> {
    // Nothing was sent if the connection failed.
    let reached = !error.is_connect();
    let mut why = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        why = next.to_string();
        cause = next.source();
    }
    tracing::warn!(%upstream, reached, "no answer from the upstream: {why}");
    let message = if reached {
        format!(
            "the upstream {upstream} closed the connection without an answer ({why}): check the outcome before you repeat the request"
        )
    } else {
        format!(
            "failed to connect to the upstream {upstream} ({why}): nothing was sent, try again when it is up"
        )
    };
    let mut error = lockkeeper_api::Error::new(Code::Unavailable, message);
    error.may_have_happened = Some(reached);
    refusal(StatusCode::BAD_GATEWAY, error)
}

fn refusal(status: StatusCode, error: lockkeeper_api::Error) -> Response<Body> {
    let body = serde_json::to_vec(&ErrorBody { error }).unwrap_or_default();
    let mut response = Response::new(Either::Right(Full::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_must_be_a_plain_http_url() {
        for (url, word) in [
            ("10.0.0.7:8080", "http://host:port"),
            ("https://x", "tunnel"),
            ("ftp://x", "http://host:port"),
            ("http://x/?a=b", "query"),
            ("http://", "http://host:port"),
        ] {
            let error = Upstream::new(url, false).unwrap_err();
            assert!(error.contains(word), "{url}: {error}");
        }
        assert_eq!(Upstream::new("http://x:1/base/", false).unwrap().path, "/base");
    }

    #[tokio::test]
    async fn requests_are_rewritten_for_the_upstream() {
        let upstream = Upstream::new("http://up:80/base", false).unwrap();
        let mut request = Request::new(());
        *request.uri_mut() = "/a?b=c".parse().unwrap();
        for (name, value) in [
            ("host", "shop"),
            ("connection", "close, x-mine"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("x-kept", "2"),
        ] {
            request.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        request.extensions_mut().insert(SocketAddr::from(([10, 0, 0, 1], 9)));
        upstream.rewrite(&mut request).unwrap();
        assert_eq!(request.uri(), "http://up:80/base/a?b=c");
        let mut left: Vec<_> =
            request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [
                ("x-forwarded-for", "10.0.0.1"),
                ("x-forwarded-host", "shop"),
                ("x-forwarded-proto", "http"),
                ("x-kept", "2")
            ]
        );
    }
}
