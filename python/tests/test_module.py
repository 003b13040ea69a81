"""The module, against what another program says of the tiny model (examples/tiny/expected.json). It needs the wheel and
numpy installed:

    python -m unittest discover python/tests
"""

import gc
import json
import os
import re
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

import numpy

import gptoss_jit

TINY = Path(__file__).parents[2] / "examples" / "tiny"
EXPECTED = json.loads((TINY / "expected.json").read_text())
# Continuations whose best token leads by so much that every right program takes it.
CLEAR = [one for one in EXPECTED["continuations"] if one["smallest_gap"] > 1e-3]


class Tiny(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = gptoss_jit.load(device="cpu", slots=3, context=1024, precision="f32")

    def test_the_module_is_as_old_as_its_program(self):
        said = subprocess.run([gptoss_jit.find_program(), "--version"], capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout.split(), ["gptoss-jit", gptoss_jit.__version__])

    def test_texts_become_ids_and_ids_texts(self):
        for one in EXPECTED["encodings"]:
            self.assertEqual(self.model.encode(one["text"]), one["ids"])
            self.assertEqual(self.model.decode(one["ids"]), one["text"])

    def test_a_prompt_is_continued_token_by_token(self):
        self.assertGreater(len(CLEAR), 5)
        for one in CLEAR:
            n = len(one["ids"])
            generation = self.model.generate(one["prompt_ids"], max_new_tokens=n, stop=[])
            pieces = list(generation)
            self.assertEqual(generation.ids, one["ids"])
            self.assertEqual(generation.finish_reason, "length")
            self.assertEqual("".join(pieces), generation.text)
            self.assertEqual(generation.text, self.model.decode(one["ids"]))

    def test_a_batch_has_more_prompts_than_slots_and_keeps_their_order(self):
        n = min(len(one["ids"]) for one in CLEAR)
        prompts = [one["prompt_ids"] for one in CLEAR] * 2
        self.assertGreater(len(prompts), 2 * self.model.slots)
        done = self.model.batch(iter(prompts), max_new_tokens=n, stop=[])
        self.assertEqual([one.ids for one in done], [one["ids"][:n] for one in CLEAR] * 2)

    def test_the_best_logit_is_the_token_that_is_generated(self):
        one = CLEAR[0]
        ids = one["prompt_ids"] + one["ids"]
        logits = self.model.logits(ids)
        self.assertEqual((logits.dtype, logits.shape), (numpy.float32, (len(ids), self.model.vocab_size)))
        first = len(one["prompt_ids"]) - 1
        self.assertEqual(logits.argmax(axis=1)[first:-1].tolist(), one["ids"])
        row = logits[first:-1]
        gap = numpy.diff(numpy.sort(row, axis=1)[:, -2:], axis=1).min()
        self.assertAlmostEqual(float(gap), one["smallest_gap"], delta=1e-3)

    def test_threads_share_the_steps_and_get_their_own(self):
        got = {}

        def work(i):
            one = CLEAR[i]
            n = len(one["ids"])
            got[i] = self.model.generate(one["prompt_ids"], max_new_tokens=n, stop=[]).wait().ids

        threads = [threading.Thread(target=work, args=[i]) for i in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(got, {i: CLEAR[i]["ids"] for i in range(5)})

    def test_the_lock_is_released_while_a_model_computes(self):
        done, counted = threading.Event(), []

        def count():
            n = 0
            while not done.is_set():
                n += 1
                done.wait(0.001)
            counted.append(n)

        thread = threading.Thread(target=count)
        thread.start()
        # One call into the engine, of hundreds of rows: who counts comes to it meanwhile, or never.
        before = self.model.encode("Once upon a time, there was a little girl named Lily. " * 60)[:1000]
        self.model.logits(before)
        done.set()
        thread.join()
        self.assertGreater(counted[0], 5)

    def test_a_chat_is_answered_and_what_is_thought_is_no_answer(self):
        n_tried = 0
        for one in CLEAR:
            asked = re.fullmatch(r"<\|start\|>user<\|message\|>([^<]*)<\|end\|><\|start\|>assistant", one["prompt"])
            told = re.fullmatch(r"<\|channel\|>final<\|message\|>([^<]*)<\|return\|>", one["text"])
            if not asked or not told:
                continue
            n_tried += 1
            messages = [{"role": "user", "content": asked[1]}]
            self.assertEqual(self.model.chat_ids(messages), one["prompt_ids"])
            generation = self.model.chat(messages)
            pieces = list(generation)
            self.assertEqual("".join(pieces), told[1])
            self.assertGreater(len(pieces), 2)
            answer = generation.wait()
            self.assertEqual((answer.text, answer.reasoning, answer.finish_reason), (told[1], "", "stop"))
            self.assertEqual(answer.ids, one["ids"])
            more = self.model.chat_ids([*messages, answer.message(), {"role": "user", "content": "And then?"}])
            self.assertEqual(more[: len(one["prompt_ids"])], one["prompt_ids"])
        self.assertGreaterEqual(n_tried, 2)

    def test_what_is_let_go_leaves_its_slot(self):
        for _ in range(2 * self.model.slots):
            next(self.model.generate("Once upon a time", max_new_tokens=900, stop=[]))
        gc.collect()
        with self.model.generate("Once upon a time", max_new_tokens=900, stop=[]) as generation:
            next(generation)
        self.assertEqual(generation.finish_reason, "cancelled")
        # Logits are refused while a request runs.
        self.assertEqual(self.model.logits("Once").shape[1], self.model.vocab_size)

    def test_draws_depend_on_the_seed_alone(self):
        def drawn(seed):
            return self.model.generate("Tom", max_new_tokens=40, temperature=1.0, top_p=1.0, seed=seed, stop=[]).wait().ids

        self.assertEqual(drawn(7), drawn(7))
        self.assertNotEqual(drawn(7), drawn(8))

    def test_what_is_wrong_is_an_exception_with_a_hint(self):
        wrong = [
            (lambda: gptoss_jit.load("nobody/has-this"), "nobody/has-this"),
            (lambda: gptoss_jit.load(device="gpu"), "gpu"),
            (lambda: gptoss_jit.load(device="cpu", precision="f16"), "precision"),
            (lambda: gptoss_jit.load(device="cpu", slots=0), "slots"),
            (lambda: self.model.generate([]), "prompt"),
            (lambda: self.model.generate([1 << 20]), "1048576"),
            (lambda: self.model.generate("x", temperature=3.0), "temperature"),
            (lambda: self.model.chat([{"role": "robot", "content": "x"}]), "robot"),
            (lambda: self.model.chat([{"role": "user", "content": "x"}], reasoning="much"), "much"),
            (lambda: self.model.logits([1] * 5000), "5000"),
        ]
        for call, word in wrong:
            with self.assertRaises(gptoss_jit.GptossError) as raised:
                call()
            self.assertIn(word, str(raised.exception))
        with self.assertRaises(gptoss_jit.GptossError) as raised:
            gptoss_jit.load("nobody/has-this")
        self.assertIn("hf download", raised.exception.hint)

    def test_the_tour_shows_what_it_says(self):
        tour = TINY.parent / "python" / "tour.py"
        said = subprocess.run([sys.executable, tour], capture_output=True, text=True)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("\n, there was a little girl named Lily.", said.stdout)
        self.assertIn("\nNib is a mouse. He loves his gold button.\n", said.stdout)
        self.assertEqual(sum(" |" in line for line in said.stdout.splitlines()), 5)
        # It is what the model was trained on.
        perplexity = float(re.search(r"perplexity ([0-9.]+) over", said.stdout)[1])
        self.assertTrue(1 < perplexity < 4, perplexity)

    def test_a_program_of_another_version_is_refused(self):
        with mock.patch.dict(os.environ, GPTOSS_JIT_PROGRAM="/bin/echo"):
            with self.assertRaisesRegex(RuntimeError, "expected gptoss-jit"):
                gptoss_jit.find_program()


if __name__ == "__main__":
    unittest.main()
