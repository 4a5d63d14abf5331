"""mmtempo: fast and smooth BEV and segmentation training on MMEngine.

`import mmtempo` checks the installed stack, registers every class in MMEngine's
root registries and has mm-style checkpoint files loaded in torch's safe mode.
"""

from .dependencies import check_stack

check_stack()

# Imported for their registrations.
from . import datasets, evaluation, hooks, loaders, loops, models, optim, workloads  # noqa: E402, F401
from .checkpoint.loading import register_safe_loading  # noqa: E402
from .version import __version__  # noqa: E402

register_safe_loading()

__all__ = ['__version__']
