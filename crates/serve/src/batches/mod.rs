//! OpenAI's batch API: files of requests in a folder, answered in the background of all other requests.
//!
//! [`store`] is the folder, [`room`] its size limit, [`batch`] the state of a batch, [`lines`] a file of requests.
//! [`drive`] sends lines to the endpoints and writes each answer at once; after a restart it continues with the
//! requests that have no answer. [`output`] writes the files. The endpoints of batches are here, those of files in
//! [`files`].

pub(crate) mod batch;
mod drive;
mod expiry;
mod files;
mod lines;
mod orphans;
mod output;
mod room;
pub mod store;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{Path as UrlPath, Query, State};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use self::batch::{Batch, BatchRecord, Status};
use self::store::{BatchLimits, Store, StoreError};
use super::Server;
use super::body;
use super::error::ApiError;
use super::field::Field;
use super::keys::Caller;
use super::responses::store::Page;
use system::units::parse_duration;

/// The endpoints that a batch may be for.
const ENDPOINTS: [&str; 3] = ["/v1/chat/completions", "/v1/completions", "/v1/responses"];

/// Most pairs of a batch's metadata, and the most characters of a name and of a value: OpenAI's.
const METADATA: (usize, usize, usize) = (16, 64, 512);

/// The time between two searches for expired files.
const SWEEP: Duration = Duration::from_secs(60);

/// Files and batches, if there is a folder for them.
#[derive(Debug, Default)]
pub struct Batches {
    store: Option<Arc<Store>>,
    /// A permit for each request of a batch that is being answered.
    places: OnceLock<Arc<Semaphore>>,
}

impl Batches {
    /// Those of a folder, which is made if it is not there.
    ///
    /// # Errors
    /// Nothing can be kept there, or another server does.
    pub fn open(folder: &Path, limits: BatchLimits) -> Result<Self, StoreError> {
        Ok(Self { store: Some(Arc::new(Store::open(folder, limits)?)), places: OnceLock::new() })
    }

    /// Continues the batches that are not over, and removes files when they expire. To be called once, where tasks can
    /// be started.
    pub fn resume(server: &Arc<Server>) {
        let Some(store) = &server.batches.store else { return };
        for batch in store.batches().into_iter().filter(|batch| !batch.record().status.is_final()) {
            tokio::spawn(drive::drive(server.clone(), store.clone(), batch));
        }
        let store = store.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let swept = store.clone();
                let _ = blocking(move || swept.remove_expired()).await; // or the next time
            }
        });
    }

    /// # Errors
    /// There is no folder.
    fn store(&self) -> Result<&Arc<Store>, ApiError> {
        self.store.as_ref().ok_or_else(|| {
            let message = "this server keeps no files and runs no batches: it was started without `--batch-dir DIR`";
            ApiError::bad_request("batches_disabled", message)
        })
    }

    /// As many requests as have slots, and as many more that wait for one, so that a slot that gets free is filled in
    /// the same step.
    fn places(&self, server: &Server) -> Arc<Semaphore> {
        let n_slots = server.backend.model().n_slots;
        Arc::clone(self.places.get_or_init(|| Arc::new(Semaphore::new((2 * n_slots).max(1)))))
    }
}

pub(super) fn router() -> Router<Arc<Server>> {
    Router::new()
        .route("/batches", post(create).get(list))
        .route("/batches/{id}", get(one))
        .route("/batches/{id}/cancel", post(cancel))
        .merge(files::router())
}

/// Does something that waits for a disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))
}

async fn create(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    body::Json(body): body::Json<Value>,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches.store()?;
    let record = asked(store, caller, &Field::body(&body)?)?;
    let (batch, store) = (Arc::new(Batch::new(record, store.room()?)), store.clone());
    // Not ended with a client that leaves: a batch that is kept is answered.
    let begun = tokio::spawn(async move {
        let (kept, of_folder) = (batch.clone(), store.clone());
        blocking(move || of_folder.add_batch(&kept)).await??;
        tracing::info!(id = batch.id(), endpoint = batch.record().endpoint, "a batch begins");
        let json = batch.json();
        tokio::spawn(drive::drive(server, store, batch));
        Ok(Json(json))
    });
    begun.await.map_err(|error| ApiError::internal(error.to_string()))?
}

