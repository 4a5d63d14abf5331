"""Files are read from any backend, and decoded as `mmcv.imfrombytes` does."""

from __future__ import annotations

from pathlib import Path

import mmcv
import numpy as np
import pytest

from mmtempo.datasets.images.decode import write_image
from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.datasets.images.read import FLAGS, decode_as_stock, get_content

IMAGE = np.arange(12 * 10 * 3, dtype=np.uint8).reshape(12, 10, 3)
BACKENDS = [
    (None, None),
    (dict(backend='local'), None),
    (None, dict(backend='disk')),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_image(str(tmp_path / 'a.png'), IMAGE)
    return tmp_path / 'a.png'


@pytest.mark.parametrize(('backend_args', 'client_args'), BACKENDS)
@pytest.mark.filterwarnings('ignore:.*FileClient.*')
def test_every_backend_returns_the_bytes(
    path: Path, backend_args: dict | None, client_args: dict | None
) -> None:
    assert get_content(str(path), backend_args, 'image', client_args) == path.read_bytes()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadSampleError, match=r'image .*a\.png: truncated after'):
        get_content(str(path), backend_args, 'image', client_args)


def test_urls_go_to_their_backend(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get(url: str, backend_args: dict | None) -> memoryview:
        asked.append((url, backend_args))
        return memoryview(path.read_bytes())

    monkeypatch.setattr('mmengine.fileio.get', get)
    assert get_content('https://server/a.png', None, 'image') == path.read_bytes()
    assert asked == [('https://server/a.png', None)]


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize('flag', list(FLAGS))
def test_decoded_images_equal_those_of_mmcv(path: Path, flag: str, backend: str) -> None:
    content = path.read_bytes()
    found = decode_as_stock(content, flag, backend, 'a.png', 'image')
    expected = mmcv.imfrombytes(content, flag=flag, backend=backend)
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize('content', [b'', b'no image'])
def test_other_files_are_bad_samples(content: bytes, backend: str) -> None:
    message = rf'image a\.png: not a readable image \({len(content)} bytes\)'
    with pytest.raises(BadSampleError, match=message):
        decode_as_stock(content, 'color', backend, 'a.png', 'image')
