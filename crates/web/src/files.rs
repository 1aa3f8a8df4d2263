//! The functions behind `/files`: uploads and downloads of any size up to the limits, streamed.
//!
//! What is downloaded was made by somebody's code: it is never shown in our origin, only saved.

use std::{
    io::SeekFrom,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, Path, Query, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::{Stream, StreamExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::{
    api::{self, ApiError, Origin},
    form::{self, Form, Part},
    load::Json,
    openapi::Operation,
    router::Entrance,
};
use pylair_core::{
    audit::Pending,
    caller::Caller,
    daemon::{
        Daemon, Holder,
        targets::{self, Purpose},
    },
    session::Session,
};
use pylair_files::{Download, Error, MAX_UPLOAD_BYTES, Staged, UPLOADS, Workspace, Written};
use pylair_text::escape::url_path;

/// As much as is written at once.
const CHUNK_BYTES: usize = 1 << 20;
/// As much as is read at once of a file that somebody takes at his own pace.
const DOWNLOAD_BYTES: usize = 256 << 10;
/// As many files as one form may have.
const MAX_FILES: usize = 1000;

/// All routes below `/files`, as they are served and described.
pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::post(
            "/files/upload",
            "upload_files",
            "Put a file, or the files of a form, into a session's workspace",
            || post(upload),
        )
        .query::<UploadQuery>()
        .takes_bytes()
        .or_form::<UploadForm>()
        .answers::<Uploaded>(),
        Operation::get(
            "/files/download/{*path}",
            "download_file",
            "A file of a session's workspace; `Range` asks for a part of it",
            || get(download),
        )
        .query::<DownloadQuery>()
        .answers_bytes(),
    ]
}

