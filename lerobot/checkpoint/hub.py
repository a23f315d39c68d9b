"""Checkpoints on the Hugging Face Hub: fetched, as JSON and safetensors alone, and uploaded.

huggingface_hub is imported where a repo is named and nowhere else: a path on this machine never touches the network.
`HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN` and the cache folders mean what they mean there.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lerobot.checkpoint.paths import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    LAST,
    PRETRAINED_FOLDER,
    WEIGHTS_FILE,
    find_pretrained,
)
from lerobot.errors import ConfigError, RunError

log = logging.getLogger(__name__)

_REPO = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*?)(@(?P<revision>[\w./-]+))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILES = ["*.json", "*.safetensors"]
_TIMEOUT_S = 10
"""For the Hub to answer."""


def named_repo(path: str | Path, revision: str | None = None) -> tuple[str, str | None] | None:
    """The Hub repo that `path` names, `<user>/<name>` or `<user>/<name>@<revision>`, and the revision, if one is named.

    None where `path` is there on this machine, or is no such name.
    """
    match = _REPO.fullmatch(str(path))
    if match is None or Path(path).exists():
        return None
    if match["revision"] and revision and match["revision"] != revision:
        raise ConfigError(
            f"policy.path={path} and policy.pretrained_revision={revision} differ: leave one revision out"
        )
    return match["repo"], match["revision"] or revision


def find_policy(path: str | Path, revision: str | None = None) -> tuple[Path, str | None]:
    """The folder of the checkpoint that `path` means, and its commit where that is a Hub repo.

    `path` is what `find_pretrained` takes, or a repo as `named_repo` takes it. Raises `ConfigError`.
    """
    named = named_repo(path, revision)
    if named is None:
        return find_pretrained(path), None
    folder, commit = _fetch(*named)
    return find_pretrained(folder), commit


def _fetch(repo: str, revision: str | None) -> tuple[Path, str]:
    """The snapshot of `repo` in the cache, fetched if it is not there, and its commit."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    is_pinned = revision is not None and _COMMIT.fullmatch(revision) is not None
    wanted = {"repo_id": repo, "allow_patterns": _FILES, "ignore_patterns": ["*/*"]}
    if is_pinned or _offline():  # a commit never changes: what is cached of it needs no network
        try:
            folder = Path(snapshot_download(revision=revision, local_files_only=True, **wanted))
            return folder, folder.name
        except LocalEntryNotFoundError as error:
            if _offline():
                raise ConfigError(
                    f"there is no {repo} on this machine, neither as a folder nor in the Hub's cache, and "
                    "HF_HUB_OFFLINE is set: unset it, or give a folder"
                ) from error
    with _answered(repo, revision):
        info = _api().model_info(repo, revision=revision, timeout=_TIMEOUT_S)
    files = {entry.rfilename for entry in info.siblings or ()}
    if absent := [name for name in (CONFIG_FILE, WEIGHTS_FILE) if name not in files]:
        raise ConfigError(
            f"the Hub repo {repo} has no {' and no '.join(absent)}: give one that a policy was saved to (pickles, such "
            "as pytorch_model.bin, are never opened)"
        )
    with _answered(repo, revision), _quiet_unless_watched():
        folder = Path(snapshot_download(revision=revision, endpoint=_endpoint(), etag_timeout=_TIMEOUT_S, **wanted))
    return folder, folder.name


def check_upload(policy: Any, *, saves: bool) -> None:
    """Refuse now, and not after the training, an upload that cannot be done. Asks the Hub who is asking."""
    if not policy.push_to_hub:
        return
    from huggingface_hub import get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    repo, without = policy.repo_id, "or leave policy.push_to_hub out"
    if repo is None or _REPO.fullmatch(repo) is None or "@" in repo:
        given = "" if repo is None else f" and policy.repo_id={repo} is none"
        raise ConfigError(
            f"policy.push_to_hub=true needs a repo to upload to{given}: type policy.repo_id=<user>/<name>, {without}"
        )
    if not saves:
        raise ConfigError(f"policy.push_to_hub=true uploads the last checkpoint: drop save_checkpoint=false, {without}")
    if _offline():
        raise ConfigError(f"policy.push_to_hub=true needs a network and HF_HUB_OFFLINE is set: unset it, {without}")
    if get_token() is None:
        raise ConfigError(f"policy.push_to_hub=true needs a token: type `hf auth login`, set HF_TOKEN, {without}")
    later = f"again later, {without}"
    with _answered(repo, asks=later), suppress(RepositoryNotFoundError):  # a new one is made at the end
        _api().model_info(repo, timeout=_TIMEOUT_S)  # the next call would wait for minutes where nobody answers
    with _answered(repo, asks="with your token; log in anew with `hf auth login`"):
        account = _api().whoami()
    owner, spaces = repo.partition("/")[0], [account["name"], *(org["name"] for org in account.get("orgs", ()))]
    if owner not in spaces:
        raise ConfigError(
            f"policy.repo_id={repo} is not yours to write to: type one of {', '.join(spaces)} for {owner}"
        )
    if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise ConfigError(f"the token of {account['name']} may only read: make one that may write, {without}")


