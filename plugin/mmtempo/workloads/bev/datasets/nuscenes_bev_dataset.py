"""Data set of nuScenes BEV segmentation, with one camera image per sample."""

from __future__ import annotations

import json
import logging
import os
import os.path as osp
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.dataset import BaseDataset
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from mmtempo.datasets.images.errors import BadSampleError
from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample
from mmtempo.workloads.bev.structures.calibration import check_intrinsics
from mmtempo.workloads.bev.structures.labels import CLASSES, IGNORE_BIT, PALETTE

from .label_counter import BEVLabelCounter, groups_of
from .transforms.load_bev_annotation import LoadBEVAnnotation

IMAGE_SUFFIXES = ('.png', '.jpg', '.jpeg')


def _some(names: Sequence[str], most: int = 3) -> str:
    """Join the first names of a list, with the number of the others."""
    more = f', ... ({len(names) - most} more)' if len(names) > most else ''
    return ', '.join(sorted(names)[:most]) + more


def _label_problem(path: str, size: tuple[int, int]) -> str | None:
    """Return what is wrong with a label, or None; reads the 26 bytes of the PNG header only."""
    with open(path, 'rb') as file:
        header = file.read(26)
    if len(header) < 26 or header[:8] != b'\x89PNG\r\n\x1a\n':
        return 'not a PNG file'
    width, height, depth, color = struct.unpack('>IIBB', header[16:26])
    if (height, width) != size:
        return f'{height} rows x {width} columns instead of {size[0]} x {size[1]}'
    if (depth, color) != (16, 0):
        kind = 'gray' if color == 0 else f'color type {color}'
        return f'{depth}-bit {kind} instead of 16-bit gray'
    return None


