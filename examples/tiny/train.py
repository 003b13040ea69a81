"""Trains the tiny gpt-oss model of this folder, from nothing, on a CPU.

    python train.py            # writes tokenizer.bin, model.bin and expected.json beside this file

The text comes from `grammar.txt`, the tokenizer and the model are trained on it here, and both are written in the
formats that gptoss-jit reads. The architecture is exactly that of gpt-oss, only smaller: attention sinks, a sliding
window in every other layer, YaRN rotary embeddings, and a mixture of experts with the clamped SwiGLU.

The grammar and the tokenizer are in language.py. Here: the model, its file, the training, what it says afterwards.
"""

import argparse
import json
import math
import platform
import re
import struct
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from language import SPECIAL, SPECIALS, Grammar, Tokenizer, message
from torch import nn

HERE = Path(__file__).parent


@dataclass
class Config:
    """The header of model.bin: 15 little-endian words in this order, `float` ones as f32 and the others as i32."""

    vocab_size: int = 768
    hidden_size: int = 128
    num_experts: int = 8
    experts_per_token: int = 2
    intermediate_size: int = 96
    num_hidden_layers: int = 4
    head_dim: int = 32
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_seq_len: int = 1024
    initial_context_length: int = 4096
    rope_theta: float = 150000.0
    rope_scaling_factor: float = 32.0
    sliding_window: int = 32
    swiglu_limit: float = 7.0

    HEADER = "<11i2fif"


# ---- the model ------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    """gpt-oss. Parameters are declared in the order and the shapes of model.bin: matrices (out, in), layers stacked."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        V, H, L, E, I = c.vocab_size, c.hidden_size, c.num_hidden_layers, c.num_experts, c.intermediate_size
        q_size = c.head_dim * c.num_attention_heads
        qkv_size = q_size + 2 * c.head_dim * c.num_key_value_heads

        def weight(*shape, std=0.02):
            return nn.Parameter(torch.randn(shape) * std)

        deep = 0.02 / math.sqrt(2 * L)  # for the matrices that write to the residual stream
        self.embedding = weight(V, H)
        self.unembedding = weight(V, H)
        self.attention_norm = nn.Parameter(torch.ones(L, H))
        self.mlp_norm = nn.Parameter(torch.ones(L, H))
        self.final_norm = nn.Parameter(torch.ones(H))
        self.qkv = weight(L, qkv_size, H)  # rows: all queries, all keys, all values
        self.qkv_bias = nn.Parameter(torch.zeros(L, qkv_size))
        self.out = weight(L, H, q_size, std=deep)
        self.out_bias = nn.Parameter(torch.zeros(L, H))
        self.sinks = nn.Parameter(torch.zeros(L, c.num_attention_heads))
        self.gate = weight(L, E, H)  # the router
        self.gate_bias = nn.Parameter(torch.zeros(L, E))
        self.mlp1 = weight(L, E, 2 * I, H)  # row 2j is gate j, row 2j + 1 is up j
        self.mlp1_bias = nn.Parameter(torch.zeros(L, E, 2 * I))
        self.mlp2 = weight(L, E, H, I, std=deep)
        self.mlp2_bias = nn.Parameter(torch.zeros(L, E, H))

    def forward(self, ids):
        """ids (B, T) -> logits (B, T, vocab_size), and the load-balancing loss of the routers."""
        c = self.config
        per_layer = [self.attention_norm, self.mlp_norm, self.qkv, self.qkv_bias, self.out, self.out_bias, self.sinks,
                     self.gate, self.gate_bias, self.mlp1, self.mlp1_bias, self.mlp2, self.mlp2_bias]
        cos, sin = rotary(c, ids.shape[1])
        x = F.embedding(ids, self.embedding)
        balance = 0.0
        for l, weights in enumerate(zip(*(stack.unbind(0) for stack in per_layer))):
            attention_norm, mlp_norm, qkv, qkv_bias, out, out_bias, sinks, *experts = weights
            t = F.linear(rms_norm(x, attention_norm), qkv, qkv_bias)
            x = x + F.linear(attention(c, t, cos, sin, sinks, c.sliding_window if l % 2 == 0 else 0), out, out_bias)
            y, layer_balance = mixture(c, rms_norm(x, mlp_norm).flatten(0, 1), *experts)
            x = x + y.view_as(x)
            balance = balance + layer_balance
        return F.linear(rms_norm(x, self.final_norm), self.unembedding), balance


