"""What may change when a run goes on or is repeated, what is said of it, and configs of other versions."""

import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from runs import DATA, TINY, losses

import lerobot
from lerobot.accelerator.config import PRECISIONS
from lerobot.errors import ConfigError

SCALE = "accelerator.grad_scaler.init_scale"
LOW = [f"{SCALE}=1024", "accelerator.grad_scaler.growth_interval=3"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A copy of the run that the words make, which is trained once for all tests."""
    kept = {}

    def trained(folder, *words):
        if words not in kept:
            kept[words] = tmp_path_factory.mktemp("base") / "run"
            lerobot.run(lerobot.compose("train", [*TINY, *words, f"output_dir={kept[words]}"]))
        return Path(shutil.copytree(kept[words], folder, symlinks=True))

    return trained


@pytest.fixture
def on():
    """Goes on with a run and what is typed; returns the scales of its rows from there on."""

    def on(run, *words):
        before = len((run / "metrics.jsonl").read_text().splitlines())
        lerobot.run(lerobot.compose("train", [f"resume={run}", *words]))
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[before:]]
        return [row.get("train/scale") for row in rows]

    return on


@pytest.fixture
def typed(monkeypatch):
    """Runs the command with the words given; it is to leave with 0."""
    from lerobot.command import main
    from lerobot.train import work

    def typed(*words):
        monkeypatch.setattr("sys.argv", ["lerobot-train", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main("train", work)
        assert left.value.code == 0

    return typed


@pytest.mark.parametrize("before", PRECISIONS)
def test_every_change_of_precision_is_defined_and_says_what_becomes_of_the_loss_scale(
    trained, on, fp16_on_cpu, caplog, tmp_path, before
):
    caplog.set_level("INFO")
    outcomes = {
        ("fp16", "fp16"): ("loss scale: goes on at 2048", [2048.0, 4096.0]),
        ("fp16", "no"): ("loss scale: not used from here, precision=no needs none", [None, None]),
        ("fp16", "bf16"): ("loss scale: not used from here, precision=bf16 needs none", [None, None]),
        ("no", "fp16"): ("loss scale: starts at 1024 and calibrates, precision=no had none", [1024.0, 1024.0]),
        ("bf16", "fp16"): ("loss scale: starts at 1024 and calibrates, precision=bf16 had none", [1024.0, 1024.0]),
        ("no", "no"): ("loss scale: none in precision=no, as before", [None, None]),
        ("no", "bf16"): ("loss scale: none in precision=bf16, as before", [None, None]),
        ("bf16", "no"): ("loss scale: none in precision=no, as before", [None, None]),
        ("bf16", "bf16"): ("loss scale: none in precision=bf16, as before", [None, None]),
    }
    for after in PRECISIONS:
        caplog.clear()
        run = trained(tmp_path / after, "device=auto", f"precision={before}", *LOW, "steps=4")
        said, scales = outcomes[before, after]
        assert on(run, "steps=6", f"precision={after}") == scales
        assert said in caplog.text
        assert caplog.text.count("loss scale: ") == 1
        changed = f"changed on resume: accelerator.mixed_precision={after}, was {before}"
        assert (changed in caplog.text) == (before != after)
        assert "is not there" not in caplog.text
        state = run / "checkpoints" / "last" / "training_state" / "scaler_state.json"
        assert state.exists() == (after == "fp16")


@pytest.mark.parametrize(
    ("words", "scales", "said"),
    [
        ([], [2048.0, 4096.0], "goes on at 2048"),
        ([f"{SCALE}=64"], [64.0, 64.0], "starts anew at 64, as typed"),
        ([f"--{SCALE}=1024"], [1024.0, 1024.0], "starts anew at 1024, as typed"),
        (["accelerator.grad_scaler={init_scale: 32, growth_interval: 1}"], [64.0, 128.0], "starts anew at 32"),
        (["grad_scaler=conservative"], [1024.0, 1024.0], "starts anew at 1024, as typed"),
        (["grad_scaler=responsive"], [2048.0, 2048.0], "goes on at 2048"),
        (["reset_scale=true"], [1024.0, 1024.0], "starts anew at 1024, as typed"),
        (["accelerator.grad_scaler.growth_factor=4"], [2048.0, 8192.0], "goes on at 2048"),
        (["accelerator.grad_scaler.growth_interval=1"], [4096.0, 8192.0], "goes on at 2048"),
    ],
)
def test_what_is_typed_of_the_scaler_wins_and_the_rest_stays(trained, on, fp16_on_cpu, caplog, words, scales, said):
    """CKPT-03: torch's load takes the stored factors, whatever is typed."""
    caplog.set_level("INFO")
    run = trained("run", "device=auto", "precision=fp16", *LOW, "steps=4")

    assert on(run, "steps=6", *words) == scales
    assert f"loss scale: {said}" in caplog.text
    assert not lerobot.compose("train", [f"resume={run}"]).reset_scale  # what was typed once is not typed for ever


@pytest.mark.slow
def test_the_line_of_the_first_start_resets_no_scale_where_it_is_typed_again(train, fp16_on_cpu, rows):
    """A cluster types it at every start; another number in it does reset."""
    line = ["device=auto", "precision=fp16", *LOW]
    train(*line, "steps=4")
    train(*line, "steps=5", "resume=auto")
    run = train(*line, "steps=6", "resume=auto", f"{SCALE}=16")

    assert [row["train/scale"] for row in rows(run)][3:] == [2048.0, 2048.0, 16.0]


def test_a_new_run_has_no_scale_to_reset():
    with pytest.raises(ConfigError, match=r"reset_scale=true is for a run that goes on"):
        lerobot.compose("train", [*TINY, "reset_scale=true"])


def test_a_missing_scale_warns_and_a_torn_one_is_refused(trained, on, fp16_on_cpu, caplog):
    run = trained("run", "device=auto", "precision=fp16", *LOW, "steps=4")
    file = run / "checkpoints" / "000004" / "training_state" / "scaler_state.json"
    file.write_text(file.read_text()[:20])
    with pytest.raises(ConfigError, match=r"scaler_state\.json cannot be read"):
        on(run, "steps=5")
    file.unlink()
    on(run, "steps=5")

    assert caplog.text.count("scaler_state.json is not there") == 1


@pytest.mark.parametrize(
    ("words", "rate"),
    [
        ([], 1e-3),
        (["policy.optimizer_lr=1e-5"], 1e-5),
        (["--policy.optimizer_lr=1e-5"], 1e-5),
        (["optimizer.lr=1e-5"], 1e-5),
        (["--optimizer.lr", "1e-5"], 1e-5),
        (["policy.optimizer_lr=1e-4", "optimizer.lr=1e-5"], 1e-5),
        (["optimizer=adamw", "policy.optimizer_lr=1e-5"], 1e-5),
    ],
)
def test_a_learning_rate_typed_on_resume_is_that_of_the_next_update(trained, rows, words, rate):
    """CKPT-09: the optimizer's state won, without a word."""
    run = trained("run", "steps=2")
    config = lerobot.compose("train", [f"resume={run.resolve()}", "steps=3", *words])
    assert config.optimizer.lr == rate
    if words in ([], ["policy.optimizer_lr=1e-5"]):  # the other spellings are one with these from here on
        lerobot.run(config)
        assert [row["train/lr"] for row in rows(run)] == [1e-3, 1e-3, rate]


def test_so_is_that_of_the_backbone(train, monkeypatch):
    """CKPT-09: a group with a rate of its own kept the stored one."""
    from lerobot import runner

    rates, real = [], runner.train_step

    def train_step(model, batches, optimizer, *rest):
        rates.append([group["lr"] for group in optimizer.param_groups])
        return real(model, batches, optimizer, *rest)

    monkeypatch.setattr(runner, "train_step", train_step)
    run = train("steps=1", "policy.optimizer_lr_backbone=1e-4")
    words = ["policy.optimizer_lr_backbone=1e-6", "optimizer.lr=1e-5"]
    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=2", *words]))

    assert rates == [[1e-3, 1e-4], [1e-5, 1e-6]]


@pytest.mark.parametrize(
    "word", ["scheduler=cosine", "--scheduler.type=cosine", "scheduler.num_warmup_steps=5", "optimizer=sgd"]
)
def test_another_schedule_or_optimizer_is_refused(trained, word):
    """CKPT-09: it would make the rest another run."""
    run = trained("run", "steps=2")
    with pytest.raises(ConfigError, match="cannot change when a run goes on"):
        lerobot.compose("train", [f"resume={run}", word])


def test_a_rate_that_changed_is_said_once(trained, caplog):
    run = trained("run", "steps=2")
    caplog.set_level("INFO")
    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=3", "policy.optimizer_lr=1e-5"]))
    assert caplog.text.count("=1e-05, was 0.001") == 1


@pytest.mark.parametrize("word", ["resume=", "resume=''", "--resume="])
def test_an_empty_resume_names_no_run(word):
    with pytest.raises(ConfigError, match="resume= names no run"):
        lerobot.compose("train", [word])


def test_a_home_folder_is_what_a_shell_makes_of_it(trained, monkeypatch, tmp_path):
    """A shell leaves `--output_dir=~/run` alone, and a folder of the name `~` was made."""
    monkeypatch.setenv("HOME", str(tmp_path))
    trained("run", "steps=2")
    again = [*TINY, "steps=2", "output_dir=~/run"]
    assert lerobot.compose("train", [*again, "resume=auto"]).output_dir == str(tmp_path / "run")
    assert lerobot.compose("train", [*TINY, "output_dir=~/other"]).output_dir == str(tmp_path / "other")


def test_a_training_state_names_its_checkpoint(trained):
    state = trained("run", "steps=2") / "checkpoints" / "000002" / "training_state"
    assert lerobot.compose("train", [f"resume={state}", "steps=3"]).resume == str(state.parent.resolve())


@pytest.mark.parametrize("name", ["log_freq", "save_freq", "env_eval_freq"])
def test_a_negative_period_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name}=-1: type 0 or more"):
        lerobot.compose("train", [*TINY, f"{name}=-1"])


