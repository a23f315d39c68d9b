"""What an installation into an existing environment must leave as it is, run by that environment's Python.

`pins` prints the kept packages as requirements with their exact versions, for `uv pip install --override`;
`fingerprint` prints what they are made of; `check FILE` compares that with an earlier one and fails, naming what
changed; `requirements` prints what this project needs at least, for an installer that cannot read pyproject.toml.
Standard library only.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import sys
import tomllib
from pathlib import Path

KEPT = ("torch", "torchvision", "numpy")


def versions() -> dict[str, str]:
    """Version of each kept package that is here, local tag and all."""
    found = {}
    for name in KEPT:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def fingerprint() -> dict[str, dict[str, str]]:
    """Version and a digest of the files of each kept package; byte code is not counted."""
    return {name: {"version": version, "files": _digest(name)} for name, version in versions().items()}


def _digest(name: str) -> str:
    spec = importlib.util.find_spec(name)  # does not import it
    digest = hashlib.sha256()
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                facts = path.stat()
                digest.update(f"{path} {facts.st_size} {facts.st_mtime_ns} {facts.st_ino}\n".encode())
    return digest.hexdigest()


def changes(before: dict[str, dict[str, str]]) -> list[str]:
    """One sentence for each kept package that is not what it was."""
    after = fingerprint()
    said = []
    for name, was in before.items():
        now = after.get(name, {"version": "gone", "files": ""})
        if now["version"] != was["version"]:
            said.append(f"{name} was {was['version']} and is {now['version']} now")
        elif now != was:
            said.append(f"{name} {was['version']} was installed anew: its files are others")
    return said


def requirements() -> list[str]:
    """The project's dependencies without extras."""
    project = Path(__file__).resolve().parents[1] / "pyproject.toml"
    return tomllib.loads(project.read_text())["project"]["dependencies"]


def main(command: str, *files: str) -> int:
    """See the module."""
    out = sys.stdout
    if command == "pins":
        out.writelines(f"{name}=={version}\n" for name, version in versions().items())
    elif command == "fingerprint":
        json.dump(fingerprint(), out)
    elif command == "requirements":
        out.writelines(f"{line}\n" for line in requirements())
    else:
        said = changes(json.loads(Path(files[0]).read_text()))
        sys.stderr.writelines(f"error: {line}\n" for line in said)
        return bool(said)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
