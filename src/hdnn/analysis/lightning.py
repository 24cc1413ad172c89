"""A callback of Lightning that logs gradient norms by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hdnn.analysis.monitor import Monitor, monitor
from hdnn.errors import HdnnError

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        Callback = None


class GradientNorms(Callback or object):  # type: ignore[misc]
    """Logs norms of d h_N / d h_l of layers to the loggers of the Lightning trainer.

    Args:
        module: the name of the submodule that is watched, such as "net"; "" is the whole
            LightningModule, if its ``training_step`` calls itself.
        layers: its layers, as in `hdnn.analysis.watch`.
        every: training steps between measurements.
        **options: of `hdnn.analysis.monitor`.

    Raises:
        HdnnError: Lightning is not installed; on training, there are no such layers.
    """

    def __init__(
        self,
        module: str = "",
        layers: Sequence[str] | None = None,
        *,
        every: int = 100,
        **options: Any,
    ) -> None:
        if Callback is None:
            raise HdnnError("GradientNorms needs Lightning: pip install 'hdnn[lightning]'")
        self.module, self.layers, self.every, self.options = module, layers, every, options
        self.monitor: Monitor | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        try:
            module = pl_module.get_submodule(self.module)
        except AttributeError as error:
            raise HdnnError(f"{self.module[:100]!r} is no submodule: {error!s:.200}") from error

        def log(metrics: dict[str, float], _: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(metrics, trainer.global_step)

        self.monitor = monitor(module, self.layers, every=self.every, log=log, **self.options)
        self.monitor.__enter__()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Watch no more."""
        if self.monitor is not None:
            self.monitor.__exit__()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Watch no more."""
        self.on_train_end(trainer, pl_module)
