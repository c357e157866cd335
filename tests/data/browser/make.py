#!/usr/bin/env python3
"""Makes picture.png and video.webm of this directory; needs vpxenc (Debian's vpx-tools).

The video has four seconds, red, green, blue and white, so that a frame tells which second it is
of. Its index (Cues) stands at the end, behind a Void element of PAD bytes that are left out of
the file: tests/serve_http_browser.rs puts them back. A player that seeks has to fetch the end of
a large file, by a range, while the repository holds 2 KB.
"""

import struct
import subprocess
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).parent
WIDTH, HEIGHT, FRAMES_PER_S = 160, 120, 10
# Y, Cb, Cr of red, green, blue and white.
COLOURS = [(81, 90, 240), (145, 54, 34), (41, 240, 110), (235, 128, 128)]
PAD = 24 << 20
SEGMENT, SEEK_HEAD, SEEK, SEEK_ID, SEEK_POSITION = 0x18538067, 0x114D9B74, 0x4DBB, 0x53AB, 0x53AC
INFO, TRACKS, CUES, VOID = 0x1549A966, 0x1654AE6B, 0x1C53BB6B, 0xEC


def frames():
    """YUV4MPEG: a second of each colour, and a dark mark that moves."""
    yield b"YUV4MPEG2 W%d H%d F%d:1 Ip A1:1 C420jpeg\n" % (WIDTH, HEIGHT, FRAMES_PER_S)
    for number in range(len(COLOURS) * FRAMES_PER_S):
        y, cb, cr = COLOURS[number // FRAMES_PER_S]
        luma = bytearray([y]) * (WIDTH * HEIGHT)
        left = number % FRAMES_PER_S * WIDTH // FRAMES_PER_S
        for row in range(HEIGHT - 16, HEIGHT - 4):
            luma[row * WIDTH + left:row * WIDTH + left + 8] = bytes([16]) * 8
        quarter = WIDTH * HEIGHT // 4
        yield b"FRAME\n" + bytes(luma) + bytes([cb]) * quarter + bytes([cr]) * quarter


def encoded():
    with tempfile.TemporaryDirectory() as directory:
        raw, webm = Path(directory, "raw.y4m"), Path(directory, "video.webm")
        raw.write_bytes(b"".join(frames()))
        command = ["vpxenc", "--quiet", "--codec=vp8", "--kf-max-dist=10", "--end-usage=q",
                   "--cq-level=20", "--target-bitrate=40", "--good", "-o", webm, raw]
        subprocess.run(command, check=True)
        return webm.read_bytes()


def element(identity, content, size_bytes=1):
    """An element of EBML, with the bytes of its size as many as given."""
    bare = identity.to_bytes((identity.bit_length() + 7) // 8, "big")
    size = len(content) if isinstance(content, bytes) else content
    marked = (size | 1 << 7 * size_bytes).to_bytes(size_bytes, "big")
    return bare + marked + (content if isinstance(content, bytes) else b"")


def children(data):
    """Identity and whole bytes of each element in `data`."""
    at = 0
    while at < len(data):
        start = at
        length = 9 - data[at].bit_length()
        identity = int.from_bytes(data[at:at + length], "big")
        at += length
        length = 9 - data[at].bit_length()
        size = int.from_bytes(data[at:at + length], "big") & (1 << 7 * length) - 1
        at += length + size
        yield identity, data[start:at]


def seek(identity, position):
    target = element(SEEK_ID, identity.to_bytes(4, "big"))
    return element(SEEK, target + element(SEEK_POSITION, position.to_bytes(8, "big")))


def padded(webm):
    """The video with PAD bytes before its index, without those bytes."""
    (_, head), (_, segment) = children(webm)
    parts = list(children(segment[12:]))
    cues = next(part for identity, part in parts if identity == CUES)
    # SeekHead and the room behind it; what follows keeps its place.
    room = sum(len(part) for identity, part in parts if identity in (SEEK_HEAD, VOID))
    rest = b"".join(part for identity, part in parts if identity not in (SEEK_HEAD, VOID, CUES))
    void = element(VOID, PAD, 8)
    info = segment[12:].index(INFO.to_bytes(4, "big"))
    tracks = segment[12:].index(TRACKS.to_bytes(4, "big"))
    cues_at = room + len(rest) + len(void) + PAD
    seeks = element(SEEK_HEAD, seek(INFO, info) + seek(TRACKS, tracks) + seek(CUES, cues_at))
    seeks += element(VOID, bytes(room - len(seeks) - 2))
    return head + element(SEGMENT, cues_at + len(cues), 8) + seeks + rest + void + cues, len(cues)


def picture():
    """48 x 32 pixels that shade from one colour to another."""
    rows = [b"\0" + bytes(v for x in range(48) for v in (x * 5, y * 7, 128)) for y in range(32)]

    def chunk(kind, content):
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", 48, 32, 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(rows), 9)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", data), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


video, cues_bytes = padded(encoded())
HERE.joinpath("video.webm").write_bytes(video)
HERE.joinpath("picture.png").write_bytes(picture())
print(f"video.webm: {len(video)} bytes and {PAD} to be put before the last {cues_bytes}")
