"""10,000 prompts of the tiny model on two workers of Ray, one of which is killed when both have answered some: the rows
have to come in the order of the prompts, each once, with the ids of one run of the program that knows nothing of Ray.

    python tests/several-hosts/ray_data.py GPTOSS-JIT
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import ray

import gptoss_jit.ray

N_PROMPTS = 10_000
N_TOKENS = 8
# At f32 a prompt's tokens do not depend on what is computed beside it.
LOADING = {"device": "cpu", "slots": 32, "context": 128, "precision": "f32"}


class Marked(gptoss_jit.ray.Answerer):
    """A worker that leaves a mark for each batch, under its process's id, in a folder that its environment names."""

    def __call__(self, rows):
        answered = super().__call__(rows)
        with open(Path(os.environ["MARKS"]) / str(os.getpid()), "a") as marks:
            marks.write(f"{len(rows['index'])}\n")
        return answered


def batches(mark: Path) -> int:
    return len(mark.read_text().splitlines())


def kill_one(marks: Path, killed: list[int]) -> None:
    """Waits until two workers have answered three batches each, and kills one of them."""
    while not killed:
        busy = [mark for mark in marks.iterdir() if batches(mark) >= 3]
        if len(busy) == 2:
            os.kill(int(busy[0].name), signal.SIGKILL)
            killed.append(int(busy[0].name))
        time.sleep(0.02)


def one_run(program: str, prompts: list[str], folder: Path) -> list[list[int]]:
    lines = folder / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    words = ["-m", "getp", "--device", "cpu", "-T", "0", "--precision", "f32", "--max-new-tokens", str(N_TOKENS), "--quiet"]
    command = [program, "run", *words, "-i", str(lines), "-o", str(folder / "answers.ids"), "--out-format", "ids"]
    subprocess.run(command, check=True)
    return [[int(word) for word in line.split()] for line in (folder / "answers.ids").read_text().splitlines()]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        marks = folder / "marks"
        marks.mkdir()
        prompts = [f"Once upon a time there were {i} birds" for i in range(N_PROMPTS)]
        expected = one_run(sys.argv[1], prompts, folder)

        os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"MARKS": str(marks)}})
        rows = ray.data.from_items([{"index": i, "prompt": prompt} for i, prompt in enumerate(prompts)], override_num_blocks=20)
        killed: list[int] = []
        killer = threading.Thread(target=kill_one, args=(marks, killed), daemon=True)
        killer.start()
        begin = time.monotonic()
        answered = gptoss_jit.ray.answer(
            rows, workers=2, batch_size=100, num_cpus=1, load_options=LOADING, worker=Marked, max_new_tokens=N_TOKENS
        ).take_all()
        seconds = time.monotonic() - begin
        ray.shutdown()

        assert len(killed) == 1, "no worker was killed: the work was over before"
        workers = {int(mark.name): batches(mark) for mark in marks.iterdir()}
        assert len(workers) == 3, f"expected the two first workers and one in place of {killed[0]}, found {workers}"
        assert [row["index"] for row in answered] == list(range(N_PROMPTS)), "order, loss or repetition"
        assert [row["prompt"] for row in answered] == prompts
        wrong = [i for i, row in enumerate(answered) if list(row["ids"]) != expected[i]]
        assert not wrong, f"{len(wrong)} rows differ from one run, the first: {answered[wrong[0]]}, {expected[wrong[0]]}"
        print(f"ok: {N_PROMPTS} prompts in {seconds:.0f} s; worker {killed[0]} was killed; batches by worker: {workers}")


if __name__ == "__main__":
    main()
