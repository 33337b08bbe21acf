import os
import signal
import subprocess
import sys
import textwrap

import pytest

from sanarl import files
from sanarl.files import complete_folder, remove_partial


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def write(folder, text):
    with complete_folder(folder) as partial:
        (partial / "below").mkdir()
        (partial / "below" / "a.txt").write_text(text)


def write_and_fail(folder, kind):
    with complete_folder(folder) as partial:
        (partial / "a.txt").write_text("new")
        raise kind


def text(folder):
    return (folder / "below" / "a.txt").read_text()


def test_a_folder_appears_at_the_end_only(tmp_path):
    with complete_folder(tmp_path / "deep" / "final") as partial:
        (partial / "a.txt").write_text("x")
        assert not (tmp_path / "deep" / "final").exists()
    assert names(tmp_path / "deep") == ["final"]


def test_an_older_one_is_replaced_whole(tmp_path):
    write(tmp_path / "final", "old")
    (tmp_path / "final" / "extra").write_text("of old")
    write(tmp_path / "final", "new")
    assert text(tmp_path / "final") == "new"
    assert names(tmp_path / "final") == ["below"]
    assert names(tmp_path) == ["final"]


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt, SystemExit, ValueError])
def test_any_error_while_writing_leaves_the_older_one(tmp_path, kind):
    write(tmp_path / "final", "old")
    with pytest.raises(kind):
        write_and_fail(tmp_path / "final", kind)
    assert text(tmp_path / "final") == "old"
    assert names(tmp_path) == ["final"]


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("older", [True, False])
def test_an_error_at_any_system_call_leaves_old_or_nothing(tmp_path, monkeypatch, call, older):
    # The operating system refuses the n-th flush or rename. Complete or absent, never in between.
    if older:
        write(tmp_path / "final", "old")
    left = [call]

    def refusing(function):
        def inner(*args):
            left[0] -= 1
            if left[0] == 0:
                raise OSError(28, "No space left on device")
            return function(*args)

        return inner

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", refusing(os.fsync))
        patch.setattr(files.os, "replace", refusing(os.replace))
        try:
            write(tmp_path / "final", "new")
            failed = False
        except OSError:
            failed = True
    remove_partial(tmp_path)
    assert failed or left[0] > 0
    if (tmp_path / "final").exists():
        assert text(tmp_path / "final") in (("old", "new") if older else ("new",))
        assert names(tmp_path) == ["final"]
    else:
        assert not older
        assert names(tmp_path) == []


KILLED = """
    import os, pathlib, signal, sys
    from sanarl import files
    left, function = int(sys.argv[1]), {"fsync": os.fsync, "replace": os.replace}
    def dying(name):
        def inner(*args):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function[name](*args)
        return inner
    os.fsync, os.replace = dying("fsync"), dying("replace")
    with files.complete_folder(pathlib.Path(sys.argv[2])) as partial:
        (partial / "below").mkdir()
        (partial / "below" / "a.txt").write_text("new")
"""


@pytest.mark.parametrize(("call", "expected"), [(1, "old"), (2, "old"), (3, "old"), (4, "new")])
def test_a_process_killed_at_any_system_call_leaves_old_or_new(tmp_path, call, expected):
    # In order: flush of the file, old aside, new in place (old comes back when killed in between), flush of
    # the parent.
    write(tmp_path / "final", "old")
    code = [sys.executable, "-c", textwrap.dedent(KILLED), str(call), str(tmp_path / "final")]
    assert subprocess.run(code, check=False).returncode == -signal.SIGKILL
    remove_partial(tmp_path)
    assert names(tmp_path) == ["final"]
    assert text(tmp_path / "final") == expected


def test_what_is_left_of_a_killed_run_is_removed(tmp_path):
    (tmp_path / ".partial-step_3").mkdir()
    (tmp_path / ".partial-step_3" / "state.pt").write_text("half")
    (tmp_path / ".partial-replaced-step_2").mkdir()
    write(tmp_path / "step_2", "whole")
    remove_partial(tmp_path)
    assert names(tmp_path) == ["step_2"]
    remove_partial(tmp_path / "nowhere")
