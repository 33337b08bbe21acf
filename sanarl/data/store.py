"""Tensors on the disk under the hash of what they were computed from."""

import hashlib
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sanarl.errors import UserError


class Store:
    """Names a value by everything that it depends on, so that there is nothing to invalidate.

    Several processes may share a folder: files appear whole, and two that compute the same write the same.
    """

    def __init__(self, folder: Path):
        """Use ``folder``, which need not exist.

        Raises:
            UserError: If it cannot be written.
        """
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from error

    def get(self, key: str) -> dict[str, Tensor] | None:
        """The tensors of a key; None when there are none, or they are damaged."""
        try:
            return load_file(self._file(key))
        except (OSError, SafetensorError):
            return None

    def put(self, key: str, tensors: dict[str, Tensor]) -> None:
        """Keep tensors.

        Raises:
            UserError: If they cannot be written.
        """
        file = self._file(key)
        partial = file.with_name(f".{file.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial)
            os.replace(partial, file)
        except (OSError, SafetensorError) as error:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise UserError(f"data.cache: {file}: cannot be written: {error}") from error

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.safetensors"


def fingerprint(parts: Iterable[str | Tensor]) -> str:
    """SHA-256 of texts and tensors (dtype, shape and bytes) in their order."""
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            state.update(f"text {len(part)} ".encode() + part.encode(errors="surrogatepass"))
        else:
            state.update(f"tensor {part.dtype} {tuple(part.shape)} ".encode())
            plain = part.detach().cpu().contiguous().reshape(-1)
            state.update(plain.view(torch.uint8).numpy().data)
    return state.hexdigest()