def test_a_reference_to_no_key_is_one_sentence():
    with pytest.raises(ConfigError, match=r"\$\{steeps\} names no key: type one that --cfg job shows"):
        lerobot.compose("train", [*TINY, "save_freq=${steeps}"])


def test_two_words_for_two_runs_are_refused(trained):
    run, other = trained("run", "steps=2"), trained("other", "steps=2")
    with pytest.raises(ConfigError, match="config_path=other and resume=run name two runs"):
        lerobot.compose("train", [f"--config_path={other}", f"resume={run}"])
    with pytest.raises(ConfigError, match="config_path= names no run"):
        lerobot.compose("train", ["--config_path="])


def test_a_stored_config_begins_a_run_that_every_job_goes_on_with(trained, tmp_path, rows):
    line = [f"--config_path={trained('run', 'steps=2')}", "resume=auto", f"output_dir={tmp_path / 'again'}"]
    for steps in ("steps=2", "steps=3"):
        lerobot.run(lerobot.compose("train", [*line, steps]))
    assert [row["step"] for row in rows(tmp_path / "again")] == [1, 2, 3]


@pytest.mark.parametrize("word", ["resume={}", "policy.path={}"])
def test_a_reference_in_the_name_of_a_folder_is_told(trained, word):
    run = trained("doll${x}", "steps=2")
    with pytest.raises(ConfigError, match="which is a reference in a config: rename the folder"):
        lerobot.compose("train", [*TINY, word.format(run)])


