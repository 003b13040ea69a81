//! A batch from its file to its answers.
//!
//! Each answer is stored as soon as it is finished, so a batch continues after a crash. Requests start while there are
//! free places, which all batches share in turn, and run in the background: interactive requests do not wait for them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use axum::response::Response;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use serde_json::value::RawValue;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::batch::{Batch, BatchEnd, Problem, Status};
use super::lines::{Expected, Line, Lines, Unusable};
use super::output::write_files;
use super::store::{NotKept, Store};
use crate::Server;
use crate::backend::Health;
use crate::error::ApiError;
use crate::keys::Caller;
use crate::request_log::in_background;
use crate::{chat, completions, responses};
use batch::records::{Header, Records, RecordsError, VERSION};

/// From one try to keep something to the next.
const PAUSE: Duration = Duration::from_secs(5);

/// Tries to answer a request for which the device has no memory; each waits longer than the one before.
const MAX_TRIES: u32 = 8;

/// Longest wait of these.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A batch that was begun so often without another answer is given up: what it asks ends the program.
const MAX_STARTS: u32 = 5;

/// An answer as it is kept: a line of one of the two files.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeptAnswer {
    pub(super) is_error: bool,
    pub(super) line: String,
}

impl KeptAnswer {
    /// Bytes that it takes in its file: the line and the line break.
    fn len_bytes(&self) -> u64 {
        self.line.len() as u64 + 1
    }
}

pub(super) type Answers = Records<KeptAnswer>;

/// The program ends: the next one goes on.
struct Ended;

/// Answers a batch, if it is not over.
pub(super) async fn drive(server: Arc<Server>, store: Arc<Store>, batch: Arc<Batch>) {
    let driver = Driver { server, store, batch };
    if driver.run().await.is_err() {
        // The program ends, by no fault of the batch: this start does not count.
        let Driver { store, batch, .. } = driver;
        let uncount = move || store.change(&batch, |record| record.n_starts = record.n_starts.saturating_sub(1));
        let _ = spawn_blocking(uncount).await; // what cannot be kept counts
    }
}

struct Driver {
    server: Arc<Server>,
    store: Arc<Store>,
    batch: Arc<Batch>,
}

impl Driver {
    async fn run(&self) -> Result<(), Ended> {
        let Some(lines) = self.read().await? else { return Ok(()) };
        let lines = Arc::new(lines);
        let mut answers = self.open(&lines).await?;
        let end = match self.batch.record().end {
            Some(end) => end,
            None => self.answer(&lines, &mut answers).await?,
        };
        self.finish(&lines, answers, end).await
    }

