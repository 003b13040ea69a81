"""Models, and what they generate."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Iterable, Iterator, Mapping, Sequence, Union

from ._engine import Engine
from ._program import find_program

if TYPE_CHECKING:
    import numpy

Prompt = Union[str, bytes, Sequence[int]]


@dataclass(frozen=True)
class Completion:
    """What became of a prompt."""

    text: str
    ids: list[int] = field(repr=False)
    """The tokens that were generated, the one that ended it included."""
    finish_reason: str
    """`stop`: the model ended it; `length`: it has as many tokens as it may have."""


@dataclass(frozen=True)
class Answer(Completion):
    """What a model answered in a chat."""

    reasoning: str
    """What it thought before."""

    def message(self) -> dict[str, str]:
        """The answer as a message, for the next turn."""
        return {"role": "assistant", "content": self.text}


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    slots: int = 8,
    context: int | None = None,
    precision: str | None = None,
    threads: int = 0,
) -> Model:
    """Loads a model, and compiles the kernels that neither the cache nor a bundle has.

    - `model`: a file or a folder, or an id that Hugging Face's cache has; without it the tiny model
    - `device`: `auto`, `cpu`, `hip:N`, `cuda:N`, `sim:ARCH`
    - `slots`: sequences at a time; more wait
    - `context`: tokens of a sequence, 4,096 unless the model takes fewer
    - `precision`: `bf16` or `f32`; by default that of the weights
    - `threads`: of the cpu; 0 is one for every core
    """
    named = None if model is None else os.fspath(model)
    return Model(Engine(find_program(), named, device, (slots, context), precision, threads))


class Model:
    """A model on a device. Threads may share it: what they ask for at the same time is computed together."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<gptoss_jit.Model on {self.device}, {self.slots} slots of {self.context} tokens>"

    @property
    def device(self) -> str:
        """What the device is called."""
        return self._engine.device

    @property
    def slots(self) -> int:
        """Sequences at a time."""
        return self._engine.slots

    @property
    def context(self) -> int:
        """The longest sequence, in tokens."""
        return self._engine.context

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows."""
        return self._engine.vocab_size

    @property
    def kernels(self) -> tuple[int, int]:
        """Kernels that were found compiled, and those that were compiled when the model was loaded."""
        return self._engine.kernels

    def encode(self, text: str | bytes) -> list[int]:
        """The ids of a prompt."""
        return self._engine.encode(text.encode() if isinstance(text, str) else text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self._engine.decode(list(ids)).decode(errors="replace")

    def generate(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 256,
        stop: Sequence[int] | None = None,
        temperature: float = 0.0,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        seed: int | None = None,
    ) -> Generation:
        """Continues a prompt. What is returned gives the text piece by piece.

        - `stop`: ids that end it; by default the model's own, `[]` is none
        - `temperature`: 0 takes the most probable token
        - `seed`: of what is drawn; by default the time
        """
        wishes = _wishes(temperature, top_p, top_k, min_p, seed)
        ids = self.encode(prompt) if isinstance(prompt, (str, bytes)) else list(prompt)
        ends = self._engine.ends if stop is None else list(stop)
        return Generation(self._engine, self._engine.submit(ids, max_new_tokens, ends, wishes))

    def batch(self, prompts: Iterable[Prompt], **options: object) -> list[Completion]:
        """Continues many prompts, `slots` at a time, and returns what became of them in their order. `options` are those
        of `generate`. Prompts are taken from the iterable as slots get free."""
        waiting, running, done = iter(prompts), deque(), []
        try:
            for prompt in waiting:
                running.append(self.generate(prompt, **options))  # type: ignore[arg-type]
                # A few more than there are slots: none is idle while the next prompt is read.
                while len(running) >= 2 * self.slots:
                    done.append(running.popleft().wait())
            while running:
                done.append(running.popleft().wait())
        finally:
            for generation in running:
                generation.close()
        return done

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        reasoning: str | None = None,
        max_new_tokens: int = 1024,
        temperature: float = 0.0,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        seed: int | None = None,
    ) -> ChatGeneration:
        """Answers messages of the form `{"role": "user", "content": "Hello"}`. What is returned gives the answer piece by
        piece.

        - `reasoning`: `low`, `medium`, `high`, for models that think
        """
        wishes = _wishes(temperature, top_p, top_k, min_p, seed)
        said = _messages(messages)
        return ChatGeneration(self._engine, self._engine.submit_chat(said, reasoning, max_new_tokens, wishes))

    def chat_ids(self, messages: Sequence[Mapping[str, str]], *, reasoning: str | None = None) -> list[int]:
        """The ids of the prompt that `chat` makes of messages."""
        return self._engine.chat_ids(_messages(messages), reasoning)

    def logits(self, prompt: Prompt) -> numpy.ndarray:
        """The logits after each token of a text: float32, (tokens, vocab_size)."""
        import numpy

        ids = self.encode(prompt) if isinstance(prompt, (str, bytes)) else list(prompt)
        return numpy.frombuffer(self._engine.logits(ids), dtype=numpy.float32).reshape(len(ids), self.vocab_size)


class Generation(Iterator[str]):
    """A text that is being generated: an iterator of its pieces. One that is no longer wanted is closed, or let go."""

    def __init__(self, engine: Engine, request: int) -> None:
        self._engine, self._request = engine, request
        self._told: deque[tuple[int | None, str, str, str | None]] = deque()
        self._pieces: list[str] = []
        self.ids: list[int] = []
        """The tokens so far."""
        self.finish_reason: str | None = None
        """Why it ended, if it did."""

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._pieces)

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> str:
        while self.finish_reason is None:
            if not self._told:
                self._told.extend(self._engine.take(self._request))
            piece = self._hear(*self._told.popleft())
            if piece:
                return piece
        raise StopIteration

    def _hear(self, token: int | None, text: str, purpose: str, finish_reason: str | None) -> str:
        """Takes in what became known, and returns the next piece of the text."""
        if token is not None:
            self.ids.append(token)
        self.finish_reason = finish_reason
        self._pieces.append(text)
        return text

    def wait(self) -> Completion:
        """Generates the rest."""
        for _ in self:
            pass
        return self._completion()

    def _completion(self) -> Completion:
        assert self.finish_reason is not None
        return Completion(self.text, self.ids, self.finish_reason)

    def close(self) -> None:
        """Ends it, and gives its slot to another."""
        if self.finish_reason is None:
            self.finish_reason = "cancelled"
            self._engine.cancel(self._request)

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "finish_reason"):
            self.close()


class ChatGeneration(Generation):
    """An answer that is being generated: an iterator of its pieces, without what the model thinks."""

    def __init__(self, engine: Engine, request: int) -> None:
        super().__init__(engine, request)
        self._thoughts: list[str] = []

    @property
    def reasoning(self) -> str:
        """What the model thought so far."""
        return "".join(self._thoughts)

    def _hear(self, token: int | None, text: str, purpose: str, finish_reason: str | None) -> str:
        if purpose == "answer":
            return super()._hear(token, text, purpose, finish_reason)
        self._thoughts.append(text)
        super()._hear(token, "", purpose, finish_reason)
        return ""

    def wait(self) -> Answer:
        """Generates the rest."""
        for _ in self:
            pass
        return self._completion()

    def _completion(self) -> Answer:
        assert self.finish_reason is not None
        return Answer(self.text, self.ids, self.finish_reason, self.reasoning)


def _wishes(
    temperature: float, top_p: float | None, top_k: int | None, min_p: float | None, seed: int | None
) -> dict[str, float | int | None]:
    seed = time.time_ns() & 0x7FFF_FFFF_FFFF_FFFF if seed is None else seed
    return {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed}


def _messages(messages: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]
