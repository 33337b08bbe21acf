"""The service's end of a scorer's process."""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from sanarl.rewards.server import worker as child

WORKER = Path(child.__file__)
Message = dict[str, Any]


class NotLoaded(Exception):
    """A scorer's process did not become ready; the text says why."""

    def __init__(self, text: str, mendable: bool = False):
        super().__init__(text)
        self.mendable = mendable


class Process:
    """A running worker. Made by ``start``."""

    def __init__(self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._process, self._reader, self._writer = process, reader, writer
        self.notes: list[str] = []

    @classmethod
    async def start(cls, python: str, spec: Message, patience_s: float) -> "Process":
        """Start one and wait until its scorer is loaded.

        Args:
            python: Interpreter; "python" is this one.
            spec: What to load.
            patience_s: Seconds for that.

        Raises:
            NotLoaded: When it ends or is late.
        """
        executable = sys.executable if python in ("", "python") else python
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                executable,
                str(WORKER),
                str(theirs.fileno()),
                json.dumps(spec),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # what a scorer prints is for people
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # Ctrl-C is the service's to handle
                env={name: value for name, value in os.environ.items() if name != "REMOTE_REWARD_TOKEN"},
            )
        except OSError as error:
            ours.close()
            raise NotLoaded(f"venv_python {python!r} cannot be run: {error.strerror}", mendable=True) from error
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        made = cls(process, reader, writer)
        try:
            async with asyncio.timeout(patience_s):
                message = await made.receive()
        except TimeoutError as error:
            await made.end()
            raise NotLoaded(f"it was not loaded within {patience_s:g} s") from error
        except BaseException:
            await made.end()
            raise
        if message is None or message["kind"] != "ready":
            how = await made.end()
            if message is None:
                raise NotLoaded(f"its process {how} while it was loaded")
            raise NotLoaded(message["error"], message["mendable"])
        made.notes = message["notes"]
        return made

    async def send(self, message: Message) -> None:
        """Send; a process that is gone shows in ``receive``."""
        body = json.dumps(message).encode()
        try:
            self._writer.write(len(body).to_bytes(4, "big") + body)
            await self._writer.drain()
        except OSError:
            return

    async def receive(self) -> Message | None:
        """The next message; None when the process is gone."""
        try:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return json.loads(await self._reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError):
            return None

    async def end(self) -> str:
        """Kill it if it still runs; how it ended, in words."""
        self._writer.close()
        if self._process.returncode is None:
            try:
                async with asyncio.timeout(0.5):  # one that is ending by itself tells more
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
        code = await self._process.wait()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    def kill(self) -> None:
        """End it at once."""
        if self._process.returncode is None:
            self._process.kill()
