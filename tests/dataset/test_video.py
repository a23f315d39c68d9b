"""Frames come out of a video by time, whatever lies between its keyframes, and few files stay open."""

import os
from pathlib import Path

import av
import numpy as np
import pytest

from lerobot.data.video import Codec, DecoderCache, VideoDecoder, VideoEncoder, dataset_codec, write_video

FPS = 25
LONG_GROUPS = Codec("libx264", {"g": "40", "bf": "3", "crf": "12", "preset": "veryfast"})
SHORT_GROUPS = Codec("libx264", {"g": "2", "crf": "12", "preset": "veryfast"})


def numbers(count, size=(48, 64)):
    """Frames that carry their number in binary, as eight black or white bars."""
    bits = (np.arange(count)[:, None] >> np.arange(8)) & 1
    bars = np.repeat(bits, size[1] // 8, axis=1).astype(np.uint8) * 255
    bars = np.pad(bars, ((0, 0), (0, size[1] % 8)))
    return list(np.broadcast_to(bars[:, None, :, None], (count, *size, 3)))


def number(frame):
    bars = frame[:, : frame.shape[1] // 8 * 8].reshape(frame.shape[0], 8, -1).mean(axis=(0, 2)) > 128
    return int((bars << np.arange(8)).sum())


@pytest.fixture(scope="module", params=[LONG_GROUPS, SHORT_GROUPS], ids=["long groups with B frames", "short groups"])
def video(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / "numbers.mp4"
    write_video(path, numbers(100), FPS, request.param)
    return path


def test_any_order_gives_the_frame_at_that_time(video):
    order = [*np.random.default_rng(0).permutation(100).tolist(), 5, 5, 4, 99, 0, 1, 2, 3, 45, 44]
    decoder = VideoDecoder(video)
    assert [number(decoder.read(i / FPS)) for i in order] == order


def test_a_time_between_two_frames_gives_the_nearer(video):
    decoder = VideoDecoder(video)
    assert [number(decoder.read((i + shift) / FPS)) for i in (0, 50, 99) for shift in (-0.3, 0.3)] == [
        0,
        0,
        50,
        50,
        99,
        99,
    ]


def test_a_time_past_the_end_is_refused_and_the_decoder_lives_on(video):
    decoder = VideoDecoder(video)
    with pytest.raises(EOFError):
        decoder.read(101 / FPS)
    assert number(decoder.read(7 / FPS)) == 7


def test_reading_forward_decodes_each_frame_once(video, monkeypatch):
    decoder = VideoDecoder(video)
    decoder.read(0.0)
    monkeypatch.setattr(decoder, "container", None)  # nothing to seek in
    assert [number(decoder.read(i / FPS)) for i in range(100)] == list(range(100))


def open_files(folder):
    paths = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
    return {path for path in paths if path.startswith(str(folder))}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
def test_the_cache_keeps_no_more_files_open_than_it_may(tmp_path):
    """DATA-04."""
    paths = [tmp_path / f"{i}.mp4" for i in range(30)]
    for i, path in enumerate(paths):
        write_video(path, numbers(3 + i), FPS)
    cache = DecoderCache(size=4)
    for epoch in range(3):
        for i, path in enumerate(paths):
            assert number(cache.read(path, (2 + i) / FPS)) == 2 + i
            assert len(open_files(tmp_path)) <= 4, epoch
    assert open_files(tmp_path) == {str(path) for path in paths[-4:]}
    cache.close()
    assert not open_files(tmp_path)


def test_an_evaluation_video_is_one_that_every_browser_plays(tmp_path):
    write_video(tmp_path / "episode.mp4", numbers(10, size=(49, 65)), 12.5)
    with av.open(str(tmp_path / "episode.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec.canonical_name, stream.pix_fmt) == ("h264", "yuv420p")
        assert (stream.height, stream.width, stream.average_rate) == (48, 64, 12.5)
        assert [number(frame.to_ndarray(format="rgb24")) for frame in container.decode(stream)] == list(range(10))
    head = (tmp_path / "episode.mp4").read_bytes()
    assert head.index(b"moov") < head.index(b"mdat")  # it plays before it is loaded whole


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="the system has no such call")
def test_an_encoder_leaves_the_process_its_priority(tmp_path):
    """SVT-AV1 made it a real-time one for root: wandb's process, started later, took the whole machine."""
    before = os.sched_getscheduler(0)

    with VideoEncoder(tmp_path / "a.mp4", 10, dataset_codec()) as encoder:
        encoder.add(np.zeros((3, 96, 96, 3), np.uint8))
        assert os.sched_getscheduler(0) == before

    assert os.sched_getscheduler(0) == before


def test_a_video_that_the_disk_does_not_take_is_an_error_and_no_crash(tmp_path):
    """ffmpeg was told to write on after a write that failed, which ended the process with SIGSEGV."""
    (tmp_path / "a.mp4").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left"):
        write_video(tmp_path / "a.mp4", numbers(10), FPS)
