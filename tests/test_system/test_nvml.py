"""Figures and identification of a GPU, with a fake NVML."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mmtempo.system.nvml import Nvml, throttle_reasons

UUIDS = ['GPU-aaaa-1', 'GPU-bbbb-2', 'GPU-bbcc-3']
FIGURES = {
    'utilisation': 0.87,
    'power': 251.5,
    'clock': 1905,
    'memory_used': 7 << 30,
    'throttle': ['power limit', 'temperature'],
}


class Error(Exception):
    pass


class Library:
    """A fake NVML with three GPUs; functions in `refuses` raise."""

    NVMLError = Error
    NVML_CLOCK_SM = 1

    def __init__(self, *refuses: str) -> None:
        self.begun = 0
        self.found: list[str] = []
        for name in refuses:
            setattr(self, name, self._refuse)

    def _refuse(self, *args: object) -> None:
        raise Error('Not Supported')

    def nvmlInit(self) -> None:
        self.begun += 1

    def nvmlShutdown(self) -> None:
        self.begun -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index >= len(UUIDS):
            raise Error('no such GPU')
        self.found.append(UUIDS[index])
        return UUIDS[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in [*UUIDS, 'MIG-dddd-4']:
            raise Error('not found')
        self.found.append(uuid)
        return uuid

    def nvmlDeviceGetHandleByPciBusId(self, bus: str) -> str:
        self.found.append(bus)
        return bus

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=87, memory=12)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 251500

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        assert which == self.NVML_CLOCK_SM
        return 1905

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=8 << 30, free=1 << 30, used=7 << 30)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return 0x24

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x80


def test_figures() -> None:
    library = Library()
    nvml = Nvml(0, library=library)
    assert nvml.read() == nvml.read() == FIGURES
    assert library.begun == 1  # initialized once
    nvml.close()
    nvml.close()
    assert library.begun == 0
    assert nvml.read() == {}


@pytest.mark.parametrize(
    ('refused', 'missing'),
    [
        ('nvmlDeviceGetUtilizationRates', 'utilisation'),
        ('nvmlDeviceGetPowerUsage', 'power'),
        ('nvmlDeviceGetClockInfo', 'clock'),
        ('nvmlDeviceGetMemoryInfo', 'memory_used'),
    ],
)
def test_missing_figures_are_left_out(refused: str, missing: str) -> None:
    expected = {name: value for name, value in FIGURES.items() if name != missing}
    assert Nvml(0, library=Library(refused)).read() == expected


def test_older_drivers_use_another_function() -> None:
    refused = ['nvmlDeviceGetCurrentClocksEventReasons']
    assert Nvml(0, library=Library(*refused)).read()['throttle'] == ['power brake']
    refused.append('nvmlDeviceGetCurrentClocksThrottleReasons')
    assert 'throttle' not in Nvml(0, library=Library(*refused)).read()


def test_throttle_reasons_have_names() -> None:
    assert throttle_reasons(0) == []
    assert throttle_reasons(0x1 | 0x2 | 0x10 | 0x100) == []  # idle, and clocks set by the user
    assert throttle_reasons(0x8 | 0x40) == ['hardware slowdown', 'temperature (hardware)']


def test_without_a_driver_nothing_is_read() -> None:
    nvml = Nvml(0, library=Library('nvmlInit', 'nvmlShutdown'))
    assert nvml.read() == {}
    nvml.close()


def test_without_the_library_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    nvml = Nvml(0)
    assert nvml.read() == {}
    nvml.close()


def test_the_real_library_has_these_names() -> None:
    pynvml = pytest.importorskip('pynvml')
    names = [name for name in dir(Library) if name.lower().startswith('nvml')]
    assert len(names) > 12
    assert [name for name in names if not hasattr(pynvml, name)] == []


@pytest.mark.parametrize(
    ('properties', 'found'),
    [
        (SimpleNamespace(uuid='bbbb-2', pci_bus_id=1), 'GPU-bbbb-2'),
        (SimpleNamespace(uuid='dddd-4'), 'MIG-dddd-4'),
        (
            SimpleNamespace(uuid='gone', pci_bus_id=0x41, pci_device_id=2, pci_domain_id=1),
            '00000001:41:02.0',
        ),
        (SimpleNamespace(pci_bus_id=0x41, pci_device_id=2), '00000000:41:02.0'),
    ],
)
def test_torch_properties_identify_the_gpu(
    properties: SimpleNamespace, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Independent of CUDA_VISIBLE_DEVICES."""
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0')
    vars(properties).setdefault('pci_device_id', 0)
    library = Library()
    assert Nvml(0, properties, library).read() == FIGURES
    assert library.found == [found]


@pytest.mark.parametrize(
    ('visible', 'index', 'found'),
    [
        (None, 1, 'GPU-bbbb-2'),
        ('2,0', 0, 'GPU-bbcc-3'),
        ('2, 0', 1, 'GPU-aaaa-1'),
        ('GPU-bbcc', 0, 'GPU-bbcc-3'),
        ('GPU-aaaa-1,GPU-bbbb-2', 1, 'GPU-bbbb-2'),
        ('MIG-dddd-4', 0, 'MIG-dddd-4'),
        ('2', 1, None),
        ('7', 0, None),
    ],
)
def test_the_environment_identifies_the_gpu(
    visible: str | None, index: int, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    else:
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)
    library = Library()
    nvml = Nvml(index, library=library)
    assert nvml.read() == ({} if found is None else FIGURES)
    assert library.found[-1:] == ([] if found is None else [found])
    assert library.begun == (found is not None)
    nvml.close()
    assert library.begun == 0
