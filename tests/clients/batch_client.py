"""The openai package for Python runs a batch: python batch_client.py URL REQUESTS OUTPUT ERRORS, of files of lines.

Prints the batch as it was in the end. A server that goes away in between is waited for.
"""

import pathlib
import sys
import time

import openai


def main(url, requests, output, errors):
    client = openai.OpenAI(base_url=url + "/v1", api_key="sk-test", max_retries=10)
    with open(requests, "rb") as lines:
        file = client.files.create(file=lines, purpose="batch")
    assert client.files.retrieve(file.id).bytes == pathlib.Path(requests).stat().st_size
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"by": "python"},
    )
    print(batch.id, flush=True)
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.2)
        try:
            batch = client.batches.retrieve(batch.id)
        except openai.APIConnectionError:
            pass
    assert batch.id in [one.id for one in client.batches.list(limit=1)]
    for id, path in (batch.output_file_id, output), (batch.error_file_id, errors):
        pathlib.Path(path).write_bytes(client.files.content(id).read() if id else b"")
    assert client.files.delete(file.id).deleted
    assert file.id not in [one.id for one in client.files.list()]
    print(batch.model_dump_json(), flush=True)


main(*sys.argv[1:])
