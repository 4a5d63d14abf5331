"""Errors of bad samples cross process boundaries unchanged."""

from __future__ import annotations

import pickle

import pytest

from mmtempo.datasets.images.errors import BadSampleError


def test_pickled_error_keeps_type_and_message() -> None:
    error = pickle.loads(pickle.dumps(BadSampleError('image a.png: truncated after 3 bytes')))
    with pytest.raises(BadSampleError, match=r'^image a\.png: truncated after 3 bytes$'):
        raise error
    assert isinstance(error, ValueError)
