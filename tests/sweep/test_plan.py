"""What a line means is listed before anything runs: the jobs, their folders, and what cannot work."""

import re
import sys
import time
from pathlib import Path

import pytest
from runs import TINY

from lerobot.command import main
from lerobot.errors import ConfigError
from lerobot.sweep.jobs import expand, short_name, spelled
from lerobot.train import work

BASE = [word for word in TINY if not word.startswith("device=")]


@pytest.fixture
def dry(monkeypatch, capsys):
    """Runs `lerobot-train -m ... sweep.dry_run=true`; returns its status and what it says."""

    def run(*words, base=BASE):
        monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", *base, *words, "sweep.dry_run=true"])
        with pytest.raises(SystemExit) as left:
            main("train", work)
        captured = capsys.readouterr()
        return left.value.code, captured.out + captured.err

    return run


def jobs(said):
    """The lines of the list that name a job's folder."""
    return [line.split() for line in said.splitlines() if line.startswith("  ") and line.strip()[:1].isdigit()]


def test_a_dry_run_lists_jobs_and_refusals_and_leaves_nothing_behind(dry):
    status, said = dry("precision=no,bf16,fp16", "device=cpu,cuda")

    assert status == 2
    assert jobs(said)[0] == ["0_cpu_no", "precision=no", "device=cpu"]
    assert len(jobs(said)) == 6
    assert said.count("refused: ") == 4
    assert "6 jobs, 4 of them refused" in said
    assert not list(Path().iterdir())


def test_the_folder_of_a_dry_run_is_not_made(dry):
    status, said = dry("seed=1,2", "device=cpu", "output_dir=mine")

    assert (status, said.splitlines()[0]) == (0, "mine/")
    assert not Path("mine").exists()


@pytest.mark.slow
def test_two_hundred_jobs_are_listed_in_half_a_minute(dry):
    started = time.process_time()
    status, said = dry("seed=range(0,100)", "precision=no,bf16", "device=cpu")

    assert (status, len(jobs(said))) == (0, 200)
    assert time.process_time() - started < 30


def test_pairs_instead_of_combinations(dry):
    _, said = dry("seed=1,2", "policy.dropout=0.1,0.2", "device=cpu", "sweep.mode=zip")

    assert [row[1:] for row in jobs(said)] == [["seed=1", "policy.dropout=0.1"], ["seed=2", "policy.dropout=0.2"]]


def test_lists_of_unequal_length_are_not_paired(dry):
    status, said = dry("seed=1,2,3", "precision=no,bf16", "sweep.mode=zip")

    assert status == 2
    assert "seed has 3, precision has 2" in said


def test_a_key_of_one_swept_choice_is_read_with_that_choice(dry):
    """HYD-07: it was checked against the default choice, and the whole sweep was refused."""
    status, said = dry("env=null,metaworld", "env.task=push-v3", "device=cpu")

    assert status == 2
    assert "refused: env.task=push-v3 is for a job with env=..." in said
    assert said.count("refused: ") == 1
    assert dry("policy=act,act_small", "policy.kl_weight=3", "device=cpu")[0] == 0


def test_a_job_that_cannot_be_composed_takes_no_other_along(dry):
    status, said = dry("steps=a,5", "device=cpu")

    assert status == 2
    assert "steps=a does not fit: type a whole number" in said
    assert said.count("refused: ") == 1


def test_brackets_make_a_list_and_commas_a_sweep(dry):
    """HYD-09: users of all levels get caught; verbose mode broke sweeps."""
    _, said = dry("dataset.episodes=[0],[1]", "device=cpu", "hydra.verbose=true")
    assert [row[1] for row in jobs(said)] == ["dataset.episodes=[0]", "dataset.episodes=[1]"]
    _, said = dry("dataset.episodes=[0,2]", "device=cpu")
    assert len(jobs(said)) == 1


