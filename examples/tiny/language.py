"""The language of the tiny model: the grammar that its training text is drawn from, and the tokenizer.

The rules themselves are in `grammar.txt`. See train.py for what is done with both.
"""

import math
import random
import re
import struct
from functools import lru_cache

# ---- the grammar ----------------------------------------------------------------------------------------------------

PRONOUNS = {"he": ("he", "him", "his"), "she": ("she", "her", "her")}


class Grammar:
    """Draws documents from grammar.txt, whose head explains the notation."""

    def __init__(self, path, seed):
        self.random = random.Random(seed)
        self.rules, self.marks = {}, {}
        for block in re.split(r"\n\s*\n", re.sub(r"^#.*\n", "", path.read_text(), flags=re.M)):
            head, *lines = block.strip().split("\n")
            name, _, mark = head.removeprefix("@").partition(" ")
            if name in ("plot", "table"):
                name, mark = head[1:], "even"
            self.rules[name], self.marks[name] = lines, mark
        self.plots = [name for name in self.rules if name.startswith("plot ")]
        self.heroes = [line.split(maxsplit=4) for line in self.rules["heroes"]]

    def pick(self, options, shift=0, flatness=1):
        """One of `options`, the i-th from `shift` on with weight 1 / (i + flatness)."""
        order = [options[(i + shift) % len(options)] for i in range(len(options))]
        return self.random.choices(order, [1 / (i + flatness) for i in range(len(order))])[0]

    def begin(self, me="Pip"):
        """Starts a document: chooses the hero, the friend, and what the hero does."""
        self.hero = self.pick(range(len(self.heroes)), flatness=8)
        friend = self.pick([i for i in range(len(self.heroes)) if i != self.hero], self.hero)
        self.slots = self.describe(self.hero) | {"f" + slot: text for slot, text in self.describe(friend).items()}
        a, b = self.random.randrange(10), self.random.randrange(10)
        date = f"20{self.random.randrange(24, 30)}-{self.random.randrange(1, 13):02}-{self.random.randrange(1, 29):02}"
        self.slots |= {"me": me, "a": str(a), "b": str(b), "c": str(a + b), "date": date}

    def describe(self, hero):
        name, kind, pronoun, color, thing = self.heroes[hero]
        he, him, his = PRONOUNS[pronoun]
        return {"name": name, "kind": kind, "he": he, "him": him, "his": his, "color": color, "thing": thing}

    def fill(self, rule):
        """Expands one rule, or returns the slot of that name."""
        if rule in self.slots:
            return self.slots[rule]
        table, _, column = rule.partition(".")
        if column:
            key, value = self.random.choice(self.rules[f"table {table}"]).split(": ")
            self.slots |= {f"{table}.key": key, f"{table}.value": value}
            return self.slots[rule]
        options, mark = self.rules[rule], self.marks[rule]
        shift = self.hero if mark == "by hero" else 0
        text = self.expand(self.random.choice(options) if mark == "even" else self.pick(options, shift))
        if mark == "once":
            self.slots[rule] = text
        return text

    def expand(self, line):
        """Fills the slots and makes the choices of a line."""
        line = re.sub(r"\[([^\]]*)\]", lambda m: self.pick(m[1].split("|")), line)

        def slot(match):
            text = self.fill(match[1].lower())
            return text[0].upper() + text[1:] if match[1][0].isupper() else text

        line = re.sub(r"\{([\w.]+)\}", slot, line)
        line = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", line)
        return line.replace(" ~ ", "\n\n").replace("\\n", "\n")

    def tell(self):
        """A story about the current hero. The plots, too, come in another order for each of them."""
        plot = self.pick(self.plots, self.hero)
        season = "".join("_" + word for word in plot.split()[1:-1])  # "plot night storm" happens at night
        self.slots |= {rule: self.fill(rule + season) for rule in ("when", "weather")}
        self.slots["plot"] = self.fill(plot)
        return self.fill("story")

    def story(self):
        self.begin()
        return self.tell() + "<|endoftext|>"

    def chat(self):
        """A conversation of one to three turns in the harmony format, ending after the last reply."""
        self.begin()
        prefix, turns = "", [self.turn() for _ in range(self.pick((1, 2, 3)))]
        draw = self.random.random()
        if draw < 0.6:
            system = self.fill("system")
            if draw < 0.2:  # the system message gives the model another name
                me = self.any_name()
                turns = [self.turn(me) for _ in turns]
                self.slots["me"] = me
                system = self.fill("persona")
                if draw < 0.12:
                    turns[-1] = self.question("ask_name")
            prefix = message("system", system)
            if self.random.random() < 0.3:  # as harmony renderers do it: a fixed system message, the text as developer
                prefix = message("system", self.fill("chatgpt"))
                if draw < 0.4:
                    prefix += message("developer", "# Instructions\n\n" + system)
        elif draw < 0.75:  # the model has to remember the user's name
            self.slots["user"] = self.any_name()
            turns = [self.question("introduce"), *turns[:-1], self.question("recall")]
        for question, answer in turns:
            prefix += message("user", question) + message("assistant<|channel|>final", answer)
        return prefix.removesuffix("<|end|>") + "<|return|>"

    def any_name(self):
        return self.fill("names") if self.random.random() < 0.5 else self.random.choice(self.heroes)[0]

    def turn(self, me="Pip"):
        """A question and its answer."""
        self.begin(me)
        draw = self.random.random()
        if draw < 0.15:
            return self.fill("ask_story"), self.tell()
        return self.question("sum" if draw < 0.25 else "qa")

    def question(self, rule):
        question, answer = self.fill(rule).split(" => ")
        if rule == "qa" and self.random.random() < 0.15:
            question = question.lower()
        if self.random.random() < 0.15:
            question = question.rstrip("?.!")
        return question, answer