pub fn router(daemon: Arc<Daemon>) -> Router {
    let routes = operations().into_iter();
    routes
        .fold(Router::new(), |router, operation| router.route(operation.path, (operation.route)()))
        // Uploads are counted as they are written.
        .layer(DefaultBodyLimit::disable())
        .with_state(daemon)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UploadQuery {
    /// A session's name or handle. If left out, the session in which calls with this token work, else your default session, which is opened
    target: Option<String>,
    /// The file, relative to the session's workspace; for a form, the directory that its files go to. A name in `uploads` if left out
    path: Option<String>,
}

/// A form with files. `target` and `path` come before them and mean what they mean in the address.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "forms are read as they come; this describes them")]
pub(super) struct UploadForm {
    target: Option<String>,
    path: Option<String>,
    /// Any number of files, under any field names
    #[schemars(extend("contentMediaType" = "application/octet-stream"))]
    file: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Uploaded {
    session: String,
    files: Vec<Written>,
}

/// Takes the body as one file, or the files of a form. All of them or none: they are put in place together, at the end.
async fn upload(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Query(query): Query<UploadQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    let _hold = daemon.hold(Holder::Request);
    let named = query.path.clone().unwrap_or_default();
    let length = number(request.headers(), header::CONTENT_LENGTH);
    if length.is_some_and(|length| length > MAX_UPLOAD_BYTES) {
        return Err(Error::TooLarge { path: named, limit: MAX_UPLOAD_BYTES }.into());
    }
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.map(|kind| kind.trim().to_owned()).unwrap_or_default();
    let is_over = AtomicBool::new(false);
    let body = std::pin::pin!(limited(request.into_body().into_data_stream(), &is_over));
    let received = if content_type.get(..FORM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(FORM)) {
        receive_form(&daemon, entrance, query, &content_type, body).await
    } else {
        let path = if named.is_empty() { format!("{UPLOADS}/{}", new_name()) } else { named.clone() };
        let batch = Batch::to(&daemon, entrance, query.target.as_deref()).await?;
        receive_file(batch, path, body).await
    };
    if is_over.load(Ordering::Relaxed) {
        return Err(Error::TooLarge { path: named, limit: MAX_UPLOAD_BYTES }.into());
    }
    let received = received?;
    let session = received.session.clone();
    Ok(api::about(&session, Json(received.commit().await?)))
}

async fn receive_file(
    mut batch: Batch,
    path: String,
    mut body: impl Stream<Item = Result<Bytes, String>> + Unpin,
) -> Result<Batch, ApiError> {
    batch.begin(path).await?;
    while let Some(chunk) = body.next().await {
        let broken = |error| ApiError::bad(format!("the upload broke off: {error}"), "send it again");
        batch.write(&chunk.map_err(broken)?).await?;
    }
    batch.flush().await?;
    Ok(batch)
}

/// The fields `target` and `path` of a form mean what they mean in the address, as long as no file has come before them.
async fn receive_form(
    daemon: &Arc<Daemon>,
    entrance: Entrance,
    mut query: UploadQuery,
    content_type: &str,
    body: impl Stream<Item = Result<Bytes, String>> + Unpin,
) -> Result<Batch, ApiError> {
    let bad = |error: form::Error| ApiError::bad(format!("the form is not valid: {error}"), FORM_HINT);
    let mut form = Form::new(content_type, body).map_err(bad)?;
    let mut batch = None;
    while let Some(Part { field, file }) = form.next_part().await.map_err(bad)? {
        let Some(name) = file else {
            let place = match field.as_str() {
                _ if batch.is_some() => {
                    let message = format!("the field `{}` comes after a file", field.escape_debug());
                    return Err(ApiError::bad(message, FIELD_HINT));
                }
                "target" => &mut query.target,
                "path" => &mut query.path,
                _ => {
                    let message = format!("there is no field `{}`", field.escape_debug());
                    return Err(ApiError::bad(message, FIELD_HINT));
                }
            };
            let text = form.text().await.map_err(bad)?;
            // As a person leaves it who means nothing in particular.
            if text.is_empty() {
                continue;
            }
            if place.as_ref().is_some_and(|other| *other != text) {
                return Err(ApiError::bad(format!("`{field}` is said twice, and not the same"), FIELD_HINT));
            }
            *place = Some(text);
            continue;
        };
        // A browser's field for files, in which none was chosen.
        if name.is_empty() {
            continue;
        }
        let batch = match &mut batch {
            Some(batch) => batch,
            None => batch.insert(Batch::to(daemon, entrance.clone(), query.target.as_deref()).await?),
        };
        let directory = query.path.as_deref().filter(|path| !path.is_empty()).unwrap_or(UPLOADS);
        batch.begin(format!("{}/{}", directory.trim_end_matches('/'), plain_name(&name)?)).await?;
        while let Some(chunk) = form.next_chunk().await.map_err(bad)? {
            batch.write(&chunk).await?;
        }
        batch.flush().await?;
    }
    batch.ok_or_else(|| ApiError::bad("the form has no file", FORM_HINT))
}

/// The body until it is over the limit: one limit for all files of a form, and for what is around them.
fn limited(
    body: impl Stream<Item = Result<Bytes, axum::Error>>,
    is_over: &AtomicBool,
) -> impl Stream<Item = Result<Bytes, String>> {
    let mut bytes = 0;
    body.map(move |chunk| {
        let chunk = chunk.map_err(|error| error.to_string())?;
        bytes += chunk.len() as u64;
        if bytes > MAX_UPLOAD_BYTES {
            is_over.store(true, Ordering::Relaxed);
            return Err("it is too large".to_owned());
        }
        Ok(chunk)
    })
}

const FORM: &str = "multipart/form-data";
const FORM_HINT: &str = "send multipart/form-data whose parts have file names, or the file itself as the body";
const FIELD_HINT: &str = "`target` and `path` are the fields of a form, and come before its files";

/// Files that have arrived and wait for the others. Dropped, they are gone.
struct Batch {
    session: Session,
    /// Says that it was given up, unless it is committed.
    record: Option<Pending>,
    staged: Vec<(String, Staged)>,
    /// What has come of the last one and is not written yet.
    buffer: Vec<u8>,
}

impl Batch {
    /// For this session, or the one that is meant without a name.
    async fn to(daemon: &Arc<Daemon>, entrance: Entrance, target: Option<&str>) -> Result<Self, ApiError> {
        let caller = caller(daemon, entrance, target.is_some()).await?;
        let mut record = daemon.audit.call(&caller, "upload");
        record.target(target);
        let session = match session(daemon, &caller, target, Purpose::Store).await {
            Ok(session) => session,
            Err(error) => {
                record.conclude(Some((error.kind(), &error.message())));
                return Err(error.into());
            }
        };
        record.target(Some(&session.info.name));
        Ok(Self { session, record: Some(record), staged: Vec::new(), buffer: Vec::new() })
    }

    async fn begin(&mut self, path: String) -> Result<(), ApiError> {
        if self.staged.iter().any(|(other, _)| *other == path) {
            return Err(ApiError::bad(format!("two files are called `{path}`"), "give each a name of its own"));
        }
        if self.staged.len() == MAX_FILES {
            return Err(ApiError::bad(format!("a form has at most {MAX_FILES} files"), "send an archive"));
        }
        let workspace: Workspace = self.session.workspace().clone();
        let to = path.clone();
        let staged = on_thread(&path, move || Staged::begin(&workspace, &to, MAX_UPLOAD_BYTES)).await?;
        self.staged.push((path, staged));
        self.tell();
        Ok(())
    }

    /// Which files have come, for the record.
    fn tell(&mut self) {
        let paths: Vec<_> = self.staged.iter().map(|(path, _)| path.as_str()).collect();
        if let Some(record) = &mut self.record {
            record.details(&serde_json::Map::from_iter([("files".to_owned(), paths.into())]));
        }
    }

    async fn write(&mut self, chunk: &[u8]) -> Result<(), ApiError> {
        self.buffer.extend_from_slice(chunk);
        if self.buffer.len() >= CHUNK_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), ApiError> {
        let Some((path, mut staged)) = self.staged.pop() else { return Ok(()) };
        let bytes = std::mem::take(&mut self.buffer);
        let staged = on_thread(&path, move || staged.write(&bytes).map(|()| staged)).await?;
        self.staged.push((path, staged));
        Ok(())
    }

    async fn commit(mut self) -> Result<Uploaded, ApiError> {
        let session = self.session.info.name.to_string();
        let staged = std::mem::take(&mut self.staged);
        let files = on_thread(UPLOADS, move || staged.into_iter().map(|(_, staged)| staged.commit()).collect()).await;
        let record = self.record.take();
        Ok(Uploaded { session, files: conclude(record, files)? })
    }
}

/// Writes down how something with files has ended.
fn conclude<T>(record: Option<Pending>, result: Result<T, Error>) -> Result<T, Error> {
    if let Some(record) = record {
        match &result {
            Ok(_) => record.conclude(None),
            Err(error) => record.conclude(Some((error.kind(), &error.message()))),
        }
    }
    result
}

impl Drop for Batch {
    fn drop(&mut self) {
        // The newest first: an older one may have made the directory of a newer one, and takes it away again.
        while self.staged.pop().is_some() {}
    }
}

async fn on_thread<T: Send + 'static>(
    path: &str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(Error::Io { what: "write", path: path.to_owned(), source: std::io::Error::other(error) })
    })
}

