"""The tables of docs/emulator.md, of the records that sweep.py and the emulator alone leave."""

BEGIN, END = "<!-- tests/emulated-gpu/sweep.py: begin -->\n", "<!-- tests/emulated-gpu/sweep.py: end -->\n"
RUNTIMES = ("6.4", "7.2", "5.7")
LONG = dict(ok="ok", wrong="**wrong**")


def put(records, path):
    page = path.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    path.write_text(before + BEGIN + "\n" + whole(records) + "\n" + END + after)


def whole(records):
    dates = sorted({one["date"] for one in records})
    head = f"From {dates[0]} to {dates[-1]}, {len(records)} records."
    return "\n".join([head, "", *kernels(records), "", *programs(records)]) + "\n"


def row(cells):
    return "| " + " | ".join(cells) + " |"


def kernels(records):
    """A template's way to the GPU, arch by arch."""
    archs = in_order(one["arch"] for one in records if one.get("templates"))
    seen = {}
    for one in records:
        for template in one.get("templates", ()):
            key = template["op"], template["variant"], template["precision"]
            seen.setdefault(key, {}).setdefault(one["arch"], {}).setdefault(one["hip"], []).append(template)
    yield row(["template", "precision", *archs])
    yield row(["---"] * (2 + len(archs)))
    for (op, variant, precision), of_arch in sorted(seen.items()):
        yield row([f"{op}/{variant}", precision, *(steps(of_arch.get(arch, {})) for arch in archs)])


def steps(of_hip):
    """Letters for what was right: C compiled, A its ABI, S simulated, E executed by the emulator (alone, or else below
    a HIP), and the HIPs that launched it. What was wrong is bold, with a question mark; a dot is what was not done."""
    if not of_hip:
        return ""
    launched = [one for hip in ("simulator", *RUNTIMES) for one in of_hip.get(hip, ())]
    failures = [failure for one in launched for failure in one.get("failures", ())]
    refused = [failure for failure in failures if "the object" in failure or "compile" in failure]
    found = [mark("CA", not refused)]
    below_a_hip = [one for hip in RUNTIMES for one in of_hip.get(hip, ())]
    for letter, hip in (("S", "simulator"), ("E", "isa"), *((hip, hip) for hip in RUNTIMES)):
        done = of_hip.get(hip) or (below_a_hip if hip == "isa" else ())
        if done:
            found.append(mark(letter, all(one["status"].startswith("ok") for one in done)))
        elif hip in ("simulator", "isa"):
            found.append("·")
    errors = [one["worst_error"] for one in below_a_hip if one["worst_error"] is not None]
    return " ".join(found) + (f", {100 * max(errors):.0f} %" if errors else "")


def mark(text, is_right):
    return text if is_right else f"**{text}?**"


def programs(records):
    """Whole commands, with what they said where they did not do what they should."""
    records = [one for one in records if one["hip"] in RUNTIMES and not one["cell"].startswith("kernels ")]
    columns = in_order((one["hip"], one["arch"]) for one in records)
    columns.sort(key=lambda column: RUNTIMES.index(column[0]))
    found = {(one["hip"], one["arch"], one["cell"]): one for one in records}
    # Where a runtime has no device one cell says so, for all of them.
    unknown = {(one["hip"], one["arch"]) for one in records if one["status"] == "not known"}
    remarks = []
    yield row(["what runs", *(f"{hip} {arch}" for hip, arch in columns)])
    yield row(["---"] * (1 + len(columns)))
    for name in in_order(one["cell"] for one in records):
        cells = []
        for hip, arch in columns:
            one = found.get((hip, arch, name))
            if one is None:
                cells.append("not known" if (hip, arch) in unknown else "")
                continue
            cells.append(LONG.get(one["status"], one["status"]))
            if one["status"] != "ok":
                if one["note"] not in remarks:
                    remarks.append(one["note"])
                cells[-1] += f" ({remarks.index(one['note']) + 1})"
            elif name.startswith("logits"):
                cells[-1] = one["note"]
        yield row([name, *cells])
    yield ""
    yield from (f"{i + 1}. {remark or 'another text'}" for i, remark in enumerate(remarks))


def in_order(values):
    return list(dict.fromkeys(values))
