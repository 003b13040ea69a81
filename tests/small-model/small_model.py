#!/usr/bin/env python3
"""A Llama of some millions of parameters, trained on the texts of this machine, as the second model of docs/eval.md's gate.

    small_model.py tokens --text FOLDER... --out DIR    texts -> tokenizer.json, train.npy, held-out.txt   (tokenizers, numpy)
    small_model.py train DIR                            -> config.json, model.safetensors in bf16           (torch, numpy)
    small_model.py gguf DIR                             -> model.F32.gguf, for llama-quantize               (gguf, numpy)

Every hundredth text is held out. The digest of a text decides, so that one that is there twice counts once, and no
text that is held out is trained on.
"""

import argparse
import hashlib
import html
import json
import math
import os
import random
import re
import struct
import time

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP, THETA, EPS = 4096, 256, 8, 4, 2, 64, 768, 10000.0, 1e-5
CONTEXT = 512
KINDS = (".txt", ".md", ".rst", ".html", ".py", ".rs", ".c", ".h", ".cpp", ".hpp", ".toml", ".json")
OF_A_FILE = 60_000      # characters at most, so that no long file rules the text
HELD_OUT = 120_000      # characters


def texts(folders, most):
    """Yields each text once, in an order that depends on nothing but the seed."""
    paths = [os.path.join(at, name) for folder in folders for at, _, names in os.walk(folder) for name in names]
    paths = sorted(path for path in paths if path.endswith(KINDS) and not os.path.islink(path))
    random.Random(1).shuffle(paths)
    seen, taken, of_kind = set(), 0, {}
    for path in paths:
        kind = os.path.splitext(path)[1]
        if of_kind.get(kind, 0) > most / 5:
            continue
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read(4 * OF_A_FILE)
        except (UnicodeDecodeError, OSError):
            continue
        if kind == ".html":
            text = re.sub(r"(?s)<(script|style|head|nav).*?</\1>|<[^>]*>", "", text)
            text = re.sub(r"\s*\n\s*", "\n", html.unescape(text))
        text = text[:OF_A_FILE]
        digest = hashlib.sha256(text.encode()).digest()
        if len(text) < 500 or digest in seen:
            continue
        seen.add(digest)
        of_kind[kind] = of_kind.get(kind, 0) + len(text)
        taken += len(text)
        yield digest[0] * 256 + digest[1], text
        if taken > most:
            break
    print("characters of each kind:", {kind: f"{count / 1e6:.1f} M" for kind, count in sorted(of_kind.items())})


