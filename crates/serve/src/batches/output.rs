//! The two files of a finished batch: its answers and its errors.

use std::io::{self, BufWriter, Write};

use serde_json::json;

use super::batch::{Batch, BatchEnd};
use super::drive::{Answers, KeptAnswer, not_recorded};
use super::files::BATCH_OUTPUT;
use super::lines::{Line, Lines};
use super::store::{NotKept, Store, StoredFile};
use system::new_file::NewFile;

/// Writes the answers and the errors in the order of the requests; returns whether there are answers, and errors.
pub(super) fn write_files(
    store: &Store,
    batch: &Batch,
    lines: &Lines,
    answers: &Answers,
    end: BatchEnd,
) -> Result<[bool; 2], NotKept> {
    let record = batch.record();
    let expires_at = |created_at: u64| record.output_expires_after.map(|seconds| created_at.saturating_add(seconds));
    let ids = [&record.output_file_id, &record.error_file_id].map(|id| id.clone().unwrap_or_default());
    let paths = ids.clone().map(|id| store.data_path(&id));
    let not_kept = |error: io::Error| NotKept::new(&paths[0], error);
    let open = |path: &std::path::PathBuf| NewFile::create(path).map_err(|error| NotKept::new(path, error));
    let mut files = [open(&paths[0])?, open(&paths[1])?];
    let mut bytes = [0_u64; 2];
    {
        let [output, errors] = &mut files;
        let mut writers = [output, errors].map(|file| BufWriter::new(file.file()));
        for i in 0..lines.len() {
            let kept = answers.read(i).map_err(|error| not_recorded(&paths[0], error))?;
            let KeptAnswer { is_error, line } = match kept {
                Some(record) => record.outcome,
                None => unanswered(store, &lines.get(i).map_err(not_kept)?, end),
            };
            let which = usize::from(is_error);
            writers[which]
                .write_all(line.as_bytes())
                .and_then(|()| writers[which].write_all(b"\n"))
                .map_err(not_kept)?;
            bytes[which] += line.len() as u64 + 1;
        }
        writers.iter_mut().try_for_each(Write::flush).map_err(not_kept)?;
    }
    let words = ["output", "error"];
    for (which, file) in files.into_iter().enumerate().filter(|(which, _)| bytes[*which] > 0) {
        file.publish().map_err(|error| NotKept::new(&paths[which], error))?;
        let created_at = crate::now();
        store.add_answers(StoredFile {
            id: ids[which].clone(),
            caller: record.caller,
            order: store.next_order(),
            bytes: bytes[which],
            created_at,
            expires_at: expires_at(created_at),
            filename: format!("{}_{}.jsonl", record.id, words[which]),
            purpose: BATCH_OUTPUT.to_owned(),
        })?;
    }
    Ok(bytes.map(|bytes| bytes > 0))
}

/// The line of a request that has no answer.
fn unanswered(store: &Store, line: &Line, end: BatchEnd) -> KeptAnswer {
    let (code, message) = end.of_unanswered();
    let line = json!({
        "id": store.new_id("batch_req_"),
        "custom_id": line.custom_id,
        "response": null,
        "error": {"code": code, "message": message},
    });
    KeptAnswer { is_error: true, line: line.to_string() }
}
