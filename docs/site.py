"""The documents as the input of mdBook, with docs/README.md as their table of contents.

    python3 docs/site.py OUT && mdbook build OUT       # the site is OUT/book

Pages keep their places, so that links between them stay. Links to other files of the project go to the repository.
Fails if a link of a page leads to no file.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONTENTS = "docs/README.md"
FIRST = "README.md"
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s:#]+)(#[^)\s]+)?\)")
BOOK = """\
[book]
title = "gptoss-jit"
language = "en"
src = "src"

[build]
create-missing = false
# mdBook would rename README.md and look for its own words in the texts.
use-default-preprocessors = false

[output.html]
git-repository-url = "{repository}"
"""


def repository():
    return re.search(r'^repository = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]


def from_root(page, target):
    """The file that a link of a page names, below the root."""
    return (ROOT / page).parent.joinpath(target).resolve().relative_to(ROOT).as_posix()


def contents():
    """The parts of the table of contents: a title, and the names and pages of its links."""
    parts = [("", [])]
    for line in (ROOT / CONTENTS).read_text().splitlines():
        title = re.match(r"([A-Z][\w ]*):", line)
        if title:
            parts.append((title[1], []))
        # A link to a section is no page of its own.
        links = [(name[1:-1], from_root(CONTENTS, target)) for name, target, anchor in LINK.findall(line) if not anchor]
        parts[-1][1].extend((name[0].upper() + name[1:], page) for name, page in links)
    return [part for part in parts if part[1]]


def summary(parts):
    lines = ["# Summary", "", f"[gptoss-jit]({FIRST})", f"[Documents]({CONTENTS})", ""]
    for title, links in parts:
        lines += [f"# {title}", "", *(f"- [{name}]({page})" for name, page in links), ""]
    return "\n".join(lines)


def stage(out, pages):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = set(tracked.stdout.splitlines())
    lost = []

    def link(page):
        def replaced(found):
            text, target, anchor = found[1], from_root(page, found[2]), found[3] or ""
            if target in pages:
                return found[0]
            if target not in tracked and not (ROOT / target).is_dir():
                lost.append(f"{page}: {found[0]}")
            if text.startswith("!"):
                copy = out / "src" / target
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / target, copy)
                return found[0]
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            return f"{text}({repository()}/{kind}/HEAD/{target}{anchor})"

        return replaced

    for page in pages:
        file = out / "src" / page
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(LINK.sub(link(page), (ROOT / page).read_text()))
    return lost


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    parts = contents()
    pages = {FIRST, CONTENTS, *(page for _, links in parts for _, page in links)}
    shutil.rmtree(out / "src", ignore_errors=True)
    (out / "src").mkdir(parents=True)
    lost = stage(out, pages)
    (out / "src" / "SUMMARY.md").write_text(summary(parts))
    (out / "book.toml").write_text(BOOK.format(repository=repository()))
    if lost:
        sys.exit("links that lead nowhere:\n" + "\n".join(lost))
    print(f"{len(pages)} pages in {out}")


if __name__ == "__main__":
    main()
