"""Many prompts on several processes, GPUs or machines, by Ray Data. Needs `ray[data]`.

    import ray
    from gptoss_jit.ray import answer

    prompts = ray.data.read_json("prompts.jsonl")                        # rows with a `prompt`
    answer(prompts, "openai/gpt-oss-20b", workers=8, num_gpus=1, max_new_tokens=200).write_json("answers")

Ray starts the workers, gives each its GPU, and starts one again that ends: the blocks of rows that it had not finished
are computed again, those that it had are kept.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Mapping

import numpy

from ._model import Completion, Model, load

if TYPE_CHECKING:
    from ray.data import Dataset

Columns = dict[str, numpy.ndarray]


class Answerer:
    """A worker: a model that stays loaded, and answers the prompts of one batch of rows after the other. It is a class
    for `Dataset.map_batches`, and itself needs no Ray.

    - `column`: where the prompts are: texts, lists of ids, or lists of messages (`{"role": …, "content": …}`)
    - `load_options`: those of `gptoss_jit.load`
    - `options`: those of `Model.generate`, or of `Model.chat` for messages

    Each row gets the columns `text`, `ids` and `finish_reason`, and keeps its own.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        column: str = "prompt",
        load_options: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.model: Model = load(model, **(load_options or {}))
        self.column = column
        self.options = dict(options or {})

    def __call__(self, rows: Columns) -> Columns:
        if self.column not in rows:
            raise KeyError(f"rows have no column `{self.column}`, only {', '.join(f'`{name}`' for name in rows)}")
        answers = self._answers([_plain(prompt) for prompt in rows[self.column]])
        return {
            **rows,
            "text": _column([one.text for one in answers]),
            "ids": _column([numpy.asarray(one.ids, dtype=numpy.int64) for one in answers]),
            "finish_reason": _column([one.finish_reason for one in answers]),
        }

    def _answers(self, prompts: list[Any]) -> list[Completion]:
        # Messages are submitted all at once: those beyond the slots wait in the engine.
        chats = {i: self.model.chat(p, **self.options) for i, p in enumerate(prompts) if _is_chat(p)}
        texts = iter(self.model.batch([p for p in prompts if not _is_chat(p)], **self.options))
        return [chats[i].wait() if i in chats else next(texts) for i in range(len(prompts))]


def answer(
    rows: Dataset,
    model: str | os.PathLike[str] | None = None,
    *,
    workers: int | tuple[int, int] = 1,
    batch_size: int = 256,
    column: str = "prompt",
    num_gpus: float = 0,
    num_cpus: float | None = None,
    load_options: Mapping[str, Any] | None = None,
    worker: type[Answerer] = Answerer,
    **options: Any,
) -> Dataset:
    """Answers the prompts of a data set, in its order: each row gets the columns `text`, `ids` and `finish_reason`.

    - `workers`: processes, each with the model; two numbers are the fewest and the most
    - `batch_size`: rows that a worker takes at a time; its slots run empty at the end of each, so take many times `slots`
    - `num_gpus`, `num_cpus`: what Ray keeps for a worker. Without a GPU a worker has as many threads as `num_cpus`
    - `column`, `load_options`, and `options`, those of `Model.generate` or `Model.chat`: as `Answerer` has them
    """
    from ray.data import ActorPoolStrategy

    loading = dict(load_options or {})
    if num_gpus == 0 and num_cpus is not None:
        loading.setdefault("threads", max(1, int(num_cpus)))
    fewest, most = (workers, workers) if isinstance(workers, int) else workers
    rows.context.execution_options.preserve_order = True
    return rows.map_batches(
        worker,
        fn_constructor_args=(model,),
        fn_constructor_kwargs={"column": column, "load_options": loading, "options": options},
        batch_format="numpy",
        batch_size=batch_size,
        compute=ActorPoolStrategy(min_size=fewest, max_size=most),
        num_gpus=num_gpus,
        num_cpus=num_cpus,
    )


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], Mapping)


def _plain(prompt: Any) -> Any:
    """A prompt as the module takes it: numpy's strings and arrays are those of Python."""
    return prompt.tolist() if isinstance(prompt, (numpy.ndarray, numpy.generic)) else prompt


def _column(values: list[Any]) -> numpy.ndarray:
    """One value a row, whatever their lengths: set one by one, since arrays of one length would become a matrix."""
    column = numpy.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column