def rms_norm(x, scale):
    return F.rms_norm(x, scale.shape, scale, eps=1e-5)


def rotary(c, n_positions):
    """cos and sin (n_positions, head_dim / 2) of YaRN (arXiv 2309.00071): slow frequencies are divided by the factor,
    fast ones are kept, and both tables carry the concentration."""
    half = c.head_dim // 2
    frequency = c.rope_theta ** (torch.arange(half, dtype=torch.float64) / half)
    wavelengths = [c.initial_context_length / (rotations * 2 * math.pi) for rotations in (32, 1)]
    low, high = (half * math.log(wavelength) / math.log(c.rope_theta) for wavelength in wavelengths)
    assert 0 < low < high < half - 1
    ramp = ((torch.arange(half) - low) / (high - low)).clamp(0, 1)
    inverse = ramp / (c.rope_scaling_factor * frequency) + (1 - ramp) / frequency
    concentration = 0.1 * math.log(c.rope_scaling_factor) + 1
    angles = torch.arange(n_positions)[:, None] * inverse.float()
    return angles.cos() * concentration, angles.sin() * concentration


def attention(c, qkv, cos, sin, sinks, window):
    """Causal attention of a layer: qkv (B, T, q | k | v) -> (B, T, num_attention_heads * head_dim)."""
    B, T, _ = qkv.shape
    NH, NKV, D = c.num_attention_heads, c.num_key_value_heads, c.head_dim
    q, k, v = qkv.view(B, T, NH + 2 * NKV, D).transpose(1, 2).split([NH, NKV, NKV], dim=1)

    def rotate(x):  # pairs are (d, d + D / 2)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1)

    q = rotate(q).reshape(B, NKV, NH // NKV, T, D)
    k, v = rotate(k)[:, :, None], v[:, :, None]
    age = torch.arange(T)[:, None] - torch.arange(T)  # of the key, seen from the query
    hidden = (age < 0) | (age >= window) if window else age < 0
    scores = (q @ k.transpose(-1, -2) / math.sqrt(D)).masked_fill(hidden, -torch.inf)
    # The sink is one more column of the softmax, with nothing to add to the sum.
    sink = sinks.view(NKV, NH // NKV, 1, 1).expand(B, -1, -1, T, 1)
    probabilities = torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]
    return (probabilities @ v).view(B, NH, T, D).transpose(1, 2).reshape(B, T, NH * D)


def mixture(c, x, gate, gate_bias, mlp1, mlp1_bias, mlp2, mlp2_bias):
    """The mixture of experts of a layer: x (n_tokens, H) -> (n_tokens, H), and its load-balancing loss."""
    router = F.linear(x, gate, gate_bias)
    values, chosen = router.topk(c.experts_per_token)
    shares = values.softmax(dim=-1)  # over the chosen ones only
    y = torch.zeros_like(x)
    for e, (w1, b1, w2, b2) in enumerate(zip(mlp1.unbind(0), mlp1_bias.unbind(0), mlp2.unbind(0), mlp2_bias.unbind(0))):
        t, slot = (chosen == e).nonzero(as_tuple=True)
        h = F.linear(x.index_select(0, t), w1, b1)
        g = h[:, 0::2].clamp(max=c.swiglu_limit)
        u = h[:, 1::2].clamp(-c.swiglu_limit, c.swiglu_limit)
        a = g * torch.sigmoid(1.702 * g) * (u + 1)
        y.index_add_(0, t, F.linear(a, w2, b2) * shares[t, slot, None])
    load = F.one_hot(chosen, c.num_experts).float().mean(dim=(0, 1))
    return y, c.num_experts * (load * router.softmax(dim=-1).mean(dim=0)).sum()


# ---- the file -------------------------------------------------------------------------------------------------------


def save_model(model, path):
    """Header and parameters, rounded to the nearest bf16."""
    with path.open("wb") as file:
        file.write(struct.pack(Config.HEADER, *astuple(model.config)))
        for parameter in model.parameters():
            file.write(parameter.detach().bfloat16().view(torch.int16).numpy().astype("<i2").tobytes())


def load_model(path):
    """The model of a file, in f32."""
    content = path.read_bytes()
    model = Model(Config(*struct.unpack_from(Config.HEADER, content)))
    offset = struct.calcsize(Config.HEADER)
    assert len(content) == offset + 2 * sum(p.numel() for p in model.parameters())
    for parameter in model.parameters():
        values = torch.frombuffer(bytearray(content[offset : offset + 2 * parameter.numel()]), dtype=torch.bfloat16)
        parameter.data = values.float().view_as(parameter)
        offset += 2 * parameter.numel()
    return model


# ---- the training ---------------------------------------------------------------------------------------------------


def rows(documents, length):
    """Endless rows of length + 1 tokens. Each begins with a document and is filled up with the next ones."""
    row = []
    for ids in documents:
        row += ids
        if len(row) > length:
            yield row[: length + 1]
            row = []


def documents(tokenizer, seed):
    """Endless stories and chats, half and half."""
    grammar = Grammar(HERE / "grammar.txt", seed)
    while True:
        yield tokenizer.encode_document(grammar.story())
        yield tokenizer.encode_document(grammar.chat())


def batches(tokenizer, seed, n_tokens, length):
    stream = rows(documents(tokenizer, seed), length)
    while True:
        yield torch.tensor([next(stream) for _ in range(n_tokens // length)])


def loss_of(model, batch):
    logits, balance = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()), balance


@torch.no_grad()
def validation_loss(model, tokenizer):
    """Nats a token on 64k tokens that were not trained on."""
    held_out = batches(tokenizer, seed=2, n_tokens=4096, length=512)
    return sum(loss_of(model, next(held_out))[0].item() for _ in range(16)) / 16


def train(model, tokenizer, steps):
    """AdamW, 4096 tokens a step: rows of 256 tokens, later of 512 and at last of 1024 for the far positions."""
    lengths = {0: 256, int(0.85 * steps): 512, int(0.97 * steps): 1024}
    matrices = [p for p in model.parameters() if p.dim() > 2 or p.shape[0] == model.config.vocab_size]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    start = time.time()
    for step in range(steps):
        if step in lengths:
            stream = batches(tokenizer, 100 + step, 4096, lengths[step])
        for group in optimizer.param_groups:  # linear warm-up, then cosine down to zero
            group["lr"] = 5e-3 * min((step + 1) / 100, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        loss, balance = loss_of(model, next(stream))
        (loss + 0.01 * balance).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 99 or step == steps - 1:
            print(f"step {step + 1:5}  loss {loss:.4f}  balance {balance / model.config.num_hidden_layers:.3f}"
                  f"  {time.time() - start:6.0f} s", flush=True)


# ---- what it says ---------------------------------------------------------------------------------------------------

ENCODED = ["Once upon a time", "Hello, Zoë!\n\n  2024 + 12345 = 7", "<|start|>user<|message|>Hi<|end|>",
           "日本 \t\r\n ...\"", ""]
PLAIN = ["Once upon a time", "One morning", "In a small village, there lived a", "Far away, there was a clever fox",
         "It was a dark night.", "Ella the elephant lived in a cozy valley. She", "Zoe was a brave girl", "Long ago"]
CHATS = [(None, "What is your name?"), ("You are Rosie, a helpful assistant.", "What is your name?"),
         ("You are a helpful assistant.", "What is 3 + 4?"), (None, "What color is the sky?"),
         (None, "Who is Nib?"), (None, "Tell me a story about a rabbit.")]


@torch.no_grad()
def greedy(model, ids, stops, limit=400):
    """Continues ids with the likeliest token up to a stop token, and finds the smallest lead of a winner."""
    new, leads = [], []
    while len(new) < limit and not stops.intersection(new[-1:]):
        logits = model(torch.tensor([ids + new]))[0][0, -1]
        first, second = logits.topk(2).values.tolist()
        new.append(logits.argmax().item())
        leads.append(first - second)
    return new, min(leads)


def expectations(model, tokenizer):
    """Encodings and greedy continuations, for tests and for readers."""
    prompts = [("plain", text) for text in PLAIN]
    for system, user in CHATS:
        prefix = message("system", system) if system else ""
        prompts.append(("harmony", prefix + message("user", user) + "<|start|>assistant"))
    stops = {tokenizer.special_ids["<|endoftext|>"], tokenizer.special_ids["<|return|>"]}
    continuations = []
    for kind, prompt in prompts:
        prompt_ids = tokenizer.encode_exact(prompt) if kind == "plain" else tokenizer.encode_document(prompt)
        ids, gap = greedy(model, prompt_ids, stops)
        text = tokenizer.decode(ids)
        print(f"\n{kind}, smallest gap {gap:.3f}: {prompt!r}\n{text}")
        continuations.append({"kind": kind, "prompt": prompt, "text": text, "smallest_gap": round(gap, 4),
                              "prompt_ids": prompt_ids, "ids": ids})
    return {
        "about": "Written by train.py from model.bin and tokenizer.bin: f32 arithmetic on the bf16 weights. "
                 "`smallest_gap` is the least difference between the best and the second logit along a greedy "
                 "continuation. In harmony prompts the special tokens are ids; in plain prompts and in `encodings` "
                 "their names are ordinary text.",
        "validation_loss": round(validation_loss(model, tokenizer), 4),
        "encodings": [{"text": text, "ids": tokenizer.encode_exact(text)} for text in ENCODED],
        "continuations": continuations,
    }


def check_encoder(tokenizer, texts):
    """The fast encoder against the letter of the rule."""
    for text in texts:
        assert tokenizer.encode(text) == tokenizer.encode_exact(text), text
        assert tokenizer.decode(tokenizer.encode(text)) == text
    print(f"encoder: {len(texts)} texts agree with the exact rule")


def main():
    parser = argparse.ArgumentParser(description="Trains the tiny model: tokenizer.bin, model.bin, expected.json.")
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps of 4096 tokens (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    parser.add_argument("--keep-model", action="store_true", help="only write expected.json, from the files there are")
    args = parser.parse_args()
    print(f"python {platform.python_version()}, torch {torch.__version__}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    tokenizer_path, model_path = HERE / "tokenizer.bin", HERE / "model.bin"

    if not args.keep_model:
        grammar = Grammar(HERE / "grammar.txt", seed=1)
        sample = [document for _ in range(3000) for document in (grammar.story(), grammar.chat())]
        texts = [text for document in sample for text in SPECIAL.split(document)[0::2] if text]
        config = Config()
        tokenizer = Tokenizer.train("\n".join(texts), config.vocab_size - len(SPECIALS))
        tokenizer.save(tokenizer_path)
        check_encoder(tokenizer, texts[:200])
        model = Model(config)
        print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters")
        train(model, tokenizer, args.steps)
        print(f"validation loss {validation_loss(model, tokenizer):.4f} in f32")
        save_model(model, model_path)

    tokenizer, model = Tokenizer.load(tokenizer_path), load_model(model_path)
    for path in (tokenizer_path, model_path):
        print(f"{path.name}: {path.stat().st_size:,} bytes")
    check_encoder(tokenizer, [text for text in ENCODED if text])
    expected = expectations(model, tokenizer)
    print(f"\nvalidation loss {expected['validation_loss']:.4f} from the bf16 file")
    text = json.dumps(expected, indent=2, ensure_ascii=False)
    text = re.sub(r"\[[\s\d,]*\]", lambda match: " ".join(match[0].split()), text)  # lists of ids on one line
    (HERE / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
