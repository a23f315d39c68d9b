"""Frames out of mp4 files by time, and frames into them."""

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import av
import av.error
import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

PIXEL_FORMAT = "yuv420p"
MAX_DECODERS = 16
"""Files that one process keeps open."""


class Codec(NamedTuple):
    """An encoder of FFmpeg and its options."""

    name: str
    options: dict[str, str]


PLAYER_CODEC = Codec("libx264", {"crf": "20", "preset": "veryfast"})
"""What every browser plays."""


def dataset_codec() -> Codec:
    """What LeRobot records with, or H.264 where PyAV lacks it; a keyframe every second frame is cheap to seek."""
    if "libsvtav1" in av.codecs_available:
        return Codec("libsvtav1", {"g": "2", "crf": "30", "preset": "12"})
    return Codec("libx264", {"g": "2", "crf": "23", "preset": "veryfast"})


class VideoDecoder:
    """An open mp4 that is read by time. Reading forward inside a group of pictures decodes each frame once."""

    def __init__(self, path: Path) -> None:
        self.container = av.open(str(path))
        self.stream: VideoStream = self.container.streams.video[0]
        # Frame threads would decode ahead of what a single read asks for.
        self.stream.thread_type = "NONE"
        self.tick_s = float(self.stream.time_base or 1)
        self.half_frame = 0.5 / float(self.stream.average_rate or 1)
        self.frames = self.container.decode(self.stream)
        self.current: VideoFrame | None = None
        self.longest_run = 0.0
        """The longest stretch, in s, found so far between a keyframe and a frame that needed it."""

    def read(self, time_s: float) -> np.ndarray:
        """The frame shown at `time_s`, (h, w, 3) uint8. Raises EOFError when there is none, or PyAV's errors."""
        if not self._continues_to(time_s):
            self.container.seek(round(time_s / self.tick_s), stream=self.stream)
            self.frames = self.container.decode(self.stream)
            self.current = next(self.frames, None)
            self.longest_run = max(self.longest_run, time_s - self._time())
        while self.current is not None and self._time() < time_s - self.half_frame:
            self.current = next(self.frames, None)
        if self.current is None or self._time() > time_s + self.half_frame:
            raise EOFError("there is no such frame in it")
        return self.current.to_ndarray(format="rgb24")

    def close(self) -> None:
        """Close the file."""
        self.container.close()

    def _continues_to(self, time_s: float) -> bool:
        """Whether decoding on from the current frame is no more work than a seek would be."""
        ahead = time_s - self._time()
        return -self.half_frame <= ahead <= max(self.longest_run, 2 * self.half_frame) + self.half_frame

    def _time(self) -> float:
        if self.current is None or self.current.pts is None:
            return float("inf")
        return self.current.pts * self.tick_s


class DecoderCache:
    """At most `size` open files; the one unused for longest is closed first."""

    def __init__(self, size: int = MAX_DECODERS) -> None:
        self.size = size
        self.decoders: OrderedDict[Path, VideoDecoder] = OrderedDict()

    def read(self, path: Path, time_s: float) -> np.ndarray:
        """See `VideoDecoder.read`."""
        decoder = self.decoders.pop(path, None) or VideoDecoder(path)
        self.decoders[path] = decoder
        if len(self.decoders) > self.size:
            self.decoders.popitem(last=False)[1].close()
        return decoder.read(time_s)

    def close(self) -> None:
        """Close every file."""
        while self.decoders:
            self.decoders.popitem()[1].close()


class VideoEncoder:
    """An mp4 that grows by (h, w, 3) uint8 frames of one even size; a context manager that finishes the file."""

    def __init__(self, path: Path, fps: float, codec: Codec) -> None:
        # SVT-AV1 prints its settings to stderr unless told otherwise.
        os.environ.setdefault("SVT_LOG", "1")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.num_frames = 0
        self.num_bytes = 0
        self.container = av.open(str(path), "w", options={"movflags": "+faststart"})
        self.stream: Any = self.container.add_stream(
            codec.name, rate=Fraction(fps).limit_denominator(1001), options=codec.options
        )
        self.stream.pix_fmt = PIXEL_FORMAT

    def __enter__(self) -> "VideoEncoder":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:  # ffmpeg crashes where more is written after a write that failed
            self.container.close()

    def add(self, frames: Iterable[np.ndarray]) -> None:
        """Append frames."""
        for pixels in frames:
            if self.num_frames == 0:
                self.stream.height, self.stream.width = pixels.shape[:2]
            frame = VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
            with _same_priority():
                self._mux(self.stream.encode(frame))
            self.num_frames += 1

    def close(self) -> None:
        """Write what the encoder still holds, and the index of the file."""
        if self.num_frames:
            with _same_priority():
                self._mux(self.stream.encode(None))
        self.container.close()

    def _mux(self, packets: list[av.Packet]) -> None:
        self.num_bytes += sum(packet.size for packet in packets)
        self.container.mux(packets)


@contextmanager
def _same_priority() -> Iterator[None]:
    """Keep the thread an ordinary one: SVT-AV1 makes it a real-time one where it may (root, as in a container).

    Whatever the process started afterwards would be one too, and nothing else would get the processor beside it.
    """
    if not hasattr(os, "sched_getscheduler"):
        yield
        return
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != before[0]:
            os.sched_setscheduler(0, *before)


def write_video(path: Path, frames: Iterable[np.ndarray], fps: float, codec: Codec = PLAYER_CODEC) -> None:
    """Write (h, w, 3) uint8 frames as an mp4; an odd last row or column is cut, since yuv420p has none."""
    with VideoEncoder(path, fps, codec) as encoder:
        encoder.add(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2] for frame in frames)


def video_info(path: Path, fps: float, codec: Codec) -> dict[str, Any]:
    """What LeRobot's `info.json` says of a camera stored as video."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return {
            "video.height": stream.height,
            "video.width": stream.width,
            "video.codec": stream.codec.canonical_name,
            "video.pix_fmt": stream.pix_fmt,
            "video.fps": fps,
            "video.channels": 3,
            "has_audio": False,
            "is_depth_map": False,
            **{f"video.{name}": int(codec.options[name]) for name in ("g", "crf")},
        }
