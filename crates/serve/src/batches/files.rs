//! `/v1/files`: files of requests, and those that batches write.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::multipart::{Field as Part, Multipart, MultipartError};
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures_util::stream;
use serde_json::{Value, json};

use super::blocking;
use super::expiry::ExpiryForm;
use super::room::Taken;
use super::store::{NotKept, Store, StoredFile};
use crate::Server;
use crate::error::ApiError;
use crate::keys::Caller;
use crate::responses::store::Page;
use system::new_file::NewFile;
use system::os::FileExt;

/// The purpose of files that batches read.
pub(super) const BATCH: &str = "batch";

/// That of files that they write.
pub(super) const BATCH_OUTPUT: &str = "batch_output";

/// For the next bytes of a file to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is written and sent at a time.
const CHUNK_BYTES: usize = 1 << 18;

/// What a form has besides its file, at most.
const FORM_BYTES: usize = 1 << 16;

/// Longest name of a file, in bytes.
const MAX_NAME: usize = 255;

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new()
        .route("/files", post(upload).get(list).layer(DefaultBodyLimit::disable()))
        .route("/files/{id}", get(one).delete(delete))
        .route("/files/{id}/content", get(content))
}

/// A file that is being written.
struct Upload {
    file: NewFile,
    bytes: u64,
    taken: Taken,
}

async fn upload(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    mut request: Request,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches.store()?.clone();
    check_origin(request.headers(), &server.options.cors_origins)?;
    let most = usize::try_from(store.limits.max_file_bytes).unwrap_or(usize::MAX).saturating_add(FORM_BYTES);
    DefaultBodyLimit::max(most).apply(&mut request);
    let mut form = Multipart::from_request(request, &()).await.map_err(|error| no_form(&error.body_text()))?;
    let id = store.new_id("file-");
    let (mut written, mut purpose, mut filename, mut expiry) = (None, None, None, ExpiryForm::default());
    while let Some(part) = in_time(form.next_field()).await? {
        let name = part.name().unwrap_or_default().to_owned();
        match name.as_str() {
            "file" => {
                filename = Some(part.file_name().unwrap_or("file.jsonl").to_owned());
                written = Some(receive(&store, &id, part).await?);
            }
            "purpose" => purpose = Some(short_text(part).await?),
            name => {
                if !expiry.take(name, &short_text(part).await?) {
                    return Err(ApiError::invalid(name, format!("a file has no field `{name}`")));
                }
            }
        }
    }
    let Upload { file, bytes, taken } = written.ok_or_else(|| ApiError::missing("file"))?;
    let purpose = purpose.ok_or_else(|| ApiError::missing("purpose"))?;
    if purpose != BATCH {
        let message = format!("`purpose` should be `{BATCH}`, which is all that files are for here");
        return Err(ApiError::unsupported_value("purpose", message));
    }
    let mut filename = filename.unwrap_or_default();
    filename.truncate(filename.floor_char_boundary(MAX_NAME));
    let (created_at, order) = (crate::now(), store.next_order());
    let expires_at = expiry.read()?.map(|seconds| created_at.saturating_add(seconds));
    let described = StoredFile { id, caller: caller.0, order, bytes, created_at, expires_at, filename, purpose };
    let kept = blocking(move || {
        file.publish().map_err(|error| NotKept::new(&store.data_path(&described.id), error))?;
        let path = store.data_path(&described.id);
        store.add_file(described, taken).inspect_err(|_| drop(std::fs::remove_file(path)))
    });
    Ok(Json(kept.await??.json()))
}

/// A page of another site may send a form without being asked whether it may: nothing of it is taken, unless it may.
fn check_origin(headers: &HeaderMap, allowed: &[HeaderValue]) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let own = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    if own.is_some() && own == host || allowed.iter().any(|allowed| allowed == origin || allowed == "*") {
        return Ok(());
    }
    Err(ApiError::origin_not_allowed(&String::from_utf8_lossy(origin.as_bytes())))
}

fn no_form(why: &str) -> ApiError {
    ApiError::bad_request("invalid_form", format!("the body is no `multipart/form-data`: {why}"))
}