/// The last part of what a browser calls the file: some send whole paths.
fn plain_name(name: &str) -> Result<&str, ApiError> {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    if matches!(last, "" | "." | "..") || last.chars().any(char::is_control) {
        let message = format!("`{}` cannot be the name of a file", name.escape_debug());
        return Err(ApiError::bad(message, "give each part of the form a plain file name"));
    }
    Ok(last)
}

/// For a body that comes without any name.
fn new_name() -> String {
    format!("upload-{}", pylair_os::random::digits(4))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DownloadQuery {
    /// A session's name or handle. If left out, the session in which calls with this token work, else your default session
    target: Option<String>,
}

async fn download(
    State(daemon): State<Arc<Daemon>>,
    Extension(entrance): Extension<Entrance>,
    Path(path): Path<String>,
    Query(query): Query<DownloadQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let hold = daemon.hold(Holder::Request);
    let caller = caller(&daemon, entrance, query.target.is_some()).await?;
    let session = session(&daemon, &caller, query.target.as_deref(), Purpose::Look).await?;
    let mut record = daemon.audit.call(&caller, "download");
    record.target(Some(&session.info.name));
    record.details(&serde_json::Map::from_iter([("path".to_owned(), path.as_str().into())]));
    let Download { file, name, bytes } = conclude(Some(record), session.workspace().download(&path).await)?;
    // Without a validator nobody can have half of exactly this file.
    let range = headers.get(header::RANGE).filter(|_| !headers.contains_key(header::IF_RANGE));
    let range = range.and_then(|range| range.to_str().ok()).map(|range| parse_range(range, bytes));
    let (status, start, end) = match range {
        None | Some(Range::Other) => (StatusCode::OK, 0, bytes),
        Some(Range::Part(start, end)) => (StatusCode::PARTIAL_CONTENT, start, end),
        Some(Range::Outside) => {
            let failed = ApiError::bad(format!("`{path}` has {bytes} bytes"), "ask for a range within them");
            let mut response = failed.into_response();
            *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            insert(response.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{bytes}"));
            return Ok(response);
        }
    };
    let mut file = tokio::fs::File::from_std(file);
    let failed = |source| Error::Io { what: "read", path: path.clone(), source };
    file.seek(SeekFrom::Start(start)).await.map_err(failed)?;
    let chunks = ReaderStream::with_capacity(file.take(end - start), DOWNLOAD_BYTES);
    // A file that shrinks meanwhile ends the connection early, which is how the client learns of it.
    let body = Body::from_stream(chunks.inspect(move |_| _ = &hold));
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    insert(headers, header::CONTENT_TYPE, "application/octet-stream");
    insert(headers, header::CONTENT_LENGTH, &(end - start).to_string());
    insert(headers, header::ACCEPT_RANGES, "bytes");
    insert(headers, header::CONTENT_DISPOSITION, &disposition(&name));
    if status == StatusCode::PARTIAL_CONTENT {
        insert(headers, header::CONTENT_RANGE, &format!("bytes {start}-{}/{bytes}", end - 1));
    }
    Ok(api::about(&session, response))
}

/// The session whose files are meant. Without a name it is the one in which calls with the same token work, such as an agent's; if there
/// is none, the default one.
async fn session(
    daemon: &Arc<Daemon>,
    caller: &Caller,
    target: Option<&str>,
    purpose: Purpose,
) -> Result<Session, targets::Error> {
    let found = if target.is_none() { daemon.sessions.worked_in(caller)? } else { None };
    let named = found.as_ref().map(|session| &*session.info.handle).or(target);
    daemon.session(caller, named, purpose, "a file").await
}

/// Somebody who names no session means the default one; a shell has said nothing about its surroundings here.
async fn caller(daemon: &Arc<Daemon>, entrance: Entrance, names_target: bool) -> Result<Caller, ApiError> {
    let mut caller = if names_target {
        api::caller_with_target(daemon, entrance, Origin::default()).await
    } else {
        api::caller(daemon, entrance, Origin::default()).await?
    };
    if caller.env.is_empty() {
        caller.env = daemon.plain_env();
    }
    Ok(caller)
}

#[derive(Debug, PartialEq, Eq)]
enum Range {
    Part(u64, u64),
    /// Nothing of the file.
    Outside,
    /// Several, or what we do not understand: the whole is sent.
    Other,
}

/// The first byte and the one after the last.
fn parse_range(text: &str, bytes: u64) -> Range {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.trim().split_once('-')) else {
        return Range::Other;
    };
    let part = match (first.parse::<u64>().ok(), last.parse::<u64>().ok()) {
        (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1).min(bytes)),
        (Some(first), None) if last.is_empty() => (first, bytes),
        (None, Some(count)) if first.is_empty() => (bytes.saturating_sub(count), bytes),
        _ => return Range::Other,
    };
    if part.0 < part.1 { Range::Part(part.0, part.1) } else { Range::Outside }
}

