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
            key = template["op"], template["variant"]
            of_template = seen.setdefault(key, {}).setdefault(template["precision"], {})
            of_template.setdefault(one["arch"], {}).setdefault(one["hip"], []).append(template)
    cells = {
        (key, arch): [steps(of_precision[precision].get(arch, {})) for precision in sorted(of_precision)]
        for key, of_precision in seen.items()
        for arch in archs
    }
    usual = {}
    for arch in archs:
        marks = [found for key in seen for found, _ in cells[key, arch]]
        usual[arch] = max(in_order(marks), key=marks.count)
    yield row(["template", "precision", *(f"{arch}: {usual[arch]}" for arch in archs)])
    yield row(["---"] * (2 + len(archs)))
    for key, of_precision in sorted(seen.items()):
        of_arch = [", ".join(cell(*one, usual[arch]) for one in cells[key, arch]) for arch in archs]
        yield row(["/".join(key), ", ".join(sorted(of_precision)), *of_arch])


def cell(marks, error, usual):
    """The error, after the marks where they are not those of the column's head."""
    return " ".join(text for text in ("" if marks == usual else marks, error) if text)


def steps(of_hip):
    """Letters for what was right, and the largest error in %: C compiled, A its ABI, S simulated, E executed by the
    emulator (alone, or else below a HIP), and the HIPs that launched it. What was wrong is bold, with a question mark;
    a dot is what was not done."""
    if not of_hip:
        return "", ""
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
    return " ".join(found), f"{100 * max(errors):.0f}" if errors else ""


def mark(text, is_right):
    return text if is_right else f"**{text}?**"


def programs(records):
    """Whole commands, those with the same results in one row, with what they said where they were wrong."""
    records = [one for one in records if one["hip"] in RUNTIMES and not one["cell"].startswith("kernels ")]
    columns = in_order((one["hip"], one["arch"]) for one in records)
    columns.sort(key=lambda column: RUNTIMES.index(column[0]))
    found = {(one["hip"], one["arch"], one["cell"]): one for one in records}
    # Where a runtime has no device one cell says so, for all of them.
    unknown = {(one["hip"], one["arch"]) for one in records if one["status"] == "not known"}
    remarks, rows = [], {}
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
        rows.setdefault(tuple(cells), []).append(name)
    # What is the same wherever a runtime knows the chip is said once.
    same = {cells: told[0] for cells in rows if len(told := sorted({*cells} - {"", "not known"})) == 1}
    yield from (f"- {told}, wherever the HIP knows the chip: {'; '.join(rows[cells])}" for cells, told in same.items())
    yield ""
    yield row(["what runs", *(f"{hip} {arch}" for hip, arch in columns)])
    yield row(["---"] * (1 + len(columns)))
    yield from (row(["; ".join(names), *cells]) for cells, names in rows.items() if cells not in same)
    yield ""
    yield from (f"{i + 1}. {remark or 'another text'}" for i, remark in enumerate(remarks))


def in_order(values):
    return list(dict.fromkeys(values))
