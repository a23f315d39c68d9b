"""`lerobot-report` writes a table, a page and pictures, whatever the runs have left."""

import base64
import csv
import html.parser
import io
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lerobot.report import write_report
from lerobot.report.command import main
from lerobot.report.curves import band
from lerobot.report.groups import Group
from lerobot.report.styles import choose_styles
from lerobot.report.table import COLUMNS


def table(folder):
    with (folder / "summary.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


class Page(html.parser.HTMLParser):
    """The tags of a page, the pictures in it, its words."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.images, self.words, self.links = [], [], "", []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        values = dict(attrs)
        self.links += [values[name] for name in ("href", "src") if name in values]
        if tag == "img":
            self.images.append(Image.open(io.BytesIO(base64.b64decode(values["src"].partition(",")[2]))))

    def handle_data(self, data):
        self.words += data


def command(*words):
    with pytest.raises(SystemExit) as left:
        main(list(map(str, words)))
    return left.value.code


@pytest.fixture
def sweep(make_run, tmp_path):
    """Two settings, two seeds each, with everything there is to draw."""
    scaled = {"train/scale": 1024.0, "train/skipped_steps": 2}
    for i, (lr, seed) in enumerate([(1, 0), (1, 1), (2, 0), (2, 1)]):
        make_run(
            f"{i}_x", f"optimizer.lr={lr}", "batch_size=4", seed=seed, losses=(1.0, 0.5, 0.4),
            solved=[True, False, True], evaluations=((0.5, 0.5), (1.0, 1.0)), extra=lambda i: scaled,
        )  # fmt: skip
    return tmp_path / "sweep"


def test_the_command_leaves_a_report_in_the_folder_and_prints_it(sweep, capsys):
    assert command(sweep) == 0

    shown = capsys.readouterr().out
    assert "0_x" in shown and "optimizer.lr=1 seed=0" in shown and "no difference seen" in shown
    assert "batch_size" not in shown  # all have it
    pictures = ["success.png", "success_curve.png", "loss.png", "scale.png", "skipped.png"]
    assert {path.name for path in sweep.iterdir() if path.is_file()} == {"report.html", "summary.csv", *pictures}
    page = Page(sweep / "report.html")
    assert len(page.images) == len(pictures)
    # Nothing is fetched from anywhere.
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "url(" not in (sweep / "report.html").read_text()


def test_the_table_has_its_columns_and_what_differs(sweep):
    """LOG-10: a sweep left no table of its jobs."""
    write_report([sweep])
    rows = table(sweep)

    assert list(rows[0]) == [*COLUMNS, "optimizer.lr"]
    assert [row["run"] for row in rows] == ["0_x", "1_x", "2_x", "3_x"]
    row = rows[3]
    assert (row["state"], row["seed"], row["final_loss"], row["n_episodes"]) == ("done", "1", "0.4", "3")
    assert (row["samples_per_s"], row["skipped_steps"], row["final_scale"], row["wall_s"]) == (
        "1000",
        "2",
        "1024",
        "90",
    )


def test_several_folders_are_compared_in_a_new_one(sweep, tmp_path):
    assert command(sweep / "0_x", sweep / "2_x", "--output", tmp_path / "new" / "compared") == 0

    assert [row["run"] for row in table(tmp_path / "new" / "compared")] == ["0_x", "2_x"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "the following arguments are required: folder: type lerobot-report"),
        (["sweep", "sweep/0_x"], "add --output"),
        (["sweep", "--colour"], "unrecognized arguments: --colour"),
        (["nowhere"], "type the folder of a run"),
        (["."], "holds no run"),
        (["sweep", "--output", "taken"], "taken cannot be written to"),
        (["sweep", "--output"], "expected one argument"),
    ],
)
def test_a_mistake_is_one_sentence(sweep, tmp_path, monkeypatch, capsys, words, says):
    (tmp_path / "taken").write_text("")

    assert command(*words) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith("error: ") and said.count("\n") == 1


def test_what_a_user_typed_stays_text(make_run, tmp_path):
    evil = "<script>alert('$')</script>"
    make_run("0_x", f"job=_{evil}", f"note={evil}", solved=[True])
    make_run("1_x", "job==1+1", "note=$\\frac{", solved=[False])
    folder = make_run("2_x", "job=-1e-3", f"note={evil}&amp;", state="failed")
    status = json.loads((folder / "status.json").read_text()) | {"error": f"{evil} broke"}
    (folder / "status.json").write_text(json.dumps(status))
    write_report([tmp_path / "sweep"])

    page = Page(tmp_path / "sweep" / "report.html")
    assert "script" not in page.tags
    assert f"{evil} broke" in page.words and f"{evil}&amp;" in page.words
    assert [row["job"] for row in table(tmp_path / "sweep")] == [f"_{evil}", "'=1+1", "-1e-3"]


@pytest.mark.parametrize("losses", [(None,), (1e30, None, 1e-30), (0.5, None, None), ()])
def test_numbers_that_are_not_finite_break_no_picture(make_run, tmp_path, losses):
    for seed in (0, 1):
        make_run(f"{seed}_x", seed=seed, losses=losses, extra=lambda i: {"train/scale": None, "train/skipped_steps": 0})
    write_report([tmp_path / "sweep"])

    final = table(tmp_path / "sweep")[0]["final_loss"]
    assert final == ("" if not losses else "NaN" if losses[-1] is None else f"{losses[-1]:.6g}")


def test_runs_that_left_nothing_are_in_the_table(make_run, tmp_path):
    folder = make_run("0_x", losses=())
    (folder / "metrics.jsonl").write_text("")
    killed = make_run("1_x", state="running")
    (killed / "run.json").write_text('{"device"')
    report = write_report([tmp_path / "sweep"])

    assert [row["state"] for row in table(tmp_path / "sweep")] == ["done", "failed"]
    assert any("killed" in problem for problem in report.findings.problems)
    assert any("1_x: run.json cannot be read" in problem for problem in report.findings.problems)


def test_a_picture_of_an_earlier_report_does_not_stay(sweep):
    write_report([sweep])
    for run in sweep.glob("*_x"):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        kept = [{key: row[key] for key in row if key != "train/scale"} for row in rows]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    report = write_report([sweep])

    assert not (sweep / "scale.png").exists()
    assert "scale.png" not in [path.name for path in report.pictures]


def test_a_band_is_the_mean_over_seeds_and_holds_what_is_held():
    steps, middle, spread = band([[(10, 1.0), (20, 3.0)], [(10, 3.0), (20, math.nan)]])
    assert (steps.tolist(), middle.tolist()) == ([10, 20], [2.0, 3.0])
    assert spread[0] == pytest.approx(math.sqrt(2))

    held = band([[(10, 8.0), (30, 4.0)], [(20, 8.0)]], hold=True)[1]
    assert held.tolist() == [8.0, 8.0, 4.0]


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    steps, middle, _ = band([[(i, float(i)) for i in range(1, 10_001)]])

    assert len(steps) <= 301
    assert (steps[0], middle[0]) == (1, 1.0)
    assert steps[-1] > 9_980
    assert np.allclose(steps, middle)


def group(label, **settings):
    return Group(label, tuple(settings.items()), ())


def test_few_groups_differ_in_colour_line_and_marker_and_many_share_what_differs():
    few = choose_styles([group(str(i), steps=str(i)) for i in range(10)])
    assert len({(style.color, style.line) for style in few}) == 10
    assert all(style.marker for style in few)

    many = choose_styles([group(f"{i}", steps=str(i), lr=("1e-3", "1e-4")[i % 2]) for i in range(40)])
    assert {style.label for style in many} == {"lr=1e-3", "lr=1e-4"}

    search = choose_styles([group(f"lr=0.{i}", lr=f"0.{i}") for i in range(40)])
    assert sum(style.label == "33 others" for style in search) == 33


def test_two_hundred_runs_take_seconds(make_run, tmp_path):
    for i in range(200):
        make_run(
            f"{i}_x",
            f"lr={i // 5}",
            f"size={i // 50}",
            seed=i % 5,
            losses=[1 / (j + 1) for j in range(200)],
            solved=[True] * 9,
        )
    started = time.monotonic()
    write_report([tmp_path / "sweep"])

    assert time.monotonic() - started < 15
    assert len(table(tmp_path / "sweep")) == 200


def test_the_command_needs_no_torch(sweep):
    code = "import sys; from lerobot.report.command import run; run(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    words = [sys.executable, "-c", code, sweep / "0_x", "--output", sweep / "out"]
    assert subprocess.run(words, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_the_best_policy_is_judged_anew_on_fresh_starts(train, tmp_path):
    """From a real sweep of two to the number that nothing was chosen by."""
    import lerobot

    simulator = ["env=metaworld", "env.task=push-v3", "env.episode_length=5", "eval.n_episodes=2", "eval.videos=0"]
    folder = tmp_path / "real"
    run = train("steps=2", "save_freq=0", "seed=1", *simulator, name="real/0_x")
    shutil.copytree(run, folder / "1_x", symlinks=True)
    for number in (0, 1):
        (folder / f"{number}_x" / ".hydra").mkdir()
        (folder / f"{number}_x" / ".hydra" / "overrides.yaml").write_text(f"[batch_size={number}, seed=1]")
    winner = write_report([folder]).findings.winner

    assert winner is not None
    assert "env=metaworld" in winner.words and "env.episode_length=5" in winner.words
    assert "seed=10000" in winner.words and "eval.n_episodes=100" in winner.words
    assert winner.command in (folder / "report.html").read_text()

    words = [*winner.words, "eval.n_episodes=3", "eval.videos=0", "wandb=disabled"]
    lerobot.run(lerobot.compose("eval", words))
    findings = write_report([folder]).findings
    assert "from fresh starts, its policy" in findings.fresh and "of 3 episodes" in findings.fresh
    assert len(findings.records) == 2
