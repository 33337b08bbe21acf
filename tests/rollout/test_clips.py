import av
import numpy as np
import pytest
import torch

from sanarl.rollout.clips import write_mp4


@pytest.mark.parametrize(("fps", "size"), [(16, (32, 64)), (29.97, (33, 65))])
def test_a_clip_comes_back_as_it_was_written(tmp_path, fps, size):
    # Reference: the frames that were written; H.264 at crf 18 errs by a few grey levels on flat colours.
    levels = torch.linspace(0.1, 0.9, 9).view(9, 1, 1, 1).expand(9, 3, *size)
    path = tmp_path / "folder" / "clip.mp4"
    write_mp4(levels, path, fps)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert float(stream.average_rate) == pytest.approx(fps, abs=0.01)
        assert (stream.height, stream.width) == (32, 64)
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(frames) == 9
    found = np.array([f.mean() / 255 for f in frames])
    np.testing.assert_allclose(found, np.linspace(0.1, 0.9, 9), atol=0.02)
