"""Folders as runs leave them, without the running."""

import json

import pytest
import yaml


def write_run(
    folder,
    words=(),
    *,
    seed=0,
    losses=(1.0, 0.5),
    solved=None,
    state="done",
    facts=None,
    extra=None,
    evaluations=((1.0, 1.0),),
    start=None,
):
    """A run of `words` and `seed`. losses: one a row of 100 updates. solved: success of each episode of the last
    evaluation, which starts from `start` (the seed); evaluations: (part of the way, part of the final rate).
    extra: metrics of each log row, a function of its number.
    """
    folder.mkdir(parents=True)
    (folder / ".hydra").mkdir()
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump([*words, f"seed={seed}"]))
    last = 100 * len(losses)
    status = {"state": state, "step": last, "steps": last, "error": None}
    times = {"started": "2026-11-30T12:00:00+00:00", "ended": "2026-11-30T12:01:30+00:00"}
    (folder / "status.json").write_text(json.dumps(status | times))
    shown = {"device": "cpu", "backend": "cpu", "device_name": "a processor", "forward_dtype": "float32", "tf32": None}
    (folder / "run.json").write_text(json.dumps(shown | (facts or {})))
    rows = [
        {"step": 100 * i, "time_s": i, "train/loss": loss, "train/samples_per_s": 1000.0, "train/step_s": 0.1}
        | (extra(i) if extra else {})
        for i, loss in enumerate(losses, start=1)
    ]
    if solved is not None:
        start = seed if start is None else start
        for part, share in evaluations:
            rate = share * sum(solved) / len(solved)
            rows.append(
                {"step": int(part * last), "time_s": 90.0, "eval/success_rate": rate, "eval/n_episodes": len(solved)}
            )
        (folder / "eval").mkdir()
        episodes = [
            {"episode": i, "task": "push-v3", "seed": start + i, "success": bool(won), "sum_reward": 1.0, "length": 9}
            for i, won in enumerate(solved)
        ]
        (folder / "eval" / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in episodes))
    rows.sort(key=lambda row: row["step"])
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def make_run(tmp_path):
    """Writes a run into a folder of the sweep `tmp_path / "sweep"`; see `write_run`."""

    def make(name, *words, **options):
        return write_run(tmp_path / "sweep" / name, words, **options)

    return make
