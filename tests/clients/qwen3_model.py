"""A small random model of Qwen 3's family that speaks its format: thoughts in <think>, calls in <tool_call>.

    python qwen3_model.py FOLDER

Writes safetensors, a tokenizer.json (the byte-level BPE of tests/fixtures/tokenizers) and a chat template. It needs Python alone.
"""

import json
import pathlib
import random
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]  # tokens, but no special ones
TEMPLATE = """\
{%- macro begin(role) %}{{- '<|im_start|>' + role + '\\n' }}{% endmacro %}
{%- if tools %}
    {{- begin('system') }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
    {{- 'Functions, between <tools> and </tools>:\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
    {{- '\\n</tools>\\nA call is {"name": ..., "arguments": ...} between <tool_call> and </tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- begin('system') + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- begin('user') + '<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- begin('assistant') + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role != 'system' %}
        {{- begin(message.role) + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- begin('assistant') }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""
HIDDEN, HEADS, KV_HEADS, HEAD, WIDE, LAYERS = 64, 4, 2, 16, 96, 2


def tokenizer():
    cases = json.loads((ROOT / "tests/fixtures/tokenizers/cases.json").read_text())
    model = cases["model"]
    # Every byte has a token here.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    spelled = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    for text in spelled:
        model["vocab"].setdefault(text, len(model["vocab"]))
    added = cases["added_tokens"]
    assert [token["content"] for token in added] == NAMES
    first = len(model["vocab"])
    added += [added[0] | {"id": first + i, "content": name, "special": False} for i, name in enumerate(MARKS)]
    pre_tokenizer = cases["ways"]["qwen2"]["pre_tokenizer"]
    file = {"version": "1.0", "added_tokens": added, "normalizer": {"type": "NFC"}, "pre_tokenizer": pre_tokenizer, "model": model}
    return file, first + len(MARKS)


def tensors(vocab_size):
    yield "model.embed_tokens.weight", (vocab_size, HIDDEN)
    yield "lm_head.weight", (vocab_size, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for layer in range(LAYERS):
        parts = {
            "input_layernorm": (HIDDEN,),
            "post_attention_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
            "self_attn.q_norm": (HEAD,),
            "self_attn.k_norm": (HEAD,),
            "mlp.gate_proj": (WIDE, HIDDEN),
            "mlp.up_proj": (WIDE, HIDDEN),
            "mlp.down_proj": (HIDDEN, WIDE),
        }
        for name, shape in parts.items():
            yield f"model.layers.{layer}.{name}.weight", shape


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)
    file, vocab_size = tokenizer()
    random.seed(3)
    header, data = {}, bytearray()
    for name, shape in tensors(vocab_size):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        draw = (lambda: 1 + random.gauss(0, 0.1)) if len(shape) == 1 else (lambda: random.gauss(0, 0.2))
        # bf16 is the upper half of an f32.
        values = b"".join(struct.pack("<f", draw())[2:] for _ in range(count))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    written = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(written)) + written + data)
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "intermediate_size": WIDE,
        "vocab_size": vocab_size, "max_position_embeddings": 8192, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "eos_token_id": 2, "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    (folder / "tokenizer.json").write_text(json.dumps(file))
    words = {"bos_token": None, "eos_token": "<|im_end|>", "add_bos_token": False, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
