"""Every kernel, to compile them beforehand."""

from hdnn.kernels import output_layer, svd
from hdnn.kernels.epoch import epoch_kernel
from hdnn.kernels.jacobians import jacobians_kernel
from hdnn.kernels.joint import joint_kernel
from hdnn.kernels.passes import backward_kernel, forward_kernel
from hdnn.kernels.predict import predict_kernel

KERNELS = (
    forward_kernel,
    backward_kernel,
    epoch_kernel,
    joint_kernel,
    jacobians_kernel,
    predict_kernel,
)
DTYPES = "float32", "float64"


def compile_all() -> None:
    """Compile what is not in the cache yet: a minute or two."""
    for dtype in DTYPES:
        for kernel in KERNELS:
            kernel(dtype)
    for name in output_layer.SOLVERS:
        output_layer.kernel(name)
    svd.kernel()
