"""Whether the hub has a model for us, asked once and quickly: its own client retries for most of a minute."""

from collections.abc import Mapping

import httpx
from huggingface_hub import constants, get_token, try_to_load_from_cache

from sanarl.errors import UserError
from sanarl.importing import nearest

TIMEOUT_S = 10.0
INDEX = "model_index.json"


def local_only(name: str, revision: str | None, embedded: Mapping[str, object]) -> bool:
    """Whether a model of the hub must come from its cache: the hub is turned off or away, and the cache has it.

    Args:
        name: ``owner/name``. revision: branch, tag or commit.
        embedded: names to offer beside it.

    Raises:
        UserError: saying what to do, when the hub has no such model for us, or is away and the cache has none.
    """
    key = f"policy.model_name_or_path: {name}"
    others = f"accepted: a folder with {INDEX}, a hub id (owner/name), or {', '.join(embedded)}"
    if name.count("/") != 1 or not all(name.split("/")) or name.startswith((".", "~")):
        raise UserError(f"{key}: there is no such folder, and it is no hub id{nearest(name, list(embedded))}; {others}")
    cached = isinstance(try_to_load_from_cache(name, INDEX, revision=revision), str)
    if constants.HF_HUB_OFFLINE:
        if cached:
            return True
        raise UserError(
            f"{key} is not in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE forbids to ask the hub; unset it "
            f"once to fetch the model; {others}"
        )
    problem = _problem(name, revision)
    if problem is None:
        return False
    if cached and problem.startswith("the hub"):
        return True
    raise UserError(f"{key}: {problem}; {others}")


def _problem(name: str, revision: str | None) -> str | None:
    """Why the hub does not give the model; None when it does."""
    token = get_token()
    page = f"{constants.ENDPOINT}/{name}"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.head(
            f"{page}/resolve/{revision or 'main'}/{INDEX}", headers=headers, timeout=TIMEOUT_S, follow_redirects=True
        )
    except httpx.HTTPError as error:
        return (
            f"the hub {constants.ENDPOINT} cannot be reached ({error or type(error).__name__}); check network and proxy"
        )
    login = "the login here is not enough" if token else "nobody is logged in here: `hf auth login`, or set HF_TOKEN"
    match answer.headers.get("x-error-code"), answer.status_code:
        case "GatedRepo", _:
            return f"this model is gated: accept its conditions at {page} with your account; {login}"
        case "RevisionNotFound", _:
            return f"the hub has no revision {revision!r} of it (policy.model_revision)"
        case "EntryNotFound", _:
            return f"the hub has it, but it is no diffusers pipeline: it has no {INDEX}"
        case _, (401 | 403 | 404):
            return f"the hub has no such model, or it is private ({login})"
        case _, status if status >= 400:
            return f"the hub {constants.ENDPOINT} answers with HTTP {status}; try again later"
    return None
