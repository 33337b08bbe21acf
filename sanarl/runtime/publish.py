"""train.ckpt.upload_hf: the export of a finished run on the Hugging Face hub."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from huggingface_hub import HfApi, constants, get_token

from sanarl.errors import UserError, first_line

TIMEOUT_S = 10.0
KEY = "train.ckpt.upload_hf"
WRITES = frozenset({"admin", "write", "contributor"})
"""Roles in an organisation that may make and fill repositories."""


def repository(name: str) -> str:
    """The full name of a repository that the one who is logged in here may write, as far as the hub tells.

    Args:
        name: ``owner/name``, or a name alone, of one's own.

    Raises:
        UserError: when nobody is logged in, the hub is off or away, or the login has no right to write there.
    """
    instead = f"accepted: false, and later: {command(name, Path('RUN/safetensors/step_N'))}"
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{KEY}: found true, but HF_HUB_OFFLINE forbids to ask the hub; unset it; {instead}")
    token = get_token()
    if token is None:
        raise UserError(f"{KEY}: found true, but nobody is logged in here: `hf auth login`, or set HF_TOKEN; {instead}")
    try:
        answer = httpx.get(
            f"{constants.ENDPOINT}/api/whoami-v2", headers={"authorization": f"Bearer {token}"}, timeout=TIMEOUT_S
        )
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last: of what no header can hold
        raise UserError(
            f"{KEY}: the hub {constants.ENDPOINT} cannot be reached ({error or type(error).__name__}); {instead}"
        ) from error
    if answer.status_code in (401, 403):
        raise UserError(f"{KEY}: the hub does not know the login here: `hf auth login` anew; {instead}")
    if answer.status_code != 200:
        raise UserError(f"{KEY}: the hub {constants.ENDPOINT} answers with HTTP {answer.status_code}; {instead}")
    who = _account(answer)
    if who is None:
        raise UserError(f"{KEY}: what answers at {constants.ENDPOINT} is not a hub; {instead}")
    found = name if "/" in name else f"{who['name']}/{name}"
    if (problem := _problem(who, found.partition("/")[0])) is not None:
        raise UserError(f"{KEY}: {problem}; train.ckpt.hf_repo_name = {name!r}; {instead}")
    return found


def _account(answer: httpx.Response) -> dict[str, Any] | None:
    """Who is logged in; None when something else answered, such as the page of a network's login."""
    try:
        found = answer.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("name"), str) else None


def _problem(who: dict[str, Any], owner: str) -> str | None:
    """Why a login may not write what ``owner`` has; None when it may, or the hub does not tell."""
    login = who.get("auth", {}).get("accessToken", {}).get("role")
    if login == "read":
        return "the login here may only read: make a token that may write at https://huggingface.co/settings/tokens"
    roles = {each["name"]: each.get("roleInOrg") for each in who.get("orgs", [])}
    if owner != who["name"] and owner not in roles:
        own = ", ".join([who["name"], *sorted(roles)])
        return f"{who['name']} is logged in here and cannot write what {owner} has; accepted owners: {own}"
    if owner in roles and roles[owner] is not None and roles[owner] not in WRITES:
        return f"{who['name']} may only read what {owner} has (role {roles[owner]})"
    return None


def command(name: str, folder: Path) -> str:
    """What uploads a folder by hand."""
    return f"hf upload {name} {folder}"


def upload(folder: Path, name: str, say: Callable[[str], None]) -> bool:
    """Upload an export, to a repository that is made private when there is none; a failure is told, never raised.

    Args:
        folder: complete. name: ``owner/name``. say: hears how it went.
    """
    try:
        api = HfApi()
        api.create_repo(name, private=True, exist_ok=True)
        done = api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"sanarl: {folder.name}")
    except Exception as error:  # whatever it is, the run is finished and its export is there
        say(f"warning: {folder} was not uploaded ({first_line(error)[:300]}); later: {command(name, folder)}")
        return False
    say(f"uploaded {folder} to {re.sub(r'/commit/.*', '', str(done.commit_url))}")
    return True
