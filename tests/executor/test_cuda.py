"""The same on NCCL, where a CUDA device is: world size is the number of devices. Skipped elsewhere."""

import pytest

torch = pytest.importorskip("torch")

if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
    pytest.skip("no CUDA device", allow_module_level=True)

import cuda_cases as cases  # noqa: E402


@pytest.mark.parametrize("case", [cases.round_trip, cases.gradients, cases.prefetch])
def test_on_nccl(case):
    torch.multiprocessing.spawn(cases.on_nccl, (torch.cuda.device_count(), cases.free_port(), case.__name__),
                                torch.cuda.device_count())  # fmt: skip
