"""The report as one HTML file that needs nothing else: no network, no script, no font."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from lerobot.report.compare import Comparison
from lerobot.report.findings import Findings
from lerobot.report.groups import Group, deviation, differing, mean
from lerobot.report.table import cells, filled, shown, shown_range

STYLE = """
:root { color-scheme: light dark; --ink: #222; --faint: #666; --line: #ddd; --paper: #fff; --tint: #f5f6f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --faint: #a0a0a0; --line: #3a3a3a; --paper: #161616; --tint: #222; }
}
body { margin: 0 auto; padding: 1.2rem; max-width: 76rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, li { max-width: 60rem; overflow-wrap: anywhere; } .faint { color: var(--faint); font-size: .9rem; }
code { background: var(--tint); padding: .1rem .3rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 40%, transparent) 0 / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 40%, transparent) 100% / 2rem 100% no-repeat local,
  linear-gradient(to right, #8886, transparent) 0 / .5rem 100% no-repeat scroll,
  linear-gradient(to left, #8886, transparent) 100% / .5rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); }
th { white-space: nowrap; } td { white-space: nowrap; }
td.words { white-space: normal; min-width: 14rem; overflow-wrap: anywhere; }
.decided { font-weight: 600; } .failed, .missing { color: #D55E00; } .refused, .stopped { color: var(--faint); }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(32rem, 1fr)); gap: 1rem;
  align-items: start; overflow-x: auto; }
.pictures img { width: 100%; height: auto; background: #fff; border-radius: 4px; }
@media print {
  :root { --ink: #000; --paper: #fff; --line: #bbb; --tint: #fff; }
  body { padding: 0; max-width: none; font-size: 9pt; }
  .wide, .pictures { overflow: visible; background: none; } .pictures { grid-template-columns: 1fr 1fr; }
  table { font-size: 7pt; } td { white-space: normal; } img, tr { break-inside: avoid; }
}
"""

HOW_TO_READ = """
Runs that differ in their seed alone are one group: the mean over seeds, ± one standard deviation.
Success has a 95 % Wilson interval. Two groups whose episodes started alike are compared by McNemar's exact test on the
pairs, those of one start taken together; else by Fisher's exact test. Final losses are compared by Welch's test over
seeds. All p values are raised for the number of pairs (Holm). "More episodes" and "more seeds" are what a difference
as large as the one seen takes to be found in 80 of 100 cases. A test on episodes says which of these policies is
better; that a setting is better takes several seeds. Losses compare only where policy and data are the same.
"""


def write_page(path: Path, title: str, findings: Findings, pictures: Sequence[Path]) -> None:
    """Write the page, whole or not at all. Everything that a user typed is escaped."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class=faint>{escape(findings.counts)}</p>",
        _sentences("What came of it", findings),
        _list("Precision", findings.precision),
        _groups(findings.groups),
        _pictures(pictures),
        _runs(findings),
        _list("What went wrong", findings.problems),
        f"<h2>How to read it</h2><p class=faint>{escape(' '.join(HOW_TO_READ.split()))}</p>",
    ]
    body = "\n".join(part for part in parts if part)
    page = (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text(page, encoding="utf-8")
    partial.replace(path)


def _sentences(title: str, findings: Findings) -> str:
    fresh = [f"<p>{escape(findings.fresh)}</p>"] if findings.fresh else []
    if findings.winner is not None and not findings.fresh:
        fresh.append(f"<p>{escape(findings.advice)}<br><code>{escape(findings.winner.command)}</code></p>")
    first = f"<p class=decided>{escape(findings.headline)}</p>" if findings.headline else ""
    listed = first + _items(findings.told)
    if findings.folded:
        listed += f"<details><summary>{len(findings.folded)} more pairs</summary>{_items(findings.folded)}</details>"
    return "".join([f"<h2>{title}</h2>", listed, *fresh]) if fresh or listed else ""


def _items(comparisons: Sequence[Comparison]) -> str:
    items = "".join(
        f"<li{' class=decided' if comparison.decided else ''}>{escape(comparison.sentence)}"
        for comparison in comparisons
    )
    return f"<ul>{items}</ul>" if items else ""


def _list(title: str, sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(sentence)}" for sentence in sentences)
    return f"<h2>{title}</h2><ul>{items}</ul>" if items else ""


def _groups(groups: Sequence[Group]) -> str:
    if not any(len(group.runs) > 1 for group in groups):
        return ""  # the table of runs says it all
    return "<h2>Groups, over seeds</h2>" + _table([_group_row(group) for group in groups])


def _group_row(group: Group) -> dict[str, str]:
    solved, n = group.outcome
    low, high = group.interval
    spread = shown(deviation(group.losses), 2)
    loss = shown(mean(group.losses))
    return {
        "with": group.label,
        "runs done": f"{len(group.finished)} of {len(group.runs)}",
        "final loss": f"{loss} ± {spread}" if spread else loss,
        "success": f"{solved / n:.2f} ({low:.2f}-{high:.2f}, n={n})" if n else "",
        "samples/s": shown(mean(run.samples_per_s for run in group.finished), 3),
        "memory": f"{gb} GB" if (gb := shown(mean(run.peak_mem_gb for run in group.finished), 2)) else "",
        "skipped": shown(mean(run.last("train/skipped_steps") for run in group.finished)),
        "scale": shown_range(run.last("train/scale") for run in group.finished),
    }


def _runs(findings: Findings) -> str:
    keys = differing(findings.records)
    return "<h2>Runs</h2>" + _table([cells(record, keys) for record in findings.records])


def _table(rows: Sequence[dict[str, str]]) -> str:
    headings = filled(rows)
    head = "".join(f"<th>{escape(heading)}" for heading in headings)
    body = "\n".join("<tr>" + "".join(_cell(heading, row[heading]) for heading in headings) for row in rows)
    return f"<div class=wide><table><thead><tr>{head}</thead>\n<tbody>{body}</tbody></table></div>"


def _cell(heading: str, value: str) -> str:
    kind = {"with": " class=words", "state": f' class="{escape(value)}"'}.get(heading, "")
    return f"<td{kind}>{escape(value)}"


def _pictures(pictures: Sequence[Path]) -> str:
    def image(path: Path) -> str:
        content = base64.b64encode(path.read_bytes()).decode()
        return f'<img alt="{escape(path.stem)}" src="data:image/png;base64,{content}">'

    images = "".join(map(image, pictures))
    return f"<h2>Curves</h2><div class=pictures>{images}</div>" if images else ""