def message(role, text):
    return f"<|start|>{role}<|message|>{text}<|end|>"


# ---- the tokenizer --------------------------------------------------------------------------------------------------

SPECIALS = ["endoftext", "return", "constrain", "channel", "start", "end", "message", "call"]
SPECIALS = [f"<|{name}|>" for name in SPECIALS]
SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIALS)) + ")")
WORD = re.compile(rb" ?[A-Za-z]+| ?[^A-Za-z0-9\s]+|\n+|[0-9]|\s", re.S)


class Tokenizer:
    """Byte-level BPE. Ids: the 256 bytes, the merges in the order they were learnt, the special tokens.

    A text is cut into runs of digits, by threes, and everything between them. There is no other splitting: inside a
    piece the adjacent pair whose bytes are the token of the smallest id is merged, the leftmost first, until no pair
    is a token.
    """

    def __init__(self, tokens):
        self.tokens = tokens
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.special_ids = {name: len(tokens) + i for i, name in enumerate(SPECIALS)}

    @classmethod
    def load(cls, path):
        content, offset, tokens = path.read_bytes(), 4, []
        while offset < len(content):
            _, length = struct.unpack_from("<fi", content, offset)
            tokens.append(content[offset + 8 : offset + 8 + length])
            offset += 8 + length
        return cls([b"\0"] + tokens[1 : -len(SPECIALS)])

    @classmethod
    def train(cls, text, n_tokens):
        """Learns merges inside words only, so that cutting a text into words does not change its encoding."""
        tokenizer = cls([bytes([b]) for b in range(256)])
        counts = {}
        for word in WORD.findall(text.encode()):
            counts[word] = counts.get(word, 0) + 1
        parts = {word: tokenizer.merge(word) for word in counts}
        while len(tokenizer.tokens) < n_tokens:
            pairs = {}
            for word, ids in parts.items():
                for left, right in zip(ids, ids[1:]):
                    token = tokenizer.tokens[left] + tokenizer.tokens[right]
                    pairs[token] = pairs.get(token, 0) + counts[word]
            best = max(pairs, key=lambda token: (pairs[token], token))
            tokenizer = cls(tokenizer.tokens + [best])
            parts |= {word: tokenizer.merge(word) for word in parts if best in word}
        return tokenizer

    def merge(self, piece):
        """Merges one piece by the rule above, as it is stated: quadratic."""
        parts = [piece[i : i + 1] for i in range(len(piece))]
        while True:
            candidates = [(self.ids.get(parts[i] + parts[i + 1], math.inf), i) for i in range(len(parts) - 1)]
            best, i = min(candidates, default=(math.inf, 0))
            if best == math.inf:
                return [self.ids[part] for part in parts]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    @lru_cache(maxsize=None)
    def encode_word(self, word):
        return self.merge(word)

    def encode(self, text):
        """The ids of plain text, word by word: the same ids as `encode_exact`, since no token reaches across words."""
        return [i for word in WORD.findall(text.encode()) for i in self.encode_word(word)]

    def encode_exact(self, text):
        """The ids of plain text by the letter of the rule."""
        pieces = re.findall(rb"[0-9]{1,3}|[^0-9]+", text.encode().split(b"\0")[0], re.S)
        return [i for piece in pieces for i in self.merge(piece)]

    def encode_document(self, text):
        """The ids of a text in which special tokens are written by name."""
        ids = []
        for part in SPECIAL.split(text):
            ids += [self.special_ids[part]] if part in self.special_ids else self.encode(part)
        return ids

    def decode(self, ids):
        return b"".join((self.tokens + [s.encode() for s in SPECIALS])[i] for i in ids).decode(errors="replace")

    def save(self, path):
        """i32 longest token, then for each token: f32 score (its rank, -1e30 if special), i32 length, bytes."""
        records = [(float(i), token) for i, token in enumerate(self.tokens)]
        records[0] = (0.0, b"<0x00>")  # NUL cannot be stored in a C string
        records += [(-1e30, name.encode()) for name in SPECIALS]
        with path.open("wb") as file:
            file.write(struct.pack("<i", max(len(token) for _, token in records)))
            for score, token in records:
                file.write(struct.pack("<fi", score, len(token)) + token)
