"""Real wandb, offline, read back from its own files; online against a server of twenty lines."""

import gzip
import json
import logging
import math
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import wandb
from faults import small_disk
from wandb.proto import wandb_internal_pb2

import lerobot
from lerobot.errors import ConfigError
from lerobot.tracking.config import WandbConfig
from lerobot.tracking.jsonl import read_metrics
from lerobot.tracking.tracker import open_tracker
from lerobot.tracking.wandb import WandbSink, open_wandb, plain, run_tags

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "data"
KEY = "a" * 40
NO_SERVER = "http://127.0.0.1:9"


class Precision(Enum):
    FP16 = "fp16"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No account, no key, no setting of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "NETRC"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def fresh_service():
    """wandb reads its environment once per service."""
    wandb.teardown()
    yield
    wandb.teardown()


def opened(run_dir: Path, options: WandbConfig | None = None, start_step: int = 0, config: dict | None = None):
    run_dir.mkdir(exist_ok=True)
    options = options or WandbConfig()
    return open_tracker(run_dir, options, steps=20, start_step=start_step, config=config or {}, facts={"device": "cpu"})


def records(run_dir: Path) -> list:
    """The records of every finished .wandb file of a run."""
    found = []
    for path in sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb")):
        deadline = time.monotonic() + 10.0
        # The service writes the last ones a few milliseconds after finish() returns.
        while not (read := read_log(path.read_bytes())) or not any(record.HasField("exit") for record in read):
            assert time.monotonic() < deadline, f"{path} is not finished"
            time.sleep(0.005)
        found += read
    return found


def read_log(data: bytes) -> list:
    """Protobufs in LevelDB's log format: blocks of 32 KiB, records cut into parts at their ends."""
    found, position, body = [], 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + 7])
        if position + 7 + size > len(data):
            break
        part = data[position + 7 : position + 7 + size]
        body = part if kind in (1, 2) else body + part
        position += 7 + size
        if kind in (1, 4):
            found.append(wandb_internal_pb2.Record.FromString(body))
    return found


def key_of(item) -> str:
    return item.key or "/".join(item.nested_key)


def history(run_dir: Path) -> list[dict]:
    rows = [record.history for record in records(run_dir) if record.HasField("history")]
    return [{key_of(item): json.loads(item.value_json) for item in row.item} for row in rows]


def config_of(run_dir: Path) -> dict:
    found: dict = {}
    for record in records(run_dir):
        for update in (*record.run.config.update, *record.config.update):
            found[key_of(update)] = json.loads(update.value_json)
    return found


def exit_codes(run_dir: Path) -> list[int]:
    return [record.exit.exit_code for record in records(run_dir) if record.HasField("exit")]


def run_ids(run_dir: Path) -> list[str]:
    return [record.run.run_id for record in records(run_dir) if record.HasField("run")]


def said(caplog, level: int = logging.WARNING) -> list[str]:
    """What the project said; wandb has a logger of its own."""
    records = [record for record in caplog.records if record.name == "lerobot.tracking.wandb"]
    return [record.message for record in records if record.levelno >= level]