    /// Repeats an operation on the disk until it succeeds; clients see the error meanwhile.
    async fn insist<T: Send + 'static>(
        &self,
        mut work: impl FnMut() -> Result<T, NotKept> + Send + 'static,
    ) -> Result<T, Ended> {
        loop {
            let tried = spawn_blocking(move || (work(), work)).await;
            let (done, again) = tried.map_err(|_| Ended)?;
            match done {
                Ok(done) => {
                    self.batch.tell(None);
                    return Ok(done);
                }
                Err(error) => self.batch.tell(Some(error.problem())),
            }
            work = again;
            sleep(PAUSE).await;
        }
    }

    /// Writes down what changed of the batch.
    async fn change(
        &self,
        change: impl Fn(&mut super::batch::BatchRecord) + Send + Sync + 'static,
    ) -> Result<(), Ended> {
        let (store, batch) = (self.store.clone(), self.batch.clone());
        self.insist(move || store.change(&batch, &change)).await
    }

    /// The requests; none, if there is something wrong with them.
    async fn read(&self) -> Result<Option<Lines>, Ended> {
        let record = self.batch.record();
        let is_new = record.status == Status::Validating;
        let (path, server, endpoint) =
            (self.store.data_path(&record.input_file_id), self.server.clone(), record.endpoint.clone());
        let max_lines = self.store.limits.max_requests;
        let read = Arc::new(move || {
            // What was let in stays in: the model may be another one since, which is told of each request.
            let check_model = |asked: Option<&str>| match asked {
                Some(asked) if !is_new => Ok(asked.to_owned()),
                asked => server.check_model(asked),
            };
            let max_lines = if is_new { max_lines } else { usize::MAX };
            Lines::read(&path, &Expected { endpoint: &endpoint, max_lines, check_model: &check_model })
        });
        let read = loop {
            let again = read.clone();
            match spawn_blocking(move || again()).await.map_err(|_| Ended)? {
                // What was answered is not given up for a disk that fails now.
                Err(Unusable::Io(error)) if !is_new && error.kind() != io::ErrorKind::NotFound => {
                    let message = format!("the server could not read the file: {error}");
                    self.batch.tell(Some(Problem::of_storage(message)));
                    sleep(PAUSE).await;
                }
                read => break read,
            }
        };
        let problems = match read {
            Ok(lines) => {
                let (total, model) = (lines.len(), lines.model.clone());
                self.change(move |record| {
                    (record.total, record.n_starts) = (total, record.n_starts + 1);
                    if record.status == Status::Validating {
                        record.status = Status::InProgress;
                        record.in_progress_at = Some(crate::now());
                        record.model.clone_from(&model);
                    }
                })
                .await?;
                return Ok(Some(lines));
            }
            Err(Unusable::Problems(problems)) => problems,
            Err(Unusable::Io(error)) => {
                vec![Problem::of_storage(format!("the server could not read the file: {error}"))]
            }
        };
        tracing::info!(id = self.batch.id(), n = problems.len(), "a batch is wrong");
        self.change(move |record| {
            record.problems.clone_from(&problems);
            let status = if record.status == Status::Cancelling { Status::Cancelled } else { Status::Failed };
            record.finish(status, crate::now());
        })
        .await?;
        Ok(None)
    }

    async fn open(&self, lines: &Arc<Lines>) -> Result<Answers, Ended> {
        let (path, n) = (self.store.records_path(self.batch.id()), lines.len());
        let settings = Map::from_iter([("batch".to_owned(), self.batch.id().into())]);
        let header = Header {
            gptoss_jit_records: VERSION,
            started: self.batch.record().created_at,
            current_date: String::new(),
            seed: 0,
            settings,
        };
        let open = move || {
            let not_kept = |error| not_recorded(&path, error);
            let answers = Answers::open(&path, header.clone(), n, false).map_err(not_kept)?;
            let (mut n_failed, mut bytes) = (0, 0);
            for i in (0..n).filter(|&i| answers.digest(i).is_some()) {
                let Some(record) = answers.read(i).map_err(not_kept)? else { continue };
                n_failed += usize::from(record.outcome.is_error);
                bytes += record.outcome.len_bytes();
            }
            Ok((answers, n_failed, bytes))
        };
        let (answers, n_failed, bytes) = self.insist(open).await?;
        self.batch.found(bytes);
        {
            let mut record = self.batch.lock();
            (record.completed, record.failed) = (answers.n_done() - n_failed, n_failed);
        }
        if answers.n_done() > 0 {
            tracing::info!(id = self.batch.id(), n = answers.n_done(), "a batch continues after its finished answers");
        }
        Ok(answers)
    }

    /// Answers what has no answer, until that is to end.
    async fn answer(&self, lines: &Arc<Lines>, answers: &mut Answers) -> Result<BatchEnd, Ended> {
        let places = self.server.batches.places(&self.server);
        let asking = Arc::new(Asking::new(&self.server, &self.batch));
        let expires_at = self.batch.record().expires_at;
        let mut open =
            (0..lines.len()).filter(|&i| answers.digest(i).is_none()).collect::<Vec<_>>().into_iter().peekable();
        let mut under_way: JoinSet<Result<(usize, KeptAnswer), Ended>> = JoinSet::new();
        loop {
            if self.batch.record().status == Status::Cancelling {
                return Ok(BatchEnd::Cancelled);
            }
            if crate::now() >= expires_at {
                return Ok(BatchEnd::Expired);
            }
            if self.batch.record().n_starts > MAX_STARTS {
                return Ok(BatchEnd::GivenUp);
            }
            if open.peek().is_none() && under_way.is_empty() {
                return Ok(BatchEnd::Answered);
            }
            let left = Duration::from_secs(expires_at.saturating_sub(crate::now()));
            let unsynced = answers.sync_due();
            tokio::select! {
                place = Arc::clone(&places).acquire_owned(), if open.peek().is_some() => {
                    let (Some(i), Ok(place)) = (open.next(), place) else { return Err(Ended) };
                    let (asking, lines) = (asking.clone(), lines.clone());
                    under_way.spawn(async move {
                        let answered = asking.answer(&lines, i).await;
                        drop(place);
                        answered.map(|answer| (i, answer))
                    });
                }
                Some(done) = under_way.join_next() => {
                    let mut done = vec![done.map_err(|_| Ended)??];
                    while let Some(more) = under_way.try_join_next() {
                        done.push(more.map_err(|_| Ended)??);
                    }
                    self.keep(answers, done).await?;
                }
                () = sleep(unsynced.unwrap_or_default()), if unsynced.is_some() => self.keep(answers, Vec::new()).await?,
                () = self.batch.woken() => {}
                () = sleep(left) => {}
            }
        }
    }

    /// Keeps answers, and waits for that as long as it takes.
    async fn keep(&self, answers: &mut Answers, done: Vec<(usize, KeptAnswer)>) -> Result<(), Ended> {
        let n_failed = done.iter().filter(|(_, answer)| answer.is_error).count();
        let n_completed = done.len() - n_failed;
        let path = self.store.records_path(self.batch.id());
        let bytes = done.iter().map(|(_, answer)| answer.len_bytes()).sum();
        let (batch, of_records) = (self.batch.clone(), path.clone());
        self.insist(move || batch.take_room(bytes).map_err(|full| NotKept::new(&of_records, full.into()))).await?;
        let header = answers.header().clone();
        let mut held = Some(std::mem::replace(answers, Answers::in_memory(header, 0)));
        let mut left = done;
        let keep = move || {
            let records = held.as_mut().expect("they are given back once");
            let not_kept = |error| not_recorded(&path, error);
            while let Some((i, answer)) = left.pop() {
                let again = KeptAnswer { is_error: answer.is_error, line: answer.line.clone() };
                if let Err(error) = records.append(i, 0, answer) {
                    left.push((i, again));
                    return Err(not_kept(error));
                }
            }
            records.sync_if_due().map_err(not_kept)?;
            Ok(held.take().expect("it was there"))
        };
        *answers = self.insist(keep).await?;
        let metrics = &self.server.metrics.batch_requests;
        metrics.get_or_create(&[("outcome", "completed")]).inc_by(n_completed as u64);
        metrics.get_or_create(&[("outcome", "failed")]).inc_by(n_failed as u64);
        let goes_on = {
            let mut record = self.batch.lock();
            (record.completed, record.failed) = (record.completed + n_completed, record.failed + n_failed);
            record.n_starts > 1
        };
        if goes_on {
            self.change(|record| record.n_starts = 1).await?;
        }
        Ok(())
    }

    /// Writes the files of a batch, and that it is over.
    async fn finish(&self, lines: &Arc<Lines>, answers: Answers, end: BatchEnd) -> Result<(), Ended> {
        let (output, errors) = (self.store.new_id("file-"), self.store.new_id("file-"));
        self.change(move |record| {
            if record.end.is_none() {
                (record.end, record.finalizing_at) = (Some(end), Some(crate::now()));
                (record.output_file_id, record.error_file_id) = (Some(output.clone()), Some(errors.clone()));
                record.status = if end == BatchEnd::Cancelled { Status::Cancelling } else { Status::Finalizing };
            }
        })
        .await?;
        let (store, batch, lines) = (self.store.clone(), self.batch.clone(), lines.clone());
        let answers = Arc::new(answers);
        let written = answers.clone();
        let [output, errors] = self.insist(move || write_files(&store, &batch, &lines, &written, end)).await?;
        self.batch.has_files();
        if end == BatchEnd::GivenUp {
            let mut record = self.batch.lock();
            record.failed = record.total - record.completed; // it is `completed`, so all are counted
        }
        self.change(move |record| {
            record.output_file_id = record.output_file_id.take().filter(|_| output);
            record.error_file_id = record.error_file_id.take().filter(|_| errors);
            record.finish(end.status(), crate::now());
        })
        .await?;
        let record = self.batch.record();
        tracing::info!(
            id = record.id,
            status = record.status.name(),
            total = record.total,
            completed = record.completed,
            failed = record.failed,
            "a batch is over"
        );
        if let Some(answers) = Arc::into_inner(answers)
            && let Err(error) = answers.remove()
        {
            tracing::warn!("{}", hint::chain(&error)); // they are in their files, and only take room
        }
        Ok(())
    }
}