def test_a_typo_is_told_before_anything_runs(dry):
    """HYD-17: mandatory values and typos were noticed deep in the run."""
    status, said = dry("seed=1,2", "precison=no,bf16")
    assert status == 2
    assert "type precision=..." in said
    status, said = dry("seed=1,2", base=[])
    assert status == 2
    assert "dataset.root=" in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sweep.mode=pairs"], "type sweep.mode=cross or sweep.mode=zip"),
        (["sweep.mode=zip,cross"], "about the whole sweep, type one"),
        (["seed=1,2", "hydra.sweep.subdir=mine"], "names the folders of its jobs itself"),
        (["sweep.resume=nowhere"], "holds no sweep"),
    ],
)
def test_what_a_sweep_cannot_do_is_said_in_one_sentence(dry, words, says):
    status, said = dry(*words)

    assert status == 2
    assert says in said.splitlines()[-1]


def test_words_about_a_sweep_need_one(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["lerobot-train", *TINY, "sweep.on_error=stop"])
    with pytest.raises(SystemExit):
        main("train", work)

    assert "add -m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("differs", "name"),
    [
        (["accelerator.mixed_precision=no"], "cpu_no"),
        ([], "cpu_no"),
        (["policy=act", "policy.optimizer_lr=1e-4", "seed=2"], "act_lr1e-4_seed2"),
        (["tf32=enabled"], "tf32-enabled"),
        (["policy.device=cpu", "seed=0"], "cpu_no_seed0"),
        (["dataset.root=/a/b/demos", "env.task=[push-v3,drawer-open-v3]"], "root-demos_push-v3-drawer-open-v3"),
        (["policy.n_heads=2", "other.n_heads=4"], "policy-n_heads2_other-n_heads4"),
        (["job_name='a b/c d'"], "job_name-c-d"),
        (["job_name=" + 80 * "x"], "job_name-" + 51 * "x"),
        (["policy.path=runs/12-00-00_act/checkpoints/000100"], "12-00-00_act-000100"),
    ],
)
def test_a_folder_says_what_differs(differs, name):
    assert short_name(differs, "cpu", "no") == name


def test_a_word_is_told_without_hydras_escapes():
    """A job was listed with device=cuda\\:3."""
    assert spelled("policy.device=cuda\\:3") == "device=cuda:3"
    assert spelled("job_name='a\\:b'") == "job_name='a\\:b'"


def test_a_combination_that_is_typed_twice_is_one_job():
    assert expand(["seed=1,1,2"], "cross")[0] == [["seed=1"], ["seed=2"]]


def test_an_interval_is_for_a_sweeper_that_searches():
    with pytest.raises(ConfigError, match="no end of values"):
        expand(["policy.optimizer_lr=interval(0.1,1)"], "cross")


def test_params_of_a_config_file_are_swept_in_any_spelling(dry, tmp_path):
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "grid.yaml").write_text(
        '# @package _global_\nhydra:\n  sweeper:\n    params:\n      precision: "no,bf16"\n      seed: range(0,2)\n'
    )
    _, said = dry("experiment=grid", f"hydra.searchpath=[file://{tmp_path / 'mine'}]", "device=cpu")

    assert [row[1:] for row in jobs(said)] == [[f"precision={p}", f"seed={s}"] for p in ("no", "bf16") for s in (0, 1)]


def test_a_config_that_names_hydras_own_values_is_left_to_the_job(dry):
    status, said = dry("job_name='a_${hydra:job.num}'", "seed=1,2", "device=cpu")

    assert (status, len(jobs(said))) == (0, 2)


@pytest.mark.slow
def test_an_estimate_tries_each_kind_of_job_once_and_leaves_nothing(dry, monkeypatch, tmp_path):
    tried = []
    from lerobot import runner

    real = runner.train
    monkeypatch.setattr(runner, "train", lambda config: tried.append(config.output_dir) or real(config))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = ["seed=1,2,3", "policy.optimizer_lr=1e-3,1e-4", "policy.dim_model=32,64", "steps=200", "save_freq=50"]
    status, said = dry(*words, "device=cpu", "sweep.estimate=true")

    assert status == 0
    assert len(tried) == 2
    assert "and 5 like it" in said
    assert "in all: about" in said
    assert not list(tmp_path.glob("lerobot-*"))