fn number(headers: &HeaderMap, name: header::HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    // All of them are ASCII of our own making.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// The name twice: for programs that know UTF-8 there, and for the others.
fn disposition(name: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_graphic() && !"\"\\%;".contains(c) { c } else { '_' }).collect();
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{}", url_path(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_within_the_file() {
        let check = |text, expected| assert_eq!(parse_range(text, 100), expected, "{text}");
        check("bytes=0-9", Range::Part(0, 10));
        check("bytes=90-", Range::Part(90, 100));
        check("bytes=-5", Range::Part(95, 100));
        check("bytes=-500", Range::Part(0, 100));
        check("bytes=50-18446744073709551615", Range::Part(50, 100));
        check("bytes=100-", Range::Outside);
        check("bytes=-0", Range::Outside);
        check("bytes=9-2", Range::Other);
        check("bytes=0-1,5-6", Range::Other);
        check("lines=1-2", Range::Other);
        assert_eq!(parse_range("bytes=0-", 0), Range::Outside);
    }

    #[test]
    fn names_stay_names() {
        assert_eq!(plain_name("C:\\data\\a.csv").unwrap(), "a.csv");
        assert_eq!(plain_name("../../etc/passwd").unwrap(), "passwd");
        assert!(plain_name("..").is_err() && plain_name("a/").is_err() && plain_name("a\nb").is_err());
        assert_eq!(
            disposition("a \"b\"\r\nX: é.txt"),
            "attachment; filename=\"a__b___X:__.txt\"; filename*=UTF-8''a%20%22b%22%0D%0AX%3A%20%C3%A9.txt"
        );
    }
}
