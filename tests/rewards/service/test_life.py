"""How a service starts, ends, and lives with a Redis that it shares; some take a service of their own."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest


def failed(service, seconds=60):
    """The exit code of a service that cannot start, and what it said."""
    return service.process.wait(seconds), service.lines


def test_a_taken_port_is_an_error_and_no_other_is_tried(make_service):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = failed(make_service(port=port, ready=False))
    assert code == 2
    assert said == f"cannot listen on 127.0.0.1 port {port}: Address already in use\n"


@pytest.mark.slow
def test_scorers_that_cannot_be_loaded_are_named_before_anything_is_served(make_service):
    one = make_service(("Heavy", "moody"), ready=False)
    text = one.file.read_text().replace('Heavy"', 'Heavy"\nmodel_path = "missing"')
    one.process.kill()
    one.process.wait()
    more = "\n[[reward_args]]\nreward_type = 'nothing'\n[[reward_args]]\nreward_type = 'shapes'\n"
    one.file.write_text(f"{text.replace('moody', 'modoy')}{more}arguments = {{ colours = 3 }}\n")
    one.start()
    code, said = failed(one)
    assert code == 2
    assert "reward 'Heavy' could not be loaded: " in said
    assert "no weights in missing" in said
    assert "reward 'modoy' could not be loaded: " in said
    assert "did you mean 'moody'?" in said
    assert "reward 'nothing' could not be loaded: reward 'nothing' is not known" in said
    assert "reward 'shapes' could not be loaded: " in said
    assert "colours" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_another_interpreter(make_service, make_request, tmp_path):
    # An interpreter without sanarl: this one, isolated from its working directory and without the editable install.
    site = next(p for p in sys.path if p.endswith("site-packages"))
    python = tmp_path / "python"
    hide = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]"
    start = f"import sys; sys.path.append({site!r}); {hide}; import runpy; del sys.argv[0]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S -c "{start}" "$@"\n')
    python.chmod(0o755)
    gone = subprocess.run([str(python), str(Path(__file__).parent / "probe.py")], capture_output=True, text=True)
    assert gone.stdout == "no sanarl\n", gone.stderr
    one = make_service(ready=False)
    one.process.kill()
    one.process.wait()
    text = one.file.read_text()
    one.file.write_text(text.replace('device = "cpu"', f'device = "cpu"\nvenv_python = "{python}"'))
    one.start()
    one.ready()
    assert one.result(make_request("ab"))["scores"]
    code = one.stop()
    assert code == 0
    one.file.write_text(text.replace('device = "cpu"', 'venv_python = "/nowhere/python"'))
    one.start()
    code, said = failed(one)
    assert code == 2
    assert "venv_python '/nowhere/python' cannot be run: No such file or directory" in said


@pytest.mark.slow
def test_sigterm_under_load_finishes_what_was_accepted(make_service, make_request):
    one = make_service()
    taken = [one.post("enqueue", make_request([f"slow {0.3}", f"{i}"]))[1]["uuid"] for i in range(4)]
    found, codes = {}, []
    ending = threading.Thread(target=lambda: codes.append(one.stop()))
    ending.start()
    one.said("ending: ")
    status, answer, headers = one.post("enqueue", make_request("ab"))
    assert (status, headers["retry-after"]) == (503, "5")
    assert "ending" in answer["message"]
    assert one.get("/healthz")[0] == 503
    for uuid in taken:  # results live in memory here, so it stays until they are pulled
        found[uuid] = one.pulled(uuid)
    ending.join()
    assert codes == [0]
    assert all(one["scores"] for one in found.values())
    assert not list(Path("/dev/shm").glob(f"sanarl-reward-*{one.port}*"))


@pytest.mark.slow
def test_a_second_signal_and_the_time_limit_end_it_at_once(make_service, make_request):
    one = make_service(score_s=100.0)
    one.post("enqueue", make_request(["hang", "b"]))
    children = subprocess.run(["pgrep", "-P", str(one.process.pid)], capture_output=True, text=True, check=True).stdout
    one.process.send_signal(signal.SIGTERM)
    one.said("ending: ")
    started = time.monotonic()
    assert one.stop() == 1
    assert time.monotonic() - started < 4  # drain_s is 5
    assert "1 requests not finished" in one.log.read_text()
    for pid in children.split():
        end = time.monotonic() + 5
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < end, "the scorer's process outlives its service"
            time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_service_takes_its_scorers_along(make_service, make_request):
    one = make_service()
    one.post("enqueue", make_request(["hang", "b"]))
    time.sleep(0.2)
    children = subprocess.run(["pgrep", "-P", str(one.process.pid)], capture_output=True, text=True, check=True).stdout
    assert one.stop(signal.SIGKILL) == -signal.SIGKILL
    for pid in children.split():
        end = time.monotonic() + 5
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.slow
def test_any_replica_answers_for_any_other(make_service, make_request, redis_server):
    first, second = (make_service(head=redis_server.head, lease_s=1.5, ready=False) for _ in range(2))
    first.ready()
    second.ready()
    _, answer, _ = first.post("enqueue", make_request(["slow 0.5", "b"], reward_fn={"moody": 1, "other": 0}))
    status, message, _ = second.post("pull", uuid=answer["uuid"], type="moody")
    assert (status, message["state"]) == (400, "pending")
    theirs = second.pulled(answer["uuid"])
    assert theirs["scores"]
    assert first.pulled(answer["uuid"]) == theirs
    assert second.pulled(answer["uuid"], "other")["scores"] == {"other": [0.0, 0.0]}
    assert second.pulled(answer["uuid"], "never")["error"]
    # One that dies takes its requests along; the other says so once the lease is over, and keeps what was scored.
    _, lost, _ = first.post("enqueue", make_request(["slow 60", "b"]))
    first.stop(signal.SIGKILL)
    assert second.post("pull", uuid=lost["uuid"], type="moody")[1]["state"] == "pending"
    end = time.monotonic() + 5
    while second.post("pull", uuid=lost["uuid"], type="moody")[1]["state"] != "unknown":
        assert time.monotonic() < end
        time.sleep(0.1)
    assert second.pulled(answer["uuid"]) == theirs
    # Results outlive the service.
    _, last, _ = second.post("enqueue", make_request("ab"))
    assert second.stop() == 0
    second.port = 0
    second.start()
    second.ready()
    assert second.pulled(last["uuid"])["scores"]


@pytest.mark.slow
def test_a_redis_that_dies(make_service, make_request, tmp_path_factory, redis_server):
    own = type(redis_server)(tmp_path_factory.mktemp("redis-of-its-own"))
    one = make_service(head=own.head)
    kept = one.post("enqueue", make_request(["slow 1", "b"]))[1]["uuid"]
    own.kill()
    started = time.monotonic()
    status, answer, headers = one.post("enqueue", make_request("ab"))
    assert (status, headers["retry-after"]) == (503, "5")
    assert f"Redis at 127.0.0.1:{own.port} does not answer" in answer["message"]
    status, answer, _ = one.post("pull", uuid=kept, type="moody")
    assert status == 500
    assert time.monotonic() - started < 10
    status, answer, _ = one.get("/healthz")
    assert status == 503
    assert "does not answer" in answer["store"]
    time.sleep(1)
    own.start()  # it has forgotten everything
    one.say_healthy()
    assert one.result(make_request("ab"))["scores"]
    assert one.post("pull", uuid=kept, type="moody")[1]["state"] == "unknown"
    own.kill()
    assert one.stop() in (0, 1)
    one.port = 0
    one.start()
    code, said = failed(one)
    assert code == 2
    assert "start it, or leave redis_host out to keep results in memory" in said


@pytest.fixture(scope="module")
def vae_folder(tmp_path_factory):
    """A tiny VAE with Wan 2.1's shapes: 16 channels, one frame or 4k + 1, 8 pixels to a latent."""
    import torch
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    vae = AutoencoderKLWan(base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1)
    folder = tmp_path_factory.mktemp("vae")
    vae.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_latents_are_decoded(make_request, vae_folder, latent_service, kind):
    import torch
    from diffusers import AutoencoderKLWan

    latents = torch.randn(2, 16, 2, 4, 4, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    sent = latents.to(torch.float16).numpy() if kind == "float16" else latents.view(torch.uint8).numpy()
    answer = latent_service.result(make_request("ab", np.ascontiguousarray(sent), media_type="latent"))
    # Reference: diffusers' own decoding, cut off to bytes.
    vae = AutoencoderKLWan.from_pretrained(vae_folder)
    shape = (1, -1, 1, 1, 1)
    raw = latents.float() * torch.tensor(vae.config.latents_std).view(shape)
    raw += torch.tensor(vae.config.latents_mean).view(shape)
    with torch.no_grad():
        clips = vae.decode(raw).sample
    pixels = ((clips.clamp(-1, 1) + 1) / 2 * 255).to(torch.uint8)
    assert pixels.shape == (2, 3, 5, 32, 32)
    assert answer["scores"]["moody"] == pytest.approx((pixels[:, 0].double().mean((1, 2, 3)) / 255).tolist(), abs=2e-3)
    assert answer["input_info"]["shape"] == [2, 3, 5, 32, 32]
    assert float(answer["decoded_duration"]) >= 0
    broken = np.full((2, 16, 2, 4, 4), np.nan, np.float16)
    answer = latent_service.result(make_request("ab", broken, media_type="latent"))
    assert answer["error"] == "the latents decode to NaN or infinity"


@pytest.fixture(scope="module")
def latent_service(make_service, vae_folder):
    return make_service(decode=f'model_path = "{vae_folder}"\ndtype = "float32"\ndevice = "cpu"')


def test_the_token_is_not_in_the_scorers_environment(service):
    children = subprocess.run(
        ["pgrep", "-P", str(service.process.pid)], capture_output=True, text=True, check=True
    ).stdout
    for pid in children.split():
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        assert os.environ["PATH"].encode() in environment
        assert service.token.encode() not in environment
