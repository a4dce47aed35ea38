//! The description of the API, written by hand in `openapi.json`, for what is looked at in `openapi_observe.json`, for
//! rules and tokens in `openapi_access.json`, and kept true by tests.

use std::sync::OnceLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde_json::{Value, json};

/// Where the file has the version of the node.
const VERSION_MARK: &str = "{version}";

pub(super) async fn document() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], text())
}

/// What is added to the main file.
const MORE: [&str; 2] = [include_str!("openapi_observe.json"), include_str!("openapi_access.json")];

/// All files as one document.
fn text() -> &'static str {
    static WHOLE: OnceLock<String> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let main = include_str!("openapi.json").replace(VERSION_MARK, env!("CARGO_PKG_VERSION"));
        let parsed = serde_json::from_str(&main).and_then(|main| {
            Ok((main, MORE.iter().map(|more| serde_json::from_str(more)).collect::<Result<Vec<Value>, _>>()?))
        });
        match parsed {
            Ok((mut whole, all)) => {
                for more in all {
                    add(&mut whole, "/paths", &more, "/paths");
                    add(&mut whole, "/components/schemas", &more, "/schemas");
                    if let (Some(Value::Array(tags)), Some(Value::Array(new))) =
                        (whole.pointer_mut("/tags"), more.pointer("/tags"))
                    {
                        tags.extend(new.iter().cloned());
                    }
                }
                add_refusals(&mut whole);
                whole.to_string()
            }
            // The files are part of the binary, and a test reads all.
            Err(_) => main,
        }
    })
}

/// Where nobody is asked who they are.
const OPEN: [&str; 9] = [
    "/",
    "/livez",
    "/readyz",
    "/health",
    "/version",
    "/openapi.json",
    "/v1/openapi.json",
    "/console/{file}",
    "/console/events",
];

/// Every call may be refused for who asks: said here once, and not in each of them.
fn add_refusals(whole: &mut Value) {
    if let Some(Value::Object(components)) = whole.pointer_mut("/components") {
        let bearer = json!({"accessToken": {"type": "http", "scheme": "bearer"}});
        components.insert("securitySchemes".to_owned(), bearer);
    }
    let Some(Value::Object(paths)) = whole.pointer_mut("/paths") else { return };
    for (_, item) in paths.iter_mut().filter(|(path, _)| !OPEN.contains(&path.as_str())) {
        for operation in item.as_object_mut().into_iter().flat_map(|item| item.values_mut()) {
            let Some(Value::Object(operation)) = Some(operation) else { continue };
            // With a token or, where nobody asks, without.
            operation.insert("security".to_owned(), json!([{}, {"accessToken": []}]));
            if let Some(Value::Object(answers)) = operation.get_mut("responses") {
                for (status, name) in [("401", "Unauthenticated"), ("403", "Forbidden")] {
                    let refusal = json!({"$ref": format!("#/components/responses/{name}")});
                    answers.entry(status).or_insert(refusal);
                }
            }
        }
    }
}

/// Adds the entries of one object to another.
fn add(whole: &mut Value, to: &str, more: &Value, from: &str) {
    if let (Some(Value::Object(all)), Some(Value::Object(new))) = (whole.pointer_mut(to), more.pointer(from))
    {
        all.extend(new.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::super::routes;
    use super::text;

    #[test]
    fn all_files_are_json_and_have_nothing_in_common() {
        let main: Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
        for more in super::MORE {
            let more: Value = serde_json::from_str(more).unwrap();
            for (one, other) in [("/paths", "/paths"), ("/components/schemas", "/schemas")] {
                let known = main.pointer(one).and_then(Value::as_object).unwrap();
                let new = more.pointer(other).and_then(Value::as_object).unwrap();
                assert_eq!(new.keys().find(|name| known.contains_key(*name)), None);
            }
        }
    }

    fn document() -> Value {
        serde_json::from_str(text()).unwrap()
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let document = document();
        let served: BTreeSet<String> =
            routes().iter().map(|route| format!("{} {}", route.method, route.path)).collect();
        let described: BTreeSet<String> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().keys().map(move |method| format!("{method} {path}"))
            })
            .collect();
        assert_eq!(served, described);
    }

    fn each<'a>(value: &'a Value, found: &mut impl FnMut(&'a str, &'a Value)) {
        match value {
            Value::Object(fields) => {
                for (key, inner) in fields {
                    found(key, inner);
                    each(inner, found);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| each(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = document();
        let mut references = 0;
        each(&document, &mut |key, value| {
            if key == "$ref" {
                let pointer = value.as_str().unwrap().strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{pointer} leads nowhere");
                references += 1;
            }
        });
        assert!(references > 50);
    }

    #[test]
    fn every_operation_has_a_name_and_a_story() {
        let document = document();
        let mut names = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(names.insert(name), "{name} twice");
                assert!(operation["summary"].is_string(), "{method} {path} has no summary");
                assert!(operation["responses"].is_object(), "{method} {path} has no answers");
                if method == "post" {
                    let content = &operation["requestBody"]["content"]["application/json"];
                    assert!(content["schema"].is_object(), "{path} has no body");
                    assert!(content["example"].is_object(), "{path} has no example");
                }
            }
        }
    }

    #[test]
    fn every_code_of_the_contract_is_described() {
        let document = document();
        let codes: Vec<&str> = document["components"]["schemas"]["ErrorCode"]["enum"]
            .as_array()
            .unwrap()
            .iter()
            .map(|code| code.as_str().unwrap())
            .collect();
        for code in [
            "busy",
            "timeout",
            "not_held",
            "session_lost",
            "stale_token",
            "version_mismatch",
            "deadlock",
            "wounded",
            "died",
            "unsupported",
            "invalid",
            "too_large",
            "limit",
            "unauthenticated",
            "forbidden",
            "not_leader",
            "unavailable",
        ] {
            assert!(codes.contains(&code), "{code}");
        }
        assert_eq!(codes.len(), 17);
    }
}
