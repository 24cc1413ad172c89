"""Every kernel by its name, to compile them beforehand."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from hdnn.kernels import (
    background,
    build,
    epoch,
    jacobians,
    joint,
    output_layer,
    passes,
    predict,
    predict_images,
    products,
    rows,
    svd,
)
from hdnn.kernels.cache import is_kept

DTYPES = "float32", "float64"


class Entry(NamedTuple):
    """A kernel, or a part that kernels have in common.

    Attributes:
        function: what is compiled; of a part, numba's dispatcher.
        types: of its arguments, given that of the numbers.
        kernel: the kernel for a dtype; None for a part.
    """

    function: Any
    types: Callable[[types.Float], tuple[types.Type, ...]]
    kernel: Callable[[str], build.Kernel] | None = None


KERNELS = {
    "forward": Entry(passes.forward, passes.forward_types, passes.forward_kernel),
    "backward": Entry(passes.backward, passes.backward_types, passes.backward_kernel),
    "epoch": Entry(epoch.epoch, epoch.epoch_types, epoch.epoch_kernel),
    "joint_steps": Entry(joint.joint_steps, joint.joint_types, joint.joint_kernel),
    "jacobians": Entry(jacobians.jacobians, jacobians.jacobians_types, jacobians.jacobians_kernel),
    "predict": Entry(predict.predict, predict.predict_types, predict.predict_kernel),
    "predict_images": Entry(
        predict_images.predict_images,
        predict_images.predict_images_types,
        predict_images.predict_images_kernel,
    ),
}
PARTS = {
    "product": Entry(products._product, products.product_types),
    "gram": Entry(products._gram, products.gram_types),
    "scatter_gradients": Entry(rows.scatter_gradients, rows.scatter_types),
    "advance": Entry(joint.advance, joint.advance_types),
}


def is_missing(name: str, dtype: str) -> bool:
    """Whether a kernel or a part is not in the cache yet."""
    entry = (KERNELS | PARTS)[name]
    arguments = entry.types(getattr(types, dtype))
    if entry.kernel is None:
        return not is_kept(entry.function.py_func, arguments)
    return not is_kept(entry.function, types.void(*arguments))


def compile_one(name: str, dtype: str) -> None:
    """Compile a kernel or a part, unless it is in the cache.

    Args:
        name: of `KERNELS` or `PARTS`.
        dtype: "float32" or "float64".
    """
    entry = (KERNELS | PARTS)[name]
    if entry.kernel is None:
        entry.function.compile(tuple(entry.types(getattr(types, dtype))))
    else:
        entry.kernel(dtype)


def compile_all() -> None:
    """Compile what is not in the cache yet: a minute or two, with two cores half of it."""
    background.begin(*KERNELS, dtype=DTYPES[0])
    for dtype in reversed(DTYPES):
        for name in KERNELS:
            compile_one(name, dtype)
    for name in output_layer.SOLVERS:
        output_layer.kernel(name)
    svd.kernel()