def test_an_offline_run_holds_config_facts_and_rows(tmp_path):  # LOG-07
    options = WandbConfig(group="sweep_1", name="fp16-cpu", job_type="train", project="robots", notes="a note")
    config = {"policy": {"type": "act", "path": Path("a/b")}, "seed": 3, "clip": math.inf, "mixed": Precision.FP16}
    with opened(tmp_path, options, config=config) as tracker:
        tracker.describe({"device": "cpu", "forward_dtype": "float16"})
        tracker.log(10, {"train/loss": 0.5, "train/grad_norm": math.nan, "train/lr": None})

    (run,) = {record.run.run_id: record.run for record in records(tmp_path) if record.HasField("run")}.values()
    assert run.run_id == tracker.run_id
    assert (run.project, run.run_group, run.display_name, run.job_type) == ("robots", "sweep_1", "fp16-cpu", "train")
    assert (run.notes, list(run.tags)) == ("a note", ["policy:act", "seed:3"])
    recorded = config_of(tmp_path)
    assert recorded["policy"] == {"type": "act", "path": "a/b"}
    assert (recorded["seed"], recorded["clip"], recorded["mixed"]) == (3, "inf", "fp16")
    assert recorded["run"] == {"device": "cpu", "forward_dtype": "float16"}
    (row,) = history(tmp_path)
    assert {key: value for key, value in row.items() if "/" in key} == {"train/step": 10, "train/loss": 0.5}
    metrics = [record.metric for record in records(tmp_path) if record.HasField("metric")]
    assert ("*", "train/step") in [(metric.glob_name, metric.step_metric) for metric in metrics]
    assert exit_codes(tmp_path) == [0]
    assert wandb.run is None


def test_two_runs_in_one_process_are_two_and_a_raising_one_has_failed(tmp_path):  # LOG-01
    with opened(tmp_path / "a", config={"seed": 0}) as first:
        first.log(1, {"train/loss": 1.0})
    with suppress(RuntimeError), opened(tmp_path / "b", config={"seed": 1}) as second:
        second.log(1, {"train/loss": 2.0})
        raise RuntimeError("out of memory")
    with opened(tmp_path / "c", config={"seed": 2}) as third:
        third.log(1, {"train/loss": 3.0})

    assert len({first.run_id, second.run_id, third.run_id}) == 3
    assert [exit_codes(tmp_path / name) for name in "abc"] == [[0], [1], [0]]
    assert [config_of(tmp_path / name)["seed"] for name in "abc"] == [0, 1, 2]
    assert [history(tmp_path / name)[0]["train/loss"] for name in "abc"] == [1.0, 2.0, 3.0]


def test_a_resumed_run_keeps_its_id_and_its_steps(tmp_path):  # LOG-02, LOG-04
    with opened(tmp_path) as first:
        for step in range(1, 11):
            first.log(step, {"train/loss": 1.0})
    with opened(tmp_path, WandbConfig(run_id=first.run_id), start_step=8) as second:
        for step in range(9, 21):
            second.log(step, {"train/loss": 2.0})

    assert second.run_id == first.run_id
    assert set(run_ids(tmp_path)) == {first.run_id}
    assert [row["train/step"] for row in history(tmp_path)] == [*range(1, 11), *range(9, 21)]
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 21))