pub(super) fn not_recorded(path: &Path, error: RecordsError) -> NotKept {
    match error {
        RecordsError::Io { source, .. } => NotKept::new(path, source),
        other => NotKept::new(path, io::Error::other(other)),
    }
}

/// What the requests of a batch are asked of.
struct Asking {
    server: Arc<Server>,
    endpoints: TowerToHyperService<Router>,
    endpoint: String,
    caller: Caller,
}

/// What becomes of a request.
enum Asked {
    Answered(KeptAnswer),
    /// The device had no memory for it: that may be the request's own.
    OutOfMemory(KeptAnswer),
    /// There is no room, or no model yet.
    NotNow,
}

impl Asking {
    fn new(server: &Arc<Server>, batch: &Batch) -> Self {
        let all = Router::new().merge(chat::router()).merge(completions::router()).merge(responses::router());
        let endpoints = TowerToHyperService::new(Router::new().nest("/v1", all).with_state(server.clone()));
        let record = batch.record();
        Self { server: server.clone(), endpoints, endpoint: record.endpoint.clone(), caller: Caller(record.caller) }
    }

    /// The answer to a request.
    ///
    /// # Errors
    /// There will be none, since the program ends.
    async fn answer(&self, lines: &Arc<Lines>, i: usize) -> Result<KeptAnswer, Ended> {
        let (mut pause, mut n_tries) = (Duration::from_secs(1), 0);
        loop {
            let of_lines = lines.clone();
            match spawn_blocking(move || of_lines.get(i)).await.map_err(|_| Ended)? {
                Ok(line) => match self.ask(line).await? {
                    Asked::Answered(answer) => return Ok(answer),
                    Asked::OutOfMemory(answer) => {
                        n_tries += 1;
                        if n_tries == MAX_TRIES {
                            return Ok(answer);
                        }
                    }
                    Asked::NotNow => {}
                },
                Err(error) => tracing::warn!("could not read a request of a batch: {error}"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn ask(&self, line: Line) -> Result<Asked, Ended> {
        let Line { custom_id, body } = line;
        let request_id = self.server.ids.next("req_");
        let mut request = Request::post(&self.endpoint)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(String::from(Box::<str>::from(body))))
            .map_err(|_| Ended)?;
        request.extensions_mut().insert(self.caller);
        let answered = async {
            let Ok(response) = self.endpoints.call(request).await;
            response
        };
        let response: Response = in_background(request_id.clone(), &self.endpoint, self.caller, answered).await;
        let code = response.extensions().get::<Arc<ApiError>>().and_then(|error| error.code);
        let status = response.status();
        match code {
            Some("shutting_down") => return Err(Ended),
            Some("engine_failed") if matches!(self.server.backend.health(), Health::Failed(_)) => return Err(Ended),
            _ => {}
        }
        let bytes = to_bytes(response.into_body(), usize::MAX).await.map_err(|_| Ended)?;
        let body = String::from_utf8(bytes.into()).ok().and_then(|text| RawValue::from_string(text).ok());
        let answer = AnswerLine {
            id: self.server.ids.next("batch_req_"),
            custom_id: &custom_id,
            response: AnswerResponse { status_code: status.as_u16(), request_id: &request_id, body },
            error: None,
        };
        let line = serde_json::to_string(&answer).map_err(|_| Ended)?;
        tracing::debug!(id = request_id, status = status.as_u16(), code, custom_id, "request of a batch");
        let answer = KeptAnswer { is_error: !status.is_success(), line };
        Ok(match code {
            Some("overloaded" | "loading" | "load_failed") => Asked::NotNow,
            Some("out_of_memory") => Asked::OutOfMemory(answer),
            _ => Asked::Answered(answer),
        })
    }
}

/// A line of a file of answers.
#[derive(Serialize)]
struct AnswerLine<'a> {
    id: String,
    custom_id: &'a str,
    response: AnswerResponse<'a>,
    error: Option<()>,
}

#[derive(Serialize)]
struct AnswerResponse<'a> {
    status_code: u16,
    request_id: &'a str,
    body: Option<Box<RawValue>>,
}
