"""What the module does, on the tiny model that comes with it. The cells are a notebook's.

    pip install target/packaging/dist/gptoss_jit-*.whl numpy
    python examples/python/tour.py
"""

# %% Load: the tiny model; or "openai/gpt-oss-20b", or the path of any checkpoint.
import gptoss_jit

model = gptoss_jit.load(slots=4)
print(model)

# %% A text, piece by piece.
for text in model.generate("Once upon a time", max_new_tokens=20):
    print(text, end="", flush=True)
print()

# %% Many prompts, four at a time, in their order.
prompts = ["Tom had a ball.", "Lily was sad.", "The dog", "One day, a bird", "Long ago"]
for prompt, done in zip(prompts, model.batch(prompts, max_new_tokens=12)):
    print(f"{prompt} |{done.text!r}, {done.finish_reason}")

# %% A chat of two turns.
messages = [{"role": "user", "content": "Who is Nib?"}]
answer = model.chat(messages).wait()
print(answer.text)
messages += [answer.message(), {"role": "user", "content": "What color is the sky?"}]
print(model.chat(messages).wait().text)

# %% Logits as an array: how probable each token of a text is behind those before it.
import numpy

ids = model.encode("Once upon a time, there was a little girl named Lily.")
logits = model.logits(ids).astype(numpy.float64)
logprobs = logits - numpy.logaddexp.reduce(logits, axis=1, keepdims=True)
of_text = logprobs[numpy.arange(len(ids) - 1), ids[1:]]
print(f"perplexity {numpy.exp(-of_text.mean()):.2f} over {len(of_text)} tokens")
