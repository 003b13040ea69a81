#!/bin/sh
# What is quick of tests/clients/run.sh: the page's Markdown, and the openai packages for Python (Qwen 3's format, too) and
# JavaScript. The last line counts: `N passed, N failed, N skipped`. Fails if anything failed; what cannot be fetched is
# skipped.
exec "$(dirname "$0")/run.sh" markdown openai_python qwen3 openai_npm
