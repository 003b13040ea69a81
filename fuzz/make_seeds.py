#!/usr/bin/env python3
"""Writes what the fuzz targets start from, under `seeds/<target>/`: the smallest whole files of every kind.

    venv/bin/pip install numpy gguf
    venv/bin/python fuzz/make_seeds.py
"""

import json
import struct
from pathlib import Path

import gguf
import numpy as np

SEEDS = Path(__file__).parent / "seeds"
FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures"
V, H, E, I, D = 3, 32, 2, 32, 2  # vocabulary, width, experts, width of one, head; one layer, one head

OPENAI = {
    "num_hidden_layers": 1, "num_experts": E, "experts_per_token": 1, "vocab_size": V, "hidden_size": H,
    "intermediate_size": I, "swiglu_limit": 7.0, "head_dim": D, "num_attention_heads": 1, "num_key_value_heads": 1,
    "sliding_window": 4, "initial_context_length": 256, "rope_theta": 150000, "rope_scaling_factor": 32.0,
    "rope_ntk_alpha": 1, "rope_ntk_beta": 32,
}
HF = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "num_hidden_layers": 1, "num_local_experts": E,
    "num_experts_per_tok": 1, "vocab_size": V, "hidden_size": H, "intermediate_size": I, "head_dim": D,
    "num_attention_heads": 1, "num_key_value_heads": 1, "sliding_window": 4, "max_position_embeddings": 8192,
    "swiglu_limit": 7.0, "rms_norm_eps": 1e-5, "rope_theta": 150000, "tie_word_embeddings": False,
    "layer_types": ["sliding_attention"],
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 256, "truncate": False,
                     "beta_fast": 32.0, "beta_slow": 1.0},
}


