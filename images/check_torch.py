"""Proves that the torch of an image computes: exits 0, or says what is wrong. A step of the build.

It knows nothing of Sluice. Each check compares with a result that does not come from the same
kernel, and the last ones ask for a device that is not there: the answer is an error, no abort.
"""

import math
import sys
import time
from collections.abc import Callable

_STARTED = time.perf_counter()
import torch  # noqa: E402  (the import is what is timed)

IMPORT_SECONDS = time.perf_counter() - _STARTED


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    worst = (actual.double() - expected.double()).abs().max().item()
    if not worst <= tolerance:
        raise AssertionError(f"off by {worst}, allowed {tolerance}")


def matmul(dtype: torch.dtype, tolerance: float) -> None:
    a, b = torch.randn(64, 96).to(dtype), torch.randn(96, 32).to(dtype)
    products = a.double()[:, :, None] * b.double()[None, :, :]  # [64, 96, 32]
    close(a @ b, products.sum(1), tolerance)


def attention() -> None:
    q, k, v = torch.randn(3, 2, 4, 17, 16)  # [batch, head, token, dim] each
    weights = (q @ k.transpose(-1, -2) / math.sqrt(16)).tril(0)
    weights = weights.masked_fill(torch.ones(17, 17).triu(1).bool(), -math.inf).softmax(-1)
    attend = torch.nn.functional.scaled_dot_product_attention
    close(attend(q, k, v, is_causal=True), weights @ v, 1e-5)


def decomposition() -> None:
    a = torch.randn(20, 12)
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    close(u @ torch.diag(s) @ vh, a, 1e-4)


def gradient() -> None:
    x = torch.randn(31, requires_grad=True)
    (gradient,) = torch.autograd.grad((x.sin() * x).sum(), x)
    close(gradient, (x.cos() * x + x.sin()).detach(), 1e-6)


def sampling() -> None:
    torch.manual_seed(1)
    first = torch.randn(8).softmax(0).multinomial(4)
    torch.manual_seed(1)
    close(torch.randn(8).softmax(0).multinomial(4), first, 0.0)


def profiling() -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        torch.ones(4).exp()
    assert any(event.key == "aten::exp" for event in profile.key_averages())


def no_device() -> None:
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0
    assert torch.accelerator.current_accelerator(check_available=True) is None


def a_device_is_refused() -> None:
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError):
        return
    raise AssertionError("a tensor was made on a CUDA device")


CHECKS: tuple[tuple[str, Callable[[], None]], ...] = (
    ("float32 matmul", lambda: matmul(torch.float32, 1e-4)),
    ("bfloat16 matmul", lambda: matmul(torch.bfloat16, 0.25)),
    ("attention", attention),
    ("decomposition", decomposition),
    ("gradient", gradient),
    ("sampling", sampling),
    ("profiling", profiling),
    ("no device", no_device),
    ("a device is refused", a_device_is_refused),
)


def main() -> int:
    torch.manual_seed(0)
    for name, check in CHECKS:
        try:
            check()
        except Exception as error:
            print(f"check_torch: {name}: {error!r}", file=sys.stderr)
            return 1
    print(f"check_torch: torch {torch.__version__}: {len(CHECKS)} checks passed, ", end="")
    print(f"imported in {IMPORT_SECONDS:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
