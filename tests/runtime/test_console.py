import re

from sanarl.runtime.console import Console


def test_lines_go_to_stderr_and_the_log(tmp_path, capsys):
    with Console(tmp_path / "log.txt") as console:
        console.line("one [not markup]")
        console.metrics(3, 10, {"loss": 0.123456, "grad_norm": 2.0, "other": 1.0, "time/step": 0.5})
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["one [not markup]", "step 3/10  loss 0.1235  grad_norm 2  0.50 s"]
    logged = (tmp_path / "log.txt").read_text(encoding="utf-8").splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line) for line in logged] == err.splitlines()


def test_without_a_terminal_there_is_no_bar(tmp_path, capsys):
    with Console(tmp_path / "log.txt") as console:
        console.progress(1, 10)
    assert capsys.readouterr() == ("", "")


def test_other_ranks_are_silent(tmp_path, capsys):
    with Console(None, quiet=True) as console:
        console.line("nothing")
        console.progress(1, 10)
    assert capsys.readouterr() == ("", "")
    with Console(tmp_path / "log.txt", quiet=True) as console:
        console.line("for the log only")
    assert capsys.readouterr() == ("", "")
    assert "for the log only" in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_quiet_and_verbose(tmp_path, capsys):
    metrics = {"loss": 0.25, "some/thing": 3.0}
    said = {}
    for voice in ("quiet", "normal", "verbose"):
        with Console(tmp_path / f"{voice}.txt", voice=voice) as console:
            console.line("a line")
            console.line("warning: look")
            console.metrics(1, 2, metrics)
        said[voice] = capsys.readouterr().err
        assert "a line" in (tmp_path / f"{voice}.txt").read_text()
    assert said["quiet"] == "warning: look\n"
    assert said["normal"] == "a line\nwarning: look\nstep 1/2  loss 0.25\n"
    assert said["verbose"] == "a line\nwarning: look\nstep 1/2  loss 0.25  some/thing 3\n"
