"""Package metadata, and a build step that adds configs and tools to the wheel."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithMim(build_py):
    """Build step that copies configs, tools and the model index to `mmtempo/.mim` for mim."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # mim finds those of a checkout at its top level
            return
        mim = Path(self.build_lib) / 'mmtempo' / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        ignore = shutil.ignore_patterns('__pycache__')
        for name in ('configs', 'tools'):
            shutil.copytree(ROOT / name, mim / name, ignore=ignore)
        shutil.copy(ROOT / 'model-index.yml', mim)


def requirements(name: str) -> list:
    """Return the lines of a requirements file, without comments."""
    lines = (ROOT / 'requirements' / name).read_text(encoding='utf-8').splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith('#')]


version = re.search(r"'(.+?)'", (ROOT / 'plugin/mmtempo/version.py').read_text()).group(1)

setup(
    name='mmtempo',
    version=version,
    description='Fast and smooth BEV and segmentation training on MMEngine',
    long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    package_dir={'': 'plugin'},
    packages=find_packages('plugin'),
    package_data={'mmtempo.report.html': ['*.css', '*.js']},
    python_requires='>=3.10',
    install_requires=requirements('runtime.txt'),
    extras_require={
        'onedl': requirements('mminstall.txt'),
        'nvml': requirements('nvml.txt'),
        'png': requirements('png.txt'),
        'report': requirements('report.txt'),
        'tests': requirements('tests.txt'),
    },
    cmdclass={'build_py': BuildWithMim},
    zip_safe=False,
)
