//! The `OpenAPI` document at `/openapi.json` and the page at `/docs` that shows it, both made from tables of operations with the types that
//! the functions take and answer. They tell nothing of this server but what it can do, so they need no token.

use std::{
    fmt::Write,
    sync::{Arc, LazyLock},
};

use axum::{
    Json, Router,
    http::{HeaderValue, StatusCode},
    response::{Html, IntoResponse},
    routing::{MethodRouter, get},
};
use base64::Engine;
use schemars::{
    JsonSchema, Schema, SchemaGenerator,
    generate::SchemaSettings,
    transform::{RecursiveTransform, Transform},
};
use serde_json::{Map, Value, json};

use super::{failures, files, pages::Policy, problem};
use pylair_core::{
    app,
    daemon::{Daemon, DaemonStatus, VERSION},
    session,
};
use pylair_text::{escape, hash};

type Make = fn(&mut SchemaGenerator) -> Schema;

/// One method of one address.
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    id: &'static str,
    summary: &'static str,
    pub(super) route: fn() -> MethodRouter<Arc<Daemon>>,
    query: Option<Make>,
    /// The forms that a body may have.
    body: Vec<(&'static str, Make)>,
    status: StatusCode,
    answer: Option<(&'static str, Make)>,
}

const LINES: &str = "application/x-ndjson";
const OBJECT: &str = "application/json";
const BYTES: &str = "application/octet-stream";

fn make<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Bytes, of which a schema says nothing.
fn any(_: &mut SchemaGenerator) -> Schema {
    Schema::default()
}

impl Operation {
    /// The path as the document writes it, where one part may stand for several.
    fn documented_path(&self) -> String {
        self.path.replace("{*", "{")
    }

    fn new(
        method: &'static str,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        route: fn() -> MethodRouter<Arc<Daemon>>,
    ) -> Self {
        let (query, body, answer) = (None, Vec::new(), None);
        Self { method, path, id, summary, route, query, body, status: StatusCode::OK, answer }
    }

    pub(super) fn get(
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        route: fn() -> MethodRouter<Arc<Daemon>>,
    ) -> Self {
        Self::new("GET", path, id, summary, route)
    }

    pub(super) fn post(
        path: &'static str,
        id: &'static str,
        summary: &'static str,
        route: fn() -> MethodRouter<Arc<Daemon>>,
    ) -> Self {
        Self::new("POST", path, id, summary, route)
    }

    pub(super) fn query<T: JsonSchema>(self) -> Self {
        Self { query: Some(make::<T>), ..self }
    }

    pub(super) fn body<T: JsonSchema>(self) -> Self {
        Self { body: vec![(OBJECT, make::<T>)], ..self }
    }

    pub(super) fn takes_lines(self) -> Self {
        Self { body: vec![(LINES, make::<String>)], ..self }
    }

    pub(super) fn takes_bytes(self) -> Self {
        Self { body: vec![(BYTES, any)], ..self }
    }

    pub(super) fn or_form<T: JsonSchema>(mut self) -> Self {
        self.body.push(("multipart/form-data", make::<T>));
        self
    }

    pub(super) fn answers_bytes(self) -> Self {
        Self { answer: Some((BYTES, any)), ..self }
    }

    pub(super) fn answers<T: JsonSchema>(self) -> Self {
        Self { answer: Some((OBJECT, make::<T>)), ..self }
    }

    pub(super) fn created<T: JsonSchema>(self) -> Self {
        Self { status: StatusCode::CREATED, ..self.answers::<T>() }
    }

    /// Each event has one of these as its data.
    pub(super) fn streams<T: JsonSchema>(self) -> Self {
        Self { answer: Some(("text/event-stream", make::<T>)), ..self }
    }

    fn describe(&self, Generators { taken, answered: generator }: &mut Generators) -> Value {
        let mut parameters: Vec<Value> = self
            .path
            .split('/')
            .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
            .map(|name| name.trim_start_matches('*'))
            .map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "minLength": 1}}))
            .collect();
        if let Some(query) = self.query {
            parameters.extend(query_parameters(&query(taken), taken));
        }
        let mut responses = Map::new();
        let mut answered = json!({"description": self.status.canonical_reason().unwrap_or("OK")});
        if let Some((media, answer)) = self.answer {
            answered["content"] = json!({media: {"schema": answer(generator)}});
        }
        responses.insert(self.status.as_u16().to_string(), answered);
        responses.insert("4XX".into(), json!({"$ref": "#/components/responses/Problem"}));
        responses.insert("5XX".into(), json!({"$ref": "#/components/responses/Problem"}));
        let mut described = json!({
            "operationId": self.id,
            "summary": self.summary,
            "parameters": parameters,
            "responses": responses,
        });
        let forms = self.body.iter().map(|(media, body)| ((*media).to_owned(), json!({"schema": body(taken)})));
        let forms: Map<_, _> = forms.collect();
        if !forms.is_empty() {
            described["requestBody"] = json!({"required": true, "content": forms});
        }
        described
    }
}

