"""EleutherAI's lm-evaluation-harness against a server of a fixture, whose tokenizer `transformers` reads.

    python evaluation_harness.py LM_EVAL FOLDER

LM_EVAL is the harness' program, FOLDER is for files. Two tasks of local files, one of choices and one of a whole text, give
log-probabilities; what they should be follows from `gptoss-jit logits`, which computes a prompt without a server. A third
has texts generated, which `gptoss-jit run` gives without a server, and a fourth the same of chats, by a script of answers.
"""

import json
import pathlib
import subprocess
import sys

import numpy as np
from server import ROOT, Server, binary
from transformers import AutoTokenizer

MODEL = ROOT / "tests/fixtures/checkpoints/hf-bf16"
QUESTIONS = [
    {"question": "The sun rises in the", "choices": [" east", " west", " morning and sets"], "gold": 0},
    {"question": "1 + 1 =", "choices": [" 2", " 3"], "gold": 0},
    {"question": "Wo ist der", "choices": [" Bär?", " \U0001f43b?", "\n"], "gold": 0},
]
TEXT = "Once upon a time there was a bear who liked to count: one, two, three. It never came to four."
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{ data_files: {{ test: {file} }} }}
test_split: test
output_type: {kind}
doc_to_text: "{text}"
target_delimiter: ""
"""
GENERATED = """
task: {name}
dataset_path: json
dataset_kwargs: {{ data_files: {{ test: {file} }} }}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[0]}}}}"
generation_kwargs: {{ until: {until}, max_gen_toks: {n}, do_sample: false }}
metric_list: [{{ metric: exact_match }}]
"""
N_GENERATED = 12
SCRIPT = "<|channel|>analysis<|message|>Hm. STOP<|end|><|start|>assistant<|channel|>final<|message|> east. STOP it.<|return|>"


def write(folder):
    (folder / "tokenizer.json").write_text((MODEL / "tokenizer.json").read_text())
    ends = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(ends))
    files = {"choices": QUESTIONS, "text": [{"text": TEXT}]}
    for name, lines in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    choices = TASK.format(
        name="choices", file=folder / "choices.jsonl", kind="multiple_choice", text="{{question}}"
    )
    (folder / "choices.yaml").write_text(choices + 'doc_to_choice: "{{choices}}"\ndoc_to_target: gold\n')
    text = TASK.format(name="text", file=folder / "text.jsonl", kind="loglikelihood_rolling", text="")
    (folder / "text.yaml").write_text(
        text + 'doc_to_target: "{{text}}"\nmetric_list: [{ metric: bits_per_byte }]\n'
    )
    for name, until, n in [("generated", '["\\n\\n\\n"]', N_GENERATED), ("chats", '["STOP"]', 64)]:
        (folder / f"{name}.yaml").write_text(GENERATED.format(name=name, file=folder / "choices.jsonl", until=until, n=n))
    (folder / "script.jsonl").write_text(json.dumps({"text": SCRIPT}) + "\n")


def answers(folder, lm_eval, url, kind, task):
    """What a task of generated texts got, by its questions."""
    about = f"model=it,base_url={url},tokenizer={folder},tokenizer_backend=huggingface,num_concurrent=3,max_length=256"
    command = [lm_eval, "--model", kind, "--model_args", about, "--tasks", task, "--include_path", str(folder)]
    command += ["--log_samples", "--output_path", str(folder / task)]
    subprocess.run([*command, *(["--apply_chat_template"] if "chat" in kind else [])], check=True)
    samples = [line for path in folder.glob(f"{task}/*/samples_*.jsonl") for line in path.read_text().splitlines()]
    return {sample["doc"]["question"]: sample["resps"][0][0] for sample in map(json.loads, samples)}


def generated(folder, question):
    command = [binary(), "run", str(MODEL), "-i", question, "--max-new-tokens", str(N_GENERATED), "--temperature", "0"]
    ran = subprocess.run([*command, "--device", "cpu", "--precision", "f32", "--json"], check=True, capture_output=True, text=True)
    return json.loads(ran.stdout)["text"].removeprefix(question)


def logits(folder, lines):
    """(T, V) of each line of ids."""
    (folder / "ids.txt").write_text("".join(" ".join(map(str, line)) + "\n" for line in lines))
    command = [binary(), "logits", str(MODEL), "--ids", str(folder / "ids.txt"), "-o", str(folder / "logits.npy")]
    subprocess.run([*command, "--device", "cpu", "--precision", "f32"], check=True, stdout=subprocess.DEVNULL)
    rows = np.load(folder / "logits.npy").astype(np.float64)
    return np.split(rows.reshape(-1, rows.shape[-1]), np.cumsum([len(line) for line in lines])[:-1])


def expected(folder, pairs):
    """The log-probability of each continuation behind its context, and whether greedily it would come."""
    for (context, continuation), rows in zip(pairs, logits(folder, [a + b for a, b in pairs])):
        rows = rows[len(context) - 1 : -1]
        top = rows.max(axis=1)
        log_sums = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
        own = rows[np.arange(len(continuation)), continuation]
        yield float((own - log_sums).sum()), bool((rows.argmax(axis=1) == continuation).all())


def main():
    lm_eval, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder)
    with Server(str(MODEL), "--device", "cpu", "--precision", "f32", "-b", "3", "--model-name", "it") as server:
        about = f"model=it,base_url={server.url}/v1/completions,tokenizer={folder},tokenizer_backend=huggingface"
        command = [lm_eval, "--model", "local-completions", "--model_args", f"{about},num_concurrent=3,max_length=256"]
        command += ["--tasks", "choices,text", "--include_path", str(folder), "--batch_size", "2"]
        subprocess.run([*command, "--log_samples", "--output_path", str(folder / "out")], check=True)
        texts = answers(folder, lm_eval, f"{server.url}/v1/completions", "local-completions", "generated")
    with Server("--replay", str(folder / "script.jsonl"), "--model-name", "it") as server:
        chats = answers(folder, lm_eval, f"{server.url}/v1/chat/completions", "local-chat-completions", "chats")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
    pairs, told = [], []
    for path in sorted(folder.glob("out/*/samples_*.jsonl")):
        for sample in map(json.loads, path.read_text().splitlines()):
            for asked, answer in zip(sample["arguments"].values(), sample["resps"]):
                if path.name.startswith("samples_text"):
                    pairs.append(([tokenizer.bos_token_id], encode(asked["arg_0"])))
                else:
                    context = encode(asked["arg_0"])
                    pairs.append((context, encode(asked["arg_0"] + asked["arg_1"])[len(context) :]))
                told.append(answer[0] if isinstance(answer[0], list) else [answer[0], None])
    wrong = 0
    for (logprob, is_greedy), got, pair in zip(expected(folder, pairs), told, pairs):
        is_right = abs(float(got[0]) - logprob) < 1e-3 and str(got[1]) in ("None", str(is_greedy))
        wrong += not is_right
        print(f"{'ok' if is_right else 'FAILED'}  {got[0]} for {logprob:.6f}, {len(pair[1])} tokens behind {len(pair[0])}")
    for what, got in [("generated", texts), ("chats", chats)]:
        for question in [question["question"] for question in QUESTIONS]:
            want = generated(folder, question) if what == "generated" else " east. "
            is_right = got.get(question) == want
            wrong += not is_right
            pairs.append(None)
            print(f"{'ok' if is_right else 'FAILED'}  {what}: {got.get(question)!r} for {want!r}")
    print(f"{len(pairs) - wrong} passed, {wrong} failed, 0 skipped")
    sys.exit(wrong > 0 or len(pairs) != 15)


if __name__ == "__main__":
    main()