def upload(config: Any, run_dir: Path) -> str:
    """Put the newest checkpoint's policy and a model card into the repo; return its address.

    Raises `RunError`: the run is done and saved all the same.
    """
    from huggingface_hub import CommitOperationAdd

    policy, folder = config.policy, run_dir / CHECKPOINTS_FOLDER / LAST / PRETRAINED_FOLDER
    folder = folder if folder.exists() else find_pretrained(run_dir)
    files = sorted(file for file in folder.iterdir() if file.suffix in (".json", ".safetensors"))
    added = [CommitOperationAdd(file.name, str(file)) for file in files]
    added.append(CommitOperationAdd("README.md", model_card(config).encode()))
    api = _api()
    try:
        with _quiet_unless_watched():
            url = api.create_repo(policy.repo_id, private=policy.private, exist_ok=True)
            api.create_commit(policy.repo_id, added, commit_message=f"{policy.type} after {config.steps} updates")
    except Exception as error:
        raise RunError(
            f"the run is trained and saved, its upload to {policy.repo_id} failed ({_one_line(error)}): type "
            f"`hf upload {policy.repo_id} {folder}`, or lerobot-train resume={run_dir}"
        ) from error
    return str(url)


def model_card(config: Any) -> str:
    """The README.md of an uploaded policy."""
    policy, data = config.policy, config.dataset
    name = data.repo_id or Path(data.root or "").name
    facts: dict[str, Any] = {"library_name": "lerobot", "pipeline_tag": "robotics", "license": policy.license}
    facts["tags"] = list(dict.fromkeys([*(policy.tags or ()), "lerobot", "robotics", policy.type]))
    facts["datasets"] = [data.repo_id] if data.repo_id else None
    head = "\n".join(f"{key}: {json.dumps(value)}" for key, value in facts.items() if value)  # JSON is YAML
    env = (
        "metaworld"
        if config.env is None
        else " ".join([config.env.type, *(f"env.task={t}" for t in config.env.tasks[:1])])
    )
    return (
        f"---\n{head}\n---\n\n# {policy.repo_id}\n\n"
        f"A policy of type {policy.type} for robots, trained for {config.steps} updates of {config.batch_size} frames "
        f"on the dataset {name}. It reads {', '.join(policy.input_features or ())} and writes "
        f"{', '.join(policy.output_features or ())}; its statistics are in the processors beside the weights.\n\n"
        f"```\nlerobot-eval policy.path={policy.repo_id} env={env}\n"
        f"lerobot-train policy.path={policy.repo_id} dataset.root=<your demonstrations>\n```\n"
    )


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=_endpoint())


def _endpoint() -> str | None:
    """Read when it is needed: huggingface_hub reads it once, when it is imported."""
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None


def _offline() -> bool:
    words = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return words.upper() in ("1", "ON", "YES", "TRUE")


@contextmanager
def _answered(repo: str, revision: str | None = None, asks: str = "") -> Iterator[None]:
    """Make one sentence of what goes wrong on the way to the Hub; what a network raises changes with versions."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"the Hub repo {repo} is gated: accept its conditions on its page, and log in with `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigError(
            f"the Hub repo {repo} has no revision {revision}: type a commit, branch or tag of it"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"{repo} is neither a folder here nor a repo that the Hub shows you: type <user>/<name> of one, or log in "
            "with `hf auth login` if it is private"
        ) from error
    except Exception as error:
        asks = asks or "again later, or give a folder, or a commit that is cached as policy.pretrained_revision"
        raise ConfigError(f"the Hub did not answer for {repo} ({_one_line(error)}): try {asks}") from error


@contextmanager
def _quiet_unless_watched() -> Iterator[None]:
    """Without progress bars where nobody sees them move."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).split()) or "nothing said"
    return f"{type(error).__name__}: {said[:200]}"


def say_upload(policy: Any) -> None:
    """Say what is going to be uploaded, or that nothing is although a place was named."""
    named = [name for name in ("repo_id", "private", "tags", "license") if getattr(policy, name) is not None]
    if policy.push_to_hub:
        log.info("the last checkpoint will be uploaded to %s", policy.repo_id)
    elif named:
        words = ", ".join(f"policy.{name}" for name in named)
        log.info("%s: nothing is uploaded without policy.push_to_hub=true; `hf upload` takes a checkpoint there", words)
