//! The OpenAPI document, derived from the route table and the types of the contract: docs/adr/0025-openapi.md.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use lockkeeper_api::{Code, ErrorBody};
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::routes::{Route, routes};

pub(super) async fn serve() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], document())
}

/// Returns the OpenAPI document of the HTTP interface.
pub fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| derive(routes()).to_string())
}

/// The codes that every authorized call can return.
const GUARDED: &[Code] = &[
    Code::Invalid,
    Code::Unauthenticated,
    Code::Forbidden,
    Code::TooLarge,
    Code::NotLeader,
    Code::Limit,
    Code::Unavailable,
];

/// Separate schema generators for requests and answers: a field that is optional in a request is always present in an
/// answer.
struct Schemas {
    inputs: SchemaGenerator,
    outputs: SchemaGenerator,
}

impl Schemas {
    fn new() -> Schemas {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Schemas {
            inputs: settings().for_deserialize().into_generator(),
            outputs: settings().for_serialize().into_generator(),
        }
    }

    fn into_components(mut self) -> Map<String, Value> {
        let mut schemas = self.inputs.take_definitions(true);
        schemas.extend(self.outputs.take_definitions(true));
        schemas
    }
}

fn derive(routes: Vec<Route>) -> Value {
    let mut schemas = Schemas::new();
    let error = schemas.outputs.subschema_for::<ErrorBody>();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut tags: Vec<&str> = Vec::new();
    for route in routes {
        if tags.last() != Some(&route.tag) {
            tags.push(route.tag);
        }
        let operation = operation(&route, &mut schemas);
        paths.entry(route.path).or_default().insert(route.method.to_owned(), operation);
    }
    let tags: Vec<_> = tags.into_iter().map(|name| json!({ "name": name })).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Lockkeeper",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "The HTTP interface of a Lockkeeper node: JSON in and out, the same operations as gRPC on the \
                            same port. Fields that are not described here are refused; an optional field may be null. \
                            Nothing is cached.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" }
        },
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": schemas.into_components(),
            "responses": refusals(&error.to_value()),
            "securitySchemes": { "accessToken": { "type": "http", "scheme": "bearer" } }
        }
    })
}

fn operation(route: &Route, schemas: &mut Schemas) -> Value {
    let mut operation = json!({
        "operationId": route.id,
        "tags": [route.tag],
        "summary": route.summary,
        "responses": responses(route, schemas)
    });
    let parameters = parameters(route, schemas);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let ("post", Some(input)) = (route.method, route.input) {
        let mut content = json!({ "schema": input(&mut schemas.inputs) });
        if let Some((example, _)) = route.examples {
            content["example"] = parsed(example);
        }
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": content } });
    }
    if route.guarded {
        // With an access token, or without one if access control is off.
        operation["security"] = json!([{}, { "accessToken": [] }]);
    }
    operation
}

/// Parses an example. The examples are constants, and a test checks that they parse.
fn parsed(example: &str) -> Value {
    serde_json::from_str(example).unwrap_or_default()
}

/// Returns the parameters: the fields of the query, and the parts of the path in braces.
fn parameters(route: &Route, schemas: &mut Schemas) -> Vec<Value> {
    let mut parameters = Vec::new();
    for name in route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
        let schema = json!({ "type": "string" });
        parameters.push(json!({ "name": name, "in": "path", "required": true, "schema": schema }));
    }
    let ("get", Some(input)) = (route.method, route.input) else { return parameters };
    let query = input(&mut schemas.inputs).to_value();
    let is_required = |name: &String| {
        query["required"].as_array().is_some_and(|required| required.iter().any(|field| field == name))
    };
    for (name, schema) in query["properties"].as_object().into_iter().flatten() {
        let mut schema = schema.clone();
        let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        parameters.push(json!({
            "name": name,
            "in": "query",
            "required": is_required(name),
            "description": description,
            "schema": schema
        }));
    }
    parameters
}

fn responses(route: &Route, schemas: &mut Schemas) -> Map<String, Value> {
    let mut content = Map::new();
    for kind in route.kinds {
        let mut media = json!({});
        if let Some(output) = route.output {
            media["schema"] = output(&mut schemas.outputs).to_value();
        }
        if let Some((_, example)) = route.examples {
            media["example"] = parsed(example);
        }
        content.insert((*kind).to_owned(), media);
    }
    let mut responses = Map::new();
    responses.insert("200".to_owned(), json!({ "description": "Done", "content": content }));
    let guarded = if route.guarded { GUARDED } else { &[] };
    // A body that does not arrive in time is answered with 408, like a wait that times out.
    let slow_body = (route.method == "post").then_some(Code::Timeout);
    for code in guarded.iter().chain(route.codes).copied().chain(slow_body) {
        let status = code.http_status().to_string();
        let refusal = json!({ "$ref": format!("#/components/responses/{status}") });
        responses.insert(status, refusal);
    }
    if route.path.contains('{') {
        responses.insert("404".to_owned(), json!({ "$ref": "#/components/responses/400" }));
    }
    responses
}

/// Returns the error responses by status.
fn refusals(error: &Value) -> BTreeMap<String, Value> {
    let mut refusals: BTreeMap<String, Value> = BTreeMap::new();
    for code in Code::ALL {
        let line = format!("`{code}`: {}", code.description());
        let refusal = refusals.entry(code.http_status().to_string()).or_insert_with(|| {
            let mut refusal =
                json!({ "description": "", "content": { "application/json": { "schema": error } } });
            if matches!(code, Code::Limit | Code::Unavailable) {
                let seconds = json!({ "description": "Seconds", "schema": { "type": "integer" } });
                refusal["headers"] = json!({ "Retry-After": seconds });
            }
            refusal
        });
        let description = refusal["description"].as_str().unwrap_or_default();
        let separator = if description.is_empty() { "" } else { " " };
        refusal["description"] = format!("{description}{separator}{line}").into();
    }
    refusals
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn parsed_document() -> Value {
        serde_json::from_str(document()).unwrap()
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
    fn every_reference_resolves() {
        let document = parsed_document();
        let mut references = 0;
        each(&document, &mut |key, value| {
            if key == "$ref" {
                let pointer = value.as_str().unwrap().trim_start_matches('#');
                assert!(document.pointer(pointer).is_some(), "{pointer}");
                references += 1;
            }
        });
        assert!(references > 200, "{references}");
    }

    #[test]
    fn every_operation_is_documented() {
        let document = parsed_document();
        let mut names = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let name = operation["operationId"].as_str().unwrap();
                assert!(!name.is_empty() && names.insert(name), "{method} {path}: {name}");
                assert_ne!(operation["summary"], "", "{method} {path} has no summary");
                assert_ne!(operation["tags"], json!([""]), "{method} {path} has no tag");
                if method == "post" {
                    let content = &operation["requestBody"]["content"]["application/json"];
                    assert!(content["schema"].is_object(), "{path} has no body");
                    assert!(content["example"].is_object(), "{path} has no example");
                }
            }
        }
    }

    #[test]
    fn every_field_of_every_type_is_described() {
        let document = parsed_document();
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
                assert!(
                    schema["description"].is_string() || schema.get("$ref").is_some(),
                    "{name}.{field} is not described: {schema}"
                );
            }
        }
    }
}