KILLED = """
import os, signal, sys
from pathlib import Path
from lerobot.tracking.config import WandbConfig
from lerobot.tracking.tracker import open_tracker

start, end = map(int, sys.argv[1:])
wandb = WandbConfig(run_id="abcd1234", mode="offline")
with open_tracker(Path("."), wandb, steps=20, start_step=start, config={}, facts={}) as tracker:
    for step in range(start + 1, end + 1):
        tracker.log(step, {"train/loss": 1.0 / step})
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_rows_that_a_kill_took_from_wandb_are_written_when_the_run_goes_on(tmp_path):
    """The file of a run that was killed within wandb's first 15 seconds was empty, and so were its charts."""
    for start, end in ((0, 3), (2, 5)):
        words = [sys.executable, "-c", KILLED, str(start), str(end)]
        killed = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
        assert killed.returncode == -signal.SIGKILL
    with opened(tmp_path, WandbConfig(run_id="abcd1234"), start_step=4) as tracker:
        tracker.log(5, {"train/loss": 0.2})

    deadline = time.monotonic() + 10.0
    while not any(record.HasField("exit") for record in _newest(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.005)
    rows = [{key_of(item) for item in row.history.item} for row in _newest(tmp_path) if row.HasField("history")]
    assert all({"train/loss", "train/step"} <= row for row in rows)
    items = [item for row in _newest(tmp_path) for item in row.history.item if key_of(item) == "train/step"]
    assert [json.loads(item.value_json) for item in items] == [1, 2, 3, 4, 5]


def _newest(run_dir: Path) -> list:
    return read_log(max(run_dir.glob("wandb/offline-run-*/run-*.wandb")).read_bytes())


def test_an_id_survives_a_part_of_the_run_without_wandb(tmp_path):  # LOG-04
    with opened(tmp_path, WandbConfig(mode="disabled", run_id="abc12345")) as off:
        pass
    with opened(tmp_path, WandbConfig(run_id=off.run_id)) as on:
        pass

    assert on.run_id == off.run_id == "abc12345"


def test_a_run_that_goes_back_to_an_earlier_checkpoint_loses_no_row(train, rows):
    """LOG-02, LOG-03: a second part had another id or none, and steps that came again were dropped."""
    run = train("wandb=offline", "steps=4", "save_freq=2")
    lerobot.run(lerobot.compose("train", [f"resume={run / 'checkpoints' / '000002'}", "steps=6"]))

    assert len(list(run.glob("wandb/offline-run-*"))) == 2
    assert len(set(run_ids(run))) == 1
    assert [row["train/step"] for row in history(run)] == [1, 2, 3, 4, 3, 4, 5, 6]
    assert [row["step"] for row in rows(run)] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in read_metrics(run / "metrics.1.jsonl")] == [3, 4]
    assert [row["train/loss"] for row in history(run)[-4:]] == [row["train/loss"] for row in rows(run)[-4:]]


def test_a_run_goes_on_without_its_wandb_folder_and_into_wandb_where_it_was_off(train, rows):
    """LOG-04: the id was looked for in the folder."""
    run = train("steps=1", "wandb=disabled")
    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=2", "wandb=offline"]))
    (first,) = set(run_ids(run))
    shutil.rmtree(run / "wandb")
    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=3"]))

    assert set(run_ids(run)) == {first}
    assert [row["train/step"] for row in history(run)] == [3]
    assert [row["step"] for row in rows(run)] == [1, 2, 3]


def test_rows_that_go_back_in_step_are_kept(tmp_path):  # LOG-03
    video = next(DATA.glob("metaworld_push_cam/videos/**/*.mp4"))
    with opened(tmp_path) as tracker:
        tracker.log(10, {"train/loss": 1.0})
        tracker.log(10, {"eval/success_rate": 0.5})
        tracker.video(10, "eval/video/0", video)
        tracker.log_skipped([(7, {"train/scale": 512.0})])

    rows = history(tmp_path)
    assert [row["train/step"] for row in rows] == [10, 10, 10, 7]
    (kept,) = tmp_path.glob("wandb/offline-run-*/files/media/videos/**/*.mp4")
    assert kept.read_bytes() == video.read_bytes()


def test_wandbs_own_reader_reads_the_run(tmp_path):
    with opened(tmp_path) as tracker:
        tracker.log(10, {"train/loss": 0.5})

    (folder,) = tmp_path.glob("wandb/offline-run-*")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--summary", "--json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert f'"{tracker.run_id}"' in done.stdout
    assert '"train/loss"' in done.stdout