/// The fields of a struct, each a parameter.
fn query_parameters(schema: &Schema, generator: &SchemaGenerator) -> Vec<Value> {
    let named = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
    let definition = named.and_then(|name| generator.definitions().get(name)).unwrap_or(schema.as_value());
    let properties = definition.get("properties").and_then(Value::as_object);
    let described = properties.into_iter().flatten().map(|(name, schema)| {
        let mut schema = schema.clone();
        let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        without_null(&mut schema);
        if let Ok(schema) = <&mut Schema>::try_from(&mut schema) {
            without_formats(schema);
        }
        json!({"name": name, "in": "query", "description": description.unwrap_or_default(), "schema": schema})
    });
    described.collect()
}

/// In a query there is no null, only what is left out.
fn without_null(schema: &mut Value) {
    if let Some(types) = schema.get_mut("type").filter(|types| types.is_array()) {
        let some = types.as_array().into_iter().flatten().find(|name| *name != "null").cloned();
        *types = some.unwrap_or_default();
    }
}

/// Formats that JSON Schema does not know.
fn without_formats(schema: &mut Schema) {
    if let Some(fields) = schema.as_object_mut()
        && fields.get("format").and_then(Value::as_str).is_some_and(|format| {
            format.starts_with("uint") || format.starts_with("int") || matches!(format, "double" | "float")
        })
    {
        fields.remove("format");
    }
}

#[derive(serde::Serialize, JsonSchema)]
struct SessionList {
    sessions: Vec<session::Status>,
}

#[derive(serde::Serialize, JsonSchema)]
struct AppList {
    apps: Vec<app::Status>,
}

/// Routes that are elsewhere.
fn others() -> Vec<Operation> {
    let nowhere: fn() -> MethodRouter<Arc<Daemon>> = MethodRouter::new;
    vec![
        Operation::get("/api/sessions", "list_sessions", "The sessions there are", nowhere).answers::<SessionList>(),
        Operation::get("/api/apps", "list_apps", "The apps that can be visited", nowhere).answers::<AppList>(),
        Operation::get("/api/status", "get_status", "The daemon", nowhere).answers::<DaemonStatus>(),
    ]
}

/// What may be left out differs between what is taken and what is answered.
struct Generators {
    taken: SchemaGenerator,
    answered: SchemaGenerator,
}

impl Generators {
    fn new() -> Self {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        let settings = settings.with_transform(RecursiveTransform(without_formats));
        Self {
            taken: settings.clone().for_deserialize().into_generator(),
            answered: settings.for_serialize().into_generator(),
        }
    }
}

fn operations() -> Vec<Operation> {
    failures::operations().into_iter().chain(files::operations()).chain(others()).collect()
}

fn document() -> Value {
    let mut generators = Generators::new();
    let mut paths = Map::new();
    for operation in operations() {
        let described = operation.describe(&mut generators);
        let path = paths.entry(operation.documented_path()).or_insert_with(|| json!({}));
        path[operation.method.to_ascii_lowercase()] = described;
    }
    let refused = make::<problem::Problem>(&mut generators.answered);
    let mut schemas = generators.taken.take_definitions(true);
    schemas.extend(generators.answered.take_definitions(true));
    for schema in schemas.values_mut().filter_map(|schema| <&mut Schema>::try_from(schema).ok()) {
        RecursiveTransform(without_formats).transform(schema);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "pylair",
            "version": VERSION,
            "description": "Test runs and failures, sessions, their files, and apps. Errors are problem+json (RFC 9457) with `kind`, `message` and `hint`.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "The line that `pylair token` prints."},
            },
            "responses": {
                "Problem": {
                    "description": "It was refused, or failed",
                    "content": {problem::MEDIA_TYPE: {"schema": refused}},
                },
            },
        },
    })
}

