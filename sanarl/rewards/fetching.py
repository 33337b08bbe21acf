"""Bring the weights of a reward from the hub and prove by their hash that they arrived whole."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from sanarl.errors import UserError
from sanarl.importing import nearest
from sanarl.rewards.weights import WEIGHTS, Weights, needed

_SHA256, _SHA1 = 64, 40
TIMEOUT_S = 10.0


def fetch(
    name: str, to: Path | None = None, endpoint: str | None = None, say: Callable[[str], None] = print
) -> list[Path]:
    """Download every file that a reward needs and check each against the hash that the hub states for it.

    Args:
        name: A reward with weights.
        to: Folder to write into (``reward_ckpts`` is searched by scorers); None: the hub's cache.
        endpoint: Address of the hub; None: the usual one, or ``HF_ENDPOINT``.
        say: Gets a line for every file.

    Returns:
        The files.

    Raises:
        UserError: No such reward, the hub cannot be reached, or a file's hash is not the stated one; that file is
            removed.
    """
    if not needed(name):
        known = sorted(WEIGHTS)
        raise UserError(f"reward fetch: {name!r} has no weights to fetch{nearest(name, known)}; accepted: {known}")
    paths = []
    for weights in needed(name):
        for wanted in _listed(weights, endpoint):
            path = _download(weights, wanted, to, endpoint)
            say(f"{path}  {_verify(weights, wanted, path, endpoint)}")
            paths.append(path)
    return paths


def _listed(weights: Weights, endpoint: str | None) -> list[str]:
    """The files of a repository to fetch: of alternatives the first that is there."""
    from fnmatch import fnmatch

    import httpx
    from huggingface_hub import HfApi, constants

    try:
        if not constants.HF_HUB_OFFLINE:  # asked once: the hub's own client tries again for half a minute
            httpx.head(f"{endpoint or constants.ENDPOINT}/api/models/{weights.repo}", timeout=TIMEOUT_S)
        there = HfApi(endpoint=endpoint).list_repo_files(weights.repo)
    except Exception as error:
        raise _unreachable(weights, error) from error
    chosen = []
    for file in weights.files:
        held = [one for one in file.split("|") if one in there]
        if not held:
            raise UserError(f"{weights.repo}: the hub has no {file.replace('|', ' or ')} there")
        chosen.append(held[0])
    chosen += [one for one in there if any(fnmatch(one, pattern) for pattern in weights.extra)]
    return list(dict.fromkeys(chosen))


def _download(weights: Weights, file: str, to: Path | None, endpoint: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    # Single files lie flat in the folder, whole models below their name, where scorers look.
    target = None if to is None else to if len(weights.files) == 1 else to / weights.repo.partition("/")[2]
    try:
        return Path(hf_hub_download(weights.repo, file, local_dir=target, endpoint=endpoint))
    except Exception as error:
        raise _unreachable(weights, error) from error


def _verify(weights: Weights, file: str, path: Path, endpoint: str | None) -> str:
    """Compare with the hub's hash: SHA-256 of large files, git's blob SHA-1 of small ones."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        stated = get_hf_file_metadata(hf_hub_url(weights.repo, file, endpoint=endpoint), endpoint=endpoint).etag or ""
    except Exception as error:
        raise _unreachable(weights, error) from error
    if len(stated) not in (_SHA256, _SHA1):
        raise UserError(f"{weights.repo}/{file}: the hub states no hash (found {stated!r}), so it cannot be checked")
    found = _hash(path, git=len(stated) == _SHA1)
    if found != stated:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise UserError(f"{weights.repo}/{file}: the hub states the hash {stated}, the download has {found}; removed")
    return f"{'sha1' if len(stated) == _SHA1 else 'sha256'}:{found}"


def _hash(path: Path, git: bool) -> str:
    digest = hashlib.sha1() if git else hashlib.sha256()
    if git:
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _unreachable(weights: Weights, error: Exception) -> UserError:
    text = " ".join(str(error).split())[:300]
    return UserError(f"{weights.repo}: could not be fetched from the hub: {type(error).__name__}: {text}")
