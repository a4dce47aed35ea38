//! The probe of an HTTP service, from outside.

use http::{Method, Request, Response, StatusCode, Uri};
use lockkeeper_core::Token;
use smol_str::format_smolstr;
use tower_service::Service;

use super::header::{HEADER, header_value};
use crate::error::Error;
use crate::gates::{not_enforced, probe_name};

/// Proves that the service at this URI accepts a newer token and refuses a stale one.
///
/// It sends GET requests under a unique lock name, so choose a URI that is safe to read. `service` is an HTTP client (such as
/// that of hyper-util) or the service behind the layer itself.
///
/// # Errors
///
/// [`Error::Fatal`] if the proof fails, [`Error::Unavailable`] if there is no answer.
///
/// # Cancel safety
///
/// Cancel-safe: it only reads.
pub async fn probe<S, B, R>(service: &mut S, uri: &Uri) -> Result<(), Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: std::fmt::Display,
    B: Default,
{
    let lock = probe_name();
    for (token, passes) in [(1, true), (2, true), (2, true), (1, false)] {
        let mut request = Request::new(B::default());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = uri.clone();
        request.headers_mut().insert(HEADER, header_value(&lock, Token(token)));
        let silent = |error: S::Error| {
            Error::unavailable(format!("no answer from {uri} ({error}): check that the service is running"))
        };
        std::future::poll_fn(|context| service.poll_ready(context)).await.map_err(silent)?;
        let status = service.call(request).await.map_err(silent)?.status();
        match (passes, status == StatusCode::PRECONDITION_FAILED) {
            (true, false) | (false, true) => {}
            (false, false) => return Err(not_enforced(&format!("the service at {uri}"))),
            (true, true) => {
                return Err(Error::Fatal(format_smolstr!(
                    "the service at {uri} refused a newer token (412): probe a URI that answers GET without preconditions"
                )));
            }
        }
    }
    Ok(())
}
