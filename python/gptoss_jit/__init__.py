"""gpt-oss and other models on GPUs and processors, with kernels that are data.

    import gptoss_jit

    model = gptoss_jit.load()                     # the tiny model; or "openai/gpt-oss-20b", or a path
    for text in model.generate("Once upon a time", max_new_tokens=40):
        print(text, end="", flush=True)
"""

from ._engine import GptossError, __version__
from ._model import Answer, ChatGeneration, Completion, Generation, Model, load
from ._program import find_program

__all__ = [
    "Answer",
    "ChatGeneration",
    "Completion",
    "Generation",
    "GptossError",
    "Model",
    "__version__",
    "find_program",
    "load",
]