def test_checkpoints_are_uploaded_by_an_online_run_only(tmp_path):
    policy = tmp_path / "000010" / "pretrained_model"
    policy.mkdir(parents=True)
    (policy / "model.safetensors").write_bytes(b"weights")
    with open_wandb(tmp_path, WandbConfig(), config={}, facts={}) as sink:
        sink.checkpoint(10, policy.parent)
        assert isinstance(sink, WandbSink)
        WandbSink(sink._run, uploads=True).checkpoint(10, policy.parent)

    (artifact,) = [record.artifact for record in records(tmp_path) if record.HasField("artifact")]
    assert (artifact.type, set(artifact.aliases)) == ("model", {"latest", "step-10"})
    assert [entry.path for entry in artifact.manifest.contents] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("enable", "typed", "variable", "mode", "disagree"),
    [
        (None, None, "", "offline", False),
        (True, None, "", "online", False),
        (False, "online", "", "disabled", False),
        (None, None, "online", "online", False),
        (None, None, "DISABLED", "disabled", False),
        (True, None, "offline", "offline", False),
        (False, None, "online", "disabled", True),
        (None, "online", "offline", "offline", True),
        (None, "offline", "online", "offline", True),
        (None, "offline", "offline", "offline", False),
    ],
)
def test_the_mode_is_what_was_typed_or_else_the_variable(enable, typed, variable, mode, disagree):
    resolved, sentence = WandbConfig(enable=enable, mode=typed).resolve_mode({"WANDB_MODE": variable})

    assert resolved == mode
    assert (f"WANDB_MODE={variable}" in sentence) is disagree


def test_a_mode_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match=r"wandb\.mode=onlin: type one of"):
        WandbConfig(mode="onlin")
    with pytest.raises(ConfigError, match="WANDB_MODE=dry"):
        WandbConfig().resolve_mode({"WANDB_MODE": "dry"})


def test_wandb_mode_disabled_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with opened(tmp_path / "run") as tracker:
        tracker.log(1, {"train/loss": 1.0})

    assert tracker.run_id is None
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