/// A batch as a client asks for it.
fn asked(store: &Store, caller: Caller, body: &Field) -> Result<BatchRecord, ApiError> {
    let output_expires_after = body.get("output_expires_after").map(|field| expiry::of_field(&field)).transpose()?;
    let endpoint = body.need("endpoint")?.one_of(&ENDPOINTS.map(|endpoint| (endpoint, endpoint)))?;
    let window = body.need("completion_window")?;
    let completion_window = window.text()?;
    let seconds = match parse_duration(completion_window) {
        Ok(time) if time.as_secs() > 0 => time.as_secs(),
        _ => return Err(window.wrong("a time such as `24h`")),
    };
    let input = body.need("input_file_id")?;
    let file = store.file(caller, input.text()?)?;
    if file.purpose != files::BATCH {
        let message = format!("`{}` has the purpose `{}`, expected `{}`", file.id, file.purpose, files::BATCH);
        return Err(ApiError::invalid("input_file_id", message));
    }
    let (created_at, order) = (super::now(), store.next_order());
    Ok(BatchRecord {
        id: store.new_id("batch_"),
        caller: caller.0,
        order,
        endpoint: endpoint.to_owned(),
        input_file_id: file.id.clone(),
        completion_window: completion_window.to_owned(),
        metadata: metadata(body)?,
        output_expires_after,
        created_at,
        expires_at: created_at.saturating_add(seconds),
        ..BatchRecord::default()
    })
}

fn metadata(body: &Field) -> Result<Option<Map<String, Value>>, ApiError> {
    let (most, most_of_name, most_of_value) = METADATA;
    let Some(metadata) = body.get("metadata") else { return Ok(None) };
    let pairs = metadata.object()?.value().as_object().cloned().unwrap_or_default();
    let is_long = |text: &str, most: usize| text.chars().count() > most;
    if pairs.len() > most || pairs.keys().any(|name| is_long(name, most_of_name)) {
        return Err(metadata.wrong(&format!("at most {most} pairs, with names of at most {most_of_name} characters")));
    }
    for name in pairs.keys() {
        let value = metadata.need(name)?;
        if is_long(value.text()?, most_of_value) {
            return Err(value.wrong(&format!("a string of at most {most_of_value} characters")));
        }
    }
    Ok(Some(pairs))
}

async fn one(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    UrlPath(id): UrlPath<String>,
) -> Result<Json<Value>, ApiError> {
    Ok(Json(server.batches.store()?.batch(caller, &id)?.json()))
}

async fn list(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    Query(page): Query<Page>,
) -> Result<Json<Value>, ApiError> {
    let mut batches = server.batches.store()?.batches();
    batches.retain(|batch| batch.record().caller == caller.0);
    batches.sort_by_key(|batch| batch.record().order);
    let all: Vec<Value> = batches.iter().map(|batch| batch.json()).collect();
    Ok(Json(page.json(&all)))
}

async fn cancel(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    UrlPath(id): UrlPath<String>,
) -> Result<Json<Value>, ApiError> {
    let store = server.batches.store()?.clone();
    let batch = store.batch(caller, &id)?;
    let cancelled = batch.clone();
    let done = move || {
        let may = store.change(&cancelled, |record| {
            let may = record.status.may_be_cancelled();
            if may && record.status != Status::Cancelling {
                record.status = Status::Cancelling;
                record.cancelling_at = Some(super::now());
            }
            may
        })?;
        cancelled.wake();
        Ok::<_, store::NotKept>(may)
    };
    if !blocking(done).await?? {
        let message = format!("the batch `{id}` is {}, and cannot be cancelled", batch.record().status.name());
        return Err(ApiError::bad_request("invalid_batch_status", message));
    }
    Ok(Json(batch.json()))
}

/// A list as JSON, of a file's or a batch's problems.
fn list_json(data: Vec<Value>) -> Value {
    json!({"object": "list", "data": data})
}