async fn in_time<T>(part: impl Future<Output = Result<T, MultipartError>>) -> Result<T, ApiError> {
    let part = tokio::time::timeout(PATIENCE, part).await.map_err(|_| ApiError::body_timeout(PATIENCE.as_secs()))?;
    part.map_err(|error| no_form(&error.body_text()))
}

/// A part that is a word.
async fn short_text(mut part: Part<'_>) -> Result<String, ApiError> {
    let mut text = Vec::new();
    while let Some(chunk) = in_time(part.chunk()).await? {
        text.extend_from_slice(&chunk);
        if text.len() > MAX_NAME {
            return Err(no_form("a field is too long"));
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes a part of a form as it comes.
async fn receive(store: &Arc<Store>, id: &str, mut part: Part<'_>) -> Result<Upload, ApiError> {
    let (path, most) = (store.data_path(id), store.limits.max_file_bytes);
    let not_kept = |error| NotKept::new(&path, error);
    let mut taken = store.room()?;
    let of_file = path.clone();
    let mut file = blocking(move || NewFile::create(&of_file)).await?.map_err(not_kept)?;
    let (mut bytes, mut chunk) = (0, Vec::with_capacity(CHUNK_BYTES));
    loop {
        let more = in_time(part.chunk()).await?;
        let is_over = more.is_none();
        chunk.extend_from_slice(&more.unwrap_or_default());
        if bytes + chunk.len() as u64 > most {
            return Err(ApiError::file_too_large(most));
        }
        if chunk.len() >= CHUNK_BYTES || is_over {
            taken.more(chunk.len() as u64)?;
            bytes += chunk.len() as u64;
            let taken = std::mem::take(&mut chunk);
            let write = move || file.file().write_all(&taken).map(|()| file);
            file = blocking(write).await?.map_err(not_kept)?;
        }
        if is_over {
            return Ok(Upload { file, bytes, taken });
        }
    }
}

/// A page of the list of files.
#[derive(Debug, serde::Deserialize)]
struct Wanted {
    purpose: Option<String>,
    limit: Option<usize>,
    order: Option<String>,
    after: Option<String>,
}

async fn list(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Query(Wanted { purpose, limit, order, after }): Query<Wanted>,
) -> Result<Json<Value>, ApiError> {
    let mut files = server.batches.store()?.files(caller);
    files.retain(|file| purpose.as_ref().is_none_or(|purpose| file.purpose == *purpose));
    let all: Vec<Value> = files.iter().map(|file| file.json()).collect();
    Ok(Json(Page { limit, order, after }.json(&all)))
}

async fn one(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(server.batches.store()?.file(caller, &id)?.json()))
}

async fn delete(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches.store()?.clone();
    let file = store.file(caller, &id)?;
    if let Some(batch) = store.user_of(&id) {
        let message = format!("the file `{id}` is that of the batch `{}`, which is not finished", batch.id());
        return Err(ApiError::bad_request("file_in_use", message));
    }
    blocking(move || store.delete_file(&file.id)).await??;
    Ok(Json(json!({"id": id, "object": "file", "deleted": true})))
}

async fn content(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let store = server.batches.store()?;
    let described = store.file(caller, &id)?;
    let path = store.data_path(&described.id);
    let opened = blocking(move || std::fs::File::open(path)).await?;
    let file = opened.map_err(|error| ApiError::storage(format!("the server could not read the file: {error}")))?;
    let file = Arc::new(file);
    let chunks = stream::try_unfold(0_u64, move |offset| {
        let file = file.clone();
        async move {
            let read = move || {
                let mut chunk = vec![0; CHUNK_BYTES];
                let n_read = file.read_at(&mut chunk, offset)?;
                chunk.truncate(n_read);
                Ok::<_, std::io::Error>(chunk)
            };
            let chunk = tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other)??;
            let next = offset + chunk.len() as u64;
            Ok::<_, std::io::Error>((!chunk.is_empty()).then(|| (Bytes::from(chunk), next)))
        }
    });
    let length = HeaderValue::from(described.bytes);
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok(([(header::CONTENT_TYPE, kind), (header::CONTENT_LENGTH, length)], Body::from_stream(chunks)).into_response())
}
