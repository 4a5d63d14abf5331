"""What samplers know of each sample: read once, and never through the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mmengine.registry import FUNCTIONS

# A key of the data info, or what makes the value of it.
Source = str | Callable[[dict], Any] | Mapping[str, Any]


def read_columns(dataset: Any, sources: Mapping[str, Source]) -> dict[str, list[Any]]:
    """One value a sample for each source.

    A data set that has them at hand may offer `get_data_column(key)`, which gives the values of
    all samples in order, or None; otherwise `get_data_info(index)` is read, once a sample.

    Args:
        dataset: The data set.
        sources: By the config's key: a key of the data info, a callable that takes the data
            info, or a dict with the `type` of one in `FUNCTIONS` and its further arguments.
    """
    columns: dict[str, list[Any]] = {}
    readers: dict[str, Callable[[dict], Any]] = {}
    for argument, source in sources.items():
        column = _column_at_hand(dataset, argument, source)
        if column is not None:
            columns[argument] = column
        else:
            readers[argument] = _reader(argument, source)
    if not readers:
        return columns
    get_data_info = getattr(dataset, 'get_data_info', None)
    if get_data_info is None:
        raise TypeError(
            f'{", ".join(readers)} cannot be read: {type(dataset).__name__} has neither '
            'get_data_info(index), as data sets of mmengine do, nor get_data_column(key); '
            'give it one of them'
        )
    columns.update({argument: [] for argument in readers})
    for index in range(len(dataset)):
        info = get_data_info(index)
        for argument, read in readers.items():
            columns[argument].append(read(info))
    return columns


def _column_at_hand(dataset: Any, argument: str, source: Source) -> list[Any] | None:
    get_data_column = getattr(dataset, 'get_data_column', None)
    if get_data_column is None or not isinstance(source, str):
        return None
    found = get_data_column(source)
    if found is None:
        return None
    # Numbers of numpy become Python's.
    column = found.tolist() if hasattr(found, 'tolist') else list(found)
    if len(column) != len(dataset):
        raise ValueError(
            f'{argument}: {type(dataset).__name__}.get_data_column({source!r}) gave '
            f'{len(column)} values for {len(dataset)} samples'
        )
    return column


def _reader(argument: str, source: Source) -> Callable[[dict], Any]:
    if isinstance(source, str):
        return partial(_value, argument, source)
    if isinstance(source, Mapping):
        options = dict(source)
        name = options.pop('type', None)
        function = FUNCTIONS.get(name) if isinstance(name, str) else name
        if not callable(function):
            raise ValueError(
                f'{argument}: type={name!r} is not registered in FUNCTIONS; register it with '
                '@FUNCTIONS.register_module(), in a module that custom_imports names'
            )
        return partial(function, **options)
    if callable(source):
        return source
    raise TypeError(
        f'{argument} must be a key of the data info, a callable that takes the data info, or '
        f'dict(type=...) of one in FUNCTIONS, found {source!r}'
    )


def _value(argument: str, key: str, info: dict) -> Any:
    if key not in info:
        raise ValueError(
            f'{argument}={key!r}: sample {info.get("sample_idx", "?")} has no {key!r}; '
            f'its data info has: {", ".join(sorted(map(str, info)))}'
        )
    return info[key]
