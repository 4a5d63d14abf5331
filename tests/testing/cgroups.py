"""Files of control groups, as the kernel and Docker show them."""

from __future__ import annotations

V2_MOUNT = '30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate'
UNIFIED = '41 32 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw'
V1_CPU = '33 32 0:29 {} /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct'
V1_MEMORY = '36 32 0:32 {} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory'


def v2(group: str, **files: str) -> dict[str, str]:
    """Create a machine with cgroups of version 2."""
    return {
        'proc/self/cgroup': f'0::{group}',
        'proc/self/mountinfo': f'23 1 8:1 / / rw - ext4 /dev/sda1 rw\n{V2_MOUNT}',
        **{f'sys/fs/cgroup/{name}': text for name, text in files.items()},
    }


def v1(group: str, base: str, **files: str) -> dict[str, str]:
    """Create cgroups of version 1 as Docker mounts them: the container's group as the root."""
    return {
        'proc/self/cgroup': f'9:memory:{group}\n8:name=systemd:/\n4:cpu,cpuacct:{group}\n0::/',
        'proc/self/mountinfo': f'{V1_CPU.format(base)}\n{V1_MEMORY.format(base)}\n{UNIFIED}',
        **{f'sys/fs/cgroup/{name}': text for name, text in files.items()},
    }