@pytest.mark.slow
def test_an_estimate_counts_the_evaluations_too(dry):
    """They were left out, and are most of the time of a short run."""
    words = ["seed=1,2", "device=cpu", "steps=40", "env=metaworld", "env.task=push-v3", "env.episode_length=20"]
    status, said = dry(*words, "env_eval_freq=20", "eval.n_episodes=10", "sweep.estimate=true")

    assert status == 0
    found = re.search(r"2 evaluations of 10 episodes, ([\d.]+) s each at most", said)
    assert found, said
    assert 0 < float(found[1]) < 60
    assert "evaluations left out" not in said


def test_torch_waits_until_a_job_could_run(tmp_path):
    import os
    import subprocess

    code = "import sys; from lerobot.train import main; sys.argv = ['x', '-m', 'seed=1,2', 'sweep.dry_run=true']\n"
    code += "try: main()\nexcept SystemExit as left: print(left.code, 'torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "2 False"


def test_an_empty_range_is_refused(dry):
    status, _ = dry("seed=range(0,0)", "device=cpu")

    assert status == 2


def test_a_checkpoint_that_is_not_there_is_refused_and_stops_no_other(train, dry):
    """All jobs were refused."""
    run = train("steps=1")
    status, said = dry(f"policy.path={run},/nope", "device=cpu")

    assert (status, said.count("refused: ")) == (2, 1)
    assert "2 jobs, 1 of them refused" in said
    assert [row[1].partition("=")[0] for row in jobs(said)] == ["policy.path"] * 2
    assert jobs(said)[1] == ["1_nope", "policy.path=/nope"]


@pytest.mark.parametrize("words", [["sede=0,1"], ["seed=0,1", "policy.dropot=0.1"], ["policy.path=/no,/nope"]])
def test_what_is_wrong_in_all_jobs_is_one_error_and_no_folder(monkeypatch, capfd, words):
    """A typo left a folder for each job, and no line that says error."""
    monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", *BASE, "device=cpu", *words])
    with pytest.raises(SystemExit) as left:
        main("train", work)

    said = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
    assert left.value.code == 2
    assert len(said) == 1
    assert said[0].startswith("error: ")
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["seed=0,1", "output_dir=a,b"], "output_dir=a,b names several folders and a sweep has one: type one"),
        (["seed=0,1", "hydra.sweeper.metrik=x"], "there is no key 'hydra.sweeper.metrik': type hydra.sweeper.metric="),
        (["seed=0,1", "hydra.sweeper.n_trials=3"], "hydra.sweeper.n_trials is of hydra/sweeper=optuna: add that"),
        (["seed=0,1", "hydra.launcher.n_jobs=3"], "hydra.launcher.n_jobs is of hydra/launcher=joblib: add that"),
        (["seed=0,1", "sweep.isolate=proces"], "type sweep.isolate=process"),
        (["resume=s"], "type -m sweep.resume=<its folder> to go on with a sweep"),
    ],
)
def test_the_hint_names_what_is_to_be_typed(dry, words, says):
    status, said = dry(*words, "device=cpu")

    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert status == 2
    assert says in error


@pytest.mark.slow
def test_a_dry_run_of_a_sweep_that_goes_on_says_what_is_left(sweep, monkeypatch, capsys):
    """Jobs that were done were listed as if they were to run."""
    from lerobot.status import write_status

    _, done = sweep("seed=0,1,2", "device=cpu", "output_dir=s", "steps=1", base=BASE)
    write_status(done[1], state="stopped")
    for path in sorted(done[2].rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    done[2].rmdir()
    capsys.readouterr()
    monkeypatch.setattr("sys.argv", ["lerobot-train", "-m", "sweep.resume=s", "sweep.dry_run=true"])
    with pytest.raises(SystemExit) as left:
        main("train", work)

    said = capsys.readouterr().out
    assert left.value.code == 0
    assert [" ".join(row[2:]) for row in jobs(said)] == ["done", "to go on", "to run"]
    assert "3 jobs, 1 of them done" in said