@pytest.mark.parametrize("word", ["output_dir", "resume", "config_path", "policy.path", "dataset.root"])
def test_a_name_that_is_too_long_is_one_sentence(monkeypatch, capsys, word):
    from lerobot.command import main
    from lerobot.train import work

    monkeypatch.setattr("sys.argv", ["lerobot-train", *TINY, f"{word}={'x' * 300}"])
    with pytest.raises(SystemExit) as left:
        main("train", work)
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1
    assert "is too long for a name: type a shorter one" in said


def test_a_new_run_from_weights_and_one_that_goes_on_are_two(trained):
    run = trained("run", "steps=2")
    with pytest.raises(ConfigError, match=r"policy\.path starts a new run and resume goes on with one"):
        lerobot.compose("train", [f"policy.path={run}", f"resume={run}"])


@pytest.mark.parametrize("word", ["parallelism=ddp", "parallelism.nproc=2"])
def test_an_evaluation_works_in_one_process(trained, word):
    with pytest.raises(ConfigError, match="lerobot-eval works in one process: leave out parallelism"):
        lerobot.compose("eval", [f"policy.path={trained('run', 'steps=2')}", "env=metaworld", word])


def test_a_sweep_takes_no_folder_of_a_run(trained, monkeypatch, capsys):
    from lerobot.command import main
    from lerobot.train import work

    run = trained("run", "steps=2")
    before = sorted(path.name for path in run.iterdir())
    monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", *TINY, "seed=1,2", f"output_dir={run}"])
    with pytest.raises(SystemExit) as left:
        main("train", work)
    assert left.value.code == 2
    assert "a sweep needs a folder of its own" in capsys.readouterr().err
    assert sorted(path.name for path in run.iterdir()) == before