def tokens(args):
    import numpy as np
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    trained, held_out = [], []
    for digest, text in texts(args.text, args.characters):
        (held_out if digest % 100 == 0 else trained).append(text)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(trained[:: max(1, len(trained) // 2000)], trainer)
    os.makedirs(args.out, exist_ok=True)
    tokenizer.save(os.path.join(args.out, "tokenizer.json"))
    ids = np.concatenate([np.array(item.ids + [0], dtype=np.uint16) for item in tokenizer.encode_batch(trained)])
    np.save(os.path.join(args.out, "train.npy"), ids)
    random.Random(2).shuffle(held_out)
    with open(os.path.join(args.out, "held-out.txt"), "w", encoding="utf-8") as file:
        file.write("\n".join(text[:3_000] for text in held_out)[:HELD_OUT])
    print(f"{len(trained)} texts, {len(ids)} tokens; {len(held_out)} texts are held out")


def names():
    """The tensors: name in Hugging Face's files and shape."""
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (HIDDEN,)
        yield at + "self_attn.q_proj.weight", (HEADS * HEAD_DIM, HIDDEN)
        yield at + "self_attn.k_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield at + "self_attn.v_proj.weight", (KV_HEADS * HEAD_DIM, HIDDEN)
        yield at + "self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD_DIM)
        yield at + "post_attention_layernorm.weight", (HIDDEN,)
        yield at + "mlp.gate_proj.weight", (MLP, HIDDEN)
        yield at + "mlp.up_proj.weight", (MLP, HIDDEN)
        yield at + "mlp.down_proj.weight", (HIDDEN, MLP)


def train(args):
    import numpy as np
    import torch
    from torch.nn import functional as F

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    ids = torch.from_numpy(np.load(os.path.join(args.dir, "train.npy")).astype(np.int64)).to(device)
    of_layers = (2 * LAYERS) ** -0.5
    weights = {}
    for name, shape in names():
        if len(shape) == 1:
            weight = torch.ones(shape)
        else:
            weight = torch.randn(shape) * (0.02 if "embed" in name else shape[1] ** -0.5 * 0.7)
            weight = weight * of_layers if "o_proj" in name or "down_proj" in name else weight
        weights[name] = weight.to(device).requires_grad_()

    half = HEAD_DIM // 2
    angles = torch.outer(torch.arange(CONTEXT), THETA ** (-torch.arange(half) * 2.0 / HEAD_DIM)).to(device)
    cos, sin = angles.cos(), angles.sin()

    def norm(x, name):
        return F.rms_norm(x, (HIDDEN,), weights[name].to(x.dtype), EPS)

    def turned(x):
        left, right = x[..., :half], x[..., half:]
        c, s = cos.to(x.dtype), sin.to(x.dtype)
        return torch.cat([left * c - right * s, right * c + left * s], -1)

    def loss_of(batch):
        embedding = weights["model.embed_tokens.weight"]
        x = F.embedding(batch[:, :-1], embedding)
        for layer in range(LAYERS):
            at = f"model.layers.{layer}."
            linear = lambda x, name: F.linear(x, weights[at + name + "_proj.weight"])
            heads = lambda x: x.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
            a = norm(x, at + "input_layernorm.weight")
            q, k, v = (heads(linear(a, "self_attn." + name)) for name in "qkv")
            k, v = (y.repeat_interleave(HEADS // KV_HEADS, 1) for y in (turned(k), v))
            mixed = F.scaled_dot_product_attention(turned(q), k, v, is_causal=True)
            x = x + linear(mixed.transpose(1, 2).flatten(2), "self_attn.o")
            a = norm(x, at + "post_attention_layernorm.weight")
            x = x + linear(F.silu(linear(a, "mlp.gate")) * linear(a, "mlp.up"), "mlp.down")
        logits = F.linear(norm(x, "model.norm.weight"), embedding)
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())

    step = torch.compile(loss_of) if args.compile else loss_of
    optimizer = torch.optim.AdamW(
        [
            {"params": [w for w in weights.values() if w.dim() == 2], "weight_decay": 0.1},
            {"params": [w for w in weights.values() if w.dim() == 1], "weight_decay": 0.0},
        ],
        lr=1e-3, betas=(0.9, 0.95),
    )
    draws = torch.Generator().manual_seed(3)
    start, steps, warm = time.monotonic(), 0, 100
    while True:
        # The rate falls with the larger of the two, so that a run that is short of time ends well too.
        done = max((time.monotonic() - start) / args.seconds, steps / args.steps)
        if done >= 1:
            break
        rate = 2e-3 * min(1, (steps + 1) / warm) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        at = torch.randint(len(ids) - CONTEXT - 1, (args.batch,), generator=draws).to(device)
        batch = ids[at[:, None] + torch.arange(CONTEXT + 1, device=device)]
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = step(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        if steps % 250 == 0:
            print(f"step {steps}: {loss.item():.4f} nats, {time.monotonic() - start:.0f} s", flush=True)
        steps += 1
    print(f"{steps} steps of {args.batch * CONTEXT} tokens, {loss.item():.4f} nats at last")
    write({name: weight.detach().to(torch.bfloat16).view(torch.int16).cpu().numpy() for name, weight in weights.items()}, args.dir)


def write(weights, folder):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": MLP, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "max_position_embeddings": CONTEXT, "rope_theta": THETA,
        "rms_norm_eps": EPS, "tie_word_embeddings": True, "hidden_act": "silu", "eos_token_id": 0, "torch_dtype": "bfloat16",
    }
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    header, at = {}, 0
    for name, weight in weights.items():
        header[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [at, at + weight.nbytes]}
        at += weight.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for weight in weights.values():
            file.write(weight.tobytes())


def gguf(args):
    import gguf
    import numpy as np

    with open(os.path.join(args.dir, "model.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()

    def tensor(name):
        start, end = header[name]["data_offsets"]
        bits = np.frombuffer(data[start:end], dtype=np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(header[name]["shape"])

    with open(os.path.join(args.dir, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)["model"]
    vocab = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    writer = gguf.GGUFWriter(os.path.join(args.dir, "model.F32.gguf"), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocab)
    writer.add_token_types([3] + [1] * (VOCAB - 1))
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["merges"]])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    short = {
        "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "embed_tokens": "token_embd", "norm": "output_norm",
    }
    for name, _ in names():
        weight, parts = tensor(name), name.removeprefix("model.").removesuffix(".weight").split(".")
        layer = f"blk.{parts[1]}." if parts[0] == "layers" else ""
        part = ".".join(parts[2:] if layer else parts)
        if part in ("self_attn.q_proj", "self_attn.k_proj"):   # llama's GGUF turns neighbours, Hugging Face's files halves
            weight = weight.reshape(-1, 2, HEAD_DIM // 2, HIDDEN).swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{layer}{short[part]}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
commands = parser.add_subparsers(required=True)
one = commands.add_parser("tokens")
one.add_argument("--text", nargs="+", required=True)
one.add_argument("--out", required=True)
one.add_argument("--characters", type=float, default=60e6)
one.set_defaults(do=tokens)
one = commands.add_parser("train")
one.add_argument("dir")
one.add_argument("--seconds", type=float, default=120, help="training ends by then")
one.add_argument("--steps", type=int, default=6000)
one.add_argument("--batch", type=int, default=64)
one.add_argument("--compile", action="store_true")
one.set_defaults(do=train)
one = commands.add_parser("gguf")
one.add_argument("dir")
one.set_defaults(do=gguf)
args = parser.parse_args()
args.do(args)