@DATASETS.register_module()
class NuScenesBEVDataset(BaseDataset):
    """Camera images with packed BEV labels.

    Layout of the files, which is that of the BEV repositories::

        <data_root>/img_dir/<split>/<token>.{png,jpg}   camera image, any size
        <data_root>/ann_bev_dir/<split>/<token>.png     16-bit label, 196 x 200
        <data_root>/calib.json                          {token: 3x3 intrinsics}

    File names, calibrations and label headers are checked when the data set is built: one error
    lists all problems.

    Example::

        dataset=dict(
            type='NuScenesBEVDataset',
            data_root='data/nuscenes_bev',
            data_prefix=dict(img_path='img_dir/train', bev_path='ann_bev_dir/train'),
            pipeline=train_pipeline)

    Args:
        data_root: Root folder of the data.
        data_prefix: Folders of images and labels below the root.
            Defaults to dict(img_path='img_dir/train', bev_path='ann_bev_dir/train').
        calib_file: File of the calibrations, relative to the root. Defaults to 'calib.json'.
        label_size: Rows and columns of a label. Defaults to (196, 200).
        on_bad_sample: 'raise' raises an error for a file that cannot be read. 'skip' replaces
            the sample by the next readable one; in evaluation, all cells of the replacement are
            ignored. `bad_samples` returns the skipped samples. Defaults to 'raise'.
        **kwargs: As for mmengine's `BaseDataset`.
    """

    METAINFO = dict(classes=CLASSES, palette=PALETTE)
    HOW_TO_GENERATE = 'python tools/dataset_converters/make_synthetic_bev.py'

    def __init__(
        self,
        data_root: str = '',
        data_prefix: dict | None = None,
        calib_file: str = 'calib.json',
        label_size: Sequence[int] = (196, 200),
        on_bad_sample: str = 'raise',
        **kwargs: Any,
    ) -> None:
        if on_bad_sample not in ('raise', 'skip'):
            raise ValueError(f"on_bad_sample must be 'raise' or 'skip', found {on_bad_sample!r}")
        self.calib_file = calib_file
        self.label_size = (int(label_size[0]), int(label_size[1]))
        self.on_bad_sample = on_bad_sample
        if data_prefix is None:
            data_prefix = dict(img_path='img_dir/train', bev_path='ann_bev_dir/train')
        super().__init__(data_root=data_root, data_prefix=data_prefix, **kwargs)
        self._check_classes()

    def _check_classes(self) -> None:
        """Check that labels have the classes of `metainfo`, since a label has bits and no names."""
        for transform in self.pipeline.transforms:
            if isinstance(transform, LoadBEVAnnotation):
                loaded, named = len(transform.groups or CLASSES), self.metainfo['classes']
                if loaded != len(named):
                    raise ValueError(
                        f'LoadBEVAnnotation returns labels of {loaded} classes, but '
                        f'metainfo.classes names {len(named)}: {", ".join(named)}; make '
                        'LoadBEVAnnotation(groups=...) and metainfo=dict(classes=...) agree'
                    )

    def full_init(self) -> None:
        if self._fully_initialized:
            return
        super().full_init()
        self._share_flags()

    def _share_flags(self) -> None:
        """Allocate a flag per sample in shared memory: workers write, the main process reads."""
        self._bad = torch.zeros(len(self), dtype=torch.bool).share_memory_()

    def get_subset_(self, indices: Any) -> None:
        super().get_subset_(indices)
        self._share_flags()

    def get_subset(self, indices: Any) -> Any:
        subset = super().get_subset(indices)
        subset._share_flags()
        return subset

    def label_of(self, info: dict) -> tuple[str, BEVLabelCounter]:
        """Return label file and counter of a sample, for `ClassBalancedSampler`."""
        return info['bev_path'], BEVLabelCounter(groups_of(self.pipeline))

    def load_data_list(self) -> list[dict]:
        """Match images, labels and calibrations; raise one error that lists all problems."""
        root = self.data_root or '.'
        image_dir, label_dir = self.data_prefix['img_path'], self.data_prefix['bev_path']
        self._check_exists(root, 'data_root', osp.isdir, root)
        self._check_exists(image_dir, 'data_prefix.img_path', osp.isdir, root)
        self._check_exists(label_dir, 'data_prefix.bev_path', osp.isdir, root)
        images = self._find_images(image_dir)
        labels = self._by_token(label_dir, ('.png',))
        if not images and not labels:
            raise ValueError(
                f'split is empty: no {"/".join(IMAGE_SUFFIXES)} image in {image_dir} and no .png '
                f'label in {label_dir}; check data_prefix, or generate data with: '
                f'{self.HOW_TO_GENERATE}'
            )
        calibrations = self._read_calibrations(osp.join(root, self.calib_file))
        self._check_complete(images, labels, calibrations)
        return [
            dict(
                token=token,
                img_path=images[token],
                bev_path=labels[token],
                **self._cameras_of(calibrations[token]),
            )
            for token in sorted(images)
        ]

    def _find_images(self, folder: str) -> dict[str, Any]:
        """Return the value of `img_path` of each token."""
        return self._by_token(folder, IMAGE_SUFFIXES)

    def _cameras_of(self, calibration: Any) -> dict[str, Any]:
        """Return the entries of a data info that hold the calibration of its token."""
        return dict(intrinsics=calibration)

    def _check_calibration(self, calibration: Any, token: str) -> None:
        """Raise ValueError where the calibration of a token is invalid."""
        check_intrinsics(calibration, token)

    def _check_images(self, images: dict[str, Any], report: Callable) -> None:
        """Report problems of the images of a split; none for one camera."""

    def _check_exists(self, path: str, key: str, exists: Callable[[str], bool], root: str) -> None:
        if not exists(path):
            raise FileNotFoundError(
                f'{key}: {osp.abspath(path)} does not exist; generate data with: '
                f'{self.HOW_TO_GENERATE} {root}'
            )

    @staticmethod
    def _by_token(folder: str, suffixes: tuple[str, ...]) -> dict[str, str]:
        """Return the path of each file by its token."""
        found: dict[str, str] = {}
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                token, suffix = osp.splitext(entry.name)
                if suffix.lower() not in suffixes:
                    continue
                if token in found:
                    raise ValueError(
                        f'token {token} has two files: {found[token]} and {entry.path}; '
                        'remove one of them'
                    )
                found[token] = entry.path
        return found

    def _read_calibrations(self, path: str) -> dict[str, Any]:
        self._check_exists(path, 'calib_file', osp.isfile, self.data_root)
        try:
            with open(path, encoding='utf-8') as file:
                calibrations = json.load(file)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f'calib_file: {path} is not valid JSON: {error}') from None
        if not isinstance(calibrations, dict):
            raise ValueError(
                f'calib_file: {path} must contain a dict from token to calibration, '
                f'found a {type(calibrations).__name__}'
            )
        return calibrations

    def _check_complete(
        self, images: dict[str, Any], labels: dict[str, str], calibrations: dict[str, Any]
    ) -> None:
        """Raise one ValueError that lists all problems of images, labels and calibrations."""
        problems = []

        def report(names: Sequence[str], what: str) -> None:
            if names:
                problems.append(f'{len(names)} {what}: {_some(names)}')

        self._check_images(images, report)
        report([t for t in images if t not in labels], 'images without a label')
        report([t for t in labels if t not in images], 'labels without an image')
        missing = [t for t in images if t not in calibrations]
        report(missing, f'tokens missing in {self.calib_file}')
        wrong_labels = []
        for token, path in labels.items():
            problem = _label_problem(path, self.label_size)
            if problem is not None:
                wrong_labels.append(f'{token} ({problem})')
        report(wrong_labels, 'labels of the wrong form')
        wrong_calibrations = []
        for token in images:
            if token in calibrations:
                try:
                    self._check_calibration(calibrations[token], token)
                except ValueError as error:
                    wrong_calibrations.append(str(error))
        report(wrong_calibrations, f'wrong entries in {self.calib_file}')
        if problems:
            raise ValueError(
                f'{osp.abspath(self.data_prefix["img_path"])} ({len(images)} images, '
                f'{len(labels)} labels) cannot be used:\n  - ' + '\n  - '.join(problems)
            )

    def prepare_data(self, idx: int) -> Any:
        """Run the pipeline; with `on_bad_sample='skip'`, replace a sample that cannot be read."""
        if self.on_bad_sample == 'raise':
            return super().prepare_data(idx)
        for step in range(len(self)):
            candidate = (idx + step) % len(self)
            if self._bad[candidate]:
                continue
            try:
                sample = super().prepare_data(candidate)
            except BadSampleError as error:
                self._report_bad(candidate, error)
                continue
            if self.test_mode and step > 0:
                self._blank(sample['data_samples'], idx)
            return sample
        raise BadSampleError(
            f'all {len(self)} samples of {self.data_prefix["img_path"]} are bad; '
            "set on_bad_sample='raise' to see the first error"
        )

    def _blank(self, sample: BEVDataSample, index: int) -> None:
        """Ignore all cells of a replacement, so that metrics count each image at most once."""
        info = self.get_data_info(index)
        sample.set_metainfo(dict(token=info['token'], img_path=info['img_path'], skipped=True))
        if 'gt_bev' in sample:
            sample.gt_bev.fill_(1 << IGNORE_BIT)

    def _report_bad(self, index: int, error: BadSampleError) -> None:
        self._bad[index] = True
        print_log(f'sample is skipped: {error}', logger='current', level=logging.WARNING)

    def bad_samples(self) -> list[str]:
        """Return the names of the samples that any worker has skipped so far."""
        bad = np.flatnonzero(self._bad.numpy())
        return [self._sample_name(self.get_data_info(int(i))) for i in bad]

    def _sample_name(self, info: dict) -> str:
        """Return the name of a sample in the list of bad samples."""
        return info['img_path']