def test_enable_without_a_key_is_offline_and_asks_nothing_even_in_a_terminal(tmp_path):
    pty = pytest.importorskip("pty")
    program = """
import logging, pathlib, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s")
from lerobot.tracking.config import WandbConfig
from lerobot.tracking.wandb import open_wandb
with open_wandb(pathlib.Path(sys.argv[1]), WandbConfig(enable=True), config={}, facts={}) as sink:
    sink.log({"step": 1, "train/loss": 1.0})
"""
    terminal, side = pty.openpty()
    command = [sys.executable, "-c", program, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    streams = {"stdin": side, "stdout": side, "stderr": side}
    assert subprocess.run(command, env=environment, timeout=30, check=False, **streams).returncode == 0
    shown = os.read(terminal, 65536).decode().splitlines()
    os.close(terminal)
    os.close(side)

    assert shown == ["wandb: no key, so this run is logged offline; `wandb login` stores one"]
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 1


def test_a_dead_network_means_offline_within_seconds(tmp_path, monkeypatch, caplog, fresh_service):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", NO_SERVER)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    with opened(tmp_path, WandbConfig(mode="online", run_id="abc12345")) as tracker:
        tracker.log(1, {"train/loss": 1.0})

    (warning,) = said(caplog)
    assert warning.startswith(f"wandb: {NO_SERVER} cannot be used")
    assert warning.endswith("so this run is logged offline")
    assert tracker.run_id == "abc12345"
    assert len(list(tmp_path.glob("wandb/offline-run-*-abc12345"))) == 1
    assert [row["train/loss"] for row in history(tmp_path)] == [1.0]


class Server(BaseHTTPRequestHandler):
    """Answers what a run asks on its way online, and keeps what it was sent."""

    bodies: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.bodies.append(f"{self.path} {body.decode()}")
        answer: dict = {}
        if self.path.endswith("/graphql"):
            query = json.loads(body)
            answer = {"data": self.answer(query["query"], query.get("variables") or {})}
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_PUT = do_POST  # noqa: N815

    def answer(self, query: str, variables: dict) -> dict:
        if "UpsertBucket" in query:
            project = {"id": "cA==", "name": variables["project"], "entity": {"id": "ZQ==", "name": "me"}}
            bucket = {"id": "aWQ=", "name": variables["name"], "displayName": "x", "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": 0}, "inserted": True}}
        if "CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.address}/up/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "aWQ=", "uploadHeaders": [], "files": files}}
        return {}

    @property
    def address(self) -> str:
        return f"http://{self.headers['Host']}"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    handler = type("Handler", (Server,), {"bodies": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}", handler.bodies
        running.shutdown()


def test_enable_with_a_key_is_online(tmp_path, monkeypatch, caplog, fresh_service, server):
    address, bodies = server
    monkeypatch.setenv("WANDB_BASE_URL", address)
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine {address.removeprefix('http://')}\n  login user\n  password {KEY}\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    caplog.set_level("INFO", logger="lerobot")
    with opened(tmp_path, WandbConfig(enable=True), config={"seed": 3}) as tracker:
        tracker.log(10, {"train/loss": 0.5})

    assert said(caplog, logging.INFO) == [f"wandb: {address}/me/lerobot/runs/{tracker.run_id}"]
    sent = [body for body in bodies if body.startswith(f"/files/me/lerobot/{tracker.run_id}/file_stream")]
    assert any("train/loss" in body and "train/step" in body for body in sent)


def test_a_problem_in_wandb_is_said_once_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    with opened(tmp_path) as tracker:
        monkeypatch.setattr(wandb.Run, "log", lambda *_: (_ for _ in ()).throw(ConnectionResetError("Connection lost")))
        for step in range(1, 4):
            tracker.log(step, {"train/loss": 1.0})

    assert said(caplog) == ["wandb: Connection lost; no more charts from here, metrics.jsonl goes on"]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3
    assert exit_codes(tmp_path) == [0]


def test_a_disk_that_was_full_for_wandb_alone_is_told_once_at_the_end(tmp_path, caplog):
    """wandb says it to a log of its own, and nowhere else."""
    with small_disk(tmp_path / "disk") as fill:
        if fill is None:
            pytest.skip("mounting a disk takes root")
        run = tmp_path / "disk" / "run"
        with opened(run) as tracker:
            fill()
            for sink in tracker._sinks[2:]:
                for step in range(1000):
                    sink.log({"step": step, "train/loss": 1.0, "note": secrets.token_hex(16)})
            time.sleep(0.3)  # its service writes in its own time
            (tmp_path / "disk" / "ballast").unlink()
            for sink in tracker._sinks[2:]:
                for step in range(1000, 2000):
                    sink.log({"step": step, "train/loss": 1.0, "note": secrets.token_hex(16)})

        (warning,) = [record.message for record in caplog.records if record.name == "lerobot.disk"]
        assert warning.startswith(f"{run} cannot be written to (no space left on device) and rows are being lost")


def test_a_run_without_a_working_wandb_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it fails
    with opened(tmp_path) as tracker:
        tracker.log(1, {"train/loss": 1.0})

    (warning,) = said(caplog)
    assert "this run has no charts" in warning
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


def test_wandbs_error_reports_are_off_while_a_run_is_open_and_the_environment_comes_back(tmp_path, monkeypatch):
    with opened(tmp_path):
        assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert "WANDB_ERROR_REPORTING" not in os.environ

    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    with opened(tmp_path):
        assert os.environ["WANDB_ERROR_REPORTING"] == "true"
    assert os.environ["WANDB_ERROR_REPORTING"] == "true"


def test_tags_name_what_a_run_is_and_none_is_too_long():  # LOG-10
    config = {"policy": {"type": "act"}, "seed": 0, "dataset": {"repo_id": "me/" + "x" * 80}, "env": None}

    tags = run_tags(config)

    assert tags == ["policy:act", "seed:0", "dataset:me/" + "x" * 53]
    assert max(map(len, tags)) == 64


def test_plain_values_are_strict_json():
    value = {Precision.FP16: (Path("a"), {1}), "b": [math.nan, 1e-4, True, None], "c": WandbConfig(project="p")}

    turned = plain(value)

    assert turned["fp16"] == ["a", [1]]
    assert turned["b"] == ["nan", 1e-4, True, None]
    assert turned["c"]["project"] == "p"
    json.dumps(turned, allow_nan=False)