def test_a_folder_of_several_runs_lists_them(trained, tmp_path):
    """CKPT-06: which path do I give?"""
    runs = [trained(tmp_path / "sweep" / name, "steps=2") for name in ("a", "b")]
    with pytest.raises(ConfigError) as error:
        lerobot.compose("train", [f"resume={tmp_path / 'sweep'}"])
    assert str(error.value).endswith(f"holds runs: give one of {runs[0]}, {runs[1]}")


def change(stored, how):
    if how == "an unknown key":
        stored["use_amp"] = False
    elif how == "a removed key":
        stored["accelerator"]["grad_scaler"]["enabled"] = True
    elif how == "a missing key":
        del stored["accelerator"]["grad_scaler"]["max_consecutive_skips"]
    elif how == "an older version":  # as 0.1.0 wrote it before the format had a number
        del stored["schema_version"]
        stored.update(resume=None, interrupt_after=2)
    elif how == "a newer version":
        stored.update(schema_version=7, flux_capacitor={"power_gw": 1.21})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nothing", ""),
        ("an unknown key", "unknown keys have no effect: use_amp"),
        ("a removed key", "unknown keys have no effect: accelerator.grad_scaler.enabled"),
        ("a missing key", "keys that are not there take their defaults: accelerator.grad_scaler.max_consecutive_skips"),
        ("an older version", "format 0 is read as format 1"),
        (
            "a newer version",
            "written by a newer version (format 7, this one knows 1); unknown keys have no effect: flux",
        ),
    ],
)
def test_configs_of_other_versions_are_read_with_one_warning(trained, rows, caplog, tmp_path, how, said):
    """CKPT-10: one renamed key made every older checkpoint unreadable."""
    run = trained(tmp_path / "run", "steps=2")
    file = run / "checkpoints" / "000002" / "pretrained_model" / "train_config.json"
    stored = json.loads(file.read_text())
    assert stored["schema_version"] == 1
    change(stored, how)
    file.write_text(json.dumps(stored))
    lerobot.run(lerobot.compose("train", [f"resume={run}", "steps=3"]))

    assert [row["step"] for row in rows(run)] == [1, 2, 3]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    warnings = [warning for warning in warnings if "waiting for data" not in warning]  # a busy machine
    assert len(warnings) == (1 if said else 0)
    assert not said or (str(file) in warnings[0] and said in warnings[0])
    again = json.loads((run / "checkpoints" / "last" / "pretrained_model" / "train_config.json").read_text())
    assert again["schema_version"] == 1
    with pytest.raises(ConfigError, match="there is no key 'use_amp'"):
        lerobot.compose("train", [f"resume={run}", "use_amp=true"])


