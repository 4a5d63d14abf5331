"""Create a virtual environment with mmtempo and one of the two mm-stacks.

    python tools/misc/install_stack.py onedl .venv
    python tools/misc/install_stack.py openmmlab .venv-openmmlab

Uses the standard library only, since it runs before anything is installed. All versions come from
requirements/lock-STACK.txt.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Compiled during installation, against the torch that is installed first.
COMPILED = {'openmmlab': 'mmcv==2.1.0'}


def lock_lines(stack: str) -> list[str]:
    """Return the requirements of a lock file, without comments."""
    text = (ROOT / 'requirements' / f'lock-{stack}.txt').read_text(encoding='utf-8')
    return [line for line in text.splitlines() if line and not line.startswith('#')]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('stack', choices=['onedl', 'openmmlab'])
    parser.add_argument('venv', type=Path, help='folder of the environment; created if missing')
    args = parser.parse_args()
    if sys.version_info < (3, 10):  # noqa: UP036 - this script starts on whatever python3 is
        print(f'Python {sys.version.split()[0]}: 3.10 or newer is needed', file=sys.stderr)
        return 2

    python = args.venv / ('Scripts/python.exe' if os.name == 'nt' else 'bin/python')
    if not _has_pip(python):
        print(f'creating {args.venv} with Python {sys.version.split()[0]}', flush=True)
        try:
            venv.create(args.venv, with_pip=True, clear=True)
        except (subprocess.CalledProcessError, ImportError) as error:
            print(
                f'creating {args.venv} failed: {error}\nThis Python has no ensurepip; on Debian '
                'and Ubuntu: apt install python3-venv',
                file=sys.stderr,
            )
            return 1

    def pip(*arguments: str, **environment: str) -> None:
        command = [str(python), '-m', 'pip', 'install', '--disable-pip-version-check']
        subprocess.run(
            [*command, '--quiet', *arguments], check=True, env={**os.environ, **environment}
        )

    try:
        print(f'installing the {args.stack} stack at pinned versions', flush=True)
        compiled = COMPILED.get(args.stack)
        pip(*(line for line in lock_lines(args.stack) if line != compiled))
        if compiled is not None:
            print(f'compiling {compiled}; takes 6 to 12 minutes', flush=True)
            pip('--no-deps', '--no-build-isolation', compiled, MMCV_WITH_OPS='1')
        if subprocess.run([str(python), '-c', 'import cv2'], capture_output=True).returncode:
            # Its windows need libGL, which servers lack; mmtempo opens no window.
            print('opencv-python cannot be imported; installing opencv-python-headless', flush=True)
            pip('--no-deps', '--force-reinstall', _headless(args.stack))
        pip('--no-deps', '--no-build-isolation', '--editable', str(ROOT))
    except subprocess.CalledProcessError as error:
        print(f'installation failed: {" ".join(map(str, error.cmd))}', file=sys.stderr)
        return 1
    return 0


def _has_pip(python: Path) -> bool:
    """Return whether the environment exists and pip works in it."""
    command = [str(python), '-m', 'pip', '--version']
    return python.exists() and not subprocess.run(command, capture_output=True).returncode


def _headless(stack: str) -> str:
    """Return the requirement for OpenCV without windows, at the same version."""
    pinned = next(line for line in lock_lines(stack) if line.startswith('opencv-python=='))
    return pinned.replace('opencv-python', 'opencv-python-headless')


if __name__ == '__main__':
    sys.exit(main())