static DOCUMENT: LazyLock<Value> = LazyLock::new(document);
static PAGE: LazyLock<String> = LazyLock::new(|| page(&DOCUMENT));

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
    h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem}code,pre{font:14px/1.4 ui-monospace,monospace}\
    pre{background:#f4f4f2;padding:.8rem;overflow:auto;border-radius:4px}summary{cursor:pointer;padding:.35rem 0}\
    summary b{display:inline-block;width:3.5rem}table{border-collapse:collapse}td,th{text-align:left;padding:.2rem 1rem .2rem 0;vertical-align:top}\
    details{border-top:1px solid #ddd}a{color:#0645ad}\
    @media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}pre{background:#262626}details{border-color:#444}a{color:#8ab4f8}}";

/// The page runs nothing and loads nothing: all that a browser may do with it is to apply its own style.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let digest = base64::engine::general_purpose::STANDARD.encode(hash::sha256(STYLE.as_bytes()));
    let policy = format!(
        "sandbox; default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
    );
    HeaderValue::try_from(policy).expect("letters and digits")
});

fn pretty(value: &Value) -> String {
    escape::html(&serde_json::to_string_pretty(value).unwrap_or_default())
}

fn page(document: &Value) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>pylair API</title><style>{STYLE}</style><h1>pylair {VERSION}: the HTTP API</h1>\
         <p>Requests need <code>Authorization: Bearer TOKEN</code>; <code>pylair token</code> prints it. Errors are \
         <code>{}</code> with <code>kind</code>, <code>message</code> and <code>hint</code>. \
         The same for programs: <a href=\"/openapi.json\">/openapi.json</a>.</p>\
         <pre>curl -H \"Authorization: Bearer $(pylair token)\" http://127.0.0.1:7420/api/failures</pre><h2>Operations</h2>",
        problem::MEDIA_TYPE
    );
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            html.push_str(&operation_html(path, method, operation));
        }
    }
    html.push_str("<h2>Schemas</h2>");
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        let name = escape::html(name);
        let _infallible = write!(
            html,
            "<details id=\"{name}\"><summary><code>{name}</code></summary><pre>{}</pre></details>",
            pretty(schema)
        );
    }
    html.push_str("</html>");
    html
}

fn operation_html(path: &str, method: &str, operation: &Value) -> String {
    let text = |value: &Value| escape::html(value.as_str().unwrap_or_default());
    let mut html = format!(
        "<details><summary><b>{}</b> <code>{}</code> {}</summary>",
        method.to_uppercase(),
        escape::html(path),
        text(&operation["summary"])
    );
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !parameters.is_empty() {
        html.push_str("<table><tr><th>name<th>in<th>type<th>what");
        for given in parameters {
            let (name, place) = (text(&given["name"]), text(&given["in"]));
            let (kind, what) = (text(&given["schema"]["type"]), text(&given["description"]));
            let _infallible = write!(html, "<tr><td><code>{name}</code><td>{place}<td>{kind}<td>{what}");
        }
        html.push_str("</table>");
    }
    if operation["requestBody"].is_object() {
        let _infallible = write!(html, "<p>Body</p>{}", content_html(&operation["requestBody"]["content"]));
    }
    for (status, answer) in operation["responses"].as_object().into_iter().flatten() {
        if answer["content"].is_object() {
            let _infallible =
                write!(html, "<p>Answer {}</p>{}", escape::html(status), content_html(&answer["content"]));
        }
    }
    html.push_str("</details>");
    html
}

fn content_html(content: &Value) -> String {
    let parts = content.as_object().into_iter().flatten().map(|(media, content)| {
        let named = content["schema"]["$ref"].as_str().and_then(|path| path.rsplit('/').next()).map(escape::html);
        let what = match named {
            Some(name) => format!("<a href=\"#{name}\">{name}</a>"),
            None => format!("<pre>{}</pre>", pretty(&content["schema"])),
        };
        format!("<p><code>{}</code> {what}</p>", escape::html(media))
    });
    parts.collect()
}

/// Both, for whoever asks.
pub(super) fn router() -> Router {
    let shown = || async {
        let mut response = Html(PAGE.as_str()).into_response();
        response.extensions_mut().insert(Policy(POLICY.clone()));
        response
    };
    let told = || async { Json(&*DOCUMENT).into_response() };
    Router::new().route("/docs", get(shown)).route("/openapi.json", get(told)).route("/api/openapi.json", get(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_every_schema_it_refers_to() {
        let text = DOCUMENT.to_string();
        let schemas = DOCUMENT["components"]["schemas"].as_object().unwrap();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
        assert!(!text.contains("\"uint"), "formats that nobody knows");
        assert!(!text.contains("#/$defs/"));
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let mut names: Vec<&str> = operations().into_iter().map(|operation| operation.id).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_page_shows_every_operation_and_loads_nothing() {
        for operation in operations() {
            assert!(PAGE.contains(&escape::html(&operation.documented_path())), "{}", operation.path);
        }
        assert!(!PAGE.contains("<script") && !PAGE.contains("src=") && !PAGE.contains("http://www"));
    }
}