def test_a_version_that_is_no_number_is_refused(trained):
    """CKPT-10: a damaged config is not taken for an old one."""
    run = trained("run", "steps=2")
    file = run / "checkpoints" / "000002" / "pretrained_model" / "train_config.json"
    file.write_text(file.read_text().replace('"schema_version": 1', '"schema_version": "one"'))
    with pytest.raises(ConfigError, match="schema_version=one"):
        lerobot.compose("train", [f"resume={run}"])


@pytest.mark.parametrize("group", ["dataset", "optimizer", "scheduler"])
def test_a_config_without_a_part_that_a_run_cannot_do_without_is_refused_by_name(trained, group):
    """CKPT-10: it ended in a traceback about None."""
    run = trained("run", "steps=2")
    file = run / "checkpoints" / "000002" / "pretrained_model" / "train_config.json"
    stored = json.loads(file.read_text())
    del stored[group]
    file.write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match=f"has no {group}: "):
        lerobot.compose("train", [f"resume={run}"])


def test_a_checkpoint_holds_lerobots_fields_only(trained):
    run = trained("run", "steps=2")
    stored = json.loads((run / "checkpoints" / "last" / "pretrained_model" / "config.json").read_text())
    peer = json.loads((DATA / "peer_checkpoints" / "act_state" / "pretrained_model" / "config.json").read_text())

    assert stored.keys() <= peer.keys()


def config_of(run):
    return json.loads((run / "checkpoints" / "last" / "pretrained_model" / "train_config.json").read_text())


def test_a_run_is_repeated_from_its_folder_and_from_either_config_in_it(typed, rows, tmp_path):
    """HYD-18: pointing at an old run restored half of it."""
    first = tmp_path / "first"
    words = ["steps=3", "save_freq=2", "policy.dropout=0.1", "policy.use_vae=true", "policy.latent_dim=4", "seed=7"]
    typed(*TINY, *words, "wandb=offline", f"output_dir={first}")
    forms = ["", ".hydra/config.yaml", "checkpoints/000002/pretrained_model/train_config.json"]
    for name, form in zip("abc", forms, strict=True):
        typed(f"--config_path={first / form}", f"output_dir={name}")
        assert losses(rows(name)) == losses(rows(first))
    ids = {config_of(Path(run))["wandb"]["run_id"] for run in (first, *"abc")}
    assert len(ids) == 4  # each has charts of its own
    typed(f"--config_path={first}", "output_dir=d", "seed=8", "steps=2", "wandb=disabled")
    assert list(losses(rows("d"))) == [1, 2]
    assert losses(rows("d"))[1] != losses(rows(first))[1]


def test_a_run_that_saved_nothing_is_repeated_too(typed, rows):
    """HYD-18: a job's folder is enough."""
    typed(*TINY, "steps=2", "save_checkpoint=false", "output_dir=first")
    typed("--config_path=first", "output_dir=again")

    assert losses(rows("again")) == losses(rows("first"))


@pytest.mark.slow
def test_a_job_of_a_sweep_goes_on_and_is_repeated_with_nothing_else_typed(typed, tmp_path, rows):
    """HYD-18: Hydra's own settings were lost, so outputs landed elsewhere."""
    own = "hydra.job_logging.root.level=WARNING"
    typed("-m", *TINY, "seed=1,2", "steps=2", own, "output_dir=sweep")
    job = tmp_path / "sweep" / "1_seed2"
    stored = config_of(job)
    assert stored["seed"] == 2
    typed(f"resume={job}", "steps=3")
    assert [row["step"] for row in rows(job)] == [1, 2, 3]
    resumed = OmegaConf.load(job / ".hydra.1" / "hydra.yaml").hydra
    assert resumed.job_logging.root.level == "WARNING"
    assert resumed.runtime.output_dir == str(job)
    assert {**config_of(job), "steps": 2} == stored
    typed(f"--config_path={job}", "output_dir=again")
    assert losses(rows(tmp_path / "again")) == losses(rows(job))
    again = OmegaConf.load(tmp_path / "again" / ".hydra" / "hydra.yaml").hydra
    assert again.job_logging.root.level == "WARNING"
