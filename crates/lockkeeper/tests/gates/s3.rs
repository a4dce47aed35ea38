//! A minimal S3 server with the operations that a gate needs: get, conditional put, delete. Its ETag is a checksum of the
//! content.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use object_store::aws::AmazonS3Builder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::{ClientOptions, ObjectStore};

#[derive(Clone, Default)]
struct Objects {
    stored: Arc<Mutex<BTreeMap<String, (Bytes, HeaderMap)>>>,
    ignores_conditions: bool,
}

pub(crate) struct S3 {
    address: std::net::SocketAddr,
    objects: Objects,
}

fn etag(content: &[u8]) -> String {
    let sum = content
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("\"{sum:032x}\"")
}

async fn put(
    State(objects): State<Objects>,
    Path(key): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, HeaderMap) {
    let mut stored = objects.stored.lock().unwrap();
    let present = stored.get(&key).map(|(content, _)| etag(content));
    let failed = match (headers.get("if-match"), headers.get("if-none-match")) {
        _ if objects.ignores_conditions => false,
        (Some(expected), _) => present.as_deref().map(str::as_bytes) != Some(expected.as_bytes()),
        (None, Some(_)) => present.is_some(),
        (None, None) => false,
    };
    if failed {
        return (StatusCode::PRECONDITION_FAILED, HeaderMap::new());
    }
    let kept = headers.iter().filter(|(name, _)| name.as_str().starts_with("x-amz-meta-"));
    let kept: HeaderMap = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    let answer = HeaderMap::from_iter([(HeaderName::from_static("etag"), etag(&body).parse().unwrap())]);
    stored.insert(key, (body, kept));
    (StatusCode::OK, answer)
}

async fn read(
    State(objects): State<Objects>,
    Path(key): Path<String>,
    request_headers: HeaderMap,
) -> Result<(StatusCode, HeaderMap, Bytes), StatusCode> {
    let stored = objects.stored.lock().unwrap();
    let (content, kept) = stored.get(&key).ok_or(StatusCode::NOT_FOUND)?;
    let mut headers = kept.clone();
    headers.insert("etag", etag(content).parse().unwrap());
    headers.insert("last-modified", HeaderValue::from_static("Sun, 15 Nov 2026 12:00:00 GMT"));
    // `bytes=0-69`
    let last = request_headers
        .get("range")
        .and_then(|range| range.to_str().unwrap().split_once('-')?.1.parse::<usize>().ok());
    let Some(last) = last else { return Ok((StatusCode::OK, headers, content.clone())) };
    let part = content.slice(..content.len().min(last + 1));
    let range = format!("bytes 0-{}/{}", part.len() - 1, content.len());
    headers.insert("content-range", range.parse().unwrap());
    Ok((StatusCode::PARTIAL_CONTENT, headers, part))
}

/// Deletes the listed objects.
async fn delete(State(objects): State<Objects>, body: String) -> String {
    let keys = body.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next());
    let mut deleted = String::new();
    for key in keys {
        objects.stored.lock().unwrap().remove(key);
        deleted.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
    }
    format!("<?xml version=\"1.0\"?><DeleteResult>{deleted}</DeleteResult>")
}

/// An HTTP connector without TLS.
#[derive(Debug, Clone, Default)]
struct Plain(reqwest::Client);

impl HttpConnector for Plain {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Plain {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
    {
        Box::pin(async move {
            let failed = |error: reqwest::Error| HttpError::new(HttpErrorKind::Request, error);
            let (parts, body) = request.into_parts();
            let mut request = reqwest::Request::new(parts.method, parts.uri.to_string().parse().unwrap());
            *request.headers_mut() = parts.headers;
            *request.body_mut() = Some(body.collect().await.unwrap().to_bytes().into());
            let response = self.0.execute(request).await.map_err(failed)?;
            let mut answer = axum::http::Response::new(());
            *answer.status_mut() = response.status();
            *answer.headers_mut() = response.headers().clone();
            let body = response.bytes().await.map_err(failed)?;
            Ok(answer.map(|()| HttpResponseBody::from(body)))
        })
    }
}

impl S3 {
    pub(crate) async fn start(enforces_conditions: bool) -> S3 {
        let objects = Objects { ignores_conditions: !enforces_conditions, ..Objects::default() };
        let router = Router::new()
            .route("/bucket", post(delete))
            .route("/bucket/{*key}", get(read).put(put))
            .with_state(objects.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        S3 { address, objects }
    }

    pub(crate) fn client(&self) -> Arc<dyn ObjectStore> {
        let store = AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", self.address))
            .with_allow_http(true)
            .with_http_connector(Plain::default())
            .with_bucket_name("bucket")
            .with_region("nowhere")
            .with_access_key_id("somebody")
            .with_secret_access_key("secret")
            .build();
        Arc::new(store.unwrap())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.stored.lock().unwrap().is_empty()
    }
}