def safetensors(shapes: dict[str, tuple[str, list[int]]]) -> bytes:
    header, at = {}, 0
    for name, (dtype, shape) in shapes.items():
        size = int(np.prod(shape)) * (1 if dtype == "U8" else 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(i % 251 for i in range(at))


def bf16(shapes: dict[str, list[int]]) -> dict[str, tuple[str, list[int]]]:
    return {name: ("BF16", shape) for name, shape in shapes.items()}


def hf(mxfp4: bool) -> bytes:
    layer = "model.layers.0"
    shapes = bf16({
        "model.embed_tokens.weight": [V, H], "lm_head.weight": [V, H], "model.norm.weight": [H],
        f"{layer}.input_layernorm.weight": [H], f"{layer}.post_attention_layernorm.weight": [H],
        f"{layer}.self_attn.sinks": [1], f"{layer}.self_attn.o_proj.weight": [H, D], f"{layer}.self_attn.o_proj.bias": [H],
        f"{layer}.mlp.router.weight": [E, H], f"{layer}.mlp.router.bias": [E],
        f"{layer}.mlp.experts.gate_up_proj_bias": [E, 2 * I], f"{layer}.mlp.experts.down_proj_bias": [E, H],
    } | {f"{layer}.self_attn.{p}_proj.{kind}": [D, H] if kind == "weight" else [D] for p in "qkv" for kind in ("weight", "bias")})
    for name, rows, columns in (("gate_up_proj", 2 * I, H), ("down_proj", H, I)):
        name = f"{layer}.mlp.experts.{name}"
        if mxfp4:
            shapes |= {f"{name}_blocks": ("U8", [E, rows, columns // 32, 16]), f"{name}_scales": ("U8", [E, rows, columns // 32])}
        else:
            shapes[name] = ("BF16", [E, columns, rows])
    return safetensors(shapes)


def openai() -> bytes:
    shapes = bf16({
        "embedding.weight": [V, H], "unembedding.weight": [V, H], "norm.scale": [H], "block.0.attn.norm.scale": [H],
        "block.0.mlp.norm.scale": [H], "block.0.attn.qkv.weight": [3 * D, H], "block.0.attn.qkv.bias": [3 * D],
        "block.0.attn.out.weight": [H, D], "block.0.attn.out.bias": [H], "block.0.attn.sinks": [1],
        "block.0.mlp.gate.weight": [E, H], "block.0.mlp.gate.bias": [E], "block.0.mlp.mlp1_bias": [E, 2 * I],
        "block.0.mlp.mlp2_bias": [E, H],
    })
    for name, rows in (("mlp1", 2 * I), ("mlp2", H)):
        shapes[f"block.0.mlp.{name}_weight.blocks"] = ("U8", [E, rows, 1, 16])
        shapes[f"block.0.mlp.{name}_weight.scales"] = ("U8", [E, rows, 1])
    return safetensors(shapes)


def gguf_file(path: Path, matrices: gguf.GGMLQuantizationType) -> None:
    kinds = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(path, "gpt-oss")
    for add, value in ((writer.add_block_count, 1), (writer.add_context_length, 8192), (writer.add_embedding_length, H),
                       (writer.add_feed_forward_length, I), (writer.add_head_count, 1), (writer.add_head_count_kv, 1),
                       (writer.add_rope_scaling_factor, 32.0), (writer.add_rope_scaling_orig_ctx_len, 256),
                       (writer.add_rope_freq_base, 150000.0), (writer.add_layer_norm_rms_eps, 1e-5),
                       (writer.add_expert_count, E), (writer.add_expert_used_count, 1), (writer.add_key_length, D),
                       (writer.add_value_length, D), (writer.add_sliding_window, 4), (writer.add_expert_feed_forward_length, I),
                       (writer.add_rope_scaling_type, gguf.RopeScalingType.YARN), (writer.add_tokenizer_model, "gpt2"),
                       (writer.add_tokenizer_pre, "gpt-4o"), (writer.add_token_list, ["a", "b", "ab"]),
                       (writer.add_token_types, [1, 1, 1]), (writer.add_token_merges, ["a b"]), (writer.add_eos_token_id, 1)):
        add(value)

    def add(name: str, *shape: int, kind: gguf.GGMLQuantizationType = kinds.F32) -> None:
        values = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)

    for name in ("token_embd.weight", "output.weight"):
        add(name, V, H, kind=matrices)
    add("output_norm.weight", H)
    layer = "blk.0"
    for name in ("attn_norm", "post_attention_norm"):
        add(f"{layer}.{name}.weight", H)
    add(f"{layer}.attn_sinks.weight", 1)
    for name in ("attn_q", "attn_k", "attn_v"):
        add(f"{layer}.{name}.weight", D, H, kind=matrices)
        add(f"{layer}.{name}.bias", D)
    add(f"{layer}.attn_output.weight", H, D, kind=kinds.F32 if matrices == kinds.Q8_0 else matrices)
    add(f"{layer}.attn_output.bias", H)
    add(f"{layer}.ffn_gate_inp.weight", E, H)
    add(f"{layer}.ffn_gate_inp.bias", E)
    for name, rows, columns in (("ffn_gate_exps", I, H), ("ffn_up_exps", I, H), ("ffn_down_exps", H, I)):
        add(f"{layer}.{name}.weight", E, rows, columns, kind=kinds.MXFP4)
        add(f"{layer}.{name}.bias", E, rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bin_file(dtype_bytes: int) -> bytes:
    header = struct.pack("<11i2fif", V, 2, E, 1, 3, 1, D, 1, 1, 64, 256, 150000.0, 32.0, 4, 7.0)
    h, i, q = 2, 3, 3 * D
    n = 2 * V * h + 3 * h + q * h + q + D * h + h + 1 + E * h + E + E * (2 * i * h + 2 * i + h * i + h)
    return header + bytes(k % 251 for k in range(n * dtype_bytes)) + b"\0"


def tokenizer_bin() -> bytes:
    tokens = [(k, bytes([k + 97])) for k in range(4)] + [(4, b"ab"), (5, b"<0x00>"), (-1e30, b"<|end|>")]
    return struct.pack("<i", 7) + b"".join(struct.pack("<fi", score, len(text)) + text for score, text in tokens) + b"\x07"


def tokenizer_fixture() -> dict:
    """That of `tests/fixtures`, with all bytes and the first merges."""
    whole = json.loads((FIXTURES / "checkpoints" / "tokenizer" / "tokenizer.json").read_text())
    merges = whole["model"]["merges"][:4]
    pieces = [piece for piece in whole["model"]["vocab"] if len(piece) == 1] + ["".join(pair) for pair in merges]
    whole["model"] |= {"merges": merges, "vocab": {piece: index for index, piece in enumerate(pieces)}}
    whole["added_tokens"] = whole["added_tokens"][:2]
    for index, token in enumerate(whole["added_tokens"]):
        token["id"] = len(pieces) + index
    return whole


def tokenizer_json() -> bytes:
    return json.dumps(tokenizer_fixture(), ensure_ascii=False, separators=(",", ":")).encode() + b"\0"


def gguf_tokens(path: Path) -> None:
    """Tokens and no tensors."""
    whole = tokenizer_fixture()
    added = [token["content"] for token in whole["added_tokens"]]
    writer = gguf.GGUFWriter(path, "gpt-oss")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-4o")
    writer.add_token_list([*whole["model"]["vocab"], *added])
    writer.add_token_types([1] * len(whole["model"]["vocab"]) + [3] * len(added))
    writer.add_token_merges([" ".join(pair) for pair in whole["model"]["merges"]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write(name: str, contents: bytes) -> None:
    path = SEEDS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)


def main() -> None:
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": {"norm.scale": "a"}}).encode()
    openai_names = [name for name in json.loads(openai()[8:8 + struct.unpack("<Q", openai()[:8])[0]])]
    whole_index = json.dumps({"metadata": {}, "weight_map": dict.fromkeys(openai_names, "a")}, separators=(",", ":")).encode()

    def folder(config: dict, index: bytes, tensors: bytes) -> bytes:
        return json.dumps(config, separators=(",", ":")).encode() + b"\0" + index + b"\0" + tensors

    write("bin/f32", bin_file(4))
    write("bin/bf16", bin_file(2))
    write("safetensors/hf_bf16", folder(HF, b"", hf(mxfp4=False)))
    write("safetensors/hf_mxfp4", folder(HF, b"", hf(mxfp4=True)))
    write("safetensors/openai", folder(OPENAI, b"", openai()))
    write("safetensors/index", folder(OPENAI, whole_index, openai()))
    write("safetensors/short_index", folder(OPENAI, index, openai()))
    write("tokenizer_bin/small", tokenizer_bin())
    write("tokenizer_json/small", tokenizer_json())
    (SEEDS / "gguf").mkdir(exist_ok=True)
    for kind in ("BF16", "F16", "Q8_0"):
        gguf_file(SEEDS / "gguf" / kind.lower(), gguf.GGMLQuantizationType[kind])
    gguf_tokens(SEEDS / "gguf" / "tokens")


if __name__ == "__main__":
    main()
