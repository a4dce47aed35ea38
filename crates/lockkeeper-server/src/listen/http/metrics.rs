//! The metrics: OpenMetrics for callers that accept it, such as Prometheus, and the older text format for others.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use lockkeeper_api::Request;

use super::caller_api::CallerApi;
use super::error::Error;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const OLDER_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn metrics(
    CallerApi(api): CallerApi,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Error> {
    api.authorize(&Request::Metrics)?;
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let text = api.metrics().await;
    Ok(match accepts.contains("application/openmetrics-text") {
        true => ([(CONTENT_TYPE, OPEN_METRICS)], text),
        false => ([(CONTENT_TYPE, OLDER_TEXT)], older_text(&text)),
    })
}

/// Converts OpenMetrics to the older format, in which `# TYPE` has the name of the samples, and there is no type `info` and no
/// end marker.
fn older_text(text: &str) -> String {
    let kind_of = |name: &str| {
        let line = format!("# TYPE {name} ");
        text.lines().find_map(|candidate| candidate.strip_prefix(&line))
    };
    let mut older = String::with_capacity(text.len());
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        let (hash, keyword, name) = (words.next(), words.next(), words.next().unwrap_or_default());
        let rest = words.next().unwrap_or_default();
        match (hash, keyword, kind_of(name)) {
            (Some("#"), Some("EOF" | "UNIT"), _) => continue,
            (Some("#"), Some(keyword), Some("counter")) => {
                older.push_str(&format!("# {keyword} {name}_total {rest}"));
            }
            (Some("#"), Some("TYPE"), Some("info")) => older.push_str(&format!("# TYPE {name}_info gauge")),
            (Some("#"), Some(keyword), Some("info")) => {
                older.push_str(&format!("# {keyword} {name}_info {rest}"));
            }
            _ => older.push_str(line),
        }
        older.push('\n');
    }
    older
}

#[cfg(test)]
mod tests {
    use super::older_text;

    #[test]
    fn names_and_types_are_converted_to_the_older_format() {
        let open = "# HELP a_hits How many.\n# TYPE a_hits counter\na_hits_total 3\n\
                    # HELP a_now Now.\n# TYPE a_now gauge\na_now 1\n\
                    # HELP a_build What.\n# TYPE a_build info\na_build_info{version=\"1\"} 1\n# EOF\n";
        let older = "# HELP a_hits_total How many.\n# TYPE a_hits_total counter\na_hits_total 3\n\
                     # HELP a_now Now.\n# TYPE a_now gauge\na_now 1\n\
                     # HELP a_build_info What.\n# TYPE a_build_info gauge\na_build_info{version=\"1\"} 1\n";
        assert_eq!(older_text(open), older);
    }
}
